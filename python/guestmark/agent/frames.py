"""Frames over a pair of file descriptors, with a deadline on every wait and a bound on every buffer."""

from __future__ import annotations

import contextlib
import math
import os
import select
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from subprocess import Popen

from guestmark.agent.messages import MAX_FRAME

_HEADER = 4
_READ_SIZE = 256 << 10


class LinkError(Exception):
    """The other side has gone, is silent, or does not speak in frames; the message says which."""


@dataclass(frozen=True, slots=True)
class Transport:
    """A byte stream in both directions. `close` releases the descriptors and whatever they belong to."""

    read_fd: int
    write_fd: int
    close: Callable[[], None]

    @classmethod
    def of_socket(cls, connection: socket.socket) -> Transport:
        """Over a connected stream socket, which becomes ours."""
        return cls(connection.fileno(), connection.fileno(), connection.close)

    @classmethod
    def of_fds(cls, read_fd: int, write_fd: int) -> Transport:
        """Over two descriptors (or twice the same), which become ours."""

        def close() -> None:
            for fd in {read_fd, write_fd}:
                with contextlib.suppress(OSError):
                    os.close(fd)

        return cls(read_fd, write_fd, close)

    @classmethod
    def of_process(cls, process: Popen[bytes], *, patience_s: float = 10.0) -> Transport:
        """Over the standard input and output of a child; closing waits for its end and then kills it."""
        assert process.stdin is not None
        assert process.stdout is not None
        stdin, stdout = process.stdin, process.stdout

        def close() -> None:
            with contextlib.suppress(OSError):
                stdin.close()
            stdout.close()
            try:
                process.wait(patience_s)
            except Exception:
                process.kill()
                process.wait()

        return cls(stdout.fileno(), stdin.fileno(), close)


class Link:
    """Sends and receives frames. After a `LinkError` it must not be used again."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._incoming = bytearray()
        self._start = 0
        self._outgoing = memoryview(b"")
        os.set_blocking(transport.read_fd, False)
        os.set_blocking(transport.write_fd, False)

    def close(self) -> None:
        """Closes the transport."""
        self._transport.close()

    def exchange(
        self, deadline: float, *, feed: Iterator[bytes] | None = None, wake_fds: tuple[int, ...] = ()
    ) -> memoryview | None:
        """Waits for the next frame while sending what `feed` yields (framed), until `deadline` (`time.monotonic`).

        Returns the frame's payload, valid until the next call; None when one of `wake_fds` became readable first.
        """
        poller = select.poll()
        for fd in wake_fds:
            poller.register(fd, select.POLLIN)
        read_fd, write_fd = self._transport.read_fd, self._transport.write_fd
        while True:
            frame = self._take()
            if frame is not None:
                return frame
            if not self._outgoing and feed is not None:
                self._outgoing = memoryview(next(feed, b""))
            if self._outgoing and self._write():
                continue
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise LinkError("no answer in time")
            writing = select.POLLOUT if self._outgoing else 0
            if read_fd == write_fd:
                poller.register(read_fd, select.POLLIN | writing)
            else:
                poller.register(read_fd, select.POLLIN)
                # A pipe whose reader has gone reports an error for ever: only listen to it while there is need.
                if writing:
                    poller.register(write_fd, writing)
                else:
                    with contextlib.suppress(KeyError):
                        poller.unregister(write_fd)
            ready = poller.poll(math.ceil(min(remaining, 3600.0) * 1000))
            if any(fd == read_fd and event & ~select.POLLOUT for fd, event in ready):
                self._read()
            elif any(fd in wake_fds for fd, _ in ready):
                return None

    def send(self, frames: bytes, deadline: float) -> None:
        """Sends without waiting for an answer (frames that arrive meanwhile are kept, within their bound)."""
        self.finish_sending(deadline)
        self._outgoing = memoryview(frames)
        self.finish_sending(deadline)

    def finish_sending(self, deadline: float) -> None:
        """Sends what is under way."""
        while self._outgoing:
            if not self._write():
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    raise LinkError("takes no data")
                select.select([], [self._transport.write_fd], [], remaining)

    def _write(self) -> bool:
        """Writes what the other side takes now; whether it took anything."""
        try:
            count = os.write(self._transport.write_fd, self._outgoing)
        except BlockingIOError:
            return False
        except OSError as error:
            # What it said before it went may be waiting, but a half-sent request has no answer.
            raise LinkError(f"has gone ({error.strerror})") from error
        self._outgoing = self._outgoing[count:]
        return True

    def _read(self) -> None:
        try:
            data = os.read(self._transport.read_fd, _READ_SIZE)
        except BlockingIOError:
            return
        except OSError as error:
            raise LinkError(f"has gone ({error.strerror})") from error
        if not data:
            cut = len(self._incoming) - self._start
            raise LinkError(f"has gone in the middle of a frame ({cut} bytes of it)" if cut else "has gone")
        if self._start:
            del self._incoming[: self._start]
            self._start = 0
        self._incoming += data

    def _take(self) -> memoryview | None:
        have = len(self._incoming) - self._start
        if have < _HEADER:
            return None
        body = self._start + _HEADER
        length = int.from_bytes(self._incoming[self._start : body], "little")
        if length > MAX_FRAME:
            raise LinkError(f"sent garbage (a frame of {length} bytes)")
        if have < _HEADER + length:
            return None
        self._start = body + length
        # A copy: a view would pin the buffer against the next read.
        return memoryview(bytes(memoryview(self._incoming)[body : body + length]))
