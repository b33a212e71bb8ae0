"""Reminders in a log that something is still in progress."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType


class Reminder:
    """Calls `tell` with the seconds since the start: after `first_s`, then every `every_s`.

    `postpone` restarts the wait, for instance after another message. A context manager; `tell` must be quick, as it
    runs in a thread next to what is measured.
    """

    def __init__(self, tell: Callable[[float], None], *, first_s: float, every_s: float) -> None:
        self._tell = tell
        self._every_s = every_s
        self._ended = threading.Event()
        self._began = time.monotonic()
        self._next = self._began + first_s
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Reminder:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()

    def postpone(self) -> None:
        """Restart the wait, which then takes `every_s`."""
        self._next = time.monotonic() + self._every_s

    def _run(self) -> None:
        while not self._ended.wait(max(self._next - time.monotonic(), 0.0)):
            now = time.monotonic()
            if now >= self._next:
                self._next = now + self._every_s
                self._tell(now - self._began)
