"""Answers to the four questions about each cell of a workload, from all runs of its trials.

The first run of a trial on its fresh machine counts, whether it was a warm-up or measured. Other warm-up runs are kept
with the trial, but affect no answer.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from guestmark.core.metric import Better, Measurement, Metric, find_measurement
from guestmark.core.model import Cell, Plan, Trial, TrialStatus, boots_any_machine, find_baseline_id
from guestmark.core.units import format_share
from guestmark.stats.cell_answers import Answers, compare_trials, compute_cost_means
from guestmark.stats.compare import Comparison, Verdict, downgrade_verdict, null_differs
from guestmark.stats.medians import find_median
from guestmark.stats.repetition import count_needed_warmups
from guestmark.stats.tails import convert_to_costs
from guestmark.stats.validity import CarryOver, Finding, Severity, subtract_carry_over

Array = NDArray[np.float64]


def answer_questions(
    plan: Plan,
    cells: Sequence[Cell],
    by_cell: Mapping[str, Sequence[Trial]],
    row: Mapping[int, int],
    metric: Metric,
    *,
    carried: Mapping[str, CarryOver] | None = None,
) -> dict[str, Answers]:
    """Return typical run, total, slow runs and first run of one metric by cell; empty if iterations are unequal.

    `row` maps each block to its row in the arrays, `carried` each metric to the carry-over between trials. Null copies
    that the user asked for are compared with the cell they copy, and are never called faster or slower.
    """
    owed = (carried or {}).get(metric.name)
    held = _subtract_from_all(
        {cell.id: arrange_iterations(metric.name, by_cell[cell.id], row) for cell in cells}, owed
    )
    baseline = find_baseline_id(cells)
    if baseline not in held or len({matrix.shape for matrix in held.values()}) != 1:
        return {}
    # A first run is only special on a fresh machine, so there are none if nothing boots.
    started = boots_any_machine(cells)
    first = {}
    if started:
        first = _subtract_from_all(
            {name: list_first_runs(metric.name, by_cell[name], row) for name in held}, owed
        )
    means = _subtract_from_all({name: list_cost_means(metric, by_cell[name], row) for name in held}, owed)
    compared = _Compared(held, first, means, metric.better, plan.policy.margin, started)
    pairs: list[tuple[str, str]] = []
    added: set[str] = set()
    for cell in cells:
        if cell.null_of is not None and cell.null_of in held and cell.id in held:
            pairs.append((cell.id, cell.null_of))
            if cell.added:
                added.add(cell.id)
    answered = compared.compare(baseline, pairs)
    for copy, of in pairs:
        if copy not in added:
            alone = compared.select((of, copy)).compare(of)
            answered[copy] = _answer_null_copy(alone[copy])
    return answered


def _subtract_from_all(found: Mapping[str, Array | None], owed: CarryOver | None) -> dict[str, Array]:
    """Return the values of the cells that have any, without the effect of the cell that ran before."""
    return {name: subtract_carry_over(runs, owed, name) for name, runs in found.items() if runs is not None}


@dataclass(frozen=True, slots=True)
class _Compared:
    """Iterations, shape (K, m), first runs and mean costs, shape (K,), by cell, with settings of their comparison."""

    iterations: Mapping[str, Array]
    first: Mapping[str, Array]
    means: Mapping[str, Array]
    better: Better
    margin: float
    boots: bool

    def compare(self, baseline: str, null_pairs: Sequence[tuple[str, str]] = ()) -> dict[str, Answers]:
        return compare_trials(
            self.iterations,
            baseline,
            better=self.better,
            margin=self.margin,
            null_pairs=null_pairs,
            first=self.first,
            means=self.means,
            boots=self.boots,
        )

    def select(self, names: Sequence[str]) -> "_Compared":
        """Return the data of these cells only."""
        iterations = {name: self.iterations[name] for name in names}
        first = {name: self.first[name] for name in names if name in self.first}
        means = {name: self.means[name] for name in names}
        return replace(self, iterations=iterations, first=first, means=means)


def _answer_null_copy(answer: Answers) -> Answers:
    slow = answer.slow
    if slow is not None and slow.differs:
        slow = replace(slow, verdict=Verdict.INCONCLUSIVE, reason="equal cells, within chance")
    return replace(answer.map_ratios(retract_null_difference), slow=slow)


def retract_null_difference(null: Comparison) -> Comparison:
    """Return a null comparison without a claim of a difference: both sides are the same thing."""
    if not null.differs:
        return null
    reason = "equal cells, within chance"
    # Only a difference at the stricter level of `null_differs` casts doubt on the run.
    if null_differs(null):
        reason = "equal cells differ"
    return downgrade_verdict(null, reason)


def arrange_iterations(name: str, trials: Sequence[Trial], row: Mapping[int, int]) -> Array | None:
    """Return the raw iterations of a metric, shape (K, m), a row of NaN for trials without; None if there are none.

    m is the number that most trials hold. The pilot in the first block, from which m was chosen, may hold fewer: then
    its row is NaN.
    """
    found = {}
    for trial in trials:
        measurement = trial.find_good_measurement(name)
        if measurement is not None:
            found[row[trial.block]] = measurement.iterations
    lengths = Counter(len(series) for series in found.values() if series)
    if not lengths:
        return None
    length, _ = max(lengths.items(), key=lambda counted: (counted[1], counted[0]))
    matrix = np.full((len(row), length), np.nan)
    for block, series in found.items():
        if len(series) == length and np.isfinite(series).all():
            matrix[block] = series
    return matrix


def list_cost_means(metric: Metric, trials: Sequence[Trial], row: Mapping[int, int]) -> Array:
    """Return the mean cost of each trial's iterations, shape (K,), NaN for trials without; the pilot counts, too."""
    means = np.full(len(row), np.nan)
    for trial in trials:
        series = _select_iterations(trial.measurements, metric.name)
        if trial.status is TrialStatus.OK and series and np.isfinite(series).all():
            means[row[trial.block]] = compute_cost_means(np.array([series]), metric.better)[0]
    return means


def list_first_runs(name: str, trials: Sequence[Trial], row: Mapping[int, int]) -> Array | None:
    """Return each trial's first run on its fresh machine, shape (K,), NaN if unknown.

    None if no trial has a second run, since the first run then is the typical run.
    """
    first = np.full(len(row), np.nan)
    others = False
    for trial in trials:
        runs = list_all_runs(name, trial)
        if runs:
            first[row[trial.block]] = runs[0]
            others |= len(runs) > 1
    return first if others else None


def _select_iterations(measurements: Iterable[Measurement], name: str) -> tuple[float, ...]:
    measurement = find_measurement(measurements, name)
    return () if measurement is None else measurement.iterations


def list_all_runs(name: str, trial: Trial) -> tuple[float, ...]:
    """Return a metric's values in all runs of a trial, warm-ups first; empty if the first runs are unknown."""
    if trial.status is not TrialStatus.OK:
        return ()
    before = _select_iterations(trial.warmups, name)
    measured = _select_iterations(trial.measurements, name)
    runs = (*before, *measured)
    # Trials recorded by version 0.1 lack their warm-ups, so their first value is not the first run's.
    return runs if len(runs) == len(trial.run_s) else ()


def find_median_first_run(metric: str, trials: Sequence[Trial]) -> float | None:
    """Return the median of the first runs on the trials' fresh machines; None if none is known."""
    firsts = []
    for trial in trials:
        if runs := list_all_runs(metric, trial):
            firsts.append(runs[0])
    return find_median(firsts) if firsts else None


def find_cold_runs(
    metric: Metric, cells: Sequence[Cell], by_cell: Mapping[str, Sequence[Trial]], warmup: int
) -> Finding | None:
    """Return a warning if a cell's first measured runs typically are still warming up, see `count_needed_warmups`.

    The number of warm-up runs itself is not adapted: chosen from each run's first block it would differ between two
    runs of one experiment, and so would the question that they answer.
    """
    cold: dict[str, int] = {}
    longer = 0.0
    if not boots_any_machine(cells):
        return None
    for cell in cells:
        if cell.null_of is not None:
            continue
        starts = []
        for trial in by_cell[cell.id]:
            if runs := list_all_runs(metric.name, trial):
                starts.append(convert_to_costs(np.array(runs), metric.better))
        needed = count_needed_warmups(starts)
        if needed is not None and needed > warmup:
            cold[cell.id] = needed
            ratios = [runs[warmup] / find_median(runs[needed:]) for runs in starts if runs.size > needed]
            longer = max(longer, find_median(ratios) - 1)
    if not cold:
        return None
    most = max(cold.values())
    first, verb, pronoun = "first run", "takes", "it"
    if most > 1:
        first, verb, pronoun = f"first {most} runs", "take", "them"
    return Finding(
        "warm-up",
        Severity.WARNING,
        f"on a fresh machine the {first} in {', '.join(cold)} {verb} longer than later ones (the first measured one "
        f"by {format_share(longer)}); --warmup {most} excludes {pronoun}",
        longer,
    )
