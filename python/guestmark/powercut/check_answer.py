"""The answer of a user's check about a disk."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum


class Ending(StrEnum):
    """The ways in which a check can end."""

    PASSED = "passed"
    FAILED = "failed"
    LATE = "late"  # not within its time limit
    UNSTARTED = "not started"


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a check, with the last lines of its standard output and standard error."""

    ending: Ending
    # None when a signal or the limit ended it.
    status: int | None
    out: tuple[str, ...]
    err: tuple[str, ...]
    took_s: float

    @property
    def is_conclusive(self) -> bool:
        """True if the answer says anything about the disk."""
        return self.ending in {Ending.PASSED, Ending.FAILED}

    @property
    def summary(self) -> str:
        """The answer in one line: the check's last words, else how it ended."""
        words = next((lines[-1] for lines in (self.err, self.out) if lines), "")
        if self.ending is Ending.LATE:
            late = f"it did not end within {self.took_s:.0f} s"
            return f"{late}: {words}" if words else late
        return words or self.exit

    @property
    def exit(self) -> str:
        """How the process of the check ended: by a signal, or with a status."""
        return "a signal ended it" if self.status is None else f"status {self.status}"


def mask_numbers(message: str) -> str:
    """Return the message with its numbers masked, so that messages that differ only in numbers are equal."""
    return re.sub(r"\b(0x)?[0-9a-f]*[0-9][0-9a-f]*\b", "N", message)
