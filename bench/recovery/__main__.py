"""Check whether guestmark's estimates of known slowdowns in real guests are free of bias.

Run from the checkout: `.venv/bin/python -m bench.recovery [--on uml,tcg] [--blocks 20] [--seed N]`. sysbench does a
fixed number of events, and 1, 2 and 5 % more of them (plan.toml), each time on a fresh guest, so the increase of the
time is known beforehand. A slowdown is recovered if its interval contains the truth; the median of the blocks is
beside it. Intervals are at 95 %, so one in twenty may miss.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.sidebyside import output
from rich.table import Table

_HERE = Path(__file__).resolve().parent
_CHECKOUT = _HERE.parents[1]
_TRUTH = {"1 % more work": 1.01, "2 % more work": 1.02, "5 % more work": 1.05}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--on", default="uml,tcg")
    parser.add_argument("--blocks", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="guestmark-bench-") as scratch:
        document = Path(scratch, "result.json")
        done = subprocess.run(
            [_CHECKOUT / "guestmark", "run", _HERE / "plan.toml", "--on", arguments.on, "--blocks",
             str(arguments.blocks), "--seed", str(arguments.seed), "--ledger", Path(scratch, "ledger"),
             "--json", document],
            check=False,
        )  # fmt: skip
        if done.returncode:
            sys.exit(f"guestmark run ended with exit status {done.returncode}")
        cells = json.loads(document.read_text())["cells"]
    shown = Table(title="time of the work / time of the baseline's work", title_justify="left")
    for heading in ("platform", "truth", "ratio", "95 % interval", "median", "bias", "recovered", "verdict"):
        shown.add_column(heading, justify="left" if heading in ("platform", "verdict") else "right")
    missed = 0
    for cell in cells:
        truth = _TRUTH.get(cell["workload"])
        if truth is None:
            continue
        found = cell["vs_baseline"]["work_s"]
        low, high = found["ci"]
        missed += not low <= truth <= high
        shown.add_row(
            cell["platform"], f"{truth:.2f}", f"{found['ratio']:.4f}", f"{low:.4f}–{high:.4f}",
            f"{found['median_ratio']:.4f}", f"{100 * (found['ratio'] / truth - 1):+.2f} %",
            "yes" if low <= truth <= high else "no", found["verdict"],
        )  # fmt: skip
    output().print(shown)
    print(f"{len(cells)} cells, {arguments.blocks} blocks, {missed} intervals miss the truth")


if __name__ == "__main__":
    main()
