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
    name: PerformanceEvent(name, kind, config)
    for kind, names in (
        (
            _HARDWARE,
            {
                "cycles": 0,
                "instructions": 1,
                "cache-references": 2,
                "cache-misses": 3,
                "branches": 4,
                "branch-misses": 5,
            },
        ),
        (_SOFTWARE, {"task-clock": 1, "page-faults": 2, "context-switches": 3, "cpu-migrations": 4}),
    )
    for name, config in names.items()
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
