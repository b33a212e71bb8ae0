"""Saying how far the making of something is that takes minutes."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable

from guestmark.core.errors import GuestmarkError
from guestmark.core.units import format_duration
from guestmark.page.text import make_inert

_EVERY_S = 30.0  # where lines stay: on a terminal they are written over


class Progress:
    """Reports progress while parts are built. This one is silent."""

    def say(self, text: str) -> None:
        """A line that stays."""

    def step(self, what: str, elapsed_s: float, about_s: float | None) -> None:
        """How far a step is that goes on, called about every second; `about_s` is what it takes in all."""

    def done(self, what: str, elapsed_s: float) -> None:
        """The step has ended."""

    def check_cancelled(self) -> None:
        """Called several times a second during a step. Raises `GuestmarkError` when it is not wanted any more."""


class CombinedProgress(Progress):
    """One line for several steps, of which some go on at the same time; `about_s` is what all of them take."""

    def __init__(self, line: Progress, what: str, about_s: float) -> None:
        self._line = line
        self._what = what
        self._about_s = about_s
        self._begin = time.monotonic()
        self._going: list[str] = []
        self._lock = threading.Lock()
        self._cancelled = False

    def say(self, text: str) -> None:
        """Passed on."""
        self._line.say(text)

    def step(self, what: str, elapsed_s: float, about_s: float | None) -> None:
        """Names all steps under way, with the time since the first began."""
        with self._lock:
            if what not in self._going:
                self._going.append(what)
            text = f"{self._what}: {' and '.join(self._going)}"
            self._line.step(text, time.monotonic() - self._begin, self._about_s)

    def done(self, what: str, elapsed_s: float) -> None:
        """The next line is without it."""
        with self._lock:
            if what in self._going:
                self._going.remove(what)

    def check_cancelled(self) -> None:
        """After `cancel`, raises."""
        if self._cancelled:
            raise GuestmarkError(f"{self._what} was given up")

    def cancel(self) -> None:
        """Ends the steps that go on."""
        self._cancelled = True

    def complete(self) -> None:
        """All steps have ended."""
        self._line.done(self._what, time.monotonic() - self._begin)


class LineProgress(Progress):
    """On standard error: one line that is written over on a terminal, else a line every half minute."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._terminal = sys.stderr.isatty()
        self._said_at: float | None = None

    def say(self, text: str) -> None:
        """Written as it is."""
        self._wipe_line()
        self._write(text)

    def step(self, what: str, elapsed_s: float, about_s: float | None) -> None:
        """Also reports the expected time, if known, and that it takes longer than that."""
        about = f" of about {format_duration(about_s)}" if about_s else ""
        if about_s and elapsed_s > about_s:
            about = f", more than the {format_duration(about_s)} that it takes elsewhere"
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
        """Only what took a while is worth a line."""
        self._wipe_line()
        if elapsed_s >= 2:
            self._write(f"{what}: done in {elapsed_s:.0f} s")
        self._said_at = None

    def _wipe_line(self) -> None:
        if self._terminal and self._said_at is not None:
            sys.stderr.write("\r\033[K")


def tell_user(text: str) -> None:
    """Writes a line to standard error, for what is made without anybody who could be told otherwise."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"guestmark: {make_inert(text)}\n")
        sys.stderr.flush()
