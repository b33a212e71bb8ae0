"""Reports the progress of work that takes minutes."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable

from guestmark.core.errors import GuestmarkError
from guestmark.core.units import format_duration
from guestmark.page.text import make_inert

# Seconds between lines if the output is not a terminal; on a terminal one line is overwritten.
_EVERY_S = 30.0


class Progress:
    """Reports progress while parts are built. This one is silent."""

    def say(self, text: str) -> None:
        """Prints a line that is not overwritten."""

    def show_elapsed(self, what: str, elapsed_s: float, expected_s: float | None) -> None:
        """Reports a step that is in progress, about once a second; the whole step is expected to take `expected_s`."""

    def done(self, what: str, elapsed_s: float) -> None:
        """Reports the end of a step."""

    def check_cancelled(self) -> None:
        """Raises `GuestmarkError` if the result of a step is no longer wanted; called several times a second."""


class CombinedProgress(Progress):
    """Reports several steps in one line; some run at the same time. `expected_s` is the time for all of them."""

    def __init__(self, line: Progress, what: str, expected_s: float) -> None:
        self._line = line
        self._what = what
        self._expected_s = expected_s
        self._begin = time.monotonic()
        self._going: list[str] = []
        self._lock = threading.Lock()
        self._cancelled = False

    def say(self, text: str) -> None:
        """Prints the line through the inner `Progress`."""
        self._line.say(text)

    def show_elapsed(self, what: str, elapsed_s: float, expected_s: float | None) -> None:
        """Names all steps in progress, with the time since the first began."""
        with self._lock:
            if what not in self._going:
                self._going.append(what)
            text = f"{self._what}: {' and '.join(self._going)}"
            self._line.show_elapsed(text, time.monotonic() - self._begin, self._expected_s)

    def done(self, what: str, elapsed_s: float) -> None:
        """Removes the step from the line."""
        with self._lock:
            if what in self._going:
                self._going.remove(what)

    def check_cancelled(self) -> None:
        """Raises `GuestmarkError` after `cancel`."""
        if self._cancelled:
            raise GuestmarkError(f"{self._what} was cancelled")

    def cancel(self) -> None:
        """Makes `check_cancelled` raise, which ends the steps in progress."""
        self._cancelled = True

    def complete(self) -> None:
        """Reports the end of all steps."""
        self._line.done(self._what, time.monotonic() - self._begin)


class LineProgress(Progress):
    """Reports on standard error: one line that is overwritten on a terminal, else a line every half minute."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._terminal = sys.stderr.isatty()
        self._said_at: float | None = None

    def say(self, text: str) -> None:
        """Writes the line unchanged."""
        self._wipe_line()
        self._write(text)

    def show_elapsed(self, what: str, elapsed_s: float, expected_s: float | None) -> None:
        """Shows the elapsed and, if known, the expected time, and whether the step takes longer than expected."""
        about = ""
        if expected_s and elapsed_s > expected_s:
            about = f", longer than the usual {format_duration(expected_s)}"
        elif expected_s:
            about = f" of about {format_duration(expected_s)}"
        text = f"{what} … {elapsed_s:.0f} s{about}"
        now = time.monotonic()
        if self._terminal:
            sys.stderr.write(f"\r\033[K{text}")
            sys.stderr.flush()
            self._said_at = now
        elif self._said_at is None or now - self._said_at >= _EVERY_S:
            self._said_at = now
            self._write(text)

    def done(self, what: str, elapsed_s: float) -> None:
        """Writes a line for a step that took two seconds or more."""
        self._wipe_line()
        if elapsed_s >= 2:
            self._write(f"{what}: done in {elapsed_s:.0f} s")
        self._said_at = None

    def _wipe_line(self) -> None:
        if self._terminal and self._said_at is not None:
            sys.stderr.write("\r\033[K")


def tell_user(text: str) -> None:
    """Writes a line to standard error, for work whose progress no caller reports."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"guestmark: {make_inert(text)}\n")
        sys.stderr.flush()
