"""A connection to a server's local socket on the machine, for drivers that take a connected socket of Python's."""

from __future__ import annotations

import io
import signal
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from guestmark.agent.binary import PROGRAM

if TYPE_CHECKING:
    from guestmark.agent.background import Background
    from guestmark.agent.client import Agent

_DEFAULT_S = 60.0


class Link:
    """The agent connects; bytes go through its own channel. Starting a client program costs a guest far more.

    Has what PyMySQL and pg8000 use of a socket. Raises `OSError` when the connection cannot be made or has ended,
    `TimeoutError` when nothing comes in time.
    """

    def __init__(self, agent: Agent, path: str, account: Mapping[str, Any]) -> None:
        self._relay: Background = agent.background([PROGRAM, "connect", path], stdin=True, **account)
        self._taken = 1
        self._limit_s = _DEFAULT_S
        self._relay.wait(_DEFAULT_S, bool)
        if not self._relay.output.startswith(b"\0"):
            self._relay.wait(1.0)  # for all of its complaint
            raise ConnectionError(self._relay.text().strip() or "the connection timed out")

    def settimeout(self, limit_s: float | None) -> None:
        """How long to wait for an answer; None, which for a socket means for ever, is a minute."""
        self._limit_s = _DEFAULT_S if limit_s is None else limit_s

    def sendall(self, data: bytes) -> None:
        """Sends all of the data."""
        if not self._relay.running:
            raise ConnectionError("the connection has ended")
        self._relay.feed(bytes(data))

    def recv(self, size: int) -> bytes:
        """At least one byte, at most `size`; empty when the server has closed the connection."""
        relay, begin = self._relay, self._taken
        if not relay.wait(self._limit_s, lambda said: len(said) > begin):
            raise TimeoutError("no answer in time")
        self._taken = min(begin + size, len(relay.output))
        return bytes(relay.output[begin : self._taken])

    def makefile(self, mode: Literal["rb", "rwb"]) -> io.BufferedReader | io.BufferedRWPair:
        """Buffered reading, or reading and writing."""
        stream = _Stream(self)
        return io.BufferedReader(stream) if mode == "rb" else io.BufferedRWPair(stream, stream)

    def close(self) -> None:
        """Ends the connection, without waiting for it."""
        self._relay.signal(signal.SIGTERM)

    def wait(self, timeout_s: float) -> None:
        """Waits until nothing of it is left on the machine."""
        self._relay.wait(timeout_s)


class _Stream(io.RawIOBase):
    """A link as a raw stream; closing it leaves the link."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._link.recv(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def write(self, data: Any) -> int:
        self._link.sendall(bytes(data))
        return len(data)
