"""Comparison of the ratios of several machines, and pooling of the machines of a class.

A machine is a factor: its ratio holds for it alone. Machines of one class may be pooled by a model in which each
has a ratio of its own around that of the class: log ratio i = m + u_i + e_i, with variance t² of u between machines and
the variance of e_i known from the blocks of the machine.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from guestmark.stats.across_runs import PastRatio
from guestmark.stats.paired import t_quantile
from guestmark.stats.special import student_t_critical

# Fewer machines of a class do not show the variance between machines.
FEWEST = 3
_CONFIDENCE = 0.95
_DIFFERENCE_LEVEL = 0.01
# Assumed for a ratio without any scatter, so that its weight is finite.
_LEAST_VARIANCE = 1e-12
# Up to this many values, the p of a trend is computed exactly.
_EXACT = 33


@dataclass(frozen=True, slots=True)
class PooledRatio:
    """The ratio of a class of machines with its 95 % interval.

    `spread` is the relative standard deviation between machines. `prediction` is the interval for the ratio of a
    further machine, measured as these were. `different` names machines whose ratio does not fit the others.
    """

    ratio: float
    ci: tuple[float, float]
    prediction: tuple[float, float]
    spread: float
    machines: int
    different: tuple[str, ...]


def pool_machines(found: Mapping[str, PastRatio]) -> PooledRatio | None:
    """Return the random-effects estimate over machines, by name; None for fewer than `FEWEST`.

    t² is DerSimonian and Laird's (1986). The interval is Hartung and Knapp's (2001) with Student's quantile at k - 1,
    which keeps its level for few machines; it is never narrower than without their correction (Jackson et al. 2017). A
    machine is different if its log ratio lies outside the prediction from the others, at 1 % over all machines
    (Bonferroni).
    """
    if len(found) < FEWEST:
        return None
    names = list(found)
    logs = [math.log(found[name].ratio) for name in names]
    variances = [max(found[name].log_variance, _LEAST_VARIANCE) for name in names]
    mean, error, between = _fit_random_effects(logs, variances)
    reach = student_t_critical(len(names) - 1, 1 - _CONFIDENCE) * error
    further = student_t_critical(len(names) - 1, 1 - _CONFIDENCE) * math.hypot(error, statistics.stdev(logs))
    different = []
    for at, name in enumerate(names):
        rest = logs[:at] + logs[at + 1 :]
        # A single other machine has no variance to predict from.
        if len(rest) < 2:
            continue
        others, other_error, other_between = _fit_random_effects(rest, variances[:at] + variances[at + 1 :])
        limit = student_t_critical(len(rest) - 1, _DIFFERENCE_LEVEL, len(names))
        if abs(logs[at] - others) > limit * math.sqrt(other_error**2 + other_between + variances[at]):
            different.append(name)
    return PooledRatio(
        math.exp(mean),
        (math.exp(mean - reach), math.exp(mean + reach)),
        (math.exp(mean - further), math.exp(mean + further)),
        math.expm1(math.sqrt(between)),
        len(names),
        tuple(different),
    )


def compute_shared_half_width(d: NDArray[np.float64], machines: Sequence[str]) -> float | None:
    """Return the half-width of the 95 % interval of a class's mean log ratio, if its machines share a run's blocks.

    `d` are log ratios by block, shape (K,); `machines` names the machine that measured each. The blocks of one machine
    have its ratio in common, so the machines are the independent units. Student's interval of their means is exact for
    equal numbers of blocks (the mean square between machines of a one-way random-effects model; Searle, Casella and
    McCulloch 1992, chapter 3). None if only one machine measured.
    """
    means = []
    for name in dict.fromkeys(machines):
        is_own = [machine == name for machine in machines]
        means.append(float(d[is_own].mean()))
    if len(means) < 2:
        return None
    middle = sum(means) / len(means)
    variance = sum((mean - middle) ** 2 for mean in means) / (len(means) - 1)
    return t_quantile(len(means) - 1, (1 + _CONFIDENCE) / 2) * math.sqrt(variance / len(means))


def compute_sharing_cost_factor(machines: int, blocks: int) -> float | None:
    """Return the factor by which intervals widen if this many equal machines share the blocks; None for one."""
    if machines < 2 or blocks < 2:
        return None
    level = (1 + _CONFIDENCE) / 2
    return t_quantile(min(machines, blocks) - 1, level) / t_quantile(blocks - 1, level)


def detect_machine_drift(values: list[float], tests: int = 1) -> float | None:
    """Return the relative change of a machine's values from its first block to its last; None if that may be chance.

    Mann's test of a trend (1945) at 1 %, divided by the number of `tests` in a report (Bonferroni), and Theil and Sen's
    slope, which outliers do not move. It takes blocks as independent, so a host whose state lasts for several blocks
    drifts, too.
    """
    if len(values) < 6 or min(values) <= 0:
        return None
    logs = [math.log(value) for value in values]
    if not trend_p(logs) < _DIFFERENCE_LEVEL / tests:
        return None
    slopes = ((logs[j] - logs[i]) / (j - i) for i, j in itertools.combinations(range(len(logs)), 2))
    return math.expm1(statistics.median(slopes) * (len(logs) - 1))


def trend_p(values: Sequence[float]) -> float:
    """Return the two-sided p of Mann's test that values in order have no trend, as `scipy.stats.kendalltau`.

    Exact for up to 33 values that all differ (Kendall 1970, by the number of inversions), else the normal approximation
    with its correction for ties.
    """
    n = len(values)
    pairs = n * (n - 1) // 2
    signs = [(b > a) - (b < a) for a, b in itertools.combinations(values, 2)]
    if 0 not in signs and n <= _EXACT:
        # The number of orders of k values by their inversions, from k - 1 to k.
        counts = [1]
        for k in range(2, n + 1):
            counts = [sum(counts[max(0, i - k + 1) : i + 1]) for i in range(len(counts) + k - 1)]
        fewer = (pairs - abs(sum(signs))) // 2
        return min(1.0, 2 * sum(counts[: fewer + 1]) / math.factorial(n))
    ties = sum(t * (t - 1) * (2 * t + 5) for t in Counter(values).values())
    variance = (n * (n - 1) * (2 * n + 5) - ties) / 18
    return math.erfc(abs(sum(signs)) / math.sqrt(2 * variance)) if variance > 0 else 1.0


def _fit_random_effects(logs: list[float], variances: list[float]) -> tuple[float, float, float]:
    """Return the mean, its standard error after Hartung and Knapp, and the variance between machines."""
    free = len(logs) - 1
    weights = [1 / variance for variance in variances]
    total = sum(weights)
    _, heterogeneity = _weigh_logs(logs, weights)
    scale = total - sum(weight**2 for weight in weights) / total
    between = max(0.0, (heterogeneity - free) / scale) if scale > 0 else 0.0
    weights = [1 / (variance + between) for variance in variances]
    mean, squares = _weigh_logs(logs, weights)
    # Below 1 the correction would narrow the interval, which few machines do not justify (Jackson et al. 2017).
    return mean, math.sqrt(max(squares / free, 1.0) / sum(weights)), between


def _weigh_logs(logs: list[float], weights: list[float]) -> tuple[float, float]:
    """Return the weighted mean, and the weighted sum of the squared distances from it."""
    pairs = list(zip(weights, logs, strict=True))
    mean = sum(weight * value for weight, value in pairs) / sum(weights)
    return mean, sum(weight * (value - mean) ** 2 for weight, value in pairs)
