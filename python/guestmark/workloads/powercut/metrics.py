"""What a proof counts."""

from typing import Any

import msgspec

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


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters as a stored plan has them; see `Powercut`. `words` say how records are made durable."""

    method: str
    words: str
    records: int
    states: int
    disks: list[dict[str, Any]]
    settings: dict[str, str] = {}
    command: list[str] = []
    check: str = ""
    before: list[str] = []
    files: dict[str, str] = {}
    env: dict[str, str] = {}
    cwd: str = ""
    statuses: tuple[int, ...] = (0,)
