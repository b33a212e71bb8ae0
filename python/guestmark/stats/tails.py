"""Slow runs: how many iterations took much longer than is typical of their cell, compared trial by trial.

The iterations of one trial ran on one machine and may be slow together, so in every test the trial is the unit, however
many iterations it holds. Matrices have shape (K, m): m iterations in each of K trials, a row of NaN if a trial is
missing.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from guestmark.core.metric import Better
from guestmark.core.rare import SLOW
from guestmark.stats import paired
from guestmark.stats.medians import find_median, find_row_medians
from guestmark.stats.special import inverse_regularized_beta
from guestmark.stats.total import bound_unseen_share

Array = NDArray[np.float64]

# Shares of slow runs that differ by less than this are equivalent.
SHARE_MARGIN = 0.05
# If slow runs were seen, the run continues up to this many blocks to decide about them.
TAIL_BLOCKS = 20
# The same in iterations, which count individually if nothing boots: as many as in 20 blocks of seven.
TAIL_RUNS = 140
QUANTILE = 0.95
# Confidence of the ratio of typical runs, and how many ratios inside its interval are tried.
_RATIO_CONFIDENCE, _RATIO_STEPS = 0.99, 7


@dataclass(frozen=True, slots=True)
class CellRuns:
    """All measured runs of one cell, in the metric's unit.

    `typical` is the median over trials of each trial's median, `total` the mean (of rates the harmonic mean, from which
    the cost of a batch follows). `p95` and `worst` lie towards the slow end. `slow` iterations took over `SLOW` times
    the level that they are held to (by default the typical one); they fell on `slow_trials` trials, and `over_twice` of
    them took over twice that level. `share_ci` is the 95 % interval of the share of slow iterations. `correlation`,
    from 0 to 1, is how strongly slow iterations cluster in trials (None: too few slow ones to tell).
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
        """The share of slow iterations among all."""
        return self.slow / self.iterations if self.iterations else 0.0


def convert_to_costs(iterations: Array, better: Better) -> Array:
    """Return what each iteration costs: the value itself, or the inverse of a rate."""
    if better is Better.LOWER:
        return iterations
    with np.errstate(divide="ignore"):
        return np.asarray(1 / iterations, dtype=np.float64)


def find_typical_level(costs: Array) -> float:
    """Return the median over the trials of each trial's median iteration; NaN without a trial."""
    rows = costs[~np.isnan(costs).any(axis=1)]
    return find_median(find_row_medians(rows)) if rows.size else math.nan


def count_slow_runs(costs: Array, times: float = SLOW, level: float | None = None) -> Array:
    """Return the number of iterations of each trial that cost over `times` the `level`, shape (K,).

    `level` is by default the typical cost of all.
    """
    if level is None:
        level = find_typical_level(costs)
    counts: Array = (costs > times * level).sum(axis=1).astype(np.float64)
    counts[np.isnan(costs).any(axis=1)] = np.nan
    return counts


@dataclass(frozen=True, slots=True)
class CommonScale:
    """A common scale for the slow runs of two cells, from their costs in complete blocks, shape (K, m) each.

    `log_ratio` compares the typical runs; `low` and `high` are the ends of its interval at `_RATIO_CONFIDENCE`.
    Divided by a ratio, the cell's costs are held to the same level as the baseline's: the median of both cells' trials
    together. A cell's own median cannot define slow runs: if nearly half of the runs are slow, it jumps from one mode
    to the other, and equal cells get different shares.
    """

    cell: Array
    baseline: Array
    # The median cost of each trial, shape (K,), of the cell and of the baseline.
    medians: tuple[Array, Array]
    log_ratio: float
    low: float
    high: float

    @property
    def normal_levels(self) -> tuple[float, float]:
        """The normal costs of the cell and of the baseline, at the estimated ratio."""
        level = self._find_baseline_level(self.log_ratio)
        return level * math.exp(self.log_ratio), level

    def count_excess_slow_runs(self, log_ratio: float) -> NDArray[np.int64]:
        """Return how many more slow iterations the cell has than the baseline in each block, shape (K,).

        `log_ratio` is the log of the typical ratio, by which the level of slow runs differs.
        """
        level = self._find_baseline_level(log_ratio)
        counts = count_slow_runs(self.cell, level=level * math.exp(log_ratio)) - count_slow_runs(
            self.baseline, level=level
        )
        return counts.astype(np.int64)

    def compute_equal_shares_p(self) -> float:
        """Return the largest p of "equally many slow runs" over the ratios that the typical runs may have.

        At the true ratio the counts of a block are as likely to be the other way round, so each p is exact
        (`excess_counts_p`), and the largest one is valid whenever the interval holds the true ratio (Berger and Boos,
        J. Am. Stat. Assoc. 89, 1994). 1 if the ratios disagree about which of the two cells has more slow runs.
        """
        ratios = [self.log_ratio, *np.linspace(self.low, self.high, _RATIO_STEPS)]
        if self.low <= 0 <= self.high:
            # Equal typical runs are the most natural hypothesis, and the grid may miss them.
            ratios.append(0.0)
        found = 0.0
        sign = np.sign(self.count_excess_slow_runs(self.log_ratio).sum())
        for log_ratio in ratios:
            excess = self.count_excess_slow_runs(log_ratio)
            if np.sign(excess.sum()) != sign:
                return 1.0
            found = max(found, excess_counts_p(excess))
        return found

    def _find_baseline_level(self, log_ratio: float) -> float:
        cell, baseline = self.medians
        return find_median(np.concatenate((cell / math.exp(log_ratio), baseline)))


def derive_common_scale(cell: Array, baseline: Array) -> CommonScale:
    """Return the common scale of two cells' costs, shape (K, m) each, above 0 and without NaN."""
    medians = find_row_medians(cell), find_row_medians(baseline)
    walsh = paired.walsh_averages(np.log(medians[0]) - np.log(medians[1]))
    low, high = (float(end) for end in paired.signed_rank_interval(walsh, _RATIO_CONFIDENCE))
    if not math.isfinite(low):
        # Too few blocks for an interval at that confidence: the range of all averages is the widest there is.
        low, high = float(walsh[0]), float(walsh[-1])
    return CommonScale(cell, baseline, medians, float(paired.hodges_lehmann(walsh)), low, high)


def describe_cell_runs(
    iterations: Array, better: Better = Better.LOWER, level: float | None = None
) -> CellRuns:
    """Describe all runs of one cell, shape (K, m); `level` is the typical cost to which slow ones are compared.

    Raises ValueError without a complete trial, or if a value is not finite and above 0.
    """
    rows = convert_to_costs(iterations[~np.isnan(iterations).any(axis=1)], better)
    if not rows.size or not (np.isfinite(rows) & (rows > 0)).all():
        raise ValueError("there is no trial to describe")
    counts = count_slow_runs(rows, level=level)
    alike = intraclass_correlation(counts, rows.shape[1])
    figures = np.array([find_typical_level(rows), rows.mean(), np.quantile(rows, QUANTILE), rows.max()])
    typical, total, p95, worst = (float(figure) for figure in convert_to_costs(figures, better))
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
        share_ci=compute_share_interval(counts, rows.shape[1], alike),
        correlation=alike,
    )


def intraclass_correlation(counts: Array, m: int) -> float | None:
    """Return the correlation of the m yes-or-no iterations within a trial, between 0 and 1; None below two slow trials.

    The analysis-of-variance estimate (Ridout, Demétrio and Firth 1999); `counts`, shape (n,), holds no NaN.
    """
    n, p = counts.size, float(counts.mean()) / m
    if n < 2 or not p < 1 or (counts > 0).sum() < 2:
        return None
    if m == 1:
        return 1.0
    between = m * float(((counts / m - p) ** 2).sum()) / (n - 1)
    within = float((counts * (1 - counts / m)).sum()) / (n * (m - 1))
    return min(max((between - within) / (between + (m - 1) * within), 0.0), 1.0)


def compute_effective_size(trials: int, m: int, correlation: float | None) -> float:
    """Return how many independent iterations `trials` trials of `m` are worth: n·m / (1 + (m - 1)·correlation).

    If so few were slow that the correlation is unknown (None), each trial counts once.
    """
    return trials * m / (1 + (m - 1) * (1.0 if correlation is None else correlation))


def compute_share_interval(
    counts: Array, m: int, correlation: float | None, confidence: float = 0.95
) -> tuple[float, float]:
    """Return the interval of the share of slow iterations from their counts per trial, shape (n,).

    Clopper and Pearson's exact interval at the effective number of iterations, as for clustered data (Korn and Graubard
    1998).
    """
    p = float(counts.mean()) / m
    size = compute_effective_size(counts.size, m, correlation)
    hits, tail = p * size, (1 - confidence) / 2
    low = float(inverse_regularized_beta(hits, size - hits + 1, tail)) if hits > 0 else 0.0
    high = float(inverse_regularized_beta(hits + 1, size - hits, 1 - tail)) if hits < size else 1.0
    return low, high


def estimate_failed_share(failed: Array, tried: Array) -> tuple[float, tuple[float, float]]:
    """Return the share of runs that failed and its 95 % interval, from counts per trial, shape (n,) each.

    The interval is that of `compute_share_interval`. If trials hold different numbers of runs, their correlation is
    unknown, so each trial counts once. Raises ValueError without a run.
    """
    if not tried.sum() > 0:
        raise ValueError("a share needs at least one run")
    runs = round(float(tried.mean()))
    equal = bool((tried == tried[0]).all())
    share = float(failed.sum() / tried.sum())
    alike = intraclass_correlation(failed, runs) if equal else None
    counts = failed if equal else np.full(failed.size, share * runs)
    return share, compute_share_interval(counts, runs, alike)


def estimate_share_difference(
    cell: Array, baseline: Array, m: int, confidence: float = 0.95
) -> tuple[float, tuple[float, float]]:
    """Return the cell's share of slow iterations minus the baseline's, and its interval.

    `cell` and `baseline` are counts per trial, shape (n,), of the same blocks. The interval combines those of the two
    shares by the square-and-add rule (Newcombe 1998; Zou and Donner 2008). Both use one correlation, since a cell
    without slow runs shows none.
    """
    p, q = float(cell.mean()) / m, float(baseline.mean()) / m
    alike = intraclass_correlation(np.concatenate((cell, baseline)), m)
    low_p, high_p = compute_share_interval(cell, m, alike, confidence)
    low_q, high_q = compute_share_interval(baseline, m, alike, confidence)
    d = p - q
    return d, (d - math.hypot(p - low_p, high_q - q), d + math.hypot(high_p - p, q - low_q))


def excess_counts_p(excess: NDArray[np.int64]) -> float:
    """Return the two-sided p of the sign-flip test of whole numbers, shape (n,), exact for any n.

    `excess` is how many more slow iterations the cell had than the baseline in each block. If both have the same
    distribution, each is as likely as its negative, so the null distribution is that of the sum of ±|excess|, which is
    enumerated by convolution.
    """
    sizes = np.abs(excess[excess != 0])
    reach = int(sizes.sum())
    probability = np.ones(1)
    # Convolves the distribution of the sum with ±size, each sign with probability 1/2.
    for size in sizes.tolist():
        longer = np.zeros(probability.size + 2 * size)
        longer[: probability.size] += probability / 2
        longer[2 * size :] += probability / 2
        probability = longer
    observed = abs(int(excess.sum()))
    return float(min(1.0, 2 * probability[reach + observed :].sum())) if observed else 1.0


def estimate_quantile_ratio(
    cell: Array, baseline: Array, quantile: float = QUANTILE, confidence: float = 0.95
) -> tuple[float, tuple[float, float] | None]:
    """Return the ratio of two cells' quantiles over all iterations, and its interval; None if it is unbounded.

    For a ratio r the cell's iterations are divided by r and pooled with the baseline's. If both have the same
    distribution, the largest 5 % fall equally on both cells of each block, which the sign-flip test of their counts per
    block tests exactly. The interval holds all r that are not rejected; its ends are found by bisection on a
    logarithmic scale.
    """
    ratio = float(np.quantile(cell, quantile) / np.quantile(baseline, quantile))
    if not math.isfinite(ratio) or ratio <= 0:
        return ratio, None
    # The largest values of both cells together, as many as the quantile leaves above it.
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
    """Shares of events that may have happened without being seen, at 95 % confidence.

    Up to `machines` of all starts may give a slow machine; up to `iterations` of all single iterations may be slow,
    given the correlation within a machine.
    """

    machines: float
    iterations: float


def bound_unseen_events(trials: int, m: int, correlation: float | None = 0.0) -> Unseen:
    """Return the largest frequency of an event that did not occur in `trials` trials of `m` iterations.

    `correlation` is that of `intraclass_correlation`, from a cell with slow runs. 0 assumes that each iteration is slow
    independently; with None nothing is known, and each machine counts once.
    """
    size = compute_effective_size(trials, m, correlation)
    slow_iterations = 1 - 0.05 ** (1 / size) if size else 1.0
    return Unseen(bound_unseen_share(trials), slow_iterations)
