"""What each factor of a matrix does by itself, and where two of them do more together than each for itself."""

from __future__ import annotations

import numpy as np

from guestmark.core.model import Cell, TrialStatus
from guestmark.core.units import counted
from guestmark.page import figures
from guestmark.page.claims import Claim
from guestmark.page.names import platform
from guestmark.page.tables import Align, Column, Row, RowName, Table, figure
from guestmark.page.text import Span, Tone, line
from guestmark.stats.analysis import CellResult, WorkloadResult
from guestmark.stats.effects import Array, Effect, Levels, factorial_effects

_MOST_INTERACTIONS = 12
_LEGEND = f"an interaction is what both levels do together beyond what each does; {Claim.EFFECT}"


def tables(workload: WorkloadResult) -> list[Table]:
    """A table of the effects on the primary metric; none where the cells are not a full matrix of two factors."""
    if not workload.metrics:
        return []
    metric = workload.metrics[0].name
    found = factorial_effects(*_matrix(workload, metric))
    if not found:
        return []
    mains = [effect for effect in found if len(effect.factors) == 1]
    both = sorted((effect for effect in found if len(effect.factors) == 2), key=_distance, reverse=True)
    left = len(both) - _MOST_INTERACTIONS
    legend = [line(_LEGEND), (Span(_together(found), Tone.SOFT),)]
    if left > 0:
        legend.append((Span(f"{left} smaller interactions are not shown", Tone.SOFT),))
    rows = [_row(effect) for effect in (*mains, *both[:_MOST_INTERACTIONS])]
    columns = (Column(f"{metric}, ratio", (Align.POINT, Align.LEFT, Align.LEFT)),)
    title = f"Effects of the factors of {workload.title}"
    return [Table(title, ("effect",), columns, tuple(rows), legend=tuple(legend), heading="Effects")]


def _together(found: tuple[Effect, ...]) -> str:
    return f"intervals of {len(found)} effects that hold together, from {counted(found[0].blocks, 'block')}"


def _matrix(workload: WorkloadResult, metric: str) -> tuple[list[str], dict[Levels, Array]]:
    """The factors that vary, and the values of all cells that have them, by block."""
    results = [result for result in workload.cells if result.cell.null_of is None]
    most = max((_names(result.cell) for result in results), key=len, default=())
    alike = [result for result in results if _names(result.cell) == most]
    properties = {result.cell.id: _properties(result.cell) for result in alike}
    names = [
        name
        for name in next(iter(properties.values()), {})
        if len({levels[name] for levels in properties.values()}) > 1
    ]
    blocks = 1 + max((trial.block for result in alike for trial in result.trials), default=-1)
    return names, {
        tuple(properties[result.cell.id][name] for name in names): _values(result, metric, blocks)
        for result in alike
    }


def _names(cell: Cell) -> tuple[str, ...]:
    return tuple(sorted(cell.factors))


def _properties(cell: Cell) -> dict[str, str]:
    levels = {name: cell.shown(name) or "" for name in cell.factors}
    return {"workload": cell.workload.key or cell.workload.name, "platform": platform(cell), **levels}


def _values(result: CellResult, metric: str, blocks: int) -> Array:
    values = np.full(blocks, np.nan)
    for trial in result.trials:
        if trial.status is TrialStatus.OK:
            for measurement in trial.measurements:
                if measurement.metric.name == metric:
                    values[trial.block] = measurement.value
    return values


def _distance(effect: Effect) -> float:
    return abs(float(np.log(effect.ratio)))


def _row(effect: Effect) -> Row:
    parts = [
        f"{factor} {level}/{first}"
        for factor, level, first in zip(effect.factors, effect.levels, effect.against, strict=True)
    ]
    name = " with ".join(parts)
    value, _, interval = figures.ratio(effect.ratio, effect.ci).partition(" ")
    return Row(RowName((name,), name), (figure(value, interval, "*" if effect.is_shown else ""),))
