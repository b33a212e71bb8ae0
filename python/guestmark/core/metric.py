"""What is measured, and what one trial measured of it."""

from dataclasses import dataclass
from enum import StrEnum

MIN_BLOCKS = 6  # with fewer the smallest two-sided p of a signed-rank test, 2^(1-n), is above .05


class Better(StrEnum):
    """Which direction of a metric is better."""

    LOWER = "lower"
    HIGHER = "higher"


@dataclass(frozen=True, slots=True)
class Metric:
    """What is measured. A trial reduces to the median over its iterations."""

    name: str
    unit: str
    better: Better = Better.LOWER


@dataclass(frozen=True, slots=True)
class Measurement:
    """One metric of one trial: `iterations` are the raw values (kept, never dropped), `value` their reduction."""

    metric: Metric
    value: float
    iterations: tuple[float, ...]
