"""What a power cut would leave of a machine's disk."""

from typing import Any

import msgspec

from guestmark.core.findings import Proven
from guestmark.core.metric import Better, Measurement, Metric
from guestmark.core.workload_kind import WorkloadKind

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
    check_limit_s: float | None = None
    acknowledge: str = ""
    needs: str = ""
    package: str = ""
    promise: str = ""
    published: int | None = None
    before: list[str] = []
    files: dict[str, str] = {}
    env: dict[str, str] = {}
    cwd: str = ""
    statuses: tuple[int, ...] = (0,)


def _label(params: Cut) -> str:
    return f"power cut: {params.words}"


WORKLOADS = (
    WorkloadKind(
        "powercut",
        "cuts the power at every moment of a log of writes, and looks for acknowledged data",
        params="guestmark.workloads.powercut.workload:Powercut",
        run="guestmark.workloads.powercut.workload:PowercutWorkload",
        metrics=lambda _params: ALL,
        label=_label,
        reads=Cut,
        proves=True,
        adapts=lambda params: bool(params.check),
        compared=False,
        decides=lambda _params, factor, platform: (
            True
            if not platform.is_guest and factor in {"filesystem", "mount", "mkfs", "size", "cache"}
            else None
        ),
        sections=("guestmark.workloads.powercut.sections:sections",),
        conclusion="guestmark.workloads.powercut.sections:conclusion",
    ),
)
