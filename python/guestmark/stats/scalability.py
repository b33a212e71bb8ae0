"""How throughput grows with the number of those who share a machine: the Universal Scalability Law.

X(N) = rate * N / (1 + contention * (N - 1) + coherence * N * (N - 1)) (Gunther 2007, "Guerrilla Capacity Planning",
chapter 4). N / X(N) is linear in three unknowns that cannot be negative, so the least squares of relative errors have
one solution, found without a search.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
_RESAMPLED = 500
_MIN_BLOCKS = 4  # fewer cannot say how much they differ


@dataclass(frozen=True, slots=True)
class Law:
    """One fit: `rate` of one alone, and what each further one costs it; `error` is the largest relative residual."""

    rate: float
    contention: float
    coherence: float
    error: float

    def throughput(self, number: float) -> float:
        """Of all together."""
        return (
            self.rate * number / (1 + self.contention * (number - 1) + self.coherence * number * (number - 1))
        )

    @property
    def knee(self) -> float:
        """The number with the largest throughput, (1 - contention) / coherence under a root; infinite without one."""
        if self.coherence <= 0:
            return math.inf
        return math.sqrt(max(0.0, 1 - self.contention) / self.coherence)

    @property
    def ceiling(self) -> float:
        """The largest throughput there can be, in multiples of one alone; infinite where nothing is shared."""
        if math.isfinite(self.knee):
            best = max(self.throughput(math.floor(self.knee) or 1), self.throughput(math.ceil(self.knee)))
            return best / self.rate
        return 1 / self.contention if self.contention > 0 else math.inf


@dataclass(frozen=True, slots=True)
class Fit:
    """A law, and 95 % intervals from resampled blocks; None with too few of them."""

    law: Law
    contention: tuple[float, float] | None
    coherence: tuple[float, float] | None
    knee: tuple[float, float] | None


def law(points: Sequence[tuple[float, float]]) -> Law:
    """Return the law that fits (number, throughput of all) best.

    Raises ValueError for fewer than two different numbers, and for throughputs that are not above 0.
    """
    n = np.array([number for number, _ in points], dtype=np.float64)
    x = np.array([throughput for _, throughput in points], dtype=np.float64)
    if np.unique(n).size < 2 or not (x > 0).all():
        raise ValueError("no scalability without two numbers and throughputs above 0")
    # N/X = a + b (N - 1) + c N (N - 1), each row divided by N/X.
    scaled = np.stack((np.ones_like(n), n - 1, n * (n - 1)), axis=1) * (x / n)[:, None]
    best: tuple[float, Array] | None = None
    columns = (1, 2) if np.unique(n).size > 2 else (1,)
    for count in range(len(columns) + 1):
        for some in itertools.combinations(columns, count):
            chosen = (0, *some)
            solved = np.linalg.lstsq(scaled[:, chosen], np.ones_like(n), rcond=None)[0]
            if (solved < 0).any() or solved[0] <= 0:
                continue
            full = np.zeros(3)
            full[list(chosen)] = solved
            error = float(((scaled @ full - 1) ** 2).sum())
            if best is None or error < best[0] - 1e-15:
                best = error, full
    if best is None:  # throughput grows faster than the number: nothing is shared
        best = 0.0, np.array([float(np.mean(n / x)), 0.0, 0.0])
    a, b, c = (float(value) for value in best[1])
    found = Law(1 / a, b / a, c / a, 0.0)
    apart = max(abs(found.throughput(number) / throughput - 1) for number, throughput in points)
    return Law(found.rate, found.contention, found.coherence, apart)


def fit(blocks: Sequence[Sequence[tuple[float, float]]], seed: int = 0) -> Fit:
    """Return the law of all blocks' medians by number, with percentile intervals over resampled blocks (Efron 1979).

    Each block holds its own (number, throughput of all). Raises as `law`.
    """
    found = law(_medians(blocks))
    if len(blocks) < _MIN_BLOCKS:
        return Fit(found, None, None, None)
    random = np.random.default_rng(seed)
    laws = []
    for _ in range(_RESAMPLED):
        chosen = [blocks[at] for at in random.integers(0, len(blocks), len(blocks))]
        laws.append(law(_medians(chosen)))
    return Fit(
        found,
        _percentiles([each.contention for each in laws]),
        _percentiles([each.coherence for each in laws]),
        _percentiles([each.knee for each in laws]),
    )


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Return the least-squares slope of (x, y). Raises ValueError with fewer than two different x."""
    x = np.array([point[0] for point in points], dtype=np.float64)
    y = np.array([point[1] for point in points], dtype=np.float64)
    if np.unique(x).size < 2:
        raise ValueError("no slope without two points")
    apart = x - x.mean()
    return float((apart * (y - y.mean())).sum() / (apart**2).sum())


def _medians(blocks: Sequence[Sequence[tuple[float, float]]]) -> list[tuple[float, float]]:
    by_number: dict[float, list[float]] = {}
    for number, throughput in itertools.chain.from_iterable(blocks):
        by_number.setdefault(number, []).append(throughput)
    return [(number, float(np.median(values))) for number, values in sorted(by_number.items())]


def _percentiles(values: Sequence[float]) -> tuple[float, float]:
    ordered = sorted(values)
    return ordered[math.floor(0.025 * (len(ordered) - 1))], ordered[math.ceil(0.975 * (len(ordered) - 1))]
