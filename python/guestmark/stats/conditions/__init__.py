"""Checks of the conditions of a run, each of which may limit what its figures mean.

A check is a function of `ComparedCells` (cells that are compared with each other) or `WholeRun` that yields findings.
A finding is severe if a figure does not measure what its name says; it withdraws verdicts. What the user requested by
name is a warning beside the figure, and what cannot be known is a note.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from guestmark.core.metric import Metric
from guestmark.core.model import Cell, Plan, Trial, find_baseline_id
from guestmark.stats.conditions.cells import (
    check_builds,
    check_clocks,
    check_ground,
    check_placement,
    check_processor_parity,
    check_shell_starts,
    check_storage,
    check_unwritten_disks,
)
from guestmark.stats.conditions.evidence import ComparedCells, WholeRun
from guestmark.stats.conditions.host import (
    check_foreign_load,
    check_frequencies,
    check_governor,
    check_steal,
    check_throttling,
    check_turbo,
)
from guestmark.stats.conditions.surroundings import check_environment
from guestmark.stats.estimands import find_cold_runs
from guestmark.stats.validity import (
    ALPHA,
    CarryOver,
    Finding,
    Severity,
    detect_order_effects,
    detect_trend,
    find_carry_over,
)

__all__ = [
    "CELL_CHECKS",
    "RUN_CHECKS",
    "ComparedCells",
    "WholeRun",
    "check_cells",
    "check_run",
    "estimate_carry_over",
    "examine_cells",
]

CELL_CHECKS: tuple[Callable[[ComparedCells], Iterable[Finding]], ...] = (
    check_processor_parity,
    check_placement,
    check_storage,
    check_unwritten_disks,
    check_ground,
    check_builds,
    check_shell_starts,
    check_clocks,
    check_foreign_load,
    check_steal,
    check_throttling,
    check_frequencies,
)
RUN_CHECKS: tuple[Callable[[WholeRun], Iterable[Finding]], ...] = (
    check_environment,
    check_governor,
    check_turbo,
)

_ORDER = (Severity.SEVERE, Severity.WARNING, Severity.NOTE)


def check_cells(compared: ComparedCells) -> tuple[Finding, ...]:
    """Return all findings about cells that are compared, the severe ones first."""
    return _sort_by_severity(finding for check in CELL_CHECKS for finding in check(compared))


def check_run(whole: WholeRun) -> tuple[Finding, ...]:
    """Return all findings about the run, the severe ones first."""
    return _sort_by_severity(finding for check in RUN_CHECKS for finding in check(whole))


def _sort_by_severity(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    found: Sequence[Finding] = list(findings)
    return tuple(sorted(found, key=lambda finding: _ORDER.index(finding.severity)))


Array = NDArray[np.float64]


def examine_cells(  # noqa: PLR0917 (as `estimands.answer_questions`)
    plan: Plan,
    cells: Sequence[Cell],
    trials: Mapping[str, Sequence[Trial]],
    values: Mapping[str, Array],
    row: Mapping[int, int],
    primary: Metric,
) -> tuple[Finding, ...]:
    """Return findings that limit the meaning of `cells`: conditions, carry-over, position, trends, missing warm-up.

    `values` maps all cells of the plan to values of the metric `primary`, shape (K,), NaN if there is none or the cell
    is not among `cells`. `row` maps blocks to their position in these arrays.
    """
    baseline = find_baseline_id(cells)
    cold = find_cold_runs(primary, cells, trials, plan.policy.warmup)
    last = (cold,) if cold is not None else ()
    if baseline is None:
        return (*check_cells(ComparedCells(plan, cells, trials)), *last)
    compared = [cell.id for cell in cells if cell.id != baseline and cell.null_of is None]
    found = [*check_cells(ComparedCells(plan, cells, trials))]
    level = derive_warning_level(plan)
    found += _test_order_effects(plan, cells, trials, values, row, baseline, level)
    for name in compared:
        d = _index_log_ratios(values[name], values[baseline])
        finding = detect_trend(d, plan.policy.margin, alpha=level / len(compared))
        if finding is not None:
            found.append(replace(finding, message=f"{name}: {finding.message}"))
    return (*found, *last)


def derive_warning_level(plan: Plan) -> float:
    """Return the level of one kind of warning in one table; all tables of a report share `ALPHA`."""
    return ALPHA / max(sum(cell.baseline for cell in plan.cells), 1)


def estimate_carry_over(
    plan: Plan,
    cells: Sequence[Cell],
    trials: Mapping[str, Sequence[Trial]],
    values: Mapping[str, Array],
    row: Mapping[int, int],
) -> CarryOver | None:
    """Return the effect on a metric's trials of the cell that ran before them; None if none is shown."""
    baseline = find_baseline_id(cells)
    if baseline is None:
        return None
    missing = np.full(len(row), np.nan)
    every = {cell.id: values.get(cell.id, missing) for cell in plan.cells}
    findings = _test_order_effects(plan, cells, trials, every, row, baseline)
    return find_carry_over(findings)


def _test_order_effects(  # noqa: PLR0917 (as `estimands.answer_questions`)
    plan: Plan,
    cells: Sequence[Cell],
    trials: Mapping[str, Sequence[Trial]],
    values: Mapping[str, Array],
    row: Mapping[int, int],
    baseline: str,
    level: float = ALPHA,
) -> tuple[Finding, ...]:
    """Return the findings about carry-over and position, from the order in which all trials ran."""
    positions: dict[str, Array] = {}
    kind: dict[str, str] = {}
    # Several workloads make too many kinds to test, so kinds are then platforms, as these leave traces behind.
    by_platform = len(cells) < len(plan.cells)
    for cell in plan.cells:
        positions[cell.id] = np.full(len(row), np.nan)
        for trial in trials[cell.id]:
            positions[cell.id][row[trial.block]] = trial.order
        kind[cell.id] = cell.null_of or cell.id
        if by_platform:
            kind[cell.id] = str(cell.platform)
    return detect_order_effects(values, positions, baseline, kind=kind, alpha=level)


def _index_log_ratios(values: Array, reference: Array) -> Array:
    """Return log ratios by block, shape (K,), NaN if there is none."""
    with np.errstate(invalid="ignore", divide="ignore"):
        d = np.log(values) - np.log(reference)
    return np.where(np.isfinite(d), d, np.nan)
