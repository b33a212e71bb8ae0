"""Elapsed time of a command: wall time since it began, not only the duration of its trials."""

import os
import time
from dataclasses import dataclass, replace
from pathlib import Path


@dataclass(frozen=True, slots=True)
class RunClock:
    """A run's elapsed time: since `began` on this process's monotonic clock, plus `earlier_s` of earlier sessions."""

    began: float
    earlier_s: float = 0.0

    @property
    def elapsed_s(self) -> float:
        """Seconds of wall time that the run has taken by now."""
        return self.earlier_s + time.monotonic() - self.began

    def exclude(self, waited_s: float) -> "RunClock":
        """Return the clock without `waited_s`, for instance while another run had the machine."""
        return replace(self, began=self.began + waited_s)

    def add_earlier_time(self, earlier_s: float) -> "RunClock":
        """Return the clock of a run that took `earlier_s` in sessions before this one."""
        return replace(self, earlier_s=self.earlier_s + earlier_s)


def start_clock() -> RunClock:
    """Return a clock that starts now."""
    return RunClock(time.monotonic())


# Seconds of this process's life that are not part of a run.
_excluded_s = [0.0]


def exclude_set_up(seconds: float) -> None:
    """Exclude the set-up time of the launcher, which then became this process by execve(2)."""
    _excluded_s[0] = seconds


def start_process_clock() -> RunClock:
    """Return a clock that started with this process, so that imports and parsing the command line count."""
    try:
        after_name = (
            Path("/proc/self/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        )
        since_boot = int(after_name[19]) / os.sysconf("SC_CLK_TCK")
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - since_boot
    except (OSError, ValueError, IndexError):
        return start_clock()
    return start_clock().exclude(-max(age_s - _excluded_s[0], 0.0))
