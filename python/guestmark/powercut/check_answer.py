"""The result of running a user's check on a disk."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from enum import StrEnum

_NO_WORLD = 125  # exit status of `guestmark-agent world` if it cannot create the sandbox
_NOT_EXECUTABLE, _NOT_FOUND = 126, 127  # exit statuses of POSIX shells
_SHELL_SIGNALS = 128
# Signals that another process, or a resource limit, sends to end a program. Others, such as SIGSEGV, are due to the
# data that it has read, which a power cut may have damaged.
_FROM_OUTSIDE = frozenset(
    {
        signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGXCPU, signal.SIGXFSZ,
    }
)  # fmt: skip


class Ending(StrEnum):
    """The ways in which a check can end."""

    PASSED = "passed"
    FAILED = "failed"
    LATE = "late"  # not within its time limit
    UNSTARTED = "not started"
    KILLED = "killed"  # by another process, or by a resource limit
    OUT_OF_MEMORY = "out of memory"
    OUT_OF_ROOM = "out of room"  # for its files outside the disk
    TOO_STRICT = "too strict"  # it rejects data that the program wrote after the last acknowledgement


_REMEDIES = {
    Ending.LATE: "raise its limit: --check-limit 5min",
    Ending.UNSTARTED: "sh runs it as root, in the root directory of the disk",
    Ending.TOO_STRICT: "make it search for each line of its input, and accept anything newer than the last line",
    Ending.OUT_OF_ROOM: "make it write less to /tmp, or write to the disk that it examines",
    Ending.KILLED: "find out what kills it: a signal, or a limit that it sets itself (ulimit)",
    Ending.OUT_OF_MEMORY: "free some memory, or make the check use less",
}


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a check, with the last lines of its standard output and standard error."""

    ending: Ending
    # None when a signal or the limit ended it.
    status: int | None
    out: tuple[str, ...]
    err: tuple[str, ...]
    took_s: float

    @property
    def is_conclusive(self) -> bool:
        """True if the check has reached a verdict on the disk."""
        return self.ending in {Ending.PASSED, Ending.FAILED}

    @property
    def summary(self) -> str:
        """The result in one line: the last line that the check printed, or else how it ended."""
        words = (self.err or self.out or ("",))[-1]
        match self.ending:
            case Ending.LATE:
                ended = f"it did not finish within {self.took_s:.0f} s"
            case Ending.OUT_OF_MEMORY:
                ended = "the kernel killed some of its processes because memory ran out"
            case Ending.TOO_STRICT:
                ended = "it passes if its input also has the next line, which had not been acknowledged at the cut"
            case Ending.OUT_OF_ROOM:
                ended = "its /tmp is full"
            case Ending.KILLED:
                ended = f"it was killed ({self.exit})"
            case _:
                return words or self.exit
        return f"{ended}: {words}" if words else ended

    @property
    def remedy(self) -> str:
        """What the user can do if the check gave no verdict; else empty."""
        return _REMEDIES.get(self.ending, "")

    @property
    def exit(self) -> str:
        """How the check's process ended: by a signal, or with a status."""
        return "ended by a signal" if self.status is None else f"exit status {self.status}"


def classify_end(
    status: int | None, signal_number: int | None, *, apart: bool, was_full: bool = False
) -> Ending:
    """Return how a check ended, from its status or the signal that ended it.

    `apart` tells that it ran in a sandbox, `was_full` that it once had no room for files outside the disk, which
    explains any failure.
    """
    if status == 0:
        return Ending.PASSED
    if was_full:
        return Ending.OUT_OF_ROOM
    # A shell's exit status is 128 plus the number of the signal that ended its last command.
    killed_by = signal_number
    if status is not None and status > _SHELL_SIGNALS:
        killed_by = status - _SHELL_SIGNALS
    if killed_by in _FROM_OUTSIDE:
        return Ending.KILLED
    unstarted = {_NOT_EXECUTABLE, _NOT_FOUND}
    if apart:
        unstarted.add(_NO_WORLD)
    return Ending.UNSTARTED if status in unstarted else Ending.FAILED


def mask_numbers(message: str) -> str:
    """Return the message with its numbers masked, so that messages that differ only in numbers are equal."""
    return re.sub(r"\b(0x)?[0-9a-f]*[0-9][0-9a-f]*\b", "N", message)
