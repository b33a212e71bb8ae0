"""How often: blocks until the interval is narrow enough, iterations until another boot is the better buy."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from guestmark.stats.compare import Comparison

Array = NDArray[np.float64]

MAX_ITERATIONS = 1_000
_MAX_BLOCKS = 100_000


def half_width(ci: tuple[float, float], ratio: float) -> float:
    """Return half the width of a ratio's interval relative to the ratio (0.02: known to ± 2 %)."""
    return (ci[1] - ci[0]) / 2 / ratio


def precise_enough(comparison: Comparison, precision: float) -> bool:
    """Return whether the relative half-width of the interval is at most `precision`; False without an
    interval.

    Stopping by this after at least 10 blocks keeps coverage at .947; stopping by p < .05 instead gives a
    false-positive rate of .256. A cell that has no ratio never gets precise: the caller leaves failed cells
    out.
    """
    if comparison.ci is None or comparison.ratio is None:
        return False
    return half_width(comparison.ci, comparison.ratio) <= precision


def blocks_needed(comparison: Comparison, precision: float) -> int | None:
    """Return the estimated number of blocks in all until `precise_enough`; None while it cannot be estimated.

    With the spread s seen so far, the smallest n for which sinh(t(n-1) · s/√n) <= `precision`, sinh(h) being
    the relative half-width of exp(mean ± h). For the display of the time left only: it is not used to stop.
    """
    if comparison.ci is None or comparison.ratio is None or comparison.n < 2 or precision <= 0:
        return None
    from scipy.special import stdtrit

    n = comparison.n
    half = math.log(comparison.ci[1] / comparison.ci[0]) / 2
    spread = half * math.sqrt(n) / float(stdtrit(n - 1, 0.975))
    target = math.asinh(precision)
    low, high = 2, _MAX_BLOCKS

    def enough(blocks: int) -> bool:
        return float(stdtrit(blocks - 1, 0.975)) * spread / math.sqrt(blocks) <= target

    if not enough(high):
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle + 1, high)
    return max(low, n) if enough(n) else low


def kalibera_jones(costs: Sequence[float], variances: Sequence[float]) -> tuple[int, ...]:
    """Return the best number of repetitions at every level but the highest, from the lowest level up.

    `costs` (seconds of one repetition at a level, without the levels below) and `variances` (variance
    components T²) go from the lowest level (iteration) to the highest (boot). r_i = ceil sqrt(c_{i+1}/c_i ·
    T²_i/T²_{i+1}) (Kalibera and Jones, "Rigorous benchmarking in reasonable time", 2013, §6); the highest
    level is repeated until precise enough. No variance above a level makes its repetitions as good as any, so
    r is capped at 1000. Raises ValueError for costs that are not above 0, negative variances, or unequal or
    too short sequences.
    """
    if len(costs) != len(variances) or len(costs) < 2:
        raise ValueError("needs a cost and a variance for each of two or more levels")
    if min(costs) <= 0 or min(variances) < 0:
        raise ValueError("costs must be above 0 and variances not below")
    repetitions = []
    for i in range(len(costs) - 1):
        if variances[i] == 0:
            best = 1.0
        elif variances[i + 1] == 0:
            best = math.inf
        else:
            best = math.sqrt(costs[i + 1] / costs[i] * variances[i] / variances[i + 1])
        repetitions.append(math.ceil(min(max(best, 1.0), MAX_ITERATIONS)))
    return tuple(repetitions)


def iterations_for(cost_boot_s: float, cost_iteration_s: float, variance_ratio: float = 1.0) -> int:
    """Return how many iterations one boot should hold by `kalibera_jones`.

    `variance_ratio` is the variance between iterations of one boot over that between boots; 1 while nothing
    is known. A boot of 2 s and an iteration of 0.02 s: 10 iterations; an iteration of 10 s: 1.
    """
    return kalibera_jones((cost_iteration_s, cost_boot_s), (variance_ratio, 1.0))[0]


def variance_components(boots: Sequence[Sequence[float]]) -> tuple[float, float]:
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
