"""Amount of repetition: blocks until a ratio is precise, one number of iterations for all cells, warm-up runs."""

import bisect
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from guestmark.stats.compare import Comparison
from guestmark.stats.medians import NORMAL_SPREAD, find_median
from guestmark.stats.special import student_t_quantile

Array = NDArray[np.float64]

# Precision as a share of the log ratio itself: ×7.6 ± 10 % is precise enough, ×1.02 ± 10 % is not.
RELATIVE_PRECISION = 0.05
# The same if a plan only asks which cell is better: a ratio of 7.6 within a factor of 2.8 answers that.
ANSWER_PRECISION = 0.5
MAX_ITERATIONS = 20
# Share of a run's time for iterations beyond those that the typical run needs, because they find slow runs.
EXTRA_COST = 0.05
MAX_WARMUP = 3
# Share of a trial's time spent measuring if nothing boots; less in runs of a fixed time, where blocks are scarce.
MEASURING = 0.95
MEASURING_TIMED = 0.9
_MAX_BLOCKS = 100_000
# An iteration within 5 % of the later ones is warm.
_STEADY = 0.05
# Keeps a cost of 0 from dividing by zero.
_MIN_COST_S = 1e-6
# Standard deviation of a block's log ratio that is assumed before anything is known.
USUAL_SPREAD = 0.02
# Degrees of freedom given to that prior, and to the variance of all cells, beside a cell's own variance.
_PRIOR_FREEDOM, _COMMON_FREEDOM = 2.0, 3.0


def half_width(ci: tuple[float, float]) -> float:
    """Return the half-width of a ratio's interval on the log (0.02: known to about ± 2 %); infinite if it reaches 0."""
    return math.log(ci[1] / ci[0]) / 2 if ci[0] > 0 else math.inf


def compute_wanted_half_width(ratio: float, precision: float, relative: float = RELATIVE_PRECISION) -> float:
    """Return the half-width, on the log, at which a ratio is precise enough: `precision` or a share of its log."""
    return max(precision, relative * abs(math.log(ratio)))


def is_precise_enough(comparison: Comparison, precision: float, relative: float = RELATIVE_PRECISION) -> bool:
    """Return True if the interval is as narrow as `compute_wanted_half_width`; False without an interval.

    Checked after every block, starting with the eighth, this keeps coverage above .93 (docs/reference/statistics.md),
    while stopping at p < .05 finds a difference between equal cells in a quarter of the runs. `stretch` does not count,
    since more blocks do not shrink it. A cell without a ratio never becomes precise; the caller leaves failed cells
    out.
    """
    if comparison.ci is None or comparison.ratio is None:
        return False
    return half_width(comparison.ci) - comparison.stretch <= compute_wanted_half_width(
        comparison.ratio, precision, relative
    )


def predict_half_width(comparison: Comparison, more: int) -> float | None:
    """Return the half-width of the log ratio expected after `more` further blocks; None without an interval.

    It shrinks as t(n - 1)/√n if the host stays as it was. This forecast is shown, and never used to stop.
    """
    if comparison.ci is None or comparison.n < 2:
        return None
    n, stretch = comparison.n, comparison.stretch
    return (half_width(comparison.ci) - stretch) * _relative_width(n + more) / _relative_width(n) + stretch


def count_needed_blocks(
    comparison: Comparison, precision: float, relative: float = RELATIVE_PRECISION
) -> int | None:
    """Return the expected number of blocks until `is_precise_enough` holds; None if it cannot be estimated yet."""
    if comparison.ci is None or comparison.ratio is None or comparison.n < 2 or precision <= 0:
        return None
    half = half_width(comparison.ci) - comparison.stretch
    return count_blocks_until_within(
        half, comparison.n, compute_wanted_half_width(comparison.ratio, precision, relative)
    )


def estimate_expected_blocks(
    comparisons: Sequence[Comparison], precision: float, relative: float = RELATIVE_PRECISION
) -> int | None:
    """Return the expected number of blocks until `is_precise_enough` holds for all; None if that is not known yet.

    Few blocks say little about a variance, and the largest of many such estimates is far too large. So each cell's
    variance is shrunk towards that of all cells, and that towards a usual one (Smyth, Stat. Appl. Genet. Mol. Biol. 3,
    2004). Most runs end a little earlier than expected, since they may stop after every block.
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
    all_cells = sum(freedom * spread**2 for spread, freedom in spreads) + _PRIOR_FREEDOM * USUAL_SPREAD**2
    common = all_cells / (free + _PRIOR_FREEDOM)
    most = 0
    for comparison, (spread, freedom) in zip(comparisons, spreads, strict=True):
        variance = (freedom * spread**2 + _COMMON_FREEDOM * common) / (freedom + _COMMON_FREEDOM)
        half = math.sqrt(variance) * _relative_width(comparison.n)
        target = compute_wanted_half_width(comparison.ratio or 1.0, precision, relative)
        needed = count_blocks_until_within(half, comparison.n, target)
        if needed is None:
            return None
        most = max(most, needed)
    return most


def estimate_blocks_without_outliers(
    comparisons: Iterable[Comparison], precision: float, relative: float = RELATIVE_PRECISION
) -> int | None:
    """Return the blocks until `is_precise_enough` holds for all if no more outliers occur; None if unknown.

    A single outlier among few blocks makes an interval wide; the next blocks may soon narrow it again.
    """
    most = 0
    for comparison in comparisons:
        if comparison.scatter is None or comparison.ratio is None or comparison.n < 2:
            return None
        half = comparison.scatter * _relative_width(comparison.n)
        needed = count_blocks_until_within(
            half, comparison.n, compute_wanted_half_width(comparison.ratio, precision, relative)
        )
        if needed is None:
            return None
        most = max(most, needed)
    return most


def count_blocks_until_within(half: float, n: int, target: float, most: int = _MAX_BLOCKS) -> int | None:
    """Return the expected number of blocks in all until the half-width after `n` is `target`; None beyond `most`."""

    def suffices(blocks: int) -> bool:
        return half * _relative_width(blocks) / _relative_width(n) <= target

    if not suffices(most):
        return None
    return max(bisect.bisect_left(range(most), True, lo=2, key=suffices), n)


def _relative_width(blocks: int) -> float:
    """Return the half-width of a 95 % t interval over `blocks` blocks, in standard deviations."""
    return float(student_t_quantile(blocks - 1, 0.975)) / math.sqrt(blocks)


@dataclass(frozen=True, slots=True)
class Pilot:
    """Costs of a cell's first trial in seconds: to start and stop its machine, and of its last iteration."""

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

    With r iterations a block costs Σ(start + (warmup + r)·iteration) seconds over the cells, and a comparison's
    variance is that between machines plus that within a machine divided by r. Their product is least at
    r = √(Σ(start + warmup·iteration) / Σ iteration · within / between): Kalibera and Jones, "Rigorous benchmarking in
    reasonable time" (2013), §6, for cells that share one r. `within` is the ratio of both variances in earlier runs, or
    1 if there are none. The product is flat around its minimum, and slow runs are found by their number, so the result
    is the largest r that costs at most `EXTRA_COST` more. It is at least 1, at most `most`, and if possible no block
    takes longer than `block_limit_s` seconds. Raises ValueError without a pilot.
    """
    # Variances are not estimated from the pilots: one trial of each cell has none, and with a few trials two runs of
    # one experiment would choose differently.
    if not pilots:
        raise ValueError("there is no pilot")
    iterations = sum(max(pilot.iteration_s, _MIN_COST_S) for pilot in pilots.values())
    starts = sum(max(pilot.start_s, 0.0) for pilot in pilots.values()) + warmup * iterations
    affordable = math.floor((block_limit_s - starts) / iterations)
    # The product is (ratio + r) (1 + within / r), and least at √(ratio · within).
    ratio = starts / iterations
    best = math.sqrt(ratio * within)
    room = (1 + EXTRA_COST) * (math.sqrt(ratio) + math.sqrt(within)) ** 2 - ratio - within
    largest = math.floor((room + math.sqrt(max(room**2 - 4 * ratio * within, 0.0))) / 2)
    return max(min(max(round(best), largest), affordable, most), 1)


def count_iterations_without_boot(
    pilots: Iterable[Pilot], most: int = MAX_ITERATIONS, measuring: float = MEASURING
) -> int:
    """Return how many iterations every trial holds if no machine is started for it.

    Such trials vary as iterations do, so blocks inform as much as iterations and pair better: the result is
    the smallest number that leaves the share `measuring` of the time to measuring. Raises ValueError without a pilot.
    """
    found = list(pilots)
    if not found:
        raise ValueError("there is no pilot")
    # The first trial of a process also loads modules for all of them.
    start = min(pilot.start_s for pilot in found)
    shortest = min(max(pilot.iteration_s, _MIN_COST_S) for pilot in found)
    return max(1, min(math.ceil(measuring / (1 - measuring) * start / shortest), most))


@dataclass(frozen=True, slots=True)
class Scatter:
    """Variances of log values: `within` one start, and `between` starts beyond what their iterations explain.

    `starts` are the degrees of freedom of `between`.
    """

    within: float
    between: float
    starts: int


def estimate_scatter(cells: Sequence[Array]) -> Scatter | None:
    """Return the variances of cells measured in the same K blocks with the same m iterations, arrays of shape (K, m).

    `between` comes from a two-way analysis of variance without replication: the mean square of starts around cell and
    block effects, which cancel in a comparison inside blocks, less `within`/m. Blocks with a missing, zero or negative
    value are left out. None below two iterations, two blocks or two cells.
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


def find_best_iterations(
    scatter: Scatter, start_s: float, iteration_s: float, most: int = MAX_ITERATIONS
) -> int:
    """Return how many iterations of one start make a comparison most precise in a given time, from 1 to `most`.

    √(start_s / iteration_s · within / between) of Kalibera and Jones (2013), §6; `most` if starts do not differ.
    """
    if scatter.between <= 0:
        return most
    ratio = max(start_s, 0.0) / max(iteration_s, _MIN_COST_S) * scatter.within / scatter.between
    return max(round(min(math.sqrt(ratio), most)), 1)


def count_needed_warmups(starts: Sequence[ArrayLike]) -> int | None:
    """Return how many runs on a fresh machine typically take longer than the runs after them, at most `MAX_WARMUP`.

    `starts` hold the durations of all runs of each start, in order. A run is not warm yet if it takes over 5 % and over
    three spreads longer than the median of the runs after it. None if no start has three runs.
    """
    needed = []
    for durations in starts:
        x = np.asarray(durations, dtype=np.float64).tolist()
        if len(x) < 3:
            continue
        most = min(MAX_WARMUP, len(x) - 2)
        cold = 0
        while cold < most and _is_slower(x[cold], x[cold + 1 :]):
            cold += 1
        needed.append(cold)
    return math.floor(find_median(needed)) if needed else None


def _is_slower(first: float, later: Sequence[float]) -> bool:
    # For so few values the standard library's median takes a twentieth of NumPy's time; this runs after each block.
    middle = statistics.median(later)
    if first <= middle * (1 + _STEADY):
        return False
    spread = NORMAL_SPREAD * statistics.median([abs(value - middle) for value in later])
    return first > middle + 3 * spread
