"""A conversation with an agent: greeting, one call at a time, deadlines, and error handling."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self, cast

import msgspec
from msgspec import UNSET

from guestmark.agent import clocks, frames, wire
from guestmark.agent.background import Background
from guestmark.agent.clocks import Ping
from guestmark.agent.frames import Link, LinkError, Transport
from guestmark.agent.results import CallError, CommandError, refusal
from guestmark.agent.wire import MAX_CHUNK, MAX_FRAME, PROTOCOL, A, Call, Hello, R
from guestmark.core.errors import AgentError

_PINGS = 6


class Conversation:
    """The part of `Agent` that every call uses.

    With `own_clock` durations are the machine's: its clock is as good as this host's, and the way there is too long to
    read it from here.
    """

    def __init__(self, transport: Transport, *, own_clock: bool = False) -> None:
        self._own_clock = own_clock
        self._link = Link(transport)
        self._closed = ""
        self._next_id = 1
        self._hello: Hello | None = None
        self._background: dict[int, Background] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def closed(self) -> bool:
        """Whether calls are refused."""
        return bool(self._closed)

    def fileno(self) -> int:
        """The descriptor that becomes readable when the agent sends something."""
        return self._link.fileno()

    def close(self) -> None:
        """Closes the transport: a host agent stops what it runs and exits; a guest shuts down."""
        self._shut("was closed")

    def _shut(self, why: str) -> None:
        if not self._closed:
            self._closed = why
            self._link.close()

    def hello(self, timeout_s: float = 60.0) -> Hello:
        """The agent's greeting. The first call waits for it, so make it first, with the boot's deadline.

        Raises `AgentError` when the agent speaks another protocol.
        """
        if self._hello is None:
            return self._greeting(time.monotonic() + timeout_s)
        return self._call(wire.HELLO, None, timeout_s)

    def clock(self, timeout_s: float = 10.0) -> wire.Clock:
        """The machine's clocks now."""
        return self._call(wire.CLOCK, None, timeout_s)

    def ping(self, count: int = _PINGS, timeout_s: float = 10.0) -> Ping:
        """The fastest of `count` readings of the machine's clock, each taken between two of ours."""
        self._greeted(timeout_s)
        return min((self._ping(timeout_s) for _ in range(count)), key=lambda ping: ping.round_trip_ns)

    def _clock_before(self) -> Ping | None:
        """A reading to relate the machine's clock by; None where durations need not be related."""
        assert self._hello is not None
        return None if self._own_clock or self._hello.boot_id == clocks.host_boot_id() else self.ping()

    def _wall(
        self, span_ns: tuple[int, int], before: Ping | None, bracket_ns: tuple[int, int]
    ) -> clocks.HostWall:
        """The duration of a call that has ended, after `_clock_before`."""
        assert self._hello is not None
        if self._own_clock:  # also where the kernel is this one: a container may have a clock of its own
            return clocks.on_own_clock(span_ns, bracket_ns)
        return clocks.on_host_clock(span_ns, (before, self._clock_before()), bracket_ns)

    def _greeted(self, timeout_s: float) -> None:
        if self._hello is None:
            self.hello(timeout_s)

    def _greeting(self, deadline: float) -> Hello:
        with Guard(self, "hello"):
            reply = self._receive(0, deadline)
            if reply.ok is UNSET:
                raise LinkError("sent something other than its greeting")
            spoken = msgspec.msgpack.decode(reply.ok, type=frames.Protocol).protocol
            if spoken != PROTOCOL:
                raise _OtherProtocolError(spoken)
            self._hello = msgspec.msgpack.decode(reply.ok, type=Hello)
            self._link.window = self._hello.window
        return self._hello

    def _ping(self, timeout_s: float) -> Ping:
        sent_ns = time.monotonic_ns()
        guest_ns = self.clock(timeout_s).monotonic_ns
        return Ping(sent_ns, guest_ns, time.monotonic_ns())

    def _call(
        self,
        call: Call[A, R],
        arguments: A,
        timeout_s: float,
        *,
        data: bytes | Iterable[bytes] = b"",
        streaming: bool = False,
        on_data: Callable[[int, bytes], None] | None = None,
        command: bool = False,
    ) -> R:
        deadline = time.monotonic() + timeout_s
        self._greeted(timeout_s)
        with Guard(self, call.name):
            call_id = self._next_id
            self._next_id += 1
            feed = self._frames(call_id, call, arguments, data if streaming else None)
            while True:
                reply = self._receive(call_id, deadline, feed)
                if reply.data is not UNSET:
                    if on_data is None:
                        raise LinkError("sent unrequested data")
                    on_data(reply.stream, reply.data)
                    continue
                if reply.error is not UNSET:
                    failure = reply.error
                    self._finish_feed(feed, deadline, streaming)
                    break
                assert reply.ok is not UNSET
                decoded = msgspec.msgpack.decode(reply.ok, type=call.answer)
                self._finish_feed(feed, deadline, streaming)
                return decoded
        raise refusal(failure, command=command or call.name == wire.EXEC.name)

    def _finish_feed(self, feed: Iterator[bytes], deadline: float, streaming: bool) -> None:
        """The call ended before taking all of its data: the current frame must be completed, and no others sent."""
        if streaming:
            self._link.finish_sending(deadline)

    @staticmethod
    def _frames(
        call_id: int, call: Call[A, Any], arguments: A, data: bytes | Iterable[bytes] | None
    ) -> Iterator[bytes]:
        first = frames.request(call_id, call, arguments)
        if len(first) > MAX_FRAME:
            said = f"{call.name}: arguments and environment are {len(first)} bytes, more than {MAX_FRAME}"
            raise CallError(wire.Failure(kind=wire.Kind.BAD_REQUEST, message=said))
        yield first
        if data is None:
            return
        for part in (data,) if isinstance(data, bytes) else data:
            view = memoryview(part)
            for start in range(0, len(view), MAX_CHUNK):
                yield frames.request(call_id, wire.DATA, cast("bytes", view[start : start + MAX_CHUNK]))
        yield frames.request(call_id, wire.END, None)

    def _receive(self, call_id: int, deadline: float, feed: Iterator[bytes] | None = None) -> frames.Reply:
        while True:
            payload = self._link.exchange(deadline, feed=feed)
            assert payload is not None
            reply = frames.reply(payload)
            if reply.id == call_id:
                return reply
            if not self._for_background(reply):
                if reply.error is not UNSET and reply.id == 0:
                    raise LinkError(f"did not understand: {reply.error.message}")
                raise LinkError(f"answered call {reply.id} instead of {call_id}")

    def start_background(self, arguments: wire.Exec, timeout_s: float) -> Background:
        """Starts a program whose replies are handled whenever they arrive."""
        self._greeted(timeout_s)
        call_id = self._next_id
        self._next_id += 1
        started = self._background[call_id] = Background(self, call_id)
        self.send(frames.request(call_id, wire.EXEC, arguments), timeout_s)
        return started

    def send(self, frame: bytes, timeout_s: float) -> None:
        """Sends a frame that has no reply of its own."""
        with Guard(self, "send"):
            self._link.send(frame, time.monotonic() + timeout_s)

    def receive_background(self, deadline: float) -> bool:
        """Waits for the next reply of a background call; whether one came before `deadline`."""
        with Guard(self, "background"):
            payload = self._link.exchange(math.inf, patience_until=deadline)
            if payload is None:
                return False
            reply = frames.reply(payload)
            if not self._for_background(reply):
                raise LinkError(f"answered call {reply.id}, for which nobody is waiting")
        return True

    def _for_background(self, reply: frames.Reply) -> bool:
        owner = self._background.get(reply.id)
        if owner is None:
            return False
        owner.take(reply)
        if not owner.running:
            del self._background[reply.id]
        return True


class _OtherProtocolError(Exception):
    def __init__(self, spoken: int) -> None:
        super().__init__(spoken)
        self.spoken = spoken


class Guard:
    """Turns any failure of the conversation into an `AgentError` and closes the agent."""

    def __init__(self, agent: Conversation, name: str) -> None:
        self._agent = agent
        self._name = name

    def __enter__(self) -> None:
        if self._agent._closed:
            raise AgentError(f"{self._name}: the agent {self._agent._closed}")

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if error is None or isinstance(error, (CallError, CommandError)):
            return
        match error:
            case _OtherProtocolError():
                why = f"speaks protocol {error.spoken}, not {PROTOCOL}"
                hint = "rebuild the agent: cargo build --release -p guestmark-agent; then start again"
            case LinkError():
                why, hint = str(error), ""
            case msgspec.MsgspecError() | ValueError():
                why, hint = f"sent garbage ({error})", ""
            case _:
                self._agent._shut(f"was interrupted in {self._name}")
                return
        self._agent._shut(f"{why} (in an earlier call of {self._name})")
        raise AgentError(f"{self._name}: the agent {why}", hint=hint) from error
