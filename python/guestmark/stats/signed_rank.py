"""The typical difference of paired blocks: Hodges–Lehmann's estimate, with the exact signed-rank test and interval.

Everything follows from the *Walsh averages* (d_i + d_j) / 2, i <= j, of n block differences: their median is the
estimate, how many lie above a shift is Wilcoxon's statistic for that shift (Tukey 1949), and order statistics of them
are the ends of the interval (Hollander, Wolfe and Chicken, "Nonparametric Statistical Methods", 3rd ed., 3.1-3.3).
Arrays have the blocks on their last axis, NaN where one is missing; any axes before it are runs that are computed
together.
"""

import functools
import math

import numpy as np
from numpy.typing import NDArray

from guestmark.core.metric import MIN_BLOCKS as MIN_BLOCKS  # noqa: PLC0414 (of this test)

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

NOMINAL = 0.96  # of intervals that are looked at after every block: at the stopping time they cover .95
EXACT_BLOCKS = 100  # beyond, the normal approximation is within .001


@functools.lru_cache(maxsize=64)
def null_cdf(n: int) -> Array:
    """Return P(W <= w) for w = 0 … n(n+1)/2, W being the sum of the positive ranks of n symmetric differences.

    Each rank r is in the sum with probability 1/2, whatever the differences' law: the distribution is the product of
    (1 + z^r) / 2. Beyond `EXACT_BLOCKS` the normal approximation with continuity correction.
    """
    if n > EXACT_BLOCKS:
        from scipy.special import ndtr

        w = np.arange(n * (n + 1) // 2 + 1)
        spread = math.sqrt(n * (n + 1) * (2 * n + 1) / 24)
        return np.asarray(ndtr((w + 0.5 - n * (n + 1) / 4) / spread), dtype=np.float64)
    probability = np.ones(1)
    for rank in range(1, n + 1):
        longer = np.zeros(probability.size + rank)
        longer[: probability.size] = probability / 2
        longer[rank:] += probability / 2
        probability = longer
    return np.minimum(np.cumsum(probability), 1.0)


@functools.lru_cache(maxsize=1024)
def cut(n: int, confidence: float = NOMINAL) -> int | None:
    """Return how many Walsh averages lie outside the interval at each end; None if n is too small for one."""
    outside = int(np.searchsorted(null_cdf(n), (1 - confidence) / 2, side="right"))
    return outside - 1 if outside else None


@functools.lru_cache(maxsize=8)
def _pairs(n: int) -> tuple[Counts, Counts]:
    first, second = np.triu_indices(n)
    return first.astype(np.int64), second.astype(np.int64)


def walsh_averages(d: Array) -> Array:
    """Return the Walsh averages of `d`, shape (…, K), sorted along the last axis; NaN (missing blocks) come last."""
    first, second = _pairs(d.shape[-1])
    return np.sort((d[..., first] + d[..., second]) / 2, axis=-1)


def present(walsh: Array) -> Counts:
    """Return n, the number of blocks without NaN behind sorted Walsh averages, shape (…,)."""
    averages = (~np.isnan(walsh)).sum(axis=-1)
    return np.asarray((np.sqrt(8 * averages + 1) - 1) / 2 + 0.5, dtype=np.int64)


def hodges_lehmann(walsh: Array) -> Array:
    """Return the median of the Walsh averages, shape (…,): the differences' pseudo-median; NaN without a block.

    29 % of the blocks may be arbitrarily wrong without moving it arbitrarily; for normal noise its variance is 1.05
    times that of the mean.
    """
    count = np.asarray((~np.isnan(walsh)).sum(axis=-1))
    low = np.take_along_axis(walsh, np.maximum((count - 1) // 2, 0)[..., None], axis=-1)[..., 0]
    high = np.take_along_axis(walsh, np.minimum(count // 2, walsh.shape[-1] - 1)[..., None], axis=-1)[..., 0]
    return np.asarray((low + high) / 2, dtype=np.float64)


def interval(walsh: Array, confidence: float = NOMINAL) -> tuple[Array, Array]:
    """Return the ends of the interval of the pseudo-median, shape (…,); NaN where blocks are too few.

    At the default it is the 95 % interval of a run that stops once it is narrow, see `NOMINAL`.

    The shifts that the two-sided signed-rank test at 1 - `confidence` does not reject, so it covers at least that
    often whenever d is symmetric around its centre, which the random order inside each block makes sure of for cells
    whose laws differ by a factor.
    """
    n = present(walsh)
    cuts = np.array([-1 if (c := cut(int(k), confidence)) is None else c for k in n.ravel()]).reshape(n.shape)
    averages = n * (n + 1) // 2
    lower = np.take_along_axis(walsh, np.maximum(cuts, 0)[..., None], axis=-1)[..., 0]
    upper = np.take_along_axis(walsh, np.maximum(averages - 1 - np.maximum(cuts, 0), 0)[..., None], axis=-1)[
        ..., 0
    ]
    return np.where(cuts < 0, np.nan, lower), np.where(cuts < 0, np.nan, upper)


def signed_rank_p(walsh: Array, shift: float = 0.0) -> float:
    """Return the exact two-sided p of "the pseudo-median is `shift`" from sorted Walsh averages, shape (M,).

    Averages equal to the shift (a coarse clock) count against the claim, so p is never too small. Between 2^(1-n) and
    1; 1 without a block.
    """
    above, at, below = _around(walsh, shift)
    n = int(present(walsh))
    return float(min(1.0, 2 * null_cdf(n)[min(above, below) + at])) if n else 1.0


def one_sided_p(walsh: Array, shift: float) -> tuple[float, float]:
    """Return the p of "the pseudo-median is at most `shift`" and of "it is at least `shift`", from 2^-n to 1.

    The first is small when it is shown to be above, the second when it is shown to be below.
    """
    above, at, below = _around(walsh, shift)
    n = int(present(walsh))
    cdf = null_cdf(n)
    return (float(cdf[below + at]), float(cdf[above + at])) if n else (1.0, 1.0)


def equivalence_p(walsh: Array, margin: float) -> float:
    """Return the p of "the ratio differs by at least `margin`" (relative, e.g. 0.03): small means equivalent.

    Two one-sided signed-rank tests of d against ±log(1 + margin); the larger p counts (Schuirmann 1987). Never below
    2^-n. Raises ValueError unless the margin is above 0.
    """
    if margin <= 0:
        raise ValueError("the margin must be above 0")
    n = int(present(walsh))
    if not n:
        return 1.0
    bound = math.log1p(margin)
    above, at_upper, _ = _around(walsh, bound)
    _, at_lower, below = _around(walsh, -bound)
    return float(null_cdf(n)[max(above + at_upper, below + at_lower)])


def _around(walsh: Array, shift: float) -> tuple[int, int, int]:
    valid = walsh[~np.isnan(walsh)]
    tie = 1e-12 * (1 + abs(shift))
    above = int((valid > shift + tie).sum())
    below = int((valid < shift - tie).sum())
    return above, valid.size - above - below, below
