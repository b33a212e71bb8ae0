"""Main effects of a matrix's factors, and interactions between two of them.

On logarithms: the effect of a level is the mean, over the levels of all other factors, of log(level / first level), so
a ratio. An interaction is a ratio of two such ratios: by how much more a level costs where another factor has another
level, too. Each block gives one value of each. The level of Student's intervals over blocks is divided by the number of
effects (Bonferroni), so all of them hold together. After Box, Hunter and Hunter, Statistics for Experimenters (2005),
chapter 5.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from guestmark.stats.paired import t_interval

Array = NDArray[np.float64]
Levels = tuple[str, ...]  # one for each factor, in their order
FEWEST_BLOCKS = 6
_CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Effect:
    """By what a level multiplies the metric, against the factor's first level.

    With two `factors`: by what both levels together multiply it beyond what each does.
    """

    factors: tuple[str, ...]
    levels: tuple[str, ...]
    against: tuple[str, ...]
    ratio: float
    ci: tuple[float, float]
    blocks: int

    @property
    def is_shown(self) -> bool:
        """Whether the interval excludes that there is none."""
        return not self.ci[0] <= 1 <= self.ci[1]


def factorial_effects(factors: Sequence[str], values: Mapping[Levels, Array]) -> tuple[Effect, ...]:
    """All main effects, then all interactions of two factors, of a full matrix.

    `values` are those of each cell by block, NaN where a trial is missing; blocks in which one is missing are left out.
    Empty below two factors, for an incomplete matrix, below `FEWEST_BLOCKS` blocks, and where a value has no logarithm.
    """
    axes = [tuple(dict.fromkeys(levels[at] for levels in values)) for at in range(len(factors))]
    if len(factors) < 2 or set(itertools.product(*axes)) != set(values) or min(map(len, axes)) < 2:
        return ()
    table = np.array([values[levels] for levels in itertools.product(*axes)])
    table = table[:, ~np.isnan(table).any(axis=0)]
    blocks = table.shape[1]
    if blocks < FEWEST_BLOCKS or not (np.isfinite(table) & (table > 0)).all():
        return ()
    logs = np.log(table).reshape(*map(len, axes), blocks)
    contrasts = [*_main_contrasts(logs, axes), *_interaction_contrasts(logs, axes)]
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


def _main_contrasts(logs: Array, axes: Sequence[Levels]) -> Iterator[_Contrast]:
    for axis, levels in enumerate(axes):
        means = _mean_over_others(logs, (axis,))
        for number in range(1, len(levels)):
            yield (axis,), (levels[number],), means[number] - means[0]


def _interaction_contrasts(logs: Array, axes: Sequence[Levels]) -> Iterator[_Contrast]:
    for one, other in itertools.combinations(range(len(axes)), 2):
        means = _mean_over_others(logs, (one, other))
        for a, b in itertools.product(range(1, len(axes[one])), range(1, len(axes[other]))):
            contrast = means[a, b] - means[a, 0] - means[0, b] + means[0, 0]
            yield (one, other), (axes[one][a], axes[other][b]), contrast


def _mean_over_others(logs: Array, kept: tuple[int, ...]) -> Array:
    """Means over all axes but these and the last, which is of blocks."""
    rest = tuple(axis for axis in range(logs.ndim - 1) if axis not in kept)
    means: Array = logs.mean(axis=rest)
    return means
