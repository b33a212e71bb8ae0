"""Estimates and tests on paired block differences d = log(cell / baseline), of shape (K,), without NaN.

The typical difference is Hodges–Lehmann's estimate, with the exact signed-rank test and interval. Everything follows
from the *Walsh averages* (d_i + d_j) / 2, i <= j, of n block differences: their median is the estimate, how many lie
above a shift is Wilcoxon's statistic for that shift (Tukey 1949), and order statistics of them are the ends of the
interval (Hollander, Wolfe and Chicken, "Nonparametric Statistical Methods", 3rd ed., 3.1-3.3). The input of
`walsh_averages` has the blocks on its last axis, NaN where one is missing; any axes before it are runs that are
computed together.

The tests compare every function here with its `scipy.stats` counterpart.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from guestmark.core.metric import MIN_BLOCKS as MIN_BLOCKS  # noqa: PLC0414 (of this test)
from guestmark.stats.medians import find_median
from guestmark.stats.special import normal_cdf, student_t_cdf, student_t_quantile

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

# Confidence of intervals that are examined after every block: when the run stops, they cover .95.
NOMINAL = 0.96
# Beyond this many blocks the normal approximation of the signed-rank test is within .001.
EXACT_RANKS = 100
# Beyond this many values order statistics suffice; the normal quantile is that of `NOMINAL`.
_ORDERED, _Z = 60, 2.054
# Up to this many blocks the sign-flip test enumerates all 2^K sign vectors.
EXACT_BLOCKS = 30


@functools.lru_cache(maxsize=64)
def signed_rank_cdf(n: int) -> Array:
    """Return P(W <= w) for w = 0 … n(n+1)/2, where W is the sum of the positive ranks of n symmetric differences.

    Each rank r is in the sum with probability 1/2 whatever distribution the differences have, so the generating
    function is the product of (1 + z^r) / 2. For n above `EXACT_RANKS` it is the normal approximation with continuity
    correction.
    """
    if n > EXACT_RANKS:
        w = np.arange(n * (n + 1) // 2 + 1)
        spread = math.sqrt(n * (n + 1) * (2 * n + 1) / 24)
        return np.array([normal_cdf(z) for z in (w + 0.5 - n * (n + 1) / 4) / spread])
    probability = np.ones(1)
    # Multiplies by (1 + z^rank) / 2, one rank after the other.
    for rank in range(1, n + 1):
        longer = np.zeros(probability.size + rank)
        longer[: probability.size] = probability / 2
        longer[rank:] += probability / 2
        probability = longer
    return np.minimum(np.cumsum(probability), 1.0)


@functools.lru_cache(maxsize=1024)
def count_averages_outside(n: int, confidence: float = NOMINAL) -> int | None:
    """Return how many Walsh averages lie beyond each end of the interval; None if n is too small for an interval."""
    outside = int(np.searchsorted(signed_rank_cdf(n), (1 - confidence) / 2, side="right"))
    return outside - 1 if outside else None


@functools.lru_cache(maxsize=8)
def _pair_indices(n: int) -> tuple[Counts, Counts]:
    first, second = np.triu_indices(n)
    return first.astype(np.int64), second.astype(np.int64)


def walsh_averages(d: Array) -> Array:
    """Return the Walsh averages of `d`, shape (…, K), sorted along the last axis; NaN (missing blocks) come last."""
    first, second = _pair_indices(d.shape[-1])
    return np.sort((d[..., first] + d[..., second]) / 2, axis=-1)


def count_blocks(walsh: Array) -> Counts:
    """Return n, the number of blocks without NaN behind sorted Walsh averages, shape (…,)."""
    averages = (~np.isnan(walsh)).sum(axis=-1)
    return np.asarray((np.sqrt(8 * averages + 1) - 1) / 2 + 0.5, dtype=np.int64)


def hodges_lehmann(walsh: Array) -> Array:
    """Return the median of the Walsh averages, shape (…,): the pseudo-median of the differences; NaN without a block.

    Up to 29 % of the blocks may be arbitrarily wrong without moving it arbitrarily far. For normal noise its variance
    is 1.05 times that of the mean.
    """
    count = np.asarray((~np.isnan(walsh)).sum(axis=-1))
    low = np.take_along_axis(walsh, np.maximum((count - 1) // 2, 0)[..., None], axis=-1)[..., 0]
    high = np.take_along_axis(walsh, np.minimum(count // 2, walsh.shape[-1] - 1)[..., None], axis=-1)[..., 0]
    return np.asarray((low + high) / 2, dtype=np.float64)


def signed_rank_interval(walsh: Array, confidence: float = NOMINAL) -> tuple[Array, Array]:
    """Return the ends of the interval of the pseudo-median, shape (…,); NaN if there are too few blocks.

    It holds the shifts that the two-sided signed-rank test at 1 - `confidence` does not reject. So its coverage is at
    least `confidence` if d is symmetric around its centre; the random order inside each block makes it symmetric for
    cells whose distributions differ by a factor. With the default `NOMINAL` it covers 95 % in a run that stops once it
    is narrow.
    """
    n = count_blocks(walsh)
    outside = []
    for blocks in n.ravel():
        count = count_averages_outside(int(blocks), confidence)
        outside.append(-1 if count is None else count)
    cuts = np.array(outside).reshape(n.shape)
    averages = n * (n + 1) // 2
    lower = np.take_along_axis(walsh, np.maximum(cuts, 0)[..., None], axis=-1)[..., 0]
    upper = np.take_along_axis(walsh, np.maximum(averages - 1 - np.maximum(cuts, 0), 0)[..., None], axis=-1)[
        ..., 0
    ]
    return np.where(cuts < 0, np.nan, lower), np.where(cuts < 0, np.nan, upper)


def signed_rank_p(walsh: Array, shift: float = 0.0) -> float:
    """Return the exact two-sided p of "the pseudo-median is `shift`" from sorted Walsh averages, shape (M,).

    Between 2^(1-n) and 1; 1 without a block. Averages equal to the shift, as a coarse clock gives them, count against
    the claim, so p is never too small.
    """
    n = int(count_blocks(walsh))
    if not n:
        return 1.0
    above, at, below = _count_around_shift(walsh, shift)
    return float(min(1.0, 2 * signed_rank_cdf(n)[min(above, below) + at]))


def one_sided_signed_rank_p(walsh: Array, shift: float) -> tuple[float, float]:
    """Return the p of "the pseudo-median is at most `shift`" and of "it is at least `shift`", each from 2^-n to 1.

    A small first p shows that it lies above, a small second p that it lies below.
    """
    n = int(count_blocks(walsh))
    if not n:
        return 1.0, 1.0
    above, at, below = _count_around_shift(walsh, shift)
    cdf = signed_rank_cdf(n)
    return float(cdf[below + at]), float(cdf[above + at])


def equivalence_p(walsh: Array, margin: float) -> float:
    """Return the p of "the ratio differs by at least `margin`" (relative, such as 0.03); a small p shows equivalence.

    The larger p of two one-sided signed-rank tests of d against ±log(1 + margin) (Schuirmann 1987). Never below 2^-n.
    Raises ValueError unless the margin is above 0.
    """
    if margin <= 0:
        raise ValueError("the margin must be above 0")
    n = int(count_blocks(walsh))
    if not n:
        return 1.0
    bound = math.log1p(margin)
    above, at_upper, _ = _count_around_shift(walsh, bound)
    _, at_lower, below = _count_around_shift(walsh, -bound)
    return float(signed_rank_cdf(n)[max(above + at_upper, below + at_lower)])


def _count_around_shift(walsh: Array, shift: float) -> tuple[int, int, int]:
    """Return how many Walsh averages lie above, at and below `shift`."""
    valid = walsh[~np.isnan(walsh)]
    # Averages of rounded logs may miss an equal shift by a few units in the last place.
    tie = 1e-12 * (1 + abs(shift))
    above = int((valid > shift + tie).sum())
    below = int((valid < shift - tie).sum())
    return above, valid.size - above - below, below


# Number of random sign vectors beyond `EXACT_BLOCKS`, and their seed: the same data always give the same p.
RESAMPLES = 19_999
_SEED = 20_130_401
_PART = 32
# Differences of logs this small are rounding errors.
_ROUNDING = 1e-13
# Sums this close, relative to sum |d|, are ties; ties count against the claim.
_TIES = 1e-12


def log_ratios(cell: Array, baseline: Array) -> Array | None:
    """Return d over the blocks in which both values, shape (K,), are present; None if a ratio does not exist.

    Blocks with a NaN on either side (a missing trial) are left out. A zero, negative or infinite value has no
    logarithm, and leaving out just its block would bias the estimate, so then there is no ratio at all. Differences
    that are only rounding count as 0. Raises ValueError if the shapes differ: values pair by block index, never by
    rank.
    """
    if cell.shape != baseline.shape or cell.ndim != 1:
        raise ValueError(f"values do not pair: shapes {cell.shape} and {baseline.shape}")
    both = ~(np.isnan(cell) | np.isnan(baseline))
    above, below = cell[both], baseline[both]
    if not (np.isfinite(above) & np.isfinite(below) & (above > 0) & (below > 0)).all():
        return None
    d = np.asarray(np.log(above) - np.log(below), dtype=np.float64)
    d[np.abs(d) <= _ROUNDING] = 0.0
    return d


@functools.cache
def t_quantile(freedom: int, p: float) -> float:
    """Return the quantile of Student's t at probability `p`, .5 ≤ p < 1, with `freedom` ≥ 1 degrees of freedom.

    Bisects the closed form for whole degrees of freedom (Abramowitz and Stegun 26.7.3 and 26.7.4).
    """
    # The closed form is in the angle whose tangent is t / √freedom.
    low, high = 0.0, math.pi / 2
    while low < (angle := (low + high) / 2) < high:
        if _t_central_share(freedom, angle) < 2 * p - 1:
            low = angle
        else:
            high = angle
    return math.sqrt(freedom) * math.tan(low)


def _t_central_share(freedom: int, angle: float) -> float:
    """Return the probability that Student's t lies between -t and t, where t = √freedom · tan(angle)."""
    sine, square = math.sin(angle), math.cos(angle) ** 2
    odd = freedom % 2
    term = math.cos(angle) if odd else 1.0
    total = 0.0
    for step in range(freedom // 2):
        total += term
        term *= square * ((2 * step + 1 + odd) / (2 * step + 2 + odd))
    if odd:
        return 2 / math.pi * (angle + sine * total)
    return sine * total


def t_interval(d: Array, confidence: float = 0.95) -> tuple[float, float]:
    """Return the Student t interval of the mean, as `scipy.stats.ttest_1samp(d, 0).confidence_interval()`.

    Without scatter it has no width. On log ratios of 5 to 20 blocks it covers .956 to .966, while bootstrap intervals
    cover .83 to .93. Raises ValueError below two values.
    """
    if d.size < 2:
        raise ValueError("an interval needs two values")
    half = t_quantile(d.size - 1, (1 + confidence) / 2) * _standard_error(d)
    mean = float(d.mean())
    return mean - half, mean + half


def t_p(d: Array) -> float:
    """Return the two-sided p of Student's test of mean d = 0, as `scipy.stats.ttest_1samp`; never below 2^-2n.

    Without the lower bound, a few differences without any scatter would claim more certainty than n of them can give.
    Raises ValueError below two values.
    """
    if d.size < 2:
        raise ValueError("a test needs two values")
    error, least = _standard_error(d), 2.0 ** (-2 * d.size)
    if error <= _ROUNDING:
        return least if abs(float(d.mean())) > _ROUNDING else 1.0
    return max(2 * float(student_t_cdf(d.size - 1, -abs(float(d.mean())) / error)), least)


def median_interval(d: Array, confidence: float = 0.95) -> tuple[float, float] | None:
    """Return the distribution-free interval of the median, as `scipy.stats.quantile_test(d, p=.5)`.

    None below 6 values.

    Its ends are the order statistics d[(i)] and d[(n-1-i)], with the largest i for which P(Binomial(n, 1/2) < i+1) is
    at most half of 1 - confidence (Conover, "Practical Nonparametric Statistics", 3.2). So it holds under spikes.
    """
    rank = _median_rank(d.size, confidence)
    if rank is None:
        return None
    ordered = np.sort(d)
    return float(ordered[rank]), float(ordered[-1 - rank])


@functools.cache
def _median_rank(n: int, confidence: float) -> int | None:
    """Return i of `median_interval`; None if n is too small."""
    tail = 0.0
    for rank in range(n + 1):
        tail += math.comb(n, rank) / 2**n
        if tail > (1 - confidence) / 2:
            return rank - 1 if rank else None
    return None


# Two starts of equal cells hardly ever differ by more than this, and the share of starts that may do so.
FAR_APART = math.log(6)
_ONCE_FAR = 0.05
# Starts of cells with two modes, half of their starts in either, may differ by this much in the same direction.
_APART = math.log(1.5)
# Standard deviation of log ratios before anything is known, and the degrees of freedom with which it counts.
_PRIOR_SPREAD, _PRIOR_FREEDOM = 0.25, 4


def early_p(d: Array, spread: float = 0.0) -> float:
    """Return a two-sided p of "the cells are equal" from two to five blocks, where ranks cannot reach .05.

    So few blocks show only what lies far beyond any scatter, and only if all of them agree; otherwise p is 1. They say
    nothing about the distribution of starts, so the bounds come from simulated distributions, for two cases:

    - Each block differs by over six times. No simulated distribution (starts in two modes up to five times apart,
      Pareto tails with index 1.5) does that in more than one block in twenty, so p is at least 2 (1/40)^n. It is also
      at least that of Student's moderated t: the variance of the blocks has n - 1 degrees of freedom beside
      `_PRIOR_FREEDOM` of all cells' log ratios, whose variance is `spread` squared but at least `_PRIOR_SPREAD` squared
      (Smyth, Stat. Appl. Genet. Mol. Biol. 3, 2004).
    - With four or five blocks, each differs by over a half. Cells whose starts have two modes differ in the same
      direction in at most one block in four, so p is at least 2 / 4^n, and at least that of Student's t.
    """
    n = d.size
    if not 2 <= n < MIN_BLOCKS or not (bool((d > 0).all()) or bool((d < 0).all())):
        return 1.0
    nearest = float(np.abs(d).min())
    if nearest >= FAR_APART:
        prior = max(spread, _PRIOR_SPREAD) ** 2
        free = _PRIOR_FREEDOM + n - 1
        error = math.sqrt((_PRIOR_FREEDOM * prior + (n - 1) * float(d.var(ddof=1))) / free / n)
        return max(2 * float(student_t_cdf(free, -abs(float(d.mean())) / error)), 2 * (_ONCE_FAR / 2) ** n)
    if n >= 4 and nearest >= _APART:
        return max(t_p(d), 2 * 0.25**n)
    return 1.0


def sign_flip_p(d: Array) -> float:
    """Return the two-sided p of the sign-flip test of mean d = 0; between 2^(1-K) and 1, never 0.

    Order inside a block is random, so without a difference each block's d is as likely as -d, whatever the host did
    meanwhile. So the test is exact under drift, regime changes and autocorrelation, which no t test is (Fisher 1935,
    §21). Up to `EXACT_BLOCKS` blocks all sign vectors are counted: the sums of one half of the blocks are sorted, and
    those of the other half looked up (Horowitz and Sahni 1974). That is the p of
    `scipy.stats.permutation_test(permutation_type="samples", n_resamples=inf)`, in milliseconds instead of hours.
    Beyond, p = (k+1)/(n+1) over n random vectors of a fixed seed (Phipson and Smyth 2010).
    """
    if d.size == 0:
        return 1.0
    ties = _TIES * float(np.abs(d).sum())
    observed = abs(float(d.sum()))
    if observed <= ties:
        return 1.0
    if d.size <= EXACT_BLOCKS:
        half = d.size // 2
        # Looking up sorted sums in sorted sums stays in the processor's cache.
        few, many = np.sort(_list_signed_sums(d[:half])), np.sort(_list_signed_sums(d[half:]))
        as_large = many.size * few.size - int(np.searchsorted(many, observed - ties - few).sum())
        return float(min(1.0, 2 * as_large / 2**d.size))
    sums = np.zeros(RESAMPLES)
    for part in range(0, d.size, _PART):
        some = d[part : part + _PART]
        sums += _draw_random_signs(part // _PART)[:, : some.size].astype(np.float64) @ some
    as_large = int((np.abs(sums) >= observed - ties).sum())
    return (as_large + 1) / (RESAMPLES + 1)


def _list_signed_sums(d: Array) -> Array:
    sums = np.zeros(1)
    for value in d:
        sums = np.concatenate((sums + value, sums - value))
    return sums


@functools.lru_cache(maxsize=64)
def _draw_random_signs(part: int) -> NDArray[np.int8]:
    """Return the signs of `_PART` blocks for `RESAMPLES` vectors, so that one more block changes no other sign."""
    generator = np.random.default_rng((_SEED, part))
    return (2 * generator.integers(0, 2, (RESAMPLES, _PART), dtype=np.int8) - 1).astype(np.int8)


def _standard_error(d: Array) -> float:
    return float(d.std(ddof=1)) / math.sqrt(d.size)


# Largest half-width of a mean's log: two values may be powers of ten apart, and exp must not overflow.
_MOST = 20.0
# Standard errors added to a correlation, its largest value, and the smallest effective number of values.
_CORRELATION_ERRORS, _LARGEST_CORRELATION, _FEWEST_EFFECTIVE = 0.25, 0.7, 4.0


@dataclass(frozen=True, slots=True)
class Summary:
    """One metric of one cell over its trials, in the metric's own unit.

    `ci` is the 95 % interval of the mean over trials (never over iterations), None below two values. If all values are
    above 0, it is the t interval of the mean's log (by the delta method), so it never reaches 0. `typical` is the
    typical trial as ratios estimate it, and is shown beside them; see `estimate_typical`, also for its interval
    `typical_ci`. Whatever the host does for longer than a block does not cancel in these values, so with six or more
    values both intervals are longer by `autocorrelation_stretch`. They describe one cell; comparisons use paired
    blocks, never two summaries.
    """

    n: int
    mean: float
    median: float
    ci: tuple[float, float] | None
    typical: float
    typical_ci: tuple[float, float] | None


def reduce_iterations(values: Sequence[float]) -> float:
    """Return the typical iteration of one trial: their median.

    The iterations of one boot are not independent, so however many they are, they are one replicate. Raises ValueError
    without values or if a value is not a number.
    """
    iterations = np.asarray(values, dtype=np.float64)
    if iterations.size == 0:
        raise ValueError("a trial without iterations has no value")
    if np.isnan(iterations).any():
        raise ValueError("an iteration is not a number")
    return find_median(iterations)


def summarise_trials(values: Array) -> Summary:
    """Summarise `values` of shape (K,), one per block in order, NaN if the trial is missing or failed."""
    present = np.asarray(values, dtype=np.float64)
    present = present[~np.isnan(present)]
    if present.size == 0:
        nothing = float("nan")
        return Summary(n=0, mean=nothing, median=nothing, ci=None, typical=nothing, typical_ci=None)
    mean, longer = float(present.mean()), autocorrelation_stretch(present)
    ci: tuple[float, float] | None = None
    if present.size >= 2:
        low, high = t_interval(present)
        half = longer * (high - low) / 2
        ci = (mean - half, mean + half)
        if bool((present > 0).all()):
            away = min(half / mean, _MOST)
            ci = (mean * math.exp(-away), mean * math.exp(away))
    typical, typical_ci = estimate_typical(present, longer)
    return Summary(present.size, mean, find_median(present), ci, typical, typical_ci)


def autocorrelation_stretch(values: Array) -> float:
    """Return the factor by which autocorrelation of the values lengthens the interval of their centre.

    `values`, shape (n,), are in the order measured. If neighbours correlate by r, n values are worth n (1 - r) / (1 +
    r) independent ones (Bartlett 1935). r is corrected for its bias in few values (Kendall 1954), and taken a little
    higher. At r = .5, intervals over 8, 13 and 25 values cover .91, .93 and .95; without this .80, .78 and .76. The
    factor is at most about 3.5, because few values estimate r badly, and an interval valid for any r would be useless.
    1 below `MIN_BLOCKS` values.
    """
    n, away = values.size, values - values.mean()
    square = float(away @ away)
    if n < MIN_BLOCKS or not 0 < square < math.inf:
        return 1.0
    r = float(away[1:] @ away[:-1]) / square
    r = min(max(r + (1 + 3 * r) / n + _CORRELATION_ERRORS / math.sqrt(n), 0.0), _LARGEST_CORRELATION)
    worth = (1 + r) / (1 - r)
    freedom = max(n / worth, _FEWEST_EFFECTIVE) - 1
    return (
        math.sqrt(worth) * float(student_t_quantile(freedom, 0.975)) / float(student_t_quantile(n - 1, 0.975))
    )


def estimate_typical(values: Array, longer: float = 1.0) -> tuple[float, tuple[float, float] | None]:
    """Return the typical value of `values`, shape (n,) without NaN, and its 95 % interval; None below two values.

    The pseudo-median with the signed-rank interval, on the log if all values are above 0, as ratios are estimated: one
    slow trial moves neither. Beyond `_ORDERED` values, where both agree closely, the median between order statistics
    (David and Nagaraja, Order Statistics, 2003, §7.1); below `MIN_BLOCKS`, where ranks have no interval, Student's. The
    interval is `longer` than that of independent values by this factor.
    """
    positive = bool((values > 0).all())
    x = np.log(values) if positive else values

    def back(value: float) -> float:
        return math.exp(value) if positive else value

    if x.size > _ORDERED:
        ordered = np.sort(x)
        outside = max(math.floor(x.size / 2 - _Z * math.sqrt(x.size) / 2), 1)
        middle, low, high = np.asarray(find_median(x)), ordered[outside - 1], ordered[x.size - outside]
    else:
        walsh = walsh_averages(x)
        middle, (low, high) = hodges_lehmann(walsh), signed_rank_interval(walsh)
        if not math.isfinite(float(low)):
            if x.size < 2:
                return back(float(middle)), None
            low, high = t_interval(x)
    ends = (
        float(middle) - longer * max(float(middle) - float(low), 0.0),
        float(middle) + longer * max(float(high) - float(middle), 0.0),
    )
    return back(float(middle)), (back(ends[0]), back(ends[1]))
