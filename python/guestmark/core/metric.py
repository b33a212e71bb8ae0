"""Metrics, and what one trial measured of them."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from math import isfinite

# With fewer the smallest two-sided p of a signed-rank test, 2^(1-n), is above .05.
MIN_BLOCKS = 6


class Better(StrEnum):
    """Which direction of a metric is better."""

    LOWER = "lower"
    HIGHER = "higher"


@dataclass(frozen=True, slots=True)
class Metric:
    """A quantity that is measured. A trial is reduced to the median of its iterations."""

    name: str
    unit: str
    better: Better = Better.LOWER


@dataclass(frozen=True, slots=True)
class Measurement:
    """One metric of one trial: `iterations` are the raw values (kept, never dropped), `value` their reduction."""

    metric: Metric
    value: float
    iterations: tuple[float, ...]


def find_measurement(measurements: Iterable[Measurement], name: str) -> Measurement | None:
    """Return the measurement of the metric of that name; None if there is none. A trial has at most one."""
    for measurement in measurements:
        if measurement.metric.name == name:
            return measurement
    return None


# The squares of such figures, and of ratios of them, still fit into a float.
_LARGEST = 1e60


def can_be_compared(value: float) -> bool:
    """Return whether sums, ratios and squares of such values are finite: zero, or between 1e-60 and 1e60 in size."""
    return value == 0 or (isfinite(value) and 1 / _LARGEST <= abs(value) <= _LARGEST)
