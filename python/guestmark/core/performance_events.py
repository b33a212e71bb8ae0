"""Performance events that the kernel can count while a program runs, by perf's names."""

import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass

# perf_event_open(2): PERF_TYPE_HARDWARE, PERF_TYPE_SOFTWARE.
_HARDWARE, _SOFTWARE = 0, 1


@dataclass(frozen=True, slots=True)
class PerformanceEvent:
    """One event, by its type and config in perf_event_open(2); hardware events are counted in user space only."""

    name: str
    kind: int
    config: int

    @property
    def user_only(self) -> bool:
        """Whether events in the kernel are excluded."""
        return self.kind == _HARDWARE


EVENTS: Mapping[str, PerformanceEvent] = {
    event.name: event
    for event in (
        PerformanceEvent("cycles", _HARDWARE, 0),
        PerformanceEvent("instructions", _HARDWARE, 1),
        PerformanceEvent("cache-references", _HARDWARE, 2),
        PerformanceEvent("cache-misses", _HARDWARE, 3),
        PerformanceEvent("branches", _HARDWARE, 4),
        PerformanceEvent("branch-misses", _HARDWARE, 5),
        PerformanceEvent("task-clock", _SOFTWARE, 1),
        PerformanceEvent("page-faults", _SOFTWARE, 2),
        PerformanceEvent("context-switches", _SOFTWARE, 3),
        PerformanceEvent("cpu-migrations", _SOFTWARE, 4),
    )
}


def explain_errno(errno: int) -> str:
    """Return in words why an event cannot be counted."""
    if errno in _NOT_THERE:
        return "this processor, or its hypervisor, does not provide this counter"
    if errno in _NOT_ALLOWED:
        return "the kernel does not allow it: check /proc/sys/kernel/perf_event_paranoid"
    return os.strerror(errno)


def _read_event_numbers(*names: str) -> frozenset[int]:
    return frozenset(getattr(errno, name) for name in names)


_NOT_THERE = _read_event_numbers("ENOENT", "EOPNOTSUPP", "ENODEV", "EINVAL", "ENOSYS", "EBUSY")
_NOT_ALLOWED = _read_event_numbers("EACCES", "EPERM")
