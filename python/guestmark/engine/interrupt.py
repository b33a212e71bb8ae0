"""Ctrl-C and related signals: the first one stops the run in an orderly way, the second one immediately."""

import contextlib
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from guestmark.core.errors import Interrupted

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _write_error(text: str) -> None:
    """Write to standard error from a signal handler, where a buffered stream may be in use."""
    with contextlib.suppress(OSError):
        os.write(2, text.encode())


class Interruption:
    """The user's wish to stop, as signals express it.

    A signal interrupts only code inside `interruptible()`; elsewhere it is remembered until such code is reached.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._armed = False

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self.received is not None:
            # An orderly end is not needed: machines end with this process, and the ledger is consistent at every
            # moment. Only the cursor has to be shown again, if the live display has hidden it.
            if os.isatty(2):
                _write_error("\x1b[?25h")
            os._exit(130)
        self.received = signal.Signals(number)
        _write_error("\nguestmark: stopping; interrupt again to stop at once\n")
        if self._armed:
            self._armed = False
            raise Interrupted

    @contextmanager
    def handle_signals(self) -> Iterator[None]:
        """Handle the signals inside the block. SIGHUP stays ignored under nohup."""
        previous = {number: signal.getsignal(number) for number in SIGNALS}
        for number, handler in previous.items():
            if handler is not signal.SIG_IGN or number == signal.SIGTERM:
                signal.signal(number, self._handle)
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let the first signal raise `Interrupted` inside the block, even if it arrived earlier."""
        self._armed = True
        try:
            if self.received is not None:
                raise Interrupted
            yield
        finally:
            self._armed = False
