"""The total cost of a batch: the ratio of two cells' means, with allowance for events that few machines cannot show.

Arrays hold one mean per trial, shape (K,), NaN if a trial is missing or failed. No method can determine from a few
trials a mean that depends on rare events (Bahadur and Savage 1956). The interval covers what the trials showed. A
second one says how far off a total could be if an event stayed unseen: whole trials that take five times as long, in as
large a share as could have.
"""

import functools
import math

import numpy as np
from numpy.typing import NDArray

from guestmark.stats.paired import MIN_BLOCKS, NOMINAL, sign_flip_p
from guestmark.stats.special import student_t_cdf, student_t_quantile

Array = NDArray[np.float64]

# An event that remained unseen is assumed to make a trial at most this many times as long.
LARGEST_EVENT = 5.0


def select_complete_pairs(cell: Array, baseline: Array) -> tuple[Array, Array] | None:
    """Return both cells' values in the blocks that hold both; None if one is not a finite number above 0.

    Raises ValueError if the shapes differ: values pair by block, never by rank.
    """
    if cell.shape != baseline.shape or cell.ndim != 1:
        raise ValueError(f"values do not pair: shapes {cell.shape} and {baseline.shape}")
    both = ~(np.isnan(cell) | np.isnan(baseline))
    x, y = cell[both], baseline[both]
    usable = np.isfinite(x) & np.isfinite(y) & (x > 0) & (y > 0)
    return (x, y) if usable.all() else None


def ratio_of_means(x: Array, y: Array) -> float:
    """Return mean x / mean y, both of shape (n,) with n > 0."""
    return float(x.mean() / y.mean())


# Up to this many blocks all their subsets are used, beyond it this many random ones.
_ALL_SUBSETS, _SUBSETS = 12, 4_095
_SEED = 19_690_101
# Ratios of sums whose logs are this close differ by rounding alone.
_ROUNDING = 1e-13


def ratio_interval(x: Array, y: Array, confidence: float = NOMINAL) -> tuple[float, float] | None:
    """Return the interval of mean x / mean y for paired x and y, shape (n,); None if it is unbounded or n < 2.

    It holds all ratios r for which the sign-flip test of x - r·y does not reject. Those lie between two order
    statistics of the ratios sum x / sum y over the subsets of the blocks (Hartigan's typical values, 1969), and random
    subsets serve as well. So its coverage is at least `confidence` for cells of any distribution that differ by a
    factor. Below `MIN_BLOCKS` blocks, where that test has no interval, it is Fieller's.
    """
    n = x.size
    masks = _list_block_subsets(n)
    outside = math.floor((1 - confidence) / 2 * (len(masks) + 1))
    if n < MIN_BLOCKS or not outside:
        return fieller_interval(x, y, confidence)
    ratios = np.sort((masks @ x) / (masks @ y))
    low, high = float(ratios[outside - 1]), float(ratios[ratios.size - outside])
    if high <= low * (1 + _ROUNDING):
        low = high = ratio_of_means(x, y)
    return low, high


@functools.lru_cache(maxsize=16)
def _list_block_subsets(n: int) -> Array:
    """Return which blocks each subset holds, 0 or 1, shape (M, n); no subset is empty."""
    if n <= _ALL_SUBSETS:
        numbers = np.arange(1, 1 << n)
        return ((numbers[:, None] >> np.arange(n)) & 1).astype(np.float64)
    chance = np.random.default_rng((_SEED, n))
    masks = chance.integers(0, 2, (_SUBSETS, n)).astype(np.float64)
    # An empty subset has no ratio; of 13 blocks it is one in 8,192.
    masks[masks.sum(axis=1) == 0] = 1.0
    return masks


def fieller_interval(x: Array, y: Array, confidence: float = NOMINAL) -> tuple[float, float] | None:
    """Return Fieller's interval of mean x / mean y for paired x and y, shape (n,); None if it is unbounded or n < 2.

    It holds all ratios r for which the t test of x - r·y around 0 does not reject (Fieller 1954). It uses no
    logarithms, because exp(mean log) would be about the geometric mean, and a batch costs the arithmetic one.
    """
    n = x.size
    if n < 2:
        return None
    t = float(student_t_quantile(n - 1, (1 + confidence) / 2)) ** 2 / n
    mean_x, mean_y = float(x.mean()), float(y.mean())
    # Scaled by the means, squares of very large or small values neither overflow nor vanish.
    spread = np.cov(x / mean_x, y / mean_y)
    xx, xy, yy = float(spread[0, 0]), float(spread[0, 1]), float(spread[1, 1])
    a, b, c = 1 - t * yy, 1 - t * xy, 1 - t * xx
    root = b * b - a * c
    # Mean y is not distinguishable from 0, so that no ratio can be excluded.
    if a <= 0:
        return None
    half = math.sqrt(max(root, 0.0))
    scale = mean_x / mean_y
    return max((b - half) / a, 0.0) * scale, (b + half) / a * scale


def total_p(x: Array, y: Array) -> float:
    """Return the two-sided p of "both cost the same", exact whatever the host does, see `paired.sign_flip_p`."""
    return sign_flip_p(x - y)


def total_equivalence_p(x: Array, y: Array, margin: float) -> float:
    """Return the p of "the ratio of means differs by at least `margin`", from the measured runs alone.

    Two one-sided t tests of x - r·y at both ends of the margin (Schuirmann 1987); never below 2^-n, and 1 below two
    blocks.
    """
    n = x.size
    if n < 2:
        return 1.0
    worst = 0.0
    for ratio, sign in ((1 + margin, 1), (1 / (1 + margin), -1)):
        excess = sign * (x - ratio * y)
        mean, error = float(excess.mean()), float(excess.std(ddof=1)) / math.sqrt(n)
        # Without scatter beyond rounding the t statistic has no meaning; the mean itself decides.
        if error <= 1e-13 * float(x.mean()):
            worst = max(worst, 0.0 if mean < 0 else 1.0)
        else:
            worst = max(worst, float(student_t_cdf(n - 1, mean / error)))
    return max(worst, 2.0**-n)


def bound_unseen_share(trials: int, confidence: float = 0.95) -> float:
    """Return the largest share that an event may have which did not occur in `trials` independent trials.

    1 - (1 - confidence)^(1/n), about 3/n ("rule of three", Hanley and Lippman-Hand 1983): 26 % for 10 trials, 3 % for
    99. 1 without a trial.
    """
    return 1 - (1 - confidence) ** (1 / trials) if trials else 1.0


def count_trials_to_see(share: float, confidence: float = 0.95) -> int:
    """Return the fewest independent trials in which an event of this share occurs at least once.

    Raises ValueError unless the share lies between 0 and 1.
    """
    if not 0 < share < 1:
        raise ValueError("the share must lie between 0 and 1")
    # The small term prevents a rounding error from raising a whole number.
    return math.ceil(math.log1p(-confidence) / math.log1p(-share) - 1e-9)


def count_runs_for_equal_totals(margin: float, largest: float = LARGEST_EVENT) -> int:
    """Return how many independent runs are needed before equal totals may be claimed.

    An event that makes a trial take `largest` times as long moves the mean by `margin` if its share is margin /
    (largest - 1). With fewer runs such an event could well have stayed unseen. 398 runs for a margin of 3 % and ×5.
    """
    return count_trials_to_see(min(margin / (largest - 1), 0.5))


def widen_for_unseen(
    interval: tuple[float, float], trials: int, factor: float = LARGEST_EVENT
) -> tuple[float, float]:
    """Return the interval in which a ratio of means could lie if `trials` trials of each cell missed some event.

    It is a worst case, and holds far more often than `interval`. It assumes that the share `bound_unseen_share` of the
    cell's trials, or of the baseline's, takes `factor` times as long.
    """
    growth = 1 + bound_unseen_share(trials) * (factor - 1)
    return interval[0] / growth, interval[1] * growth
