"""The workload `syscalls` in plans: how much of each operation is done at least, and of which."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, field_validator

from guestmark.agent.syscall_names import CALLS
from guestmark.core.model import Metric
from guestmark.core.nearest import unknown
from guestmark.core.units import parse_duration
from guestmark.core.workload_kind import WorkloadKind, register, takes_only
from guestmark.plan.schema import Strict
from guestmark.workloads.syscalls import metrics as syscall_metrics

_SHORTEST_S, _LONGEST_S = 0.001, 60.0
_MACHINE = ("memory", "smp", "cpu", "machine", "kernel", "kernel_args")


class SyscallsParams(Strict):
    """Each operation is done at least `operations` times and for `time`; `calls` limits them to some."""

    operations: Annotated[int, Field(ge=1, le=10_000_000)] = 50
    time: str = "50ms"
    calls: list[str] = Field(default_factory=lambda: list(CALLS))

    @field_validator("time")
    @classmethod
    def _is_a_time(cls, time: str) -> str:
        if not _SHORTEST_S <= parse_duration(time) <= _LONGEST_S:
            raise ValueError(f"{time!r} is not between {_SHORTEST_S * 1e3:.0f} ms and {_LONGEST_S:.0f} s")
        return time

    @field_validator("calls")
    @classmethod
    def _are_known(cls, calls: list[str]) -> list[str]:
        for name in calls:
            if name not in CALLS:
                raise ValueError(unknown("call", name, CALLS).message)
        if not calls:
            raise ValueError(f"no call is named; there are {', '.join(CALLS)}")
        return [name for name in CALLS if name in calls]


def _metrics(params: Mapping[str, Any]) -> tuple[Metric, ...]:
    return syscall_metrics.of_calls(params["calls"])


def _label(params: Mapping[str, Any]) -> str:
    calls = params["calls"]
    return "system calls" if len(calls) == len(CALLS) else f"system calls: {', '.join(calls)}"


SYSCALLS = register(
    WorkloadKind(
        "syscalls",
        "a fixed mix of system calls, each in nanoseconds, and what the hypervisor did for each",
        lambda: SyscallsParams,
        _metrics,
        _label,
        takes_only(*_MACHINE),
    )
)
