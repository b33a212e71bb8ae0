"""The conditions a run was made under: one list of checks, each of which may limit what its figures mean.

A check is a function of `Compared` (cells that are held against each other) or `Whole` (the run) that yields
findings. Severe is what makes a figure one about something else than its words say: it takes verdicts back. What the
user asked for by name stays a warning beside the figure, and what cannot be known is a note.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from guestmark.core.metric import Metric
from guestmark.core.model import Cell, Plan, Trial
from guestmark.stats.conditions.cells import builds, clocks, parity, placement, storage, unwritten
from guestmark.stats.conditions.evidence import Compared, Whole
from guestmark.stats.conditions.host import foreign_load, frequencies, governor, steal, throttling, turbo
from guestmark.stats.conditions.surroundings import environment
from guestmark.stats.estimands import cold_measured
from guestmark.stats.validity import ALPHA, Carried, Finding, Severity, order_effects, trend

__all__ = ["OF_CELLS", "OF_RUN", "Compared", "Whole", "carry_over", "examined", "of_cells", "of_run"]

OF_CELLS: tuple[Callable[[Compared], Iterable[Finding]], ...] = (
    parity,
    placement,
    storage,
    unwritten,
    builds,
    clocks,
    foreign_load,
    steal,
    throttling,
    frequencies,
)
OF_RUN: tuple[Callable[[Whole], Iterable[Finding]], ...] = (environment, governor, turbo)

_ORDER = (Severity.SEVERE, Severity.WARNING, Severity.NOTE)


def of_cells(compared: Compared) -> tuple[Finding, ...]:
    """All findings about cells that are compared, the severe ones first."""
    return _sorted(finding for check in OF_CELLS for finding in check(compared))


def of_run(whole: Whole) -> tuple[Finding, ...]:
    """All findings about the run, the severe ones first."""
    return _sorted(finding for check in OF_RUN for finding in check(whole))


def _sorted(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    found: Sequence[Finding] = list(findings)
    return tuple(sorted(found, key=lambda finding: _ORDER.index(finding.severity)))


Array = NDArray[np.float64]


def examined(  # noqa: PLR0917 (as `estimands.answers`)
    plan: Plan,
    cells: Sequence[Cell],
    trials: Mapping[str, Sequence[Trial]],
    values: Mapping[str, Array],
    row: Mapping[int, int],
    primary: Metric,
) -> tuple[Finding, ...]:
    """What limits what `cells` mean: the conditions they were measured under, carry-over, position, trends, cold runs.

    `values` are those of the metric `primary` of all cells of the plan by id, shape (K,), NaN where there is none or a
    cell is not among `cells`; `row` has the position of each block in them.
    """
    baseline = next((cell.id for cell in cells if cell.baseline), None)
    cold = cold_measured(primary, cells, trials, plan.policy.warmup)
    last = (cold,) if cold is not None else ()
    if baseline is None:
        return (*of_cells(Compared(plan, cells, trials)), *last)
    compared = [cell.id for cell in cells if cell.id != baseline and cell.null_of is None]
    d = {name: _log_ratios(values[name], values[baseline]) for name in compared}
    found = [*of_cells(Compared(plan, cells, trials))]
    level = warning_level(plan)
    found += _order(plan, cells, trials, values, row, baseline, level)
    for name in compared:
        finding = trend(d[name], plan.policy.margin, alpha=level / len(compared))
        if finding is not None:
            found.append(replace(finding, message=f"{name}: {finding.message}"))
    return (*found, *last)


def warning_level(plan: Plan) -> float:
    """The level of a kind of warning in one table: all tables of a report share `ALPHA`."""
    return ALPHA / max(sum(cell.baseline for cell in plan.cells), 1)


def carry_over(
    plan: Plan,
    cells: Sequence[Cell],
    trials: Mapping[str, Sequence[Trial]],
    values: Mapping[str, Array],
    row: Mapping[int, int],
) -> Carried | None:
    """What trials of a metric owe to the cell that ran before them; None where nothing shows that they do."""
    baseline = next((cell.id for cell in cells if cell.baseline), None)
    if baseline is None:
        return None
    missing = np.full(len(row), np.nan)
    every = {cell.id: values.get(cell.id, missing) for cell in plan.cells}
    findings = _order(plan, cells, trials, every, row, baseline)
    return next((finding.carried for finding in findings if finding.carried is not None), None)


def _order(  # noqa: PLR0917 (as `estimands.answers`)
    plan: Plan,
    cells: Sequence[Cell],
    trials: Mapping[str, Sequence[Trial]],
    values: Mapping[str, Array],
    row: Mapping[int, int],
    baseline: str,
    level: float = ALPHA,
) -> tuple[Finding, ...]:
    positions = {cell.id: np.full(len(row), np.nan) for cell in plan.cells}
    for cell in plan.cells:
        for trial in trials[cell.id]:
            positions[cell.id][row[trial.block]] = trial.order
    kind = {cell.id: cell.null_of or cell.id for cell in plan.cells}
    if len(cells) < len(plan.cells):  # many cells: what a platform leaves behind, whatever ran on it
        kind = {cell.id: str(cell.platform) for cell in plan.cells}
    return order_effects(values, positions, baseline, kind=kind, alpha=level)


def _log_ratios(values: Array, reference: Array) -> Array:
    """Log ratios by block, shape (K,), NaN where there is none."""
    with np.errstate(invalid="ignore", divide="ignore"):
        d = np.log(values) - np.log(reference)
    return np.where(np.isfinite(d), d, np.nan)
