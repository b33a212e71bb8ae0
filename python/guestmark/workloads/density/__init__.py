"""The workload `density`: what one more machine costs in memory, idle processor time, and the others' speed."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Annotated

import msgspec

from guestmark.core.factor import Setting
from guestmark.core.findings import Fact
from guestmark.core.metric import Better, Metric
from guestmark.core.model import Cell
from guestmark.core.params import Params, param
from guestmark.core.platform_spec import PlatformSpec
from guestmark.workloads.base import Sections, Workload
from guestmark.workloads.common.parsers import parse_positive_duration, parse_positive_size
from guestmark.workloads.common.program import find_program_packages
from guestmark.workloads.exec.command import check_runnable

# Slope of the control groups' memory over their number.
MEMORY = Metric("memory_per_machine_bytes", "B")
# PSS of the processes: shared pages are divided among those that share them.
PSS = Metric("pss_per_machine_bytes", "B")
# RSS of the processes: shared pages are counted in each.
RSS = Metric("rss_per_machine_bytes", "B")
AVAILABLE = Metric("available_per_machine_bytes", "B")  # decrease of the host's MemAvailable
IDLE = Metric("idle_cpu", "ratio")  # of one processor, for each idle machine
WAKEUPS = Metric("wakeups/s", "1/s")  # wake-ups of its threads, for each idle machine
STARTS = Metric(
    "starts/s", "1/s", Better.HIGHER
)  # of machines started one after the other, without the first
# From the start of the last machine to its first answer.
LAST_START = Metric("last_start_s", "s")
# Runs of the program in each machine while all machines run it.
EACH = Metric("runs/s_each", "1/s", Better.HIGHER)
SOLO = Metric("runs/s_solo", "1/s", Better.HIGHER)  # in the first machine alone
KEPT = Metric("kept", "ratio", Better.HIGHER)  # EACH divided by SOLO
ALL = (MEMORY, PSS, RSS, AVAILABLE, IDLE, WAKEUPS, STARTS, LAST_START, EACH, SOLO, KEPT)
_COUNT = "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done"
_MOST = 1000


class DensityParams(Params, frozen=True, kw_only=True):
    """Each machine touches `touch` bytes; the idle machines are watched for `idle`; then all run `command` for `time`.

    A machine runs the command repeatedly until the time is over.
    """

    command: Annotated[
        list[str],
        param(
            "command that each machine runs",
            "list of arguments",
            parse=check_runnable,
            default=["sh", "-c", _COUNT],
        ),
    ]
    touch: Annotated[
        int,
        param(
            "memory that each machine touches", "size", accepts=str, parse=parse_positive_size, default="16M"
        ),
    ]
    idle_s: Annotated[
        float,
        param(
            "how long the machines are watched while idle",
            "duration",
            key="idle",
            accepts=str,
            parse=parse_positive_duration,
            default="1s",
        ),
    ]
    time_s: Annotated[
        float,
        param(
            "how long all machines run the command",
            "duration",
            key="time",
            accepts=str,
            parse=parse_positive_duration,
            default="2s",
        ),
    ]


class HeldMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Memory that a fleet holds, in bytes; `groups` is None if its machines have no memory control groups."""

    machines: int
    groups: int | None
    pss: int
    rss: int
    available: int  # of the host


class Fleet(Fact, kw_only=True):
    """Observations of the fleet of one trial, machine by machine."""

    held: list[HeldMemory] = msgspec.field(name="fleet_memory")
    starts_s: list[float] = msgspec.field(name="fleet_starts_s")
    solo: float = msgspec.field(name="fleet_solo_rate")  # runs a second
    # Runs per second of all machines together, by the number of machines, for fleets smaller than the last.
    grown: list[tuple[int, float]] = msgspec.field(name="fleet_grown", default_factory=list)
    rates: list[float] = msgspec.field(name="fleet_rates")  # of each machine while all run


def _parse_guests(text: str) -> str:
    number = int(text) if text.strip().isascii() and text.strip().isdigit() else 0
    if not 2 <= number <= _MOST:
        raise ValueError(
            f"{text!r} is not a number of machines from 2 to {_MOST}; a single machine is always measured in addition"
        )
    return str(number)


GUESTS = Setting(
    "guests", "machines that run at the same time", _parse_guests, ("2", "4", "8"), read=int, default="4"
)


class DensityWorkload(Workload[DensityParams]):
    """Runs several machines at the same time on this host."""

    name = "density"
    starts_several = True
    help = "measures the cost of one more machine: memory, idle time, starts, and the speed of the others"
    measures = ALL
    factors = (GUESTS,)
    runs_command = True

    @classmethod
    def describe_params(cls, params: DensityParams) -> str:
        """Names the command that all machines run."""
        return f"density with {shlex.join(params.command)}"[:80]

    @classmethod
    def takes_factor(cls, factor: str, platform: PlatformSpec) -> bool:
        """Returns whether it takes the factor; a number of machines needs a platform on this host."""
        return factor != GUESTS.name or platform.starts_are_seen

    @classmethod
    def runs_several_machines(cls, cell: Cell) -> bool:
        """Returns True: every cell runs several machines at once."""
        return True

    @classmethod
    def user_command(cls, params: DensityParams) -> Sequence[str]:
        """Returns the command that all machines run."""
        return params.command

    @classmethod
    def find_packages(cls, params: DensityParams) -> tuple[str, ...]:
        """Returns the packages that contain the command's program."""
        return find_program_packages(params.command[0])

    @classmethod
    def trial_class(cls) -> type[Workload[DensityParams]]:
        """Imports and returns the class of its trials; done late because its imports are slow."""
        from guestmark.workloads.density.trial import DensityTrial

        return DensityTrial

    @classmethod
    def report_sections(cls) -> tuple[Sections, ...]:
        """Adds the memory of a machine, and the law that the throughput follows."""
        from guestmark.workloads.density.sections import render_density

        return (render_density,)
