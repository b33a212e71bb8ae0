"""Main effects of the factors of a full matrix, and interactions between two factors.

All effects are on logarithms. The effect of a level is the mean, over the levels of all other factors, of log(level /
first level), so it is a ratio. An interaction is a ratio of two such ratios: by how much more a level costs if another
factor also has another level. Each block gives one value of each effect. The error of Student's intervals over blocks
is divided by the number of effects (Bonferroni), so all intervals hold together. After Box, Hunter and Hunter,
Statistics for Experimenters (2005), chapter 5.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from guestmark.core.model import Cell
from guestmark.stats.analysis import CellResult, WorkloadResult
from guestmark.stats.paired import t_interval

Array = NDArray[np.float64]
# One level for each factor, in their order.
Levels = tuple[str, ...]
FEWEST_BLOCKS = 6
_CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Effect:
    """The factor by which a level multiplies the metric, compared with the first level of its factor.

    With two `factors` it is the factor by which both levels together multiply it beyond what each does alone.
    """

    factors: tuple[str, ...]
    levels: tuple[str, ...]
    against: tuple[str, ...]
    ratio: float
    ci: tuple[float, float]
    blocks: int

    @property
    def is_shown(self) -> bool:
        """True if the interval excludes 1, that is, no effect."""
        return not self.ci[0] <= 1 <= self.ci[1]

    @property
    def size(self) -> float:
        """How far the ratio is from 1, as a log."""
        return abs(math.log(self.ratio))


def find_effects(workload: WorkloadResult) -> tuple[Effect, ...]:
    """Return all effects on the primary metric; empty unless the cells are a full matrix, see `estimate_effects`."""
    if not workload.metrics:
        return ()
    return estimate_effects(*arrange_values(workload, workload.metrics[0].name))


def arrange_values(workload: WorkloadResult, metric: str) -> tuple[list[str], dict[Levels, Array]]:
    """Return the factors that vary, and values by block, keyed by levels, of the cells that have all these factors."""
    results = [result for result in workload.cells if result.cell.null_of is None]
    most = max((_list_sorted_factors(result.cell) for result in results), key=len, default=())
    alike = [result for result in results if _list_sorted_factors(result.cell) == most]
    levels = [_collect_levels_by_name(result.cell) for result in alike]
    names = _list_varying_names(levels)
    blocks = 1 + max((trial.block for result in alike for trial in result.trials), default=-1)
    values = {}
    for result, own in zip(alike, levels, strict=True):
        key = tuple(own[name] for name in names)
        values[key] = _arrange_effect_values(result, metric, blocks)
    return names, values


def _list_varying_names(levels: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the names of which cells have different levels; all cells have the same names."""
    names = []
    for name in levels[0] if levels else ():
        if len({own[name] for own in levels}) > 1:
            names.append(name)
    return names


def _list_sorted_factors(cell: Cell) -> tuple[str, ...]:
    return tuple(sorted(cell.factors))


def _collect_levels_by_name(cell: Cell) -> dict[str, str]:
    levels = {"workload": cell.workload.key or cell.workload.name, "platform": str(cell.platform)}
    for name in cell.factors:
        levels[name] = cell.get_displayed_level(name) or ""
    return levels


def _arrange_effect_values(result: CellResult, metric: str, blocks: int) -> Array:
    values = np.full(blocks, np.nan)
    for trial in result.trials:
        measurement = trial.find_good_measurement(metric)
        if measurement is not None:
            values[trial.block] = measurement.value
    return values


def estimate_effects(factors: Sequence[str], values: Mapping[Levels, Array]) -> tuple[Effect, ...]:
    """Return all main effects, then all interactions of two factors, of a full matrix.

    `values` maps the levels of each cell, one per factor, to its values by block, shape (K,), NaN if a trial is
    missing; blocks with a missing trial are left out. Empty below two factors, for an incomplete matrix, below
    `FEWEST_BLOCKS` blocks, and if a value has no logarithm.
    """
    axes = []
    for number in range(len(factors)):
        axes.append(tuple(dict.fromkeys(levels[number] for levels in values)))
    if len(factors) < 2 or set(itertools.product(*axes)) != set(values) or min(map(len, axes)) < 2:
        return ()
    table = np.array([values[levels] for levels in itertools.product(*axes)])
    table = table[:, ~np.isnan(table).any(axis=0)]
    blocks = table.shape[1]
    if blocks < FEWEST_BLOCKS or not (np.isfinite(table) & (table > 0)).all():
        return ()
    logs = np.log(table).reshape(*map(len, axes), blocks)
    contrasts = [*_yield_main_contrasts(logs, axes), *_yield_interaction_contrasts(logs, axes)]
    # Bonferroni: all intervals hold together.
    confidence = 1 - (1 - _CONFIDENCE) / len(contrasts)
    found = []
    for at, levels, by_block in contrasts:
        low, high = t_interval(by_block, confidence)
        found.append(
            Effect(
                tuple(factors[axis] for axis in at),
                levels,
                tuple(axes[axis][0] for axis in at),
                math.exp(float(by_block.mean())),
                (math.exp(low), math.exp(high)),
                blocks,
            )
        )
    return tuple(found)


_Contrast = tuple[tuple[int, ...], tuple[str, ...], Array]


def _yield_main_contrasts(logs: Array, axes: Sequence[Levels]) -> Iterator[_Contrast]:
    for axis, levels in enumerate(axes):
        means = _average_over_others(logs, (axis,))
        for number in range(1, len(levels)):
            yield (axis,), (levels[number],), means[number] - means[0]


def _yield_interaction_contrasts(logs: Array, axes: Sequence[Levels]) -> Iterator[_Contrast]:
    for one, other in itertools.combinations(range(len(axes)), 2):
        means = _average_over_others(logs, (one, other))
        for a, b in itertools.product(range(1, len(axes[one])), range(1, len(axes[other]))):
            contrast = means[a, b] - means[a, 0] - means[0, b] + means[0, 0]
            yield (one, other), (axes[one][a], axes[other][b]), contrast


def _average_over_others(logs: Array, kept: tuple[int, ...]) -> Array:
    """Return means over all axes except `kept` and the last one, the axis of blocks."""
    rest = tuple(axis for axis in range(logs.ndim - 1) if axis not in kept)
    means: Array = logs.mean(axis=rest)
    return means
