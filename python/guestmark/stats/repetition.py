"""How often: blocks until it is known well enough, and the one number of iterations that suits every cell."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from guestmark.stats.compare import Comparison

Array = NDArray[np.float64]

RELATIVE_PRECISION = 0.05  # of the effect itself: ×7.6 ± 10 % is known well enough, ×1.02 ± 10 % is not
MAX_ITERATIONS = 20
MAX_WARMUP = 3
_MAX_BLOCKS = 100_000
_STEADY = 0.05  # an iteration within 5 % of the later ones is warm
_MIN_COST_S = 1e-6


def half_width(ci: tuple[float, float]) -> float:
    """Return half the width of the log of a ratio's interval (0.02: known to about ± 2 %); infinite if it meets 0."""
    return math.log(ci[1] / ci[0]) / 2 if ci[0] > 0 else math.inf


def wanted_half_width(ratio: float, precision: float) -> float:
    """Return the half-width, of the log, at which a ratio is known well enough: `precision` or 5 % of its log."""
    return max(precision, RELATIVE_PRECISION * abs(math.log(ratio)))


def precise_enough(comparison: Comparison, precision: float) -> bool:
    """Return whether the interval is as narrow as `wanted_half_width`; False without an interval.

    Looked at after every block from the eighth on this keeps coverage above .93 (docs/reference/statistics.md), while
    stopping by p < .05 finds a difference between equals in a quarter of the runs. A cell that has no ratio never gets
    precise: the caller leaves failed cells out.
    """
    if comparison.ci is None or comparison.ratio is None:
        return False
    return half_width(comparison.ci) <= wanted_half_width(comparison.ratio, precision)


def predicted_half_width(comparison: Comparison, more: int) -> float | None:
    """Return the half-width of the log ratio expected after `more` further blocks; None without an interval.

    It shrinks as t(n-1)/√n if the host stays as it was. What more time would buy: shown, never used to stop.
    """
    if comparison.ci is None or comparison.n < 2:
        return None
    n = comparison.n
    return half_width(comparison.ci) * _width(n + more) / _width(n)


def blocks_needed(comparison: Comparison, precision: float) -> int | None:
    """Return the estimated number of blocks in all until `precise_enough`; None while it cannot be estimated."""
    if comparison.ci is None or comparison.ratio is None or comparison.n < 2 or precision <= 0:
        return None
    n, half = comparison.n, half_width(comparison.ci)
    target = wanted_half_width(comparison.ratio, precision)

    def enough(blocks: int) -> bool:
        return half * _width(blocks) / _width(n) <= target

    if not enough(_MAX_BLOCKS):
        return None
    low, high = 2, _MAX_BLOCKS
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle + 1, high)
    return max(low, n)


def _width(blocks: int) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(blocks - 1, 0.975)) / math.sqrt(blocks)


@dataclass(frozen=True, slots=True)
class Pilot:
    """What a few starts of one cell showed: `start_s` seconds to start and stop a machine, and for each of them the
    durations, seconds, of all its iterations in the order in which they ran, the first one included.
    """

    start_s: float
    durations: Sequence[Sequence[float]]


@dataclass(frozen=True, slots=True)
class Repetition:
    """The one choice for all cells of a comparison, with its reason in words."""

    warmup: int
    iterations: int
    reason: str


def choose_repetition(
    pilots: Mapping[str, Pilot],
    *,
    block_limit_s: float = 60.0,
    least: int = 1,
    most: int = MAX_ITERATIONS,
) -> Repetition:
    """Return how many iterations every trial of every cell holds, and how many warm it up before.

    With w warm-ups and r iterations a block costs Σ(start + (w + r)·iteration) over the cells, and a comparison's
    variance is that between machines plus that within divided by r, relative to each cell's level. Their product is
    least at r = √(Σ(start + w·iteration) / Σ iteration · within / between): Kalibera and Jones, "Rigorous benchmarking
    in reasonable time" (2013), §6, for cells that must agree. Variances are pooled over the cells that have two
    machines with two warm iterations; without any both levels count as equal. Between `least` and `most`, and no more
    than `block_limit_s` seconds a block where `least` allows it.

    The warm-up is the largest any cell needs: iterations at the start that are slower than the median of those after
    them by over 5 % and by over three of their spreads, in most of the cell's starts; at most 3, and 1 while no cell
    has enough iterations to tell. Raises ValueError without a pilot that
    holds an iteration.
    """
    known = {name: pilot for name, pilot in pilots.items() if any(len(one) for one in pilot.durations)}
    if not known:
        raise ValueError("no pilot holds an iteration")
    warmups = [found for pilot in known.values() if (found := _warmup(pilot.durations)) is not None]
    warmup = max(warmups) if warmups else 1
    costs, starts, components = [], [], []
    for pilot in known.values():
        warm = [
            np.asarray(one[min(warmup, len(one) - 1) :], dtype=np.float64)
            for one in pilot.durations
            if len(one)
        ]
        level = max(float(np.median(np.concatenate(warm))), _MIN_COST_S)
        costs.append(level)
        starts.append(max(pilot.start_s, 0.0) + warmup * level)
        if len(warm) >= 2 and any(one.size >= 2 for one in warm):
            components.append(variance_components([one / level for one in warm]))
    within = float(np.mean([one[0] for one in components])) if components else 1.0
    between = float(np.mean([one[1] for one in components])) if components else 1.0
    if within == 0:
        best = 1.0
    elif between == 0:
        best = math.inf
    else:
        best = math.sqrt(sum(starts) / sum(costs) * within / between)
    affordable = math.floor((block_limit_s - sum(starts)) / sum(costs))
    bounded = max(min(best, affordable, most), least)
    iterations = max(round(bounded), 1)
    why = "measured variances" if components else "equal variances assumed"
    if affordable < min(best, most):
        why += f", held to {block_limit_s:.0f} s a block"
    return Repetition(warmup, iterations, f"{why}; an iteration of all cells takes {sum(costs):.3g} s")


def _warmup(starts: Sequence[Sequence[float]]) -> int | None:
    """How many iterations at the start are slower than the later ones; None if no start has enough to tell."""
    needed = []
    for durations in starts:
        x = np.asarray(durations, dtype=np.float64)
        if x.size < 3:
            continue
        most = min(MAX_WARMUP, x.size - 2)
        needed.append(next((first for first in range(most) if not _slower(x[first], x[first + 1 :])), most))
    return math.ceil(float(np.median(needed))) if needed else None


def _slower(first: float, later: Array) -> bool:
    middle = float(np.median(later))
    spread = 1.4826 * float(np.median(np.abs(later - middle)))
    return first > middle + max(_STEADY * middle, 3 * spread)


def variance_components(boots: Sequence[Sequence[float] | Array]) -> tuple[float, float]:
    """Return the variance between iterations of one boot and that between boots, both >= 0, in the unit
    squared.

    One-way analysis of variance with unequal group sizes (Searle, Casella and McCulloch, "Variance
    Components", 3.6). Raises ValueError unless there are two boots and one of them has two iterations.
    """
    groups = [np.asarray(boot, dtype=np.float64) for boot in boots if len(boot)]
    sizes = np.array([group.size for group in groups], dtype=np.float64)
    total = float(sizes.sum())
    if len(groups) < 2 or total <= len(groups):
        raise ValueError("needs two boots, one of them with two iterations")
    means = np.array([group.mean() for group in groups])
    grand = float((means * sizes).sum()) / total
    within = sum(float(((group - group.mean()) ** 2).sum()) for group in groups) / (total - len(groups))
    between_square = float((sizes * (means - grand) ** 2).sum()) / (len(groups) - 1)
    size = (total - float((sizes**2).sum()) / total) / (len(groups) - 1)
    return within, max(0.0, (between_square - within) / size)
