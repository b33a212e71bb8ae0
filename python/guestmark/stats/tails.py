"""Slow runs: how many iterations took much longer than is typical of their cell, compared trial by trial.

A trial's iterations ran on one machine and may be slow together, so the trial is the unit of every test here however
many iterations it holds. Matrices have shape (K, m): m iterations of each of K trials, a row of NaN where one is
missing.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from guestmark.core.metric import Better
from guestmark.core.rare import SLOW
from guestmark.stats import paired
from guestmark.stats.special import inverse_regularized_beta
from guestmark.stats.total import unseen_share

Array = NDArray[np.float64]

SHARE_MARGIN = 0.05  # shares of slow runs that differ by less are no difference
TAIL_BLOCKS = 20  # a run in which slow runs were seen goes on up to here until it can call them
TAIL_RUNS = (
    140  # the same where nothing boots, so that each run counts by itself: as many as 20 blocks of seven
)
QUANTILE = 0.95
_SURELY, _STEPS = 0.99, 7  # confidence of the ratio of typical runs, and how many ratios inside are tried


@dataclass(frozen=True, slots=True)
class CellRuns:
    """All measured runs of one cell, in the metric's unit.

    `typical` is the median over trials of each trial's median and `total` the mean (of a rate the harmonic mean, so
    that it says what a batch costs). `p95` and `worst` are towards the slow end. `slow` iterations took over `SLOW`
    times the level that they are held to (without one the typical), in `slow_trials` trials, `over_twice` of them over
    twice. `share_ci` is the 95 % interval of the
    share of slow iterations; `correlation` is how much the iterations of a trial are slow together (0 to 1; None: too
    few are).
    """

    trials: int
    iterations: int
    typical: float
    total: float
    p95: float
    worst: float
    slow: int
    over_twice: int
    slow_trials: int
    share_ci: tuple[float, float]
    correlation: float | None

    @property
    def slow_share(self) -> float:
        """Of slow iterations among all."""
        return self.slow / self.iterations if self.iterations else 0.0


def as_costs(iterations: Array, better: Better) -> Array:
    """Return what an iteration costs: the value itself, or the inverse of a rate."""
    if better is Better.LOWER:
        return iterations
    with np.errstate(divide="ignore"):
        return np.asarray(1 / iterations, dtype=np.float64)


def typical_level(costs: Array) -> float:
    """Return the median over the trials of each trial's median iteration; NaN without a trial."""
    rows = costs[~np.isnan(costs).any(axis=1)]
    return float(np.median(np.median(rows, axis=1))) if rows.size else math.nan


def count_slow_runs(costs: Array, times: float = SLOW, level: float | None = None) -> Array:
    """Return for each trial how many iterations took over `times` a level, shape (K,); without one the typical."""
    counts: Array = (
        (costs > times * (typical_level(costs) if level is None else level)).sum(axis=1).astype(np.float64)
    )
    counts[np.isnan(costs).any(axis=1)] = np.nan
    return counts


@dataclass(frozen=True, slots=True)
class CommonScale:
    """One scale for the slow runs of two cells, from their costs, shape (K, m) each, in complete blocks.

    A cell's own median is no scale to count slow runs by: where nearly half of the runs are slow it jumps from one mode
    to the other, and equal cells get different shares. `log_ratio` is that of the typical runs, `low` and `high` the
    ends of its interval at `_SURELY`. Divided by a ratio the cell's costs are held to the same level as the baseline's,
    which is the median of both cells' trials together.
    """

    cell: Array
    baseline: Array
    log_ratio: float
    low: float
    high: float

    @property
    def normal_levels(self) -> tuple[float, float]:
        """What is normal for the cell and for the baseline, by the most likely ratio."""
        level = self._baseline_level(self.log_ratio)
        return level * math.exp(self.log_ratio), level

    def excess_slow_runs(self, log_ratio: float) -> NDArray[np.int64]:
        """How many more slow iterations than the baseline the cell has in each block, if this is the typical ratio."""
        level = self._baseline_level(log_ratio)
        counts = count_slow_runs(self.cell, level=level * math.exp(log_ratio)) - count_slow_runs(
            self.baseline, level=level
        )
        return counts.astype(np.int64)

    def equal_shares_p(self) -> float:
        """The largest p of equally many slow runs over the ratios that the typical runs may have.

        For the true ratio the counts of a block are as likely the other way round, so each p is exact
        (`excess_counts_p`), and the largest holds wherever the interval has the ratio (Berger and Boos, J. Am. Stat.
        Assoc. 89, 1994). 1 where these ratios do not agree on which of the two has more.
        """
        steps = [
            self.log_ratio,
            *np.linspace(self.low, self.high, _STEPS),
            *([0.0] if self.low <= 0 <= self.high else []),
        ]
        found = 0.0
        sign = np.sign(self.excess_slow_runs(self.log_ratio).sum())
        for log_ratio in steps:
            excess = self.excess_slow_runs(log_ratio)
            if np.sign(excess.sum()) != sign:
                return 1.0
            found = max(found, excess_counts_p(excess))
        return found

    def _baseline_level(self, log_ratio: float) -> float:
        trials = np.concatenate(
            (np.median(self.cell, axis=1) / math.exp(log_ratio), np.median(self.baseline, axis=1))
        )
        return float(np.median(trials))


def derive_common_scale(cell: Array, baseline: Array) -> CommonScale:
    """Return the scale of two cells' costs above 0, shape (K, m) each, without NaN."""
    walsh = paired.walsh_averages(np.log(np.median(cell, axis=1)) - np.log(np.median(baseline, axis=1)))
    low, high = (float(end) for end in paired.signed_rank_interval(walsh, _SURELY))
    if not math.isfinite(low):  # too few blocks for it: all that was seen
        low, high = float(walsh[0]), float(walsh[-1])
    return CommonScale(cell, baseline, float(paired.hodges_lehmann(walsh)), low, high)


def describe_cell_runs(
    iterations: Array, better: Better = Better.LOWER, level: float | None = None
) -> CellRuns:
    """Describe all runs of one cell, shape (K, m); slow ones are held to `level`, a cost.

    Raises ValueError without a complete trial of values above 0.
    """
    rows = as_costs(iterations[~np.isnan(iterations).any(axis=1)], better)
    if not rows.size or not (np.isfinite(rows) & (rows > 0)).all():
        raise ValueError("no trial to describe")
    counts = count_slow_runs(rows, level=level)
    alike = intraclass_correlation(counts, rows.shape[1])
    figures = np.array([typical_level(rows), rows.mean(), np.quantile(rows, QUANTILE), rows.max()])
    typical, total, p95, worst = (float(figure) for figure in as_costs(figures, better))
    return CellRuns(
        trials=rows.shape[0],
        iterations=rows.size,
        typical=typical,
        total=total,
        p95=p95,
        worst=worst,
        slow=int(counts.sum()),
        over_twice=int(count_slow_runs(rows, 2.0, level).sum()),
        slow_trials=int((counts > 0).sum()),
        share_ci=share_interval(counts, rows.shape[1], alike),
        correlation=alike,
    )


def intraclass_correlation(counts: Array, m: int) -> float | None:
    """Return how alike the m yes-or-no iterations of one trial are, between 0 and 1; None below two slow trials.

    The analysis-of-variance estimate (Ridout, Demétrio and Firth 1999); `counts`, shape (n,), without NaN.
    """
    n, p = counts.size, float(counts.mean()) / m
    if n < 2 or not p < 1 or (counts > 0).sum() < 2:
        return None
    if m == 1:
        return 1.0
    between = m * float(((counts / m - p) ** 2).sum()) / (n - 1)
    within = float((counts * (1 - counts / m)).sum()) / (n * (m - 1))
    return min(max((between - within) / (between + (m - 1) * within), 0.0), 1.0)


def effective_size(trials: int, m: int, correlation: float | None) -> float:
    """Return how many independent iterations `trials` trials of `m` are worth: n·m / (1 + (m - 1)·correlation).

    Where few were slow the correlation cannot be known (None); then each trial counts once.
    """
    return trials * m / (1 + (m - 1) * (1.0 if correlation is None else correlation))


def share_interval(
    counts: Array, m: int, correlation: float | None, confidence: float = 0.95
) -> tuple[float, float]:
    """Return the interval of the share of slow iterations from their counts per trial, shape (n,).

    Clopper and Pearson's exact interval at the effective number of iterations, for data that come in clusters (Korn
    and Graubard 1998).
    """
    p = float(counts.mean()) / m
    size = effective_size(counts.size, m, correlation)
    hits, tail = p * size, (1 - confidence) / 2
    low = float(inverse_regularized_beta(hits, size - hits + 1, tail)) if hits > 0 else 0.0
    high = float(inverse_regularized_beta(hits + 1, size - hits, 1 - tail)) if hits < size else 1.0
    return low, high


def failed_share(failed: Array, tried: Array) -> tuple[float, tuple[float, float]]:
    """Return the share of runs that failed and its 95 % interval, from counts per trial, shape (n,) each.

    As `share_interval`; where trials hold unequal numbers of runs how alike these are is not known, so that each trial
    counts once. Raises ValueError without a run.
    """
    if not tried.sum() > 0:
        raise ValueError("no run to take a share of")
    runs = round(float(tried.mean()))
    equal = bool((tried == tried[0]).all())
    share = float(failed.sum() / tried.sum())
    alike = intraclass_correlation(failed, runs) if equal else None
    counts = failed if equal else np.full(failed.size, share * runs)
    return share, share_interval(counts, runs, alike)


def share_difference(
    cell: Array, baseline: Array, m: int, confidence: float = 0.95
) -> tuple[float, tuple[float, float]]:
    """Return the cell's share of slow iterations minus the baseline's, and its interval.

    From the two shares' intervals by the square-and-add rule (Newcombe 1998; Zou and Donner 2008), with one correlation
    for both, as where nothing was slow none can be seen; `cell` and `baseline` are counts per trial, shape (n,), of the
    same blocks.
    """
    p, q = float(cell.mean()) / m, float(baseline.mean()) / m
    alike = intraclass_correlation(np.concatenate((cell, baseline)), m)
    low_p, high_p = share_interval(cell, m, alike, confidence)
    low_q, high_q = share_interval(baseline, m, alike, confidence)
    d = p - q
    return d, (d - math.hypot(p - low_p, high_q - q), d + math.hypot(high_p - p, q - low_q))


def excess_counts_p(excess: NDArray[np.int64]) -> float:
    """Return the two-sided p of the sign-flip test of whole numbers, shape (n,): exact for any n.

    `excess` is how many more slow iterations the cell had than the baseline in each block. With equal laws each is as
    likely as its negative, so their sum has the distribution of the sum of ±|excess|, which is counted out.
    """
    sizes = np.abs(excess[excess != 0])
    reach = int(sizes.sum())
    probability = np.ones(1)
    for size in sizes.tolist():
        longer = np.zeros(probability.size + 2 * size)
        longer[: probability.size] += probability / 2
        longer[2 * size :] += probability / 2
        probability = longer
    observed = abs(int(excess.sum()))
    return float(min(1.0, 2 * probability[reach + observed :].sum())) if observed else 1.0


def quantile_ratio(
    cell: Array, baseline: Array, quantile: float = QUANTILE, confidence: float = 0.95
) -> tuple[float, tuple[float, float] | None]:
    """Return the ratio of two cells' quantiles over all iterations, and its interval; None where it has no end.

    For a ratio r the cell's iterations are divided by r and both cells' are pooled; with equal laws the largest 5 %
    fall on either side of each block alike, which the sign-flip test of their counts per block tests exactly. The
    interval is all r that it does not reject, found by bisection on a logarithmic scale.
    """
    ratio = float(np.quantile(cell, quantile) / np.quantile(baseline, quantile))
    if not math.isfinite(ratio) or ratio <= 0:
        return ratio, None
    top = max(1, round((1 - quantile) * 2 * cell.size))

    def rejected(log_ratio: float) -> bool:
        scaled = cell / math.exp(log_ratio)
        threshold = np.partition(np.concatenate((scaled.ravel(), baseline.ravel())), -top)[-top]
        excess = (scaled >= threshold).sum(axis=1) - (baseline >= threshold).sum(axis=1)
        return excess_counts_p(excess.astype(np.int64)) <= 1 - confidence

    ends = []
    for direction in (-1, 1):
        inside = math.log(ratio)
        if rejected(inside):
            return ratio, None
        outside = inside + direction * 0.02
        while not rejected(outside):
            if abs(outside - inside) > 20:
                return ratio, None
            inside, outside = outside, outside + 2 * (outside - math.log(ratio))
        for _ in range(12):
            middle = (inside + outside) / 2
            inside, outside = (inside, middle) if rejected(middle) else (middle, outside)
        ends.append(math.exp(outside))
    return ratio, (ends[0], ends[1])


@dataclass(frozen=True, slots=True)
class Unseen:
    """What could have happened without being seen, at 95 %.

    Whole machines slow in up to `machines` of all starts; single iterations slow in up to `iterations` of all, given
    how alike the iterations of one machine are.
    """

    machines: float
    iterations: float


def bound_unseen_events(trials: int, m: int, correlation: float | None = 0.0) -> Unseen:
    """Return which rarer events `trials` trials of `m` iterations without one cannot exclude.

    `correlation` is that of `intraclass_correlation`, from a cell in which slow runs were seen; 0 says "if each
    iteration is slow by its own chance", None that nothing is known and each machine counts once.
    """
    size = effective_size(trials, m, correlation)
    return Unseen(unseen_share(trials), 1 - 0.05 ** (1 / size) if size else 1.0)
