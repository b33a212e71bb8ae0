"""What a proof counts."""

from guestmark.core.findings import Proven
from guestmark.core.metric import Better, Measurement, Metric

STATES = Metric("crash_states", "", Better.HIGHER)
LOSING = Metric("losing_states", "", Better.LOWER)
REPAIRED = Metric("repaired_states", "", Better.LOWER)
ALL = (LOSING, STATES, REPAIRED)


def measured(found: Proven) -> list[Measurement]:
    """As measurements of a trial."""
    values = ((STATES, found.states), (LOSING, found.losing), (REPAIRED, found.repaired))
    return [Measurement(metric, float(value), (float(value),)) for metric, value in values]
