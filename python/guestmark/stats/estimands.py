"""The four answers about each cell of a workload, from all the runs that its trials hold.

A trial's first run on its fresh machine is kept, whether it was a warm-up or measured; the others of the warm-up are
kept with the trial, too, and decide nothing.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from guestmark.core.metric import Metric
from guestmark.core.model import Cell, Plan, Trial, TrialStatus, boots
from guestmark.stats.compare import Comparison, Verdict, downgrade_verdict, null_differs
from guestmark.stats.repetition import warmup_needed
from guestmark.stats.tails import as_costs
from guestmark.stats.trials import Answers, compare_trials
from guestmark.stats.validity import CarryOver, Finding, Severity, subtract_carry_over

Array = NDArray[np.float64]
_DIFFERENT = (Verdict.FASTER, Verdict.SLOWER)


def answer_questions(
    plan: Plan,
    cells: Sequence[Cell],
    by_cell: Mapping[str, Sequence[Trial]],
    row: Mapping[int, int],
    metric: Metric,
    *,
    carried: Mapping[str, CarryOver] | None = None,
) -> dict[str, Answers]:
    """Typical run, total, slow runs and first run of one metric, by cell; nothing where iterations are unequal.

    `row` says which row of the arrays a block is, `carried` by metric what trials owe to those before them.
    Null copies that were asked for are compared with the cell they copy, and are never faster or slower.
    """
    owed = (carried or {}).get(metric.name)
    matrices = {cell.id: iteration_matrix(metric.name, by_cell[cell.id], row) for cell in cells}
    held = {
        name: subtract_carry_over(matrix, owed, name)
        for name, matrix in matrices.items()
        if matrix is not None
    }
    baseline = next((cell.id for cell in cells if cell.baseline), None)
    if baseline not in held or len({matrix.shape for matrix in held.values()}) != 1:
        return {}
    found = {cell.id: first_runs(metric.name, by_cell[cell.id], row) for cell in cells if cell.id in held}
    started = boots(cells)
    first = {
        name: subtract_carry_over(runs, owed, name)
        for name, runs in found.items()
        if runs is not None and started
    }  # nothing is fresh where nothing boots
    pairs = [(cell.id, cell.null_of) for cell in cells if cell.null_of in held and cell.id in held]
    copies = [(copy, of) for copy, of in pairs if of is not None]
    margin = plan.policy.margin
    answered = compare_trials(
        held,
        baseline,
        better=metric.better,
        margin=margin,
        null_pairs=copies,
        first=first,
        boots=started,
    )
    added = {cell.id for cell in cells if cell.added}
    for copy, of in copies:
        if copy not in added:
            both = {of: held[of], copy: held[copy]}
            both_first = {name: first[name] for name in both if name in first}
            alone = compare_trials(
                both, of, better=metric.better, margin=margin, first=both_first, boots=started
            )
            answered[copy] = _answer_null_copy(alone[copy])
    return answered


def _answer_null_copy(answer: Answers) -> Answers:
    slow = answer.slow
    if slow is not None and slow.verdict in _DIFFERENT:
        slow = replace(slow, verdict=Verdict.INCONCLUSIVE, reason="equal cells, within chance")
    return Answers(
        retract_null_difference(answer.typical),
        retract_null_difference(answer.total) if answer.total else None,
        slow,
        retract_null_difference(answer.first) if answer.first else None,
    )


def retract_null_difference(null: Comparison) -> Comparison:
    """Return a null comparison with its verdict: never faster or slower, as it is the same thing twice."""
    if null.verdict not in _DIFFERENT:
        return null
    return downgrade_verdict(
        null, "equal cells differ" if null_differs(null) else "equal cells, within chance"
    )


def iteration_matrix(name: str, trials: Sequence[Trial], row: Mapping[int, int]) -> Array | None:
    """Return the raw iterations of a metric, shape (K, m), NaN for trials without; None if there are none.

    m is what most trials hold. Those of the first block, from which it was chosen, may hold less: their rows are NaN.
    """
    found = {
        row[trial.block]: measurement.iterations
        for trial in trials
        if trial.status is TrialStatus.OK
        for measurement in trial.measurements
        if measurement.metric.name == name
    }
    lengths = Counter(len(series) for series in found.values() if series)
    if not lengths:
        return None
    length, _ = max(lengths.items(), key=lambda counted: (counted[1], counted[0]))
    matrix = np.full((len(row), length), np.nan)
    for block, series in found.items():
        if len(series) == length and np.isfinite(series).all():
            matrix[block] = series
    return matrix


def first_runs(name: str, trials: Sequence[Trial], row: Mapping[int, int]) -> Array | None:
    """Return each trial's first run on its fresh machine, shape (K,), NaN where it is not known.

    None where no trial has any other run, so that the first is the typical one.
    """
    first = np.full(len(row), np.nan)
    others = False
    for trial in trials:
        runs = all_runs(name, trial)
        if runs:
            first[row[trial.block]] = runs[0]
            others |= len(runs) > 1
    return first if others else None


def all_runs(name: str, trial: Trial) -> tuple[float, ...]:
    """Return a metric in all runs of a trial, warm-ups first; empty where the first ones are not known."""
    if trial.status is not TrialStatus.OK:
        return ()
    before = next((each.iterations for each in trial.warmups if each.metric.name == name), ())
    measured = next((each.iterations for each in trial.measurements if each.metric.name == name), ())
    runs = (*before, *measured)
    return runs if len(runs) == len(trial.run_s) else ()  # version 0.1 did not keep warm-ups


def find_cold_runs(
    metric: Metric, cells: Sequence[Cell], by_cell: Mapping[str, Sequence[Trial]], warmup: int
) -> Finding | None:
    """Return a warning if measured runs are still warming up: typically over the starts of a cell, see `warmup_needed`.

    The warm-up itself is the same in every run and every cell. Chosen anew from each run's first block it would differ
    between two runs of one experiment, and with it the question they answer.
    """
    cold: dict[str, int] = {}
    longer = 0.0
    if not boots(cells):
        return None
    for cell in cells:
        if cell.null_of is not None:
            continue
        found = [np.array([runs]) for trial in by_cell[cell.id] if (runs := all_runs(metric.name, trial))]
        starts = [as_costs(runs, metric.better)[0] for runs in found]
        needed = warmup_needed(starts)
        if needed is not None and needed > warmup:
            cold[cell.id] = needed
            enough = [runs for runs in starts if runs.size > needed]
            longer = max(
                longer, float(np.median([runs[warmup] / np.median(runs[needed:]) for runs in enough])) - 1
            )
    if not cold:
        return None
    most = max(cold.values())
    first = f"first {most} runs" if most > 1 else "first run"
    verb = "take" if most > 1 else "takes"
    return Finding(
        "warm-up",
        Severity.WARNING,
        f"on a fresh machine the {first} in {', '.join(cold)} {verb} longer than later ones (the measured one "
        f"{longer:.0%}); --warmup {most} leaves {'them' if most > 1 else 'it'} out",
        longer,
    )
