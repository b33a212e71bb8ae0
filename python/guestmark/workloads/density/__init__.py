"""How many machines fit: what one more takes of memory, of idle processors, and of the others' speed."""

from __future__ import annotations

import shlex

import msgspec

from guestmark.core.factor import Setting
from guestmark.core.findings import Fact
from guestmark.core.metric import Better, Metric
from guestmark.core.platform_spec import PlatformSpec
from guestmark.core.workload_kind import WorkloadKind

MEMORY = Metric("memory_per_machine_bytes", "B")  # slope of the control groups' memory over their number
PSS = Metric(
    "pss_per_machine_bytes", "B"
)  # of the processes, shared pages divided among those who share them
RSS = Metric("rss_per_machine_bytes", "B")  # of the processes, shared pages counted in each
AVAILABLE = Metric("available_per_machine_bytes", "B")  # that the host's MemAvailable has lost
IDLE = Metric("idle_cpu", "ratio")  # of one processor, for each idle machine
WAKEUPS = Metric("wakeups/s", "1/s")  # of its threads, for each idle machine
STARTS = Metric("starts/s", "1/s", Better.HIGHER)  # one after the other, after the first
LAST_START = Metric("last_start_s", "s")  # of the last machine, until its first answer
EACH = Metric("runs/s_each", "1/s", Better.HIGHER)  # of the program, in each machine while all run it
SOLO = Metric("runs/s_solo", "1/s", Better.HIGHER)  # in the first machine alone
KEPT = Metric("kept", "ratio", Better.HIGHER)  # EACH over SOLO
ALL = (MEMORY, PSS, RSS, AVAILABLE, IDLE, WAKEUPS, STARTS, LAST_START, EACH, SOLO, KEPT)
_MOST = 1000


class Crowd(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters as a stored plan has them: the program that all run, bytes and seconds."""

    command: list[str]
    touch: int
    idle_s: float
    time_s: float


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes that a fleet holds; `groups` is None where its machines have no control groups for memory."""

    machines: int
    groups: int | None
    pss: int
    rss: int
    available: int  # of the host


class Fleet(Fact, kw_only=True):
    """What was seen of the fleet of one trial, machine by machine."""

    held: list[Held] = msgspec.field(name="fleet_memory")
    starts_s: list[float] = msgspec.field(name="fleet_starts_s")
    solo: float = msgspec.field(name="fleet_solo_rate")  # runs a second
    # By their number on the way there: runs a second of all together.
    grown: list[tuple[int, float]] = msgspec.field(name="fleet_grown", default_factory=list)
    rates: list[float] = msgspec.field(name="fleet_rates")  # of each machine while all run


def _guests(text: str) -> str:
    number = int(text) if text.strip().isascii() and text.strip().isdigit() else 0
    if not 2 <= number <= _MOST:
        raise ValueError(
            f"{text!r} is not a number of machines from 2 to {_MOST}; one alone is measured in each"
        )
    return str(number)


GUESTS = Setting(
    "guests", "machines that run at the same time", _guests, ("2", "4", "8"), read=int, default="4"
)


def _label(params: Crowd) -> str:
    return f"density with {shlex.join(params.command)}"[:80]


def _here(factor: str, platform: PlatformSpec) -> bool:
    return factor != GUESTS.name or not platform.is_elsewhere


WORKLOADS = (
    WorkloadKind(
        "density",
        "what one more machine costs a host that holds several: memory, idle time, starts, speed of the others",
        params="guestmark.workloads.density.workload:DensityParams",
        run="guestmark.workloads.density.workload:DensityWorkload",
        metrics=lambda _params: ALL,
        label=_label,
        reads=Crowd,
        factors=(GUESTS,),
        takes=_here,
        crowd=lambda _cell: True,
        packages="guestmark.workloads.density.workload:of_command",
        command=lambda params: params.command,
        sections=("guestmark.workloads.density.sections:sections",),
    ),
)
