"""Draw simulated runs at random, print their reports, and compare each sentence with the truth.

`python bench/statistics/drawn.py --runs 200` prints a table: how often each kind of sentence was printed, and how
often it was false. Runs are drawn from all of `shipped.CASES`, with equal cells or not; every second one has ten
earlier runs of its question, which differ by 2 % beyond the scatter of their blocks. Sentences that match no pattern
here, but state a ratio or a comparison, are listed separately.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))

import guestmark.core.single_threaded_blas  # noqa: F401, I001  (before numpy)
import numpy as np
from shipped import CASES, Case, Truth, one_run, truth_of

from guestmark.core.metric_spec import WALL
from guestmark.core.model import RunState
from guestmark.ledger.model import StoredRun
from guestmark.page.nodes import Page
from guestmark.report.full_report import make_page
from guestmark.report.render.plain import make_document
from guestmark.report.short_report import make_short_report
from guestmark.stats.across_runs import History, PastRatio
from guestmark.stats.analysis import Analysis, analyse_run

EARLIER, BETWEEN = 10, 0.02
_MARGIN = math.log(1.03)
_NUMBER = r"([\d.]+(?: \d{3})*)"
_RATIO = re.compile(rf"{_NUMBER} times (slower|faster)(?: than [^\[]*)? \[{_NUMBER}, {_NUMBER}\]")
_TIMES = re.compile(rf"×[\d.]+ \[{_NUMBER}, {_NUMBER}\] (slower|faster)")
_BOUND = re.compile(rf"{_NUMBER} % (slower|faster)")
_COMPARES = re.compile(r"\b(slower|faster|differ|differs|equal|changed|more slow|fewer slow|depends)\b")


@dataclass(slots=True)
class Tally:
    """How often each kind of sentence was printed and was false, with examples of false and of unknown sentences."""

    printed: Counter[str] = field(default_factory=Counter)
    false: Counter[str] = field(default_factory=Counter)
    misses: list[str] = field(default_factory=list)
    unknown: Counter[str] = field(default_factory=Counter)

    def count(self, kind: str, true: bool, where: str) -> None:
        """Count a sentence; one that is false is kept with the run that printed it."""
        self.printed[kind] += 1
        if not true:
            self.false[kind] += 1
            self.misses.append(f"{kind}: {where}")

    def print_counts(self) -> None:
        """Print a table of all kinds, then what was false, one by one."""
        print("| sentence | printed | false |\n| --- | --- | --- |")
        for kind, printed in sorted(self.printed.items()):
            print(f"| {kind} | {printed} | {self.false[kind]} |")
        print("\nFalse, one by one:\n")
        for miss in self.misses:
            print(f"- {miss}")


def print_pages(run: StoredRun, analysis: Analysis) -> Iterator[tuple[str, str, bool]]:
    """Yield each row and sentence of both reports: its kind, its text, and whether it is about the last cell."""
    pages: tuple[Page, ...] = (
        make_short_report(run, analysis, width=100, latest=True),
        make_page(run, analysis),
    )
    for page in pages:
        for section in make_document(page)["sections"]:
            for node in section["nodes"]:
                yield from _read_node(node)


def _read_node(node: dict[str, Any]) -> Iterator[tuple[str, str, bool]]:
    if "text" in node:
        yield "text", node["text"], _names_last(node["text"].split(":")[0].split())
    for item in node.get("items", ()):
        yield "text", f"{node['lead']} {item}", _names_last(item.replace(":", " ").split())
    # In other tables figures stand beside marks, not words.
    if node["kind"] == "table" and "ratios to the baseline" in node["caption"]:
        for row in node["rows"]:
            yield "row", " ".join(row), _names_last(row)


def _names_last(words: list[str]) -> bool:
    return any(word in {"1G", "new", "memory=1G"} for word in words)


def judge_sentence(  # noqa: PLR0912, PLR0917 (one branch for each kind of sentence)
    kind: str, text: str, truth: Truth, case: Case, tally: Tally, where: str
) -> None:
    """Count a sentence, given the truth of the cell that it is about."""
    where = f"{where}: {text}"
    if text.startswith("Total of"):
        _judge_ratio("total", text, truth.total, tally, where)
    elif text.startswith("Slow runs:"):
        said = text.rpartition(":")[2].strip()
        wanted = {"more slow runs": truth.slow > 0, "fewer slow runs": truth.slow < 0}
        tally.count(
            "more or fewer slow runs" if said in wanted else "slow runs, no claim",
            wanted.get(said, True),
            where,
        )
    elif text.startswith(("No difference from", "Typical run as on")):
        tally.count("no difference, or alike", abs(truth.typical) < _MARGIN, where)
    elif text.startswith("Equal cells differ"):
        tally.count("equal cells differ", False, where)
    elif text.startswith("Copies of one cell"):
        tally.count("copies are equal", True, where)
    elif "depends on what ran before it" in text:
        tally.count("carry-over", bool(case.scenario.carry), where)
    elif "depends on its position" in text:
        tally.count("position", False, where)
    elif re.search(r"went (up|down)|trend", text):
        tally.count("trend", False, where)
    elif ": changed" in text:
        tally.count("changed", False, where)
    elif "no change shown" in text:
        tally.count("no change shown", True, where)
    elif "at most" in text and _BOUND.search(text):
        _judge_bound(text, truth.typical, tally, where)
    elif _RATIO.search(text) or _TIMES.search(text):
        # "A is faster than B" can have the baseline as A.
        sign = -1 if kind == "text" and re.search(r"than \S+ memory=|than new", text) else 1
        _judge_ratio("typical run", text, sign * truth.typical, tally, where)
    elif kind == "row" and ("no difference" in text or "typical run alike" in text):
        tally.count("row: alike", abs(truth.typical) < _MARGIN, where)
    elif _COMPARES.search(text) and "×" in text:
        tally.unknown[re.sub(r"[\d.]+", "#", text)[:100]] += 1


def _judge_ratio(of: str, text: str, log_ratio: float, tally: Tally, where: str) -> None:
    """Count the claim that `of` differs, and the interval beside it."""
    if found := _RATIO.search(text):
        slower, factor = found[2] == "slower", math.exp(log_ratio if found[2] == "slower" else -log_ratio)
        ends = found[3], found[4]
    elif found := _TIMES.search(text):
        slower, factor, ends = found[3] == "slower", math.exp(log_ratio), (found[1], found[2])
    else:
        return
    low, high = (float(end.replace(" ", "")) for end in ends)
    tally.count(f"{of} differs", log_ratio != 0 and (log_ratio > 0) == slower, where)
    # The printed ends are rounded to their last digit.
    step = 0.5 * 10 ** -len(ends[0].partition(".")[2])
    tally.count(f"interval of {of}", low - step <= factor <= high + step, where)


def _judge_bound(text: str, log_ratio: float, tally: Tally, where: str) -> None:
    ends = {word: float(number) / 100 for number, word in _BOUND.findall(text.partition("at most")[2])}
    low, high = -ends.get("faster", 0.0), ends.get("slower", 0.0)
    tally.count("at most", low - 0.005 <= math.expm1(log_ratio) <= high + 0.005, where)


def draw_runs(runs: int, seed: int) -> Tally:
    """Simulate runs of cases drawn at random, and judge all that their reports say."""
    tally, chance = Tally(), np.random.default_rng(seed)
    names = sorted(name for name in CASES if "--find" not in name and "12 cells" not in name)
    for number in range(runs):
        name = names[int(chance.integers(len(names)))]
        case = CASES[name]
        analysis, _ = one_run(case, np.random.default_rng((seed, number)))
        trials = tuple(trial for result in analysis.cells for trial in result.trials)
        if number % 2:
            history = History(_draw_history(analysis, chance))
            analysis = analyse_run(analysis.plan, trials, history=history)
        run = StoredRun(f"drawn-{number}", analysis.plan, ({},), 0, RunState.COMPLETE, 1.7e9, trials, ())
        held = max(len(trial.measurements[0].iterations) for trial in trials if trial.measurements)
        truth, equal = truth_of(case.scenario, case.effect, held), Truth(0.0, 0.0, 0.0)
        pair = len(case_cells(analysis)) <= 2
        for kind, text, about_last in print_pages(run, analysis):
            judge_sentence(
                kind, text, truth if about_last or pair else equal, case, tally, f"{name} (run {number})"
            )
    return tally


def case_cells(analysis: Analysis) -> list[str]:
    """Return the ids of the cells that are no null copies."""
    return [result.cell.id for result in analysis.cells if result.cell.null_of is None]


def _draw_history(analysis: Analysis, chance: np.random.Generator) -> dict[str, list[PastRatio]]:
    found = {}
    for result in analysis.cells:
        comparison = result.comparison.get(WALL.name)
        if comparison is None or comparison.ci is None or comparison.ci[0] <= 0 or comparison.ratio is None:
            continue
        half = math.log(comparison.ci[1] / comparison.ci[0]) / 2
        # This run deviates from the true ratio as randomly as the earlier ones.
        spread = math.hypot(BETWEEN, half / 2.2)
        middle = math.log(comparison.ratio) + float(chance.normal(0, spread))
        logs = middle + chance.normal(0, spread, EARLIER)
        found[result.cell.id] = [
            PastRatio(f"{at}", at, math.exp(log), math.exp(log - half), math.exp(log + half), comparison.n)
            for at, log in enumerate(logs.tolist())
        ]
    return found


def main() -> None:
    """Print what was printed, and how often it was false."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    tally = draw_runs(options.runs, options.seed)
    tally.print_counts()
    for text, count in tally.unknown.most_common(20):
        print(f"- no pattern knows ({count}): {text}")


if __name__ == "__main__":
    main()
