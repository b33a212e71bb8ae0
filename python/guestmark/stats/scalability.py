"""The Universal Scalability Law: how throughput grows with the number of machines that share a host.

X(N) = rate * N / (1 + contention * (N - 1) + coherence * N * (N - 1)) (Gunther 2007, "Guerrilla Capacity Planning",
chapter 4). N / X(N) is linear in three unknowns that cannot be negative, so the least squares of relative errors have
one solution, which needs no search.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from guestmark.stats.medians import find_median
from guestmark.stats.paired import t_interval, t_quantile

Array = NDArray[np.float64]
# Fewer blocks do not show how much they differ.
_MIN_BLOCKS = 4
# Two numbers of machines do not show the quadratic term.
_MIN_NUMBERS = 3


@dataclass(frozen=True, slots=True)
class Law:
    """A fitted law: the `rate` of one machine alone, and two costs; `error` is the largest relative residual."""

    rate: float
    contention: float
    coherence: float
    error: float

    def predict_throughput(self, number: float) -> float:
        """Return the total throughput of `number` machines."""
        return (
            self.rate * number / (1 + self.contention * (number - 1) + self.coherence * number * (number - 1))
        )

    @property
    def knee(self) -> float:
        """The number with the largest throughput, √((1 - contention) / coherence); infinite without coherence."""
        if self.coherence <= 0:
            return math.inf
        return math.sqrt(max(0.0, 1 - self.contention) / self.coherence)

    @property
    def ceiling(self) -> float:
        """The largest possible throughput, in multiples of one alone; infinite if nothing is shared."""
        if math.isfinite(self.knee):
            best = max(
                self.predict_throughput(math.floor(self.knee) or 1),
                self.predict_throughput(math.ceil(self.knee)),
            )
            return best / self.rate
        return 1 / self.contention if self.contention > 0 else math.inf


@dataclass(frozen=True, slots=True)
class Fit:
    """A law and 95 % intervals over blocks; None with too few blocks, or if too few numbers were measured."""

    law: Law
    contention: tuple[float, float] | None
    coherence: tuple[float, float] | None
    knee: tuple[float, float] | None


def fit_law(points: Sequence[tuple[float, float]]) -> Law:
    """Return the law that fits the points (number, throughput of all) best.

    Raises ValueError for fewer than two different numbers, and for throughputs that are not above 0.
    """
    n, scaled = _design_matrix(points)
    if len(set(n.tolist())) < 2 or not all(throughput > 0 for _, throughput in points):
        raise ValueError("a law needs at least two numbers of machines, with throughputs above 0")
    best: tuple[float, Array] | None = None
    # Two numbers determine one cost beside the rate.
    columns = (1, 2) if len(set(n.tolist())) > 2 else (1,)
    for count in range(len(columns) + 1):
        for some in itertools.combinations(columns, count):
            chosen = (0, *some)
            solved = np.linalg.lstsq(scaled[:, chosen], np.ones_like(n), rcond=None)[0]
            # The law has no negative costs; the best fit without one of the columns is tried as well.
            if (solved < 0).any() or solved[0] <= 0:
                continue
            full = np.zeros(3)
            full[list(chosen)] = solved
            error = float(((scaled @ full - 1) ** 2).sum())
            if best is None or error < best[0] - 1e-15:
                best = error, full
    if best is None:
        # Throughput grows faster than the number of machines, so nothing is shared: only the rate remains.
        cost = float(np.mean([number / throughput for number, throughput in points]))
        best = 0.0, np.array([cost, 0.0, 0.0])
    a, b, c = (float(value) for value in best[1])
    found = Law(1 / a, b / a, c / a, 0.0)
    apart = max(abs(found.predict_throughput(number) / throughput - 1) for number, throughput in points)
    return Law(found.rate, found.contention, found.coherence, apart)


def fit_with_intervals(blocks: Sequence[Sequence[tuple[float, float]]]) -> Fit:
    """Return the law of all blocks' medians by number, with intervals over blocks.

    Each block holds its own points (number, throughput of all); raises as `fit_law` does. Each complete block gives a
    law of its own, which may have negative terms: the intervals are Student's over these, and Fieller's (1954) for the
    squared knee, which is a ratio of two of them. Percentiles of resampled blocks held the truth in only .80 of fits to
    four blocks, and .90 to ten.
    """
    found = fit_law(_list_medians_by_number(blocks))
    measured = [{number for number, _ in block} for block in blocks]
    numbers = set[float]().union(*measured)
    complete = [block for block, own in zip(blocks, measured, strict=True) if own == numbers]
    if len(complete) < _MIN_BLOCKS or len(numbers) < _MIN_NUMBERS:
        return Fit(found, None, None, None)
    solved = []
    for block in complete:
        n, scaled = _design_matrix(_list_medians_by_number([block]))
        a, b, c = np.linalg.lstsq(scaled, np.ones_like(n), rcond=None)[0]
        solved.append((b / a, c / a))
    contention, coherence = np.array(solved).T
    squared = _fieller_interval(1 - contention, coherence)
    return Fit(
        found,
        _clip_interval(contention, found.contention),
        _clip_interval(coherence, found.coherence),
        (min(math.sqrt(squared[0]), found.knee), max(math.sqrt(squared[1]), found.knee)),
    )


def _design_matrix(points: Sequence[tuple[float, float]]) -> tuple[Array, Array]:
    """Return the numbers, and the rows of N/X = a + b (N - 1) + c N (N - 1), each divided by N/X."""
    n = np.array([number for number, _ in points], dtype=np.float64)
    x = np.array([throughput for _, throughput in points], dtype=np.float64)
    return n, np.stack((np.ones_like(n), n - 1, n * (n - 1)), axis=1) * (x / n)[:, None]


def _clip_interval(values: Array, estimate: float) -> tuple[float, float]:
    low, high = t_interval(values)
    return max(min(low, estimate), 0.0), max(high, estimate)


def _fieller_interval(x: Array, y: Array) -> tuple[float, float]:
    """Return Fieller's interval of mean x / mean y as far as it lies above 0; infinite if y may be 0."""
    n = x.size
    t = t_quantile(n - 1, 0.975) ** 2 / n
    (xx, xy), (_, yy) = np.cov(x, y)
    above = x.mean() ** 2 - t * xx, x.mean() * y.mean() - t * xy, y.mean() ** 2 - t * yy
    c, b, a = (float(value) for value in above)
    root = math.sqrt(max(b * b - a * c, 0.0))
    if a > 0 and float(y.mean()) > 0:
        return max((b - root) / a, 0.0), max((b + root) / a, 0.0)
    # Either the law certainly keeps rising, or nothing is known.
    if a > 0 or c <= 0:
        return (math.inf if a > 0 and c > 0 else 0.0), math.inf
    low = 0.0
    if a < 0:
        low = (b - root) / a
    elif b > 0:
        low = c / (2 * b)
    return max(low, 0.0), math.inf


def least_squares_slope(points: Sequence[tuple[float, float]]) -> float:
    """Return the least-squares slope of points (x, y). Raises ValueError with fewer than two different x."""
    x = np.array([point[0] for point in points], dtype=np.float64)
    y = np.array([point[1] for point in points], dtype=np.float64)
    if len(set(x.tolist())) < 2:
        raise ValueError("a slope needs two different x")
    apart = x - x.mean()
    return float((apart * (y - y.mean())).sum() / (apart**2).sum())


def _list_medians_by_number(blocks: Sequence[Sequence[tuple[float, float]]]) -> list[tuple[float, float]]:
    by_number: dict[float, list[float]] = {}
    for number, throughput in itertools.chain.from_iterable(blocks):
        by_number.setdefault(number, []).append(throughput)
    return [(number, find_median(values)) for number, values in sorted(by_number.items())]
