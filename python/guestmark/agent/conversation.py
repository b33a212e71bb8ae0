"""A conversation with an agent: greeting, one call at a time, deadlines, and error handling."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Self, cast

import msgspec
from msgspec import UNSET

from guestmark.agent import clocks, frames, wire
from guestmark.agent.background import Background
from guestmark.agent.clocks import Ping
from guestmark.agent.frames import Link, LinkError, Transport
from guestmark.agent.results import CallError, CommandError, make_refusal
from guestmark.agent.wire import MAX_CHUNK, MAX_FRAME, PROTOCOL, A, Call, Hello, R
from guestmark.core.errors import AgentError

# Seconds for a call that an agent answers at once.
_SMALL_CALL_S = 10.0
_PINGS = 6
# With a longer round trip the clock is read only once, as each further reading would take as long.
_LONG_WAY_NS = 20_000_000
_SEND_S = 30.0
# Calls that change nothing, so that a later conversation may make them before it needs the answers.
_QUESTIONS = frozenset(
    call.name
    for call in (wire.HELLO, wire.FACTS, wire.WHICH, wire.SHA256, wire.CHECKSUM, wire.STAT, wire.STATFS)
)
# Calls that are not questions, but do not change the answer to any.
_HARMLESS = frozenset((wire.LOCK.name, wire.CLOCK.name))
# The most bytes of answers that no call has claimed yet.
_AHEAD_LIMIT = 8 << 20


@dataclass(slots=True)
class _CallsAhead:
    """Calls that were made before their answers are needed, and the replies to them."""

    sent_ns: int = 0
    # Ids of the calls, by what they ask.
    unclaimed: dict[bytes, deque[int]] = field(default_factory=dict)
    replies: dict[int, deque[frames.Reply]] = field(default_factory=dict)
    size: int = 0

    def expect_reply(self, asked: bytes, call_id: int) -> None:
        self.unclaimed.setdefault(asked, deque()).append(call_id)
        self.replies[call_id] = deque()

    def claim_call(self, asked: bytes) -> int | None:
        """Returns the id of a call that has asked this already; None if there is none."""
        ids = self.unclaimed.get(asked)
        return ids.popleft() if ids else None

    def keep_reply(self, reply: frames.Reply, size: int) -> bool:
        """Keeps the reply if it belongs to one of the calls, and returns whether it does.

        Raises `LinkError` if the kept replies exceed their limit.
        """
        if reply.id not in self.replies:
            return False
        self.size += size
        if self.size > _AHEAD_LIMIT:
            raise LinkError("sent more data than requested")
        self.replies[reply.id].append(reply)
        return True

    def take_reply(self, call_id: int) -> frames.Reply | None:
        """Returns the next reply to a call that has arrived already; None if there is none."""
        kept = self.replies.get(call_id)
        return kept.popleft() if kept else None


class Conversation:
    """The part of `Agent` that every call uses.

    With `own_clock` durations are on the machine's clock: it is as good as this host's, and too far away to be read
    from here. A conversation that `follows` another on the same link skips what was sent to that one.
    """

    def __init__(self, channel: Transport | Link, *, own_clock: bool = False, follows: bool = False) -> None:
        self._own_clock = own_clock
        self._link = channel if isinstance(channel, Link) else Link(channel)
        self._follows = follows
        self._closed = ""
        self._next_id = 1
        # When the last call was made.
        self._sent_ns = 0
        self._reading: Ping | None = None
        self._hello: Hello | None = None
        # How long the greeting took, which shows how slow the machine is.
        self._greeted_after_s = 0.0
        self._background: dict[int, Background] = {}
        self._ahead = _CallsAhead()
        self._questions: list[bytes] = []
        self._only_asked = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def closed(self) -> bool:
        """True if calls are refused."""
        return bool(self._closed)

    def fileno(self) -> int:
        """Returns the descriptor that becomes readable when the agent sends something."""
        return self._link.fileno()

    def close(self) -> None:
        """Closes the transport: a host agent stops what it runs and exits; a guest shuts down."""
        self._close_because("was closed")

    def _close_because(self, why: str) -> None:
        if not self._closed:
            self._closed = why
            self._link.close()

    @property
    def questions(self) -> tuple[bytes, ...]:
        """The questions asked so far before any call that might change their answers; `ask_ahead` takes them."""
        return tuple(self._questions)

    def ask_ahead(self, questions: Iterable[bytes], holder: bytes | None) -> None:
        """Makes calls before their answers are needed: the lock's, unless `holder` is None, and the `questions`.

        This takes no round trip, and may come before the greeting. A later call that asks the same has its answer at
        once. If somebody else has the lock, the agent answers nothing else, and each call is made when it is needed.
        """
        with ConversationGuard(self, "ask"):
            locking = []
            if holder is not None:
                locking.append(frames.encode_call(wire.LOCK, wire.Lock(holder=holder)))
            sent = bytearray()
            for asked in (*locking, frames.encode_call(wire.CLOCK, None), *questions):
                self._ahead.expect_reply(asked, self._next_id)
                sent += frames.frame_call(self._next_id, asked, ahead=asked not in locking)
                self._next_id += 1
            self._ahead.sent_ns = time.monotonic_ns()
            self._link.send(bytes(sent), time.monotonic() + _SEND_S)

    def end_and_follow(self, patience_s: float) -> Self:
        """Ends all that runs on the machine and returns the next conversation on the link; this one is over.

        Waits at most `patience_s` for the greeting, which comes when nothing is left of this conversation.
        """
        with ConversationGuard(self, wire.LEAVE.name):
            now = time.monotonic()
            self._link.send(frames.frame_request(self._next_id, wire.LEAVE, None), now + _SEND_S)
            following = type(self)(self._link, own_clock=self._own_clock, follows=True)
            following._wait_for_greeting(math.inf, patience_until=now + patience_s)
        self._closed = "was left by this conversation"
        return following

    def hello(self, timeout_s: float = 60.0) -> Hello:
        """Returns the agent's greeting. The first call waits for it, so call this first, with the boot's deadline.

        Raises `AgentError` if the agent speaks another protocol.
        """
        if self._hello is None:
            self._wait_for_greeting(time.monotonic() + timeout_s)
            assert self._hello is not None
            return self._hello
        return self._call(wire.HELLO, None, timeout_s)

    def stretch_limit(self, limit_s: float) -> float:
        """Returns a limit for a small call: `limit_s`, or as long as the machine took to greet, if that is longer.

        A guest that is emulated inside an emulated one takes minutes to start, and answers as slowly.
        """
        return max(limit_s, self._greeted_after_s)

    def read_clock(self, timeout_s: float = _SMALL_CALL_S) -> wire.Clock:
        """Returns the machine's clocks now."""
        return self._call(wire.CLOCK, None, self.stretch_limit(timeout_s))

    def ping(self, count: int = _PINGS, timeout_s: float = _SMALL_CALL_S) -> Ping:
        """Returns the fastest of `count` readings of the machine's clock, each taken between two readings of ours.

        One reading is enough if durations are on the machine's own clock and the round trip is long.
        """
        self._ensure_greeted(timeout_s)
        best = self._ping_once(timeout_s)
        for _ in range(count - 1):
            if self._own_clock and best.round_trip_ns > _LONG_WAY_NS:
                break
            best = min(best, self._ping_once(timeout_s), key=lambda ping: ping.round_trip_ns)
        return best

    def find_last_reading(self) -> Ping:
        """Returns the last reading of the machine's clock: a call's if the round trip is long, else a new ping."""
        reading = self._reading
        if reading is not None and reading.round_trip_ns > _LONG_WAY_NS:
            return reading
        return self.ping()

    def _ping_if_needed(self) -> Ping | None:
        """Returns a reading that relates the machine's clock to ours; None if durations need not be converted."""
        assert self._hello is not None
        # A machine of this boot is on this host's kernel, and reads the same clock.
        if self._own_clock or self._hello.boot_id == clocks.read_host_boot_id():
            return None
        return self.ping()

    def _relate_duration(
        self, span_ns: tuple[int, int], before: Ping | None, bracket_ns: tuple[int, int]
    ) -> clocks.HostWall:
        """Returns the duration of a call that has ended; `before` comes from `_ping_if_needed`."""
        assert self._hello is not None
        # Even with this host's kernel: a container may have a clock of its own (time namespaces).
        if self._own_clock:
            self._reading = Ping.from_call(span_ns, bracket_ns)
            return clocks.measure_on_own_clock(span_ns, bracket_ns)
        return clocks.convert_to_host_clock(span_ns, (before, self._ping_if_needed()), bracket_ns)

    def _ensure_greeted(self, timeout_s: float) -> None:
        if self._hello is None:
            self.hello(timeout_s)

    def _wait_for_greeting(self, deadline: float, *, patience_until: float = math.inf) -> None:
        """Waits for the greeting. If it has not come by `patience_until`, that is not an error."""
        begun = time.monotonic()
        with ConversationGuard(self, "hello"):
            while True:
                payload = self._link.exchange(deadline, patience_until=patience_until)
                if payload is None:
                    return
                reply = frames.decode_reply(payload)
                if reply.id == 0 and reply.ok is not UNSET:
                    break
                if not self._follows:
                    raise LinkError("sent something other than its greeting")
            spoken = msgspec.msgpack.decode(reply.ok, type=frames.ProtocolVersion).protocol
            if spoken != PROTOCOL:
                raise _OtherProtocolError(spoken)
            self._hello = msgspec.msgpack.decode(reply.ok, type=Hello)
            self._link.window = self._hello.window
        if not self._follows:
            self._greeted_after_s = time.monotonic() - begun

    def _ping_once(self, timeout_s: float) -> Ping:
        guest_ns = self.read_clock(timeout_s).monotonic_ns
        return Ping(self._sent_ns, guest_ns, time.monotonic_ns())

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
        question: bool = False,
    ) -> R:
        """Makes a call and returns its decoded answer. A `question` never changes anything on the machine."""
        deadline = time.monotonic() + timeout_s
        self._ensure_greeted(timeout_s)
        with ConversationGuard(self, call.name):
            asked = frames.encode_call(call, arguments)
            self._remember_question(call.name, asked, question=question)
            claimed = self._ahead.claim_call(asked)
            call_id = claimed or self._next_id
            feed: Iterator[bytes] = iter(())
            self._sent_ns = self._ahead.sent_ns
            if claimed is None:
                self._next_id += 1
                feed = self._iterate_frame_parts(call_id, call.name, asked, data if streaming else None)
                self._sent_ns = time.monotonic_ns()
            while True:
                reply = self._receive_reply(call_id, deadline, feed)
                if reply.data is not UNSET:
                    if on_data is None:
                        raise LinkError("sent unrequested data")
                    on_data(reply.stream, reply.data)
                    continue
                if reply.error is not UNSET:
                    failure = reply.error
                    self._finish_feed(feed, deadline, streaming)
                    if claimed is None or failure.kind is not wire.Kind.IN_USE:
                        break
                    # The call was made ahead while another process had the lock, so it is made again.
                    claimed, call_id = None, self._next_id
                    self._next_id += 1
                    feed = self._iterate_frame_parts(call_id, call.name, asked, None)
                    self._sent_ns = time.monotonic_ns()
                    continue
                assert reply.ok is not UNSET
                decoded = msgspec.msgpack.decode(reply.ok, type=call.answer)
                self._finish_feed(feed, deadline, streaming)
                return decoded
        raise make_refusal(failure, command=command or call.name == wire.EXEC.name)

    def _remember_question(self, name: str, asked: bytes, *, question: bool) -> None:
        """Stores the question unless an earlier call may have changed its answer."""
        if question or name in _QUESTIONS:
            if self._only_asked:
                self._questions.append(asked)
        elif name not in _HARMLESS:
            self._only_asked = False

    def _finish_feed(self, feed: Iterator[bytes], deadline: float, streaming: bool) -> None:
        """Completes the current frame after a call that ended before taking all of its data; no others are sent."""
        if streaming:
            self._link.finish_sending(deadline)

    @staticmethod
    def _iterate_frame_parts(
        call_id: int, name: str, asked: bytes, data: bytes | Iterable[bytes] | None
    ) -> Iterator[bytes]:
        first = frames.frame_call(call_id, asked)
        if len(first) > MAX_FRAME:
            message = f"{name}: arguments and environment are {len(first)} bytes, more than {MAX_FRAME}"
            raise CallError(wire.Failure(kind=wire.Kind.BAD_REQUEST, message=message))
        yield first
        if data is None:
            return
        if isinstance(data, bytes):
            data = (data,)
        for part in data:
            view = memoryview(part)
            for start in range(0, len(view), MAX_CHUNK):
                yield frames.frame_request(call_id, wire.DATA, cast("bytes", view[start : start + MAX_CHUNK]))
        yield frames.frame_request(call_id, wire.END, None)

    def _receive_reply(
        self, call_id: int, deadline: float, feed: Iterator[bytes] | None = None
    ) -> frames.Reply:
        if (kept := self._ahead.take_reply(call_id)) is not None:
            return kept
        while True:
            payload = self._link.exchange(deadline, feed=feed)
            assert payload is not None
            reply = frames.decode_reply(payload)
            if reply.id == call_id:
                return reply
            if not (self._give_to_background(reply) or self._ahead.keep_reply(reply, len(payload))):
                if reply.error is not UNSET and reply.id == 0:
                    raise LinkError(f"did not understand the request: {reply.error.message}")
                raise LinkError(f"answered call {reply.id} instead of {call_id}")

    def start_background(
        self, arguments: wire.Exec, timeout_s: float, hear: Callable[[int, bytes], None] | None = None
    ) -> Background:
        """Starts a program whose replies are handled whenever they arrive; its output goes to `hear`, if given."""
        self._ensure_greeted(timeout_s)
        call_id = self._next_id
        self._next_id += 1
        started = self._background[call_id] = Background(self, call_id, hear)
        self.send(frames.frame_request(call_id, wire.EXEC, arguments), timeout_s)
        return started

    def send(self, frame: bytes, timeout_s: float) -> None:
        """Sends a frame that has no reply of its own."""
        with ConversationGuard(self, "send"):
            self._link.send(frame, time.monotonic() + timeout_s)

    def receive_background(self, deadline: float) -> bool:
        """Waits for the next reply to a background call; returns whether one came before `deadline`."""
        with ConversationGuard(self, "background"):
            payload = self._link.exchange(math.inf, patience_until=deadline)
            if payload is None:
                return False
            reply = frames.decode_reply(payload)
            if not (self._give_to_background(reply) or self._ahead.keep_reply(reply, len(payload))):
                raise LinkError(f"answered call {reply.id}, which is not open")
        return True

    def _give_to_background(self, reply: frames.Reply) -> bool:
        owner = self._background.get(reply.id)
        if owner is None:
            return False
        owner.handle_reply(reply)
        if not owner.is_running:
            del self._background[reply.id]
        return True


class _OtherProtocolError(Exception):
    def __init__(self, spoken: int) -> None:
        super().__init__(spoken)
        self.spoken = spoken


class ConversationGuard:
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
                self._agent._close_because(f"was interrupted during {self._name}")
                return
        self._agent._close_because(f"{why} (in an earlier call of {self._name})")
        raise AgentError(f"{self._name}: the agent {why}", hint=hint) from error
