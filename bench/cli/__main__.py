"""Time how quickly the command line answers, beside that of another checkout.

Run from the checkout: `.venv/bin/python -m bench.cli [--against DIR] [--rounds 20] [--seed 1]`. Every call is the
checkout's own `./guestmark` as a new process; all are made once a round in random order, so that other work on the host
disturbs both checkouts alike. Aims: `--version` at most 0.1 s, `--help` 0.15 s, `show` of a run with 400 trials 0.8 s.
"""

import argparse
import os
import statistics
import subprocess
import tempfile
import time
from functools import partial
from pathlib import Path

from bench.sidebyside import Contender, contenders_table, measure_contenders, median_ratio, output

HERE = Path(__file__).parents[2]
CELLS, BLOCKS = 4, 100  # 400 trials
AIMS_S = {"--version": 0.1, "--help": 0.15, "show": 0.8}


def time_call(checkout: Path, *arguments: str) -> float:
    """Return the seconds until `./guestmark` has printed everything and exited."""
    command = [str(checkout / "guestmark"), *arguments]
    begin = time.monotonic()
    subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=True)
    return time.monotonic() - begin


def make_ledger(checkout: Path, folder: str) -> str:
    """Make a ledger with one run of 400 trials by the checkout itself, as versions may store runs differently."""
    ledger = os.path.join(folder, f"{checkout.name}-{os.urandom(4).hex()}.sqlite")
    once = ["--blocks", str(BLOCKS), "--warmup", "0", "--iterations", "1", "--seed", "1"]
    time_call(checkout, "exec", "--ledger", ledger, "--on", ",".join(["host"] * CELLS), *once, "--", "true")
    return ledger


def list_contenders(checkout: Path, mark: str, folder: str) -> dict[str, Contender]:
    """List the calls of one checkout."""
    show = ("show", "last", "--ledger", make_ledger(checkout, folder))
    calls = {"--version": ("--version",), "--help": ("--help",), "show": show}
    for arguments in calls.values():
        time_call(checkout, *arguments)  # compiles what was changed
    return {f"{name}{mark}": partial(time_call, checkout, *arguments) for name, arguments in calls.items()}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.cli")
    parser.add_argument("--against", type=Path, metavar="DIR", help="another checkout, set up")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="guestmark-bench-") as folder:
        ours = list_contenders(HERE, "", folder)
        other = list_contenders(options.against.resolve(), " before", folder) if options.against else {}
        values = measure_contenders(ours | other, options.rounds, options.seed)
    load = os.getloadavg()[0]
    contenders_table(
        f"{options.rounds} rounds, load {load:.1f} on {os.cpu_count()} processors", values, [], "ms"
    )
    for name, aim in AIMS_S.items():
        median, best = statistics.median(values[name]), min(values[name])
        beside = f", {median_ratio(values[name], values[f'{name} before']):.3f} of before" if other else ""
        met = "met" if median <= aim else "met by the quickest only" if best <= aim else "missed"
        output().print(
            f"{name}: {median * 1e3:.0f} ms, aim {aim * 1e3:.0f} ms: {met}{beside}", highlight=False
        )


if __name__ == "__main__":
    main()
