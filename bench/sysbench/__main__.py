"""Measure what guestmark adds to a trial of sysbench beyond the boot and the benchmark itself.

Run from the checkout: `.venv/bin/python -m bench.sysbench [--rounds 5] [--on host,uml,tcg]`. A trial's time consists
of the machine's start until its agent answered, the programs that the workload ran (sysbench prepare, run and cleanup
by the machine's own clock, writing the prepared files to the disk, the database server's start and shutdown), and the
rest: starting and ending agents and hypervisors, making the disk, attesting, mounting, finding and hashing the
program, storing. The rest is shown. Aim: at most 0.3 s. The first block, which loads the database and hashes large
programs, is not counted.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.sidebyside import output
from rich.table import Table

from guestmark.report.shared_facts import restore_shared

_CHECKOUT = Path(__file__).resolve().parents[2]
_AIM_S = 0.3
_PLAN = """
schema = "guestmark-plan/1"
name = "bench-sysbench"
title = "What does guestmark add to a trial of sysbench?"
platforms = ["host"]
[workloads.cpu]
kind = "sysbench"
params.test = "cpu"
params.events = 100
[workloads.fileio]
kind = "sysbench"
params.test = "fileio"
params.file_total_size = "8M"
params.file_num = 4
params.file_extra_flags = "direct"
params.events = 200
[workloads.oltp]
params.time = "1s"
params.rows = 1000
[repetition]
warmup = 0
iterations = 1
null = "none"
"""
# Facts of a trial that are the workload's own time, s.
_WORKLOADS = (
    "sysbench_prepare_s",
    "prepare_flush_s",
    "sysbench_cleanup_s",
    "server_start_s",
    "server_stop_s",
)


def _rest(trial: dict[str, object]) -> float:
    iterations, phases, found = trial["iterations"], trial["phases"], trial["attestation"]
    assert isinstance(iterations, dict)
    assert isinstance(phases, dict)
    assert isinstance(found, dict)
    known = phases["ready"] + sum(iterations["wall_s"]) + sum(found.get(name, 0.0) for name in _WORKLOADS)
    return float(str(trial["duration_s"])) - float(known)


def main() -> int:
    """Print the result; exits with 1 when the aim is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--on", default="host,uml,tcg")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        plan = Path(scratch) / "plan.toml"
        plan.write_text(_PLAN)
        done = subprocess.run(
            [_CHECKOUT / "guestmark", "run", plan, "--on", options.on, "--blocks", str(options.rounds + 1), "--quiet",
             "--json", "-", "--ledger", Path(scratch) / "ledger"],
            stdout=subprocess.PIPE, text=True, check=True,
        )  # fmt: skip
    table = Table(title="beyond boot and sysbench, s", title_justify="left")
    for heading in ("cell", "median", "min", "max"):
        table.add_column(heading)
    worst = 0.0
    for cell in restore_shared(json.loads(done.stdout))["cells"]:
        rests = [_rest(trial) for trial in cell["trials"] if trial["status"] == "ok" and trial["block"] > 0]
        if not rests:
            continue
        table.add_row(
            cell["id"], *(f"{one:.3f}" for one in (statistics.median(rests), min(rests), max(rests)))
        )
        worst = max(worst, statistics.median(rests))
    output().print(table)
    output().print(f"aim: {_AIM_S} s; worst median: {worst:.3f} s")
    return int(worst > _AIM_S)


if __name__ == "__main__":
    sys.exit(main())
