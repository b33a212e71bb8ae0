"""What a check of the user's answered about a disk."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum


class Ending(StrEnum):
    """How a check ended."""

    PASSED = "passed"
    FAILED = "failed"
    LATE = "late"  # it did not end within its limit
    UNSTARTED = "not started"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a check answered, with the last lines of its standard output and of its standard error."""

    ending: Ending
    status: int | None  # None when a signal or the limit ended it
    out: tuple[str, ...]
    err: tuple[str, ...]
    took_s: float

    @property
    def is_conclusive(self) -> bool:
        """Whether it says anything about the disk."""
        return self.ending in {Ending.PASSED, Ending.FAILED}

    @property
    def summary(self) -> str:
        """In a line: its last words, else how it ended."""
        words = next((lines[-1] for lines in (self.err, self.out) if lines), "")
        if self.ending is Ending.LATE:
            return f"it did not end within {self.took_s:.0f} s{f': {words}' if words else ''}"
        return words or ("a signal ended it" if self.status is None else f"status {self.status}")


def mask_numbers(said: str) -> str:
    """The same for messages that differ in numbers only."""
    return re.sub(r"\b(0x)?[0-9a-f]*[0-9][0-9a-f]*\b", "N", said)
