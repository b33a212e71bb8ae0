"""How often: blocks until it is known well enough, one number of iterations for every cell, and enough warm-up."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from guestmark.stats.compare import Comparison
from guestmark.stats.special import student_t_quantile

Array = NDArray[np.float64]

RELATIVE_PRECISION = 0.05  # of the effect itself: ×7.6 ± 10 % is known well enough, ×1.02 ± 10 % is not
ANSWER_PRECISION = 0.5  # of the effect, where a plan only asks which is better: ×7.6 to a factor of 2.8 tells
MAX_ITERATIONS = 20
SPARED = 0.05  # of a run's time, for iterations beyond those that make its typical run most precise
MAX_WARMUP = 3
MEASURING = 0.95  # share of a trial's time, where nothing boots
MEASURING_TIMED = 0.85  # the same of runs of a fixed time, to which more blocks are worth more than that
_MAX_BLOCKS = 100_000
_STEADY = 0.05  # an iteration within 5 % of the later ones is warm
_MIN_COST_S = 1e-6
USUAL_SPREAD = 0.02  # standard deviation of a block's log ratio, before anything is known
_AS_USUAL, _LIKE_OTHERS = 2.0, 3.0  # degrees of freedom that they count


def half_width(ci: tuple[float, float]) -> float:
    """Return half the width of the log of a ratio's interval (0.02: known to about ± 2 %); infinite if it meets 0."""
    return math.log(ci[1] / ci[0]) / 2 if ci[0] > 0 else math.inf


def wanted_half_width(ratio: float, precision: float, relative: float = RELATIVE_PRECISION) -> float:
    """Return the half-width, of the log, at which a ratio is known well enough: `precision` or a share of its log."""
    return max(precision, relative * abs(math.log(ratio)))


def precise_enough(comparison: Comparison, precision: float, relative: float = RELATIVE_PRECISION) -> bool:
    """Return whether the interval is as narrow as `wanted_half_width`; False without an interval.

    Looked at after every block from the eighth on this keeps coverage above .93 (docs/reference/statistics.md), while
    stopping by p < .05 finds a difference between equals in a quarter of the runs. What an interval is stretched by
    does not count: more blocks do not shrink it. A cell that has no ratio never gets precise: the caller leaves failed
    cells out.
    """
    if comparison.ci is None or comparison.ratio is None:
        return False
    return half_width(comparison.ci) - comparison.stretch <= wanted_half_width(
        comparison.ratio, precision, relative
    )


def predicted_half_width(comparison: Comparison, more: int) -> float | None:
    """Return the half-width of the log ratio expected after `more` further blocks; None without an interval.

    It shrinks as t(n-1)/√n if the host stays as it was. What more time would buy: shown, never used to stop.
    """
    if comparison.ci is None or comparison.n < 2:
        return None
    n, stretch = comparison.n, comparison.stretch
    return (half_width(comparison.ci) - stretch) * _relative_width(n + more) / _relative_width(n) + stretch


def blocks_needed(
    comparison: Comparison, precision: float, relative: float = RELATIVE_PRECISION
) -> int | None:
    """Return the estimated number of blocks in all until `precise_enough`; None while it cannot be estimated."""
    if comparison.ci is None or comparison.ratio is None or comparison.n < 2 or precision <= 0:
        return None
    half = half_width(comparison.ci) - comparison.stretch
    return blocks_until_within(half, comparison.n, wanted_half_width(comparison.ratio, precision, relative))


def expected_blocks(
    comparisons: Sequence[Comparison], precision: float, relative: float = RELATIVE_PRECISION
) -> int | None:
    """Return the estimated number of blocks in all until all are `precise_enough`; None while one cannot be estimated.

    Few blocks say little about a scatter, and the widest of many such guesses is far too wide. So each cell's variance
    counts by its degrees of freedom beside `_LIKE_OTHERS` of all cells together, and theirs beside `_AS_USUAL` of a
    usual one (shrinkage as in Smyth, Stat. Appl. Genet. Mol. Biol. 3, 2004). Most runs end a little earlier than at the
    expected width, since they are looked at after every block.
    """
    spreads = []
    for comparison in comparisons:
        if comparison.ci is None or comparison.ratio is None or comparison.n < 2 or precision <= 0:
            return None
        half = half_width(comparison.ci) - comparison.stretch
        spreads.append((half / _relative_width(comparison.n), comparison.n - 1))
    if not all(math.isfinite(spread) for spread, _ in spreads):
        return None
    free = sum(freedom for _, freedom in spreads)
    all_cells = sum(freedom * spread**2 for spread, freedom in spreads) + _AS_USUAL * USUAL_SPREAD**2
    common = all_cells / (free + _AS_USUAL)
    most = 0
    for comparison, (spread, freedom) in zip(comparisons, spreads, strict=True):
        variance = (freedom * spread**2 + _LIKE_OTHERS * common) / (freedom + _LIKE_OTHERS)
        half = math.sqrt(variance) * _relative_width(comparison.n)
        target = wanted_half_width(comparison.ratio or 1.0, precision, relative)
        needed = blocks_until_within(half, comparison.n, target)
        if needed is None:
            return None
        most = max(most, needed)
    return most


def blocks_until_within(half: float, n: int, target: float, most: int = _MAX_BLOCKS) -> int | None:
    """Return the estimated number of blocks in all, from `n` on, until a half-width is `target`; None beyond `most`."""

    def enough(blocks: int) -> bool:
        return half * _relative_width(blocks) / _relative_width(n) <= target

    if not enough(most):
        return None
    low, high = 2, most
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle + 1, high)
    return max(low, n)


def _relative_width(blocks: int) -> float:
    return float(student_t_quantile(blocks - 1, 0.975)) / math.sqrt(blocks)


@dataclass(frozen=True, slots=True)
class Pilot:
    """What the first trial of a cell took, in seconds: to start and stop its machine, and for its last iteration."""

    start_s: float
    iteration_s: float


def choose_iterations(
    pilots: Mapping[str, Pilot],
    warmup: int,
    *,
    within: float = 1.0,
    block_limit_s: float = 60.0,
    most: int = MAX_ITERATIONS,
) -> int:
    """Return how many iterations every trial of every cell holds after `warmup` unmeasured ones.

    With r iterations a block costs Σ(start + (warmup + r)·iteration) over the cells, and a comparison's variance is
    that between machines plus that within divided by r. Their product is least at r = √(Σ(start + warmup·iteration) /
    Σ iteration · within / between): Kalibera and Jones, "Rigorous benchmarking in reasonable time" (2013), §6, for
    cells that must agree. One trial of each cell says nothing of either variance, and a few would say so little that
    two runs of one experiment chose differently: `within` is the one over the other as earlier runs have it, else both
    count as equal. The product is flat around its least value, and slow runs are found by their number: so it is the
    most that cost `SPARED` of the time beside that. At least 1, at most `most`, and where possible no more than
    `block_limit_s` seconds a block. Raises ValueError without a pilot.
    """
    if not pilots:
        raise ValueError("no pilot")
    iterations = sum(max(pilot.iteration_s, _MIN_COST_S) for pilot in pilots.values())
    starts = sum(max(pilot.start_s, 0.0) for pilot in pilots.values()) + warmup * iterations
    affordable = math.floor((block_limit_s - starts) / iterations)
    ratio = starts / iterations  # the product is (ratio + r) (1 + within / r), and least at √(ratio · within)
    best = math.sqrt(ratio * within)
    room = (1 + SPARED) * (math.sqrt(ratio) + math.sqrt(within)) ** 2 - ratio - within
    largest = math.floor((room + math.sqrt(max(room**2 - 4 * ratio * within, 0.0))) / 2)
    return max(min(max(round(best), largest), affordable, most), 1)


def iterations_without_boot(
    pilots: Iterable[Pilot], most: int = MAX_ITERATIONS, measuring: float = MEASURING
) -> int:
    """Return how many iterations every trial holds where no machine is started for it.

    Such trials scatter as iterations do, so more blocks are worth as much as more iterations, and pair better: as few
    as leave the share `measuring` of the time to measuring. Raises ValueError without a pilot.
    """
    found = list(pilots)
    if not found:
        raise ValueError("no pilot")
    # The first trial of a process also loads what all of them need.
    start = min(pilot.start_s for pilot in found)
    shortest = min(max(pilot.iteration_s, _MIN_COST_S) for pilot in found)
    return max(1, min(math.ceil(measuring / (1 - measuring) * start / shortest), most))


@dataclass(frozen=True, slots=True)
class Scatter:
    """Variances of log values: of the iterations of one start, and of starts beyond what their iterations explain.

    `starts` is how many starts the second is known from, beyond what cells and blocks take.
    """

    within: float
    between: float
    starts: int


def estimate_scatter(cells: Sequence[Array]) -> Scatter | None:
    """Return the variances of cells measured in the same K blocks with the same m iterations, arrays of shape (K, m).

    Logs of a start's iterations scatter around its mean by `within`; starts scatter around cell and block, which cancel
    in a comparison inside blocks, by `between` (two-way analysis of variance without replication, its expected mean
    square less `within`/m). Blocks with a missing or negative value are left out. None below two iterations, two blocks
    or two cells.
    """
    shapes = {array.shape for array in cells}
    if len(cells) < 2 or len(shapes) != 1:
        return None
    logs = np.stack([np.log(np.where(array > 0, array, np.nan)) for array in cells])
    logs = logs[:, np.isfinite(logs).all(axis=(0, 2))]
    count, blocks, iterations = logs.shape
    if blocks < 2 or iterations < 2:
        return None
    within = float(logs.var(axis=2, ddof=1).mean())
    means = logs.mean(axis=2)
    rest = means - means.mean(axis=0) - means.mean(axis=1, keepdims=True) + means.mean()
    free = (count - 1) * (blocks - 1)
    between = float((rest**2).sum()) / free - within / iterations
    return Scatter(within, max(between, 0.0), free)


def best_iterations(scatter: Scatter, start_s: float, iteration_s: float, most: int = MAX_ITERATIONS) -> int:
    """Return how many iterations of a start make a comparison most precise in a given time.

    √(start_s / iteration_s · within / between) of Kalibera and Jones (2013), §6; `most` where starts are alike. At
    least 1.
    """
    if scatter.between <= 0:
        return most
    ratio = max(start_s, 0.0) / max(iteration_s, _MIN_COST_S) * scatter.within / scatter.between
    return max(round(min(math.sqrt(ratio), most)), 1)


def warmup_needed(starts: Sequence[Sequence[float]]) -> int | None:
    """Return how many runs on a fresh machine take longer than those after them, typically over these starts.

    `starts` hold the durations of all runs of each start, in order. A run is not yet warm that takes over 5 % and over
    three spreads longer than the median of those after it. At most `MAX_WARMUP`; None if no start has three runs.
    """
    needed = []
    for durations in starts:
        x = np.asarray(durations, dtype=np.float64)
        if x.size < 3:
            continue
        most = min(MAX_WARMUP, x.size - 2)
        needed.append(
            next((first for first in range(most) if not _is_slower(x[first], x[first + 1 :])), most)
        )
    return math.floor(float(np.median(needed))) if needed else None


def _is_slower(first: float, later: Array) -> bool:
    middle = float(np.median(later))
    spread = 1.4826 * float(np.median(np.abs(later - middle)))
    return first > middle + max(_STEADY * middle, 3 * spread)
