"""Run each published experiment in its shortest honest form, and name those that no longer work.

Run from the checkout: `.venv/bin/python -m bench.experiments [NAME...] [--foreign]`. Every row that an experiment needs
is measured once on a fresh machine, with small sizes: this shows that the experiment still runs from end to end, and
says nothing about its answers. `--foreign` adds sparc64, whose parts are made first if they have not been. Exits with 1
if a row that must work has no good trial.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_LIMIT_S = 1500
_SHOWN = 160


@dataclass(frozen=True)
class Experiment:
    """One command line of `guestmark run`, and the platforms that must have a good trial of each workload they take."""

    name: str
    words: tuple[str, ...]
    platforms: tuple[str, ...]
    foreign: bool = False


EXPERIMENTS = (
    Experiment("backends", ("backends", "--scale", "0.01"), ("uml", "tcg", "tcg/uml", "tcg/kvm")),
    Experiment("upload", ("upload", "--scale", "0.02"), ("uml", "tcg")),
    Experiment("netboot", ("netboot", "--scale", "0.02"), ("tcg",)),
    Experiment(
        "netboot inside KVM",
        (
            "netboot",
            "--scale",
            "0.02",
            "--set",
            "nic=virtio-net",
            "--set",
            "console=none",
            "--set",
            "protocol=http",
        ),
        ("tcg/kvm",),
    ),
    Experiment(
        "sysbench",
        ("sysbench", "--scale", "0.01", "--only", "workload=cpu,memory,threads,mutex,fileio"),
        ("host", "uml", "tcg"),
    ),
    Experiment("filesystems", ("filesystems", "--scale", "0.05"), ("host", "uml", "tcg")),
    Experiment(
        "filesystems on sparc64",
        ("filesystems", "--scale", "0.05", "--set", "filesystem=ext3,ext4"),
        ("host", "tcg@sparc64"),
        foreign=True,
    ),
)


@dataclass(frozen=True)
class Outcome:
    """Outcome of one experiment: its duration, good trials by platform, and failures."""

    seconds: float
    good: dict[str, int]
    problems: list[str]


def run_experiment(experiment: Experiment) -> Outcome:
    """Measure one block of every row into a temporary ledger."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="guestmark-test-", dir="/var/tmp") as folder:
        document = Path(folder, "document.json")
        command = [
            str(ROOT / "guestmark"), "run", *experiment.words, "--on", ",".join(experiment.platforms), "--blocks", "1",
            "--null", "none", "--quiet", "--json", str(document), "--ledger", str(Path(folder, "ledger.sqlite")),
        ]  # fmt: skip
        environment = {**os.environ, "GUESTMARK_PAGER": ""}
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=_LIMIT_S, check=False
            )
        except subprocess.TimeoutExpired:
            return Outcome(time.monotonic() - begin, {}, [f"no answer within {_LIMIT_S} s"])
        if not document.exists():
            last = (done.stderr or done.stdout).strip().splitlines()[-2:]
            return Outcome(time.monotonic() - begin, {}, [" ".join(last) or f"exit status {done.returncode}"])
        good, problems = judge_document(json.loads(document.read_text()), experiment.platforms)
    return Outcome(time.monotonic() - begin, good, problems)


def judge_document(
    document: dict[str, object], platforms: tuple[str, ...]
) -> tuple[dict[str, int], list[str]]:
    """Count good trials by platform; list each failed trial and each platform without a good one."""
    good = dict.fromkeys(platforms, 0)
    problems = []
    cells = document["cells"]
    assert isinstance(cells, list)
    for cell in cells:
        for trial in cell["trials"]:
            if trial["status"] == "ok":
                good[cell["platform"]] = good.get(cell["platform"], 0) + 1
            else:
                problems.append(f"{cell['id']}: {trial['reason']}"[:_SHOWN])
    problems += [f"{platform}: nothing was measured" for platform, count in good.items() if not count]
    return good, problems


def main() -> int:
    """Print a line for each experiment and for each failure."""
    parser = argparse.ArgumentParser(prog="bench.experiments", description=__doc__)
    parser.add_argument(
        "names", nargs="*", help=f"of {', '.join(each.name for each in EXPERIMENTS)}; default: all"
    )
    parser.add_argument("--foreign", action="store_true", help="sparc64 too")
    given = parser.parse_args()
    known = {each.name for each in EXPERIMENTS}
    if stray := [name for name in given.names if name not in known]:
        parser.error(f"there is no experiment {stray[0]!r}; known: {', '.join(sorted(known))}")
    broken, begin = [], time.monotonic()
    for experiment in EXPERIMENTS:
        if experiment.name not in given.names and (given.names or (experiment.foreign and not given.foreign)):
            continue
        outcome = run_experiment(experiment)
        trials = ", ".join(f"{platform} {count}" for platform, count in outcome.good.items())
        word = "broken" if outcome.problems else "works"
        print(
            f"{word:6}  {experiment.name:22}  {outcome.seconds:5.0f} s  good trials: {trials or 'none'}",
            flush=True,
        )
        for problem in outcome.problems:
            print(f"        {problem}", flush=True)
        broken += [experiment.name] if outcome.problems else []
    print(f"{time.monotonic() - begin:.0f} s in all; broken: {', '.join(broken) or 'none'}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
