"""Frames over two file descriptors, and what they hold: a deadline on every wait and a bound on every buffer."""

from __future__ import annotations

import contextlib
import math
import os
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from subprocess import Popen
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from guestmark.agent.wire import ACKNOWLEDGEMENT, MAX_FRAME, A, Call, Failure

_HEADER = 4
_READ_SIZE = 256 << 10
_KEPT_LIMIT = 16 << 20


class LinkError(Exception):
    """The other side is gone, is silent, or does not send frames; the message tells which."""


@dataclass(frozen=True, slots=True)
class Transport:
    """A byte stream in both directions. `close` releases the descriptors and whatever they belong to."""

    read_fd: int
    write_fd: int
    close: Callable[[], None]

    @classmethod
    def of_socket(cls, connection: socket.socket) -> Transport:
        """Creates a transport over a connected stream socket, which it then owns."""
        return cls(connection.fileno(), connection.fileno(), connection.close)

    @classmethod
    def of_process(cls, process: Popen[bytes], *, patience_s: float = 10.0) -> Transport:
        """Creates a transport over a child's standard input and output; closing waits for its end, then kills it."""
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
    """Sends and receives frames. After a `LinkError` it must not be used again.

    With a `window`, at most that many bytes are in flight without acknowledgement by the other side.
    """

    def __init__(self, transport: Transport) -> None:
        self.window: int | None = None
        self._transport = transport
        self._incoming = bytearray()
        self._frames: deque[bytes] = deque()
        self._outgoing = memoryview(b"")
        self._in_flight = 0
        os.set_blocking(transport.read_fd, False)
        os.set_blocking(transport.write_fd, False)

    def fileno(self) -> int:
        """Returns the descriptor that becomes readable when something arrives."""
        return self._transport.read_fd

    def close(self) -> None:
        """Closes the transport."""
        self._transport.close()

    def exchange(
        self,
        deadline: float,
        *,
        feed: Iterator[bytes] | None = None,
        wake_fds: tuple[int, ...] = (),
        patience_until: float = math.inf,
    ) -> bytes | None:
        """Waits for the next frame while sending what `feed` yields (framed), until `deadline` on the monotonic clock.

        Returns the frame's payload. Returns None if one of `wake_fds` became readable first (they are ignored while a
        frame is being sent), or if nothing had come by `patience_until`, which is not an error, unlike a missed
        deadline.
        """
        while not self._frames:
            if not self._outgoing and feed is not None:
                self._outgoing = memoryview(next(feed, b""))
            if self._write_some() and time.monotonic() < deadline:
                continue
            now = time.monotonic()
            is_over = now >= patience_until
            if is_over and now >= deadline:
                return None
            wakers = () if self._outgoing else wake_fds
            if self._wait_for_data(deadline, "gave no answer in time", wakers, patience_until):
                return None
            # Without patience, too, what has arrived by now is read.
            if is_over and not self._frames:
                return None
        return self._frames.popleft()

    def send(self, frames: bytes, deadline: float) -> None:
        """Sends without waiting for an answer; frames that arrive meanwhile are queued, up to a limit."""
        self.finish_sending(deadline)
        self._outgoing = memoryview(frames)
        self.finish_sending(deadline)

    def finish_sending(self, deadline: float) -> None:
        """Sends whatever is still queued."""
        while self._outgoing:
            if not self._write_some():
                self._wait_for_data(deadline, "accepts no data", ())
                if sum(map(len, self._frames)) > _KEPT_LIMIT:
                    raise LinkError("sends endlessly and accepts no data")

    def _wait_for_data(
        self, deadline: float, late: str, wake_fds: tuple[int, ...], patience_until: float = math.inf
    ) -> bool:
        """Waits until something can be read (and reads it) or written.

        Returns whether only a `wake_fds` became readable.
        """
        now = time.monotonic()
        if deadline <= now:
            raise LinkError(late)
        remaining = max(0.0, min(deadline, patience_until) - now)
        read_fd, write_fd = self._transport.read_fd, self._transport.write_fd
        # poll() reports an error on a pipe without a reader at once, so the pipe is polled only while something is left
        # to write.
        events = {read_fd: select.POLLIN, **dict.fromkeys(wake_fds, select.POLLIN)}
        if self._limit_to_sendable():
            events[write_fd] = events.get(write_fd, 0) | select.POLLOUT
        poller = select.poll()
        for fd, wanted in events.items():
            poller.register(fd, wanted)
        ready = dict(poller.poll(math.ceil(min(remaining, 3600.0) * 1000)))
        if ready.get(read_fd, 0) & ~select.POLLOUT:
            self._read_some()
            return False
        return any(fd in ready for fd in wake_fds)

    def _limit_to_sendable(self) -> memoryview:
        """Returns the part of the current frame that the window lets pass."""
        if self.window is None:
            return self._outgoing
        return self._outgoing[: max(0, self.window - self._in_flight)]

    def _write_some(self) -> bool:
        """Writes what the other side accepts now; returns whether it accepted anything."""
        part = self._limit_to_sendable()
        if not part:
            return False
        try:
            count = os.write(self._transport.write_fd, part)
        except BlockingIOError:
            return False
        except OSError as error:
            # Frames that it sent before it ended may still be unread, but a half-sent request gets no answer.
            raise LinkError(f"closed the connection ({error.strerror})") from error
        self._in_flight += count
        self._outgoing = self._outgoing[count:]
        return True

    def _read_some(self) -> None:
        try:
            data = os.read(self._transport.read_fd, _READ_SIZE)
        except BlockingIOError:
            return
        except OSError as error:
            raise LinkError(f"closed the connection ({error.strerror})") from error
        if not data:
            cut = len(self._incoming)
            where = ""
            if cut:
                where = f" in the middle of a frame, after {cut} bytes"
            raise LinkError(f"closed the connection{where}")
        self._incoming += data
        start = 0
        while len(self._incoming) - start >= _HEADER:
            body = start + _HEADER
            length = int.from_bytes(self._incoming[start:body], "little")
            if length & ACKNOWLEDGEMENT and self.window is not None:
                self._in_flight -= length - ACKNOWLEDGEMENT
                if self._in_flight < 0:
                    raise LinkError("acknowledged data that was never sent")
                start = body
                continue
            if length > MAX_FRAME:
                raise LinkError(f"sent garbage (a frame of {length} bytes)")
            if len(self._incoming) < body + length:
                break
            with memoryview(self._incoming) as view:
                self._frames.append(bytes(view[body : body + length]))
            start = body + length
        del self._incoming[:start]


class Reply(msgspec.Struct, frozen=True):
    """Anything the agent sends: exactly one of `ok` (still encoded), `error` and `data` is present."""

    id: int
    ok: msgspec.Raw | UnsetType = UNSET
    error: Failure | UnsetType = UNSET
    stream: int = 1
    data: bytes | UnsetType = UNSET


class ProtocolVersion(msgspec.Struct, frozen=True):
    """The part of a hello that every version of the protocol has."""

    protocol: int


_encoder = msgspec.msgpack.Encoder()
_reply = msgspec.msgpack.Decoder(Reply)


def encode_call(call: Call[A, Any], arguments: A) -> bytes:
    """Encodes a call: the same bytes for the same question. `arguments` is None for a call without any."""
    if arguments is None:
        return _encoder.encode(call.name)
    return _encoder.encode({call.name: arguments})


def frame_call(call_id: int, asked: bytes, *, ahead: bool = False) -> bytes:
    """Frames the encoded call `asked`.

    A call sent `ahead` is refused while another process has the machine's lock.
    """
    message: dict[str, object] = {"id": call_id, "call": msgspec.Raw(asked)}
    if ahead:
        message["ahead"] = True
    payload = _encoder.encode(message)
    return len(payload).to_bytes(4, "little") + payload


def frame_request(call_id: int, call: Call[A, Any], arguments: A) -> bytes:
    """Frames a call with its arguments; None for a call without any."""
    return frame_call(call_id, encode_call(call, arguments))


def decode_reply(payload: bytes | bytearray | memoryview) -> Reply:
    """Decodes a frame's payload. Raises `ValueError` if it is not a reply."""
    decoded = _reply.decode(payload)
    if sum(part is not UNSET for part in (decoded.ok, decoded.error, decoded.data)) != 1:
        raise ValueError("neither a result nor a failure nor data")
    return decoded
