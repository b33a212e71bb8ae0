"""The workload `syscalls` in plans: which operations, and how many of each at least."""

from pydantic import field_validator

from guestmark.agent.wire import SYSTEM_CALLS
from guestmark.core.errors import unknown
from guestmark.core.units import parse_duration
from guestmark.plan.schema import Strict, param

_SHORTEST_S, _LONGEST_S = 0.001, 60.0


class SyscallsParams(Strict):
    """Each operation is done at least `operations` times and for `time`; `calls` limits them to some."""

    operations: int = param(50, "of each call, at least", ge=1, le=10_000_000)
    time: str = param("50ms", "for each call, at least", "duration")
    calls: list[str] = param([*SYSTEM_CALLS], "which calls", "names")

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
            if name not in SYSTEM_CALLS:
                raise ValueError(unknown("call", name, SYSTEM_CALLS).message)
        if not calls:
            raise ValueError(f"no call is named; there are {', '.join(SYSTEM_CALLS)}")
        return [name for name in SYSTEM_CALLS if name in calls]
