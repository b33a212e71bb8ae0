"""Draw histories of simulated runs at random, and compare the statements about several runs with the truth.

`python bench/statistics/drawn_stored.py --histories 100`: each history is a ledger with 6 to 10 runs of one question,
whose true ratios scatter by 2 % from run to run. Of three histories one has no planted change, one a step of 10 %
after its first half, one a steady rise of 15 %. Judged are `history` of the last run, `compare` of the first and the
last one, and gates of the last one, at the limit (where either outcome is false) and 5 % to either side of it.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))

import guestmark.core.single_threaded_blas  # noqa: F401, I001  (before numpy)
import numpy as np
from drawn import Tally
from shipped import CASES, Case, one_run

from guestmark.core.gate import Gate
from guestmark.core.model import RunState
from guestmark.ledger import open_ledger
from guestmark.ledger.model import StoredRun
from guestmark.ledger.run_history import analyse_with_history, store_ratios
from guestmark.ledger.store import Ledger
from guestmark.page.nodes import Page, Part, Section
from guestmark.report import ratio_history, run_comparison
from guestmark.report.render import markdown
from guestmark.report.sections import gate_outcomes
from guestmark.stats.gates import judge_gates

BETWEEN = 0.02  # standard deviation of a run's log ratio
STEP, RISE = 0.10, 0.15
_HERE = {"machine": "simulated", "processor": {"count": 4}}
_KINDS = tuple(
    name
    for name in CASES
    if name.startswith(("guest: ", "host, 100 ms: ", "timed pair, 100 ms: "))
    and "--find" not in name
    and " in " not in name
    and "+" not in name
)
_VERDICT = re.compile(r"\| ×([\d.]+) \[([\d.]+), ([\d.]+)\] \| (higher|lower|no difference shown)")
_DRIFT = re.compile(r"Drift: ×[\d.]+ \[([\d.]+), ([\d.]+)\]")
_GATE = re.compile(r"(broken|kept|undecided)\W+a limit", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class History:
    """Log ratios of the runs of one question: `planted` ones, and `true` ones, which also vary between runs."""

    case: Case
    planted: tuple[float, ...]
    true: tuple[float, ...]

    @property
    def change(self) -> float:
        """The planted change between the first run and the last."""
        return self.planted[-1] - self.planted[0]


def draw_history(number: int, chance: np.random.Generator) -> History:
    """Draw a question, the number of its runs, and what is planted in them."""
    case = CASES[_KINDS[int(chance.integers(len(_KINDS)))]]
    runs = int(chance.integers(6, 11))
    base = float(chance.normal(0.0, 0.1))
    kinds = (
        np.zeros(runs),
        np.where(np.arange(runs) < runs // 2, 0.0, STEP),
        np.linspace(0.0, RISE, runs),
    )
    planted = base + kinds[number % len(kinds)]
    true = planted + chance.normal(0.0, BETWEEN, runs)
    return History(case, tuple(planted.tolist()), tuple(true.tolist()))


def store_history(ledger: Ledger, history: History, seed: tuple[int, int]) -> list[StoredRun]:
    """Simulate the runs of a history, and store them as measured ones are."""
    runs = []
    for at, log in enumerate(history.true):
        analysis, _ = one_run(replace(history.case, effect=log), np.random.default_rng((*seed, at)))
        run_id = ledger.create_run(analysis.plan, _HERE, 1)
        for result in analysis.cells:
            for trial in result.trials:
                ledger.store_trial(run_id, trial)
        ledger.set_run_state(run_id, RunState.COMPLETE)
        run = ledger.load_run(run_id)
        store_ratios(ledger, run, analyse_with_history(ledger, run))
        runs.append(run)
    return runs


def judge_history(ledger: Ledger, history: History, runs: list[StoredRun], tally: Tally, where: str) -> None:
    """Count the statements about several runs together, and whether they are true."""
    compared = run_comparison.compare_runs(ledger, runs[0], runs[-1])
    for _, low, high, said in _VERDICT.findall(markdown.render(run_comparison.make_page([compared]))):
        text = f"{where}: {said} [{low}, {high}], planted ×{math.exp(history.change):.3f}"
        if said in {"higher", "lower"}:
            tally.count("compare: higher or lower", history.change > 0 and said == "higher", text)
        # The ends are rounded to their last digit.
        step = 0.5 * 10 ** -len(low.partition(".")[2])
        inside = float(low) - step <= math.exp(history.change) <= float(high) + step
        tally.count("compare: interval", inside, text)
    followed = ratio_history.follow_ratios(ledger, runs[-1], "commit")
    printed = markdown.render(ratio_history.make_page(runs[-1], followed))
    for low, _ in _DRIFT.findall(printed):
        tally.count("history: drift", history.change > 0 and float(low) > 1, f"{where}: drift from {low}")
    if "No drift shown" in printed:
        tally.count("history: no drift shown, which claims nothing", True, where)
    _judge_gates(ledger, history, runs[-1], tally, where)


def _judge_gates(ledger: Ledger, history: History, run: StoredRun, tally: Tally, where: str) -> None:
    analysis = analyse_with_history(ledger, run)
    for beside in (0.0, 0.05, -0.05):
        limit = math.exp(history.true[-1] + beside)
        gates = judge_gates([Gate("a limit", (), "", limit, above=True)], analysis)
        section = Section(Part.CONCLUSION, "Gates", (gate_outcomes.list_gates(gates),))
        for said in _GATE.findall(markdown.render(Page("Gates", run.id, (section,)))):
            # At the limit both "broken" and "kept" are false; beside it one of them is.
            true = {"broken": beside < 0, "kept": beside > 0, "undecided": True}[said.lower()]
            kind = "at the limit" if not beside else "5 % from the limit"
            tally.count(f"gate: {said.lower()}, {kind}", true, f"{where}: {said} at ×{limit:.3f}")


def draw_histories(histories: int, seed: int) -> Tally:
    """Simulate histories, and judge the statements about each."""
    tally, chance = Tally(), np.random.default_rng(seed)
    for number in range(histories):
        history = draw_history(number, chance)
        with (
            tempfile.TemporaryDirectory() as folder,
            open_ledger(Path(folder, "ledger.sqlite")) as ledger,
        ):
            runs = store_history(ledger, history, (seed, number))
            judge_history(ledger, history, runs, tally, f"{history.case.name} (history {number})")
    return tally


def main() -> None:
    """Print what was printed, and how often it was false."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--histories", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    draw_histories(options.histories, options.seed).print_counts()


if __name__ == "__main__":
    main()
