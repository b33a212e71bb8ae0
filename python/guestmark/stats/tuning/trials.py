"""A race as the trials of a run leave it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from guestmark.core.model import Better, Cell, Trial, TrialStatus
from guestmark.stats.tuning import race
from guestmark.stats.tuning.settings import Candidate, Settings

BARRED = "barred"  # in a plan's context: why cells may not take part, by id


def state(
    settings: Settings,
    cells: Sequence[Cell],
    why_barred: Mapping[str, str],
    trials: Iterable[Trial],
    limit_s: float = math.inf,
) -> race.Race:
    """The race as far as these trials go, which may take `limit_s` together."""
    factors = varying(cells)
    candidates = [
        Candidate(
            cell.id, {**{name: cell.factors.get(name, "") for name in factors}, "platform": str(cell.platform)},
            why_barred.get(cell.id, ""),
        )
        for cell in cells
    ]  # fmt: skip
    values: dict[int, dict[str, float]] = {}
    ended: dict[int, set[str]] = {}
    limited: dict[int, dict[str, dict[str, float]]] = {}
    spent: dict[int, float] = {}
    for trial in trials:
        spent[trial.block] = spent.get(trial.block, 0.0) + trial.duration_s
        ended.setdefault(trial.block, set()).add(trial.cell_id)
        found = {limit.metric: value_of(trial, limit.metric) for limit in settings.limits}
        limited.setdefault(trial.block, {})[trial.cell_id] = {
            name: value for name, value in found.items() if value is not None
        }
        value = value_of(trial, settings.objective)
        if value is not None and value > 0:
            sign = 1.0 if settings.better is Better.LOWER else -1.0
            values.setdefault(trial.block, {})[trial.cell_id] = sign * math.log(value)
    blocks = {block: frozenset(names) for block, names in ended.items()}
    return race.run(settings, candidates, values, blocks, limited, clock=race.Clock(limit_s, spent))


def varying(cells: Sequence[Cell]) -> list[str]:
    """Factors that differ between the cells."""
    names = sorted({name for cell in cells for name in cell.factors})
    return [name for name in names if len({cell.factors.get(name) for cell in cells}) > 1]


def value_of(trial: Trial, metric: str) -> float | None:
    """A metric of a good trial."""
    if trial.status is not TrialStatus.OK:
        return None
    return next((one.value for one in trial.measurements if one.metric.name == metric), None)
