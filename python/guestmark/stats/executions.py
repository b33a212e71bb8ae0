"""Every single execution of a command, as hyperfine describes it: mean, standard deviation, and range.

Executions of one trial share a machine, so they are not independent. Verdicts never rest on these figures.
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from guestmark.core.metric import find_measurement
from guestmark.core.model import Trial


@dataclass(frozen=True, slots=True)
class Executions:
    """The values of single executions, in the order they ran; at least one."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Arithmetic mean."""
        return statistics.fmean(self.values)

    @property
    def deviation(self) -> float | None:
        """Sample standard deviation; None for a single value."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    @property
    def median(self) -> float:
        """Median."""
        return statistics.median(self.values)


def collect_iterations(trials: Iterable[Trial], metric: str) -> list[float]:
    """Return a metric's value in each measured iteration of these trials."""
    values: list[float] = []
    for trial in trials:
        measurement = find_measurement(trial.measurements, metric)
        if measurement is not None:
            values += measurement.iterations
    return values


def collect_executions(trials: Iterable[Trial], metric: str) -> Executions | None:
    """Return a metric's executions in these trials: iterations, or the one value of a trial that has none.

    None without any value.
    """
    values: list[float] = []
    for trial in trials:
        measurement = find_measurement(trial.measurements, metric)
        if measurement is not None:
            values += measurement.iterations or (measurement.value,)
    return Executions(tuple(values)) if values else None


def compute_mean_or_zero(values: Sequence[float]) -> float:
    """Return the mean, or 0 of no values, as hyperfine's documents have it."""
    return statistics.fmean(values) if values else 0.0


def compute_relative_speed(
    mean: float, deviation: float | None, reference_mean: float, reference_deviation: float | None
) -> tuple[float, float | None]:
    """Return the quotient of two means and its standard deviation, None if one of them is unknown.

    The error is propagated as hyperfine does it: relative errors add as if both were independent.
    """
    quotient = mean / reference_mean
    if deviation is None or reference_deviation is None or not mean:
        return quotient, None
    return quotient, quotient * math.hypot(deviation / mean, reference_deviation / reference_mean)
