"""Check whether a shared machine gives the same figures as a separate one: `.venv/bin/python -m bench.sharing PLAN`.

Runs a built-in plan for the wall time `--for` (30m) with `--share-machine --null all`: in each block every cell runs
once on a machine that it shares, before and after others in random order, and once on its own machine. The ratio of
both, block by block, is the effect of sharing. A table in Markdown has the ratio of each cell, with an interval that
holds for all rows together (Student's t of the logarithms, divided among the rows), and the ratio over all cells.
Exits with 1 if an interval excludes 1, and with 2 if the interval over all cells is too wide to show that the effect
is below `--margin`.

Leave the machine alone meanwhile. A built-in plan must not have `share_machine = true` if this finds an effect.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class SharingEffect:
    """One cell: its figure on a shared machine over that on its own, such as throughput or time."""

    cell: str
    blocks: int
    ratio: float
    low: float
    high: float

    @property
    def is_found(self) -> bool:
        return not self.low <= 1 <= self.high

    def is_within(self, margin: float) -> bool:
        return 1 / (1 + margin) <= self.low and self.high <= 1 + margin

    @property
    def row(self) -> str:
        found = "differs" if self.is_found else ""
        return (
            f"| {self.cell} | {self.blocks} | ×{self.ratio:.3f} [{self.low:.3f}, {self.high:.3f}] | {found} |"
        )


def read_ratios(document: Mapping[str, Any]) -> dict[str, list[float]]:
    """Return the logarithms of shared over own, by cell, one for each block in which both were measured."""
    cells = {cell["id"]: cell for cell in (*document["cells"], *document["null_cells"])}
    metric = document["plan"]["metrics"]
    found: dict[str, list[float]] = {}
    for cell in cells.values():
        original = cells.get(cell.get("null_of") or "")
        if original is None:
            continue
        own, shared = (_read_values(each, metric) for each in (cell, original))
        logs = [math.log(shared[block] / own[block]) for block in sorted(shared.keys() & own.keys())]
        if len(logs) > 1:
            found[original["id"]] = logs
    return found


def _read_values(cell: Mapping[str, Any], metrics: Sequence[Mapping[str, Any]]) -> dict[int, float]:
    """Return the first of the plan's metrics that the cell has, by block."""
    values = {}
    names = [metric["name"] for metric in metrics]
    common = cell["shared"]
    for trial in ({**common, **own} for own in cell["trials"]):
        measured = trial.get("measurements") or {}
        first = next((name for name in names if name in measured), None)
        if trial["status"] == "ok" and first is not None:
            values[trial["block"]] = measured[first]
    return values


def judge(name: str, logs: Sequence[float], rows: int) -> SharingEffect:
    """Return the ratio with an interval that holds for `rows` rows together."""
    from guestmark.stats.paired import t_quantile

    mean = statistics.fmean(logs)
    half = t_quantile(len(logs) - 1, 1 - 0.025 / rows) * statistics.stdev(logs) / math.sqrt(len(logs))
    return SharingEffect(name, len(logs), math.exp(mean), math.exp(mean - half), math.exp(mean + half))


def main() -> int:
    """Run the plan, print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("plan")
    parser.add_argument("--for", dest="budget", default="30m", help="wall time (default: 30m)")
    parser.add_argument("rest", nargs="*", help="more words for `guestmark run`, after --")
    parser.add_argument(
        "--margin", type=float, default=0.05, help="a ratio so near 1 is none (default: 0.05)"
    )
    given = parser.parse_args()
    sys.path.insert(0, str(ROOT / "python"))
    with tempfile.TemporaryDirectory(prefix="guestmark-sharing-") as folder:
        document = Path(folder) / "result.json"
        words = ["run", given.plan, "--share-machine", "--null", "all", "--for", given.budget, *given.rest]
        subprocess.run(
            [str(ROOT / "guestmark"), *words, "--ledger", f"{folder}/ledger", "--json", str(document)],
            stdout=subprocess.DEVNULL,
            check=False,
        )
        ratios = read_ratios(json.loads(document.read_text()))
    effects = [judge(name, logs, len(ratios)) for name, logs in ratios.items()]
    print("| cell | blocks | shared against own | |\n| --- | ---: | ---: | --- |")
    for effect in effects:
        print(effect.row)
    blocks: dict[int, list[float]] = {}
    for logs in ratios.values():
        for number, value in enumerate(logs):
            blocks.setdefault(number, []).append(value)
    together = judge("**all together**", [statistics.fmean(values) for values in blocks.values()], 1)
    print(together.row)
    if any(effect.is_found for effect in (*effects, together)):
        return 1
    return 0 if together.is_within(given.margin) else 2


if __name__ == "__main__":
    sys.exit(main())
