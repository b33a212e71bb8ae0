"""Measure what `guestmark exec --on host` adds to a command, beside hyperfine without a shell, and its own footprint.

Run from the checkout: `.venv/bin/python -m bench.overhead [--rounds 10] [--runs 100]`. Both measure the same command
in turn, in random order, all of it on one processor (the last, or `--processor`); a figure is the median over one
contender's runs in one round. Both figures include the command's own time, so their difference is what the harness
adds. Aim: no more than `hyperfine -N`.
"""

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from bench.sidebyside import contenders_table, measure_contenders, median_ratio

from guestmark.core.own_program import find_agent_binary

_CHECKOUT = Path(__file__).resolve().parents[2]


def _time_guestmark(runs: int, scratch: Path, command: Sequence[str]) -> float:
    """Return the median of the measured wall time over ten blocks, each with a fresh agent."""
    blocks = 10
    done = subprocess.run(
        [_CHECKOUT / "guestmark", "exec", "--on", "host", "--null", "none", "--blocks", str(blocks), "--iterations",
         str(max(1, runs // blocks)), "--warmup", "3", "--quiet", "--json", "-", "--ledger", scratch / "ledger",
         "--", *command],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    (cell,) = json.loads(done.stdout)["cells"]
    return float(
        statistics.median(value for trial in cell["trials"] for value in trial["iterations"]["wall_s"])
    )


def _time_hyperfine(runs: int, scratch: Path, command: Sequence[str]) -> float:
    target = scratch / "hyperfine.json"
    subprocess.run(
        ["hyperfine", "-N", "--warmup", "30", "--runs", str(runs), "--export-json", target, " ".join(command)],
        capture_output=True, check=True,
    )  # fmt: skip
    (result,) = json.loads(target.read_text())["results"]
    return float(statistics.median(result["times"]))


def _time_help() -> float:
    begin = time.monotonic()
    subprocess.run([_CHECKOUT / "guestmark", "--help"], stdout=subprocess.DEVNULL, check=True)
    return time.monotonic() - begin


def _peak_of_controller(scratch: Path) -> float:
    """Return the peak resident bytes of the controller in a run with statistics and tables."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    subprocess.run(
        [_CHECKOUT / "guestmark", "exec", "--on", "host,host", "--blocks", "12", "--ledger", scratch / "peak",
         "--json", scratch / "peak.json", "--", "true"],
        capture_output=True, check=True,
    )  # fmt: skip
    return max(before, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) * 1024


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("command", nargs="*", default=["true"])
    parser.add_argument("--processor", type=int, default=max(os.sched_getaffinity(0)))
    arguments = parser.parse_args()
    os.sched_setaffinity(0, {arguments.processor})
    if shutil.which("hyperfine") is None:
        sys.exit("hyperfine is not installed (package hyperfine)")
    with tempfile.TemporaryDirectory(prefix="guestmark-bench-") as scratch_name:
        scratch = Path(scratch_name)
        peak = _peak_of_controller(scratch)
        values = measure_contenders(
            {
                "guestmark exec --on host": partial(
                    _time_guestmark, arguments.runs, scratch, arguments.command
                ),
                "hyperfine -N": partial(_time_hyperfine, arguments.runs, scratch, arguments.command),
            },
            arguments.rounds,
            arguments.seed,
        )
        helps = [_time_help() for _ in range(10)]
    contenders_table(f"wall time of {' '.join(arguments.command)}", values, ["hyperfine -N"], "ms")
    both = median_ratio(values["guestmark exec --on host"], values["hyperfine -N"])
    print(f"guestmark / hyperfine -N   {both:.3f}   (aim ≤ 1)")
    print(f"guestmark --help           {1000 * statistics.median(helps):.0f} ms   (aim ≤ 150 ms warm)")
    print(f"controller, peak resident  {peak / 1e6:.0f} MB   (aim ≤ 150 MB)")
    print(f"agent                      {find_agent_binary().stat().st_size / 1e6:.2f} MB   (aim ≤ 2 MB)")


if __name__ == "__main__":
    main()
