"""How long a command has taken: wall time, from its first moment on, not only what its trials took."""

import os
import time
from dataclasses import dataclass, replace
from pathlib import Path


@dataclass(frozen=True, slots=True)
class RunClock:
    """A run's elapsed time: since `began`, on this process's monotonic clock, and `earlier_s` of sessions before."""

    began: float
    earlier_s: float = 0.0

    @property
    def elapsed_s(self) -> float:
        """Seconds of wall time that the run has taken by now."""
        return self.earlier_s + time.monotonic() - self.began

    def exclude(self, waited_s: float) -> "RunClock":
        """The same clock, had it stood still for so long: while another run had the machine."""
        return replace(self, began=self.began + waited_s)

    def continue_after(self, earlier_s: float) -> "RunClock":
        """The same clock, of a run that had taken so long before."""
        return replace(self, earlier_s=self.earlier_s + earlier_s)


def start_clock() -> RunClock:
    """A clock that starts now."""
    return RunClock(time.monotonic())


_excluded_s = [0.0]  # seconds of this process's life that are no part of a run


def exclude_set_up(seconds: float) -> None:
    """Leaves out what this process did before it was Python: set-up by the launcher, whose process it is."""
    _excluded_s[0] = seconds


def start_process_clock() -> RunClock:
    """A clock that started with this process: imports and the reading of a command line count, too."""
    try:
        after_name = (
            Path("/proc/self/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        )
        since_boot = int(after_name[19]) / os.sysconf("SC_CLK_TCK")
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - since_boot
    except (OSError, ValueError, IndexError):
        return start_clock()
    return start_clock().exclude(-max(age_s - _excluded_s[0], 0.0))
