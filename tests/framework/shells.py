"""Runs interactive shells on a terminal, and types into them."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

_QUIET_S = 0.7  # a shell that says nothing for this long waits for keys
_DRAWN_S = 0.15  # a pause this long after the awaited text: the rest of the line is there, too
_LIMIT_S = 30.0
_CODES = re.compile(r"\x1b(?:\[[0-9;?>]*[A-Za-z]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[()=>][0-9A-Z]?)|\r|\x07")
# Queries that fish sends to a terminal before it begins, and a terminal's answers.
_ANSWERS = {b"\x1b[c": b"\x1b[?6c", b"\x1b[0c": b"\x1b[?6c", b"\x1b[6n": b"\x1b[1;1R"}


class Shell:
    """One interactive shell, which is killed at the end of the block."""

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str], folder: Path) -> None:
        self._pid, self._terminal = pty.fork()
        if self._pid == 0:
            os.chdir(folder)
            os.execvpe(argv[0], list(argv), dict(environment))

    def __enter__(self) -> Shell:
        self.said()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.kill(self._pid, signal.SIGKILL)
        os.close(self._terminal)
        os.waitpid(self._pid, 0)

    def typed(self, keys: str, *, until: str = "") -> str:
        """Type keys, and return what appears from then on, at least until `until` does."""
        os.write(self._terminal, keys.encode())
        return self.said(until)

    def said(self, until: str = "") -> str:
        """Return what the shell prints, without terminal codes, until `until` has appeared and the shell is silent."""
        pieces, end = b"", time.monotonic() + _LIMIT_S
        while time.monotonic() < end:
            there = until in _plain(pieces)
            if not select.select([self._terminal], [], [], _DRAWN_S if until and there else _QUIET_S)[0]:
                if there:
                    break
                continue
            try:
                piece = os.read(self._terminal, 65536)
            except OSError:  # EIO: the shell has ended
                break
            for question, answer in _ANSWERS.items():
                if question in piece:
                    os.write(self._terminal, answer)
            pieces += piece
        return _plain(pieces)


def _plain(pieces: bytes) -> str:
    return _CODES.sub("", pieces.decode(errors="replace"))
