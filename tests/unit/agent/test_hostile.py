"""A guest that sends garbage, stops in the middle, floods or keeps silent gives one clear error, in time."""

import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guestmark.agent import frames, wire
from guestmark.agent.client import Agent
from guestmark.agent.frames import Transport
from guestmark.core.errors import AgentError
from guestmark.core.performance_events import EVENTS

DEADLINE = 0.3
SLACK = 5.0  # a busy machine may be late; a hang is not

HELLO = {
    "protocol": wire.PROTOCOL,
    "version": "0",
    "arch": "x",
    "kernel": "k",
    "pid": 1,
    "uid": 0,
    "hostname": "h",
    "boot_id": "another",
    "clock": {"monotonic_ns": 1, "realtime_ns": 1, "boottime_ns": 1},
    "phases": [],
}
EXITED: dict[str, object] = {
    **dict.fromkeys(wire.Exited.__struct_fields__, 0),
    "signal": None,
    "timed_out": False,
    "oom_killed": False,
    "counted": [],
}


def frame(message: object) -> bytes:
    payload = msgspec.msgpack.encode(message)
    return len(payload).to_bytes(4, "little") + payload


GREETING = frame({"id": 0, "ok": HELLO})
CLOCK = {"monotonic_ns": 5, "realtime_ns": 5, "boottime_ns": 5}


@contextmanager
def facing(peer: Callable[[socket.socket], None], *, greet: bool = True) -> Iterator[Agent]:
    """An agent whose other side is `peer`, run in a thread; the connection is closed when `peer` returns."""
    ours, theirs = socket.socketpair()

    def run() -> None:
        with theirs:
            try:
                if greet:
                    theirs.sendall(GREETING)
                peer(theirs)
            except OSError:
                pass  # we hung up on it, as we should

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    agent = Agent(Transport.of_socket(ours))
    try:
        yield agent
    finally:
        agent.close()
        thread.join(SLACK)
        assert not thread.is_alive()


def refuses(agent: Agent, call: Callable[[Agent], object] = lambda a: a.read_clock(DEADLINE)) -> AgentError:
    """The call must fail in time with `AgentError` and close the agent for good."""
    start = time.monotonic()
    with pytest.raises(AgentError) as caught:
        call(agent)
    assert time.monotonic() - start < DEADLINE + SLACK
    assert agent.closed
    with pytest.raises(AgentError):
        agent.read_clock(DEADLINE)
    return caught.value


def until_closed(peer: socket.socket) -> None:
    while peer.recv(65536):
        pass


def answering(data: bytes, *, hang_up: bool) -> Callable[[socket.socket], None]:
    def peer(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(data)
        if not hang_up:
            until_closed(connection)

    return peer


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=300), st.booleans())
def test_garbage_instead_of_a_greeting(data: bytes, hang_up: bool) -> None:
    def peer(connection: socket.socket) -> None:
        connection.sendall(data)
        if not hang_up:
            until_closed(connection)

    with facing(peer, greet=False) as agent:
        refuses(agent, lambda a: a.hello(DEADLINE))


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=300))
def test_garbage_in_a_frame(data: bytes) -> None:
    with facing(answering(len(data).to_bytes(4, "little") + data, hang_up=True)) as agent:
        refuses(agent)


json_like = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=80, deadline=None)
@given(st.dictionaries(st.sampled_from(["id", "ok", "error", "data", "stream", "x"]), json_like, max_size=5))
def test_well_formed_nonsense(message: dict[str, object]) -> None:
    with facing(answering(frame(message), hang_up=True)) as agent:
        refuses(agent)


@pytest.mark.parametrize("hang_up", [True, False])
def test_truncation_at_every_byte(hang_up: bool) -> None:
    whole = frame({"id": 1, "ok": CLOCK})
    # Silence costs its deadline each time: there every seventh place is enough.
    for cut in range(0, len(whole), 1 if hang_up else 7):
        with facing(answering(whole[:cut], hang_up=hang_up)) as agent:
            error = refuses(agent)
            assert ("closed the connection" if hang_up else "no answer in time") in error.message
            if hang_up and cut:
                assert "in the middle" in error.message


def test_silence_before_the_greeting() -> None:
    with facing(until_closed, greet=False) as agent:
        assert "no answer in time" in refuses(agent, lambda a: a.hello(DEADLINE)).message


def test_a_peer_that_never_reads() -> None:
    stop = threading.Event()

    def peer(_: socket.socket) -> None:
        stop.wait(30)

    with facing(peer) as agent:
        agent.hello(DEADLINE)
        refuses(agent, lambda a: a.send_to_sink(bytes(30 << 20), DEADLINE))
        stop.set()


@settings(max_examples=30, deadline=None)
@given(st.integers(wire.MAX_FRAME + 1, 2**32 - 1))
def test_oversized_frames_are_refused_before_they_come(length: int) -> None:
    with facing(answering(length.to_bytes(4, "little"), hang_up=False)) as agent:
        assert "garbage" in refuses(agent).message


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**64 - 1).filter(lambda number: number != 1))
def test_answers_to_something_never_asked(call_id: int) -> None:
    with facing(answering(frame({"id": call_id, "ok": CLOCK}), hang_up=False)) as agent:
        assert str(call_id) in refuses(agent).message


def test_another_protocol_is_refused_with_advice() -> None:
    def peer(connection: socket.socket) -> None:
        connection.sendall(frame({"id": 0, "ok": {"protocol": wire.PROTOCOL + 1, "new": True}}))
        until_closed(connection)

    with facing(peer, greet=False) as agent:
        error = refuses(agent, lambda a: a.hello(DEADLINE))
        assert "protocol" in error.message
        assert "rebuild" in error.hint


def test_data_nobody_asked_for() -> None:
    with facing(answering(frame({"id": 1, "stream": 1, "data": b"x"}), hang_up=False)) as agent:
        assert "unrequested" in refuses(agent).message


def flood(message: object) -> Callable[[socket.socket], None]:
    data = frame(message)

    def peer(connection: socket.socket) -> None:
        connection.recv(65536)
        while True:
            connection.sendall(data)

    return peer


@pytest.mark.parametrize("size", [0, 1, 1 << 20])
def test_floods_end_at_the_limit_or_the_deadline_in_bounded_memory(size: int) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with facing(flood({"id": 1, "stream": 1, "data": bytes(size)})) as agent:
        refuses(agent, lambda a: a.read_file("/x", limit=8 << 20, timeout_s=DEADLINE))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10


def requests(connection: socket.socket) -> Iterator[dict[str, object]]:
    """What the controller asks for, until it hangs up."""
    received = bytearray()
    while data := connection.recv(65536):
        received += data
        while len(received) >= 4 and len(received) >= (end := 4 + int.from_bytes(received[:4], "little")):
            yield msgspec.msgpack.decode(received[4:end])
            del received[:end]


def exec_peer(*after: dict[str, object]) -> Callable[[socket.socket], None]:
    """Answers pings; sends `after` when a program is to be started."""

    def peer(connection: socket.socket) -> None:
        for request in requests(connection):
            if request["call"] == "clock":
                clock = {**CLOCK, "monotonic_ns": time.monotonic_ns() + 10**9}
                connection.sendall(frame({"id": request["id"], "ok": clock}))
            else:
                for message in after:
                    connection.sendall(frame({"id": request["id"], **message}))

    return peer


def run(agent: Agent) -> object:
    return agent.exec(["x"], timeout_s=DEADLINE, grace_s=0, output_limit=1000)


def test_more_output_than_was_asked_for() -> None:
    with facing(exec_peer(*[{"stream": 2, "data": bytes(600)}] * 2)) as agent:
        assert "more output" in refuses(agent, run).message


def test_output_on_a_stream_that_is_none() -> None:
    with facing(exec_peer({"stream": 3, "data": b"x"})) as agent:
        refuses(agent, run)


def test_dying_in_the_middle_of_output() -> None:
    def peer(connection: socket.socket) -> None:
        for request in requests(connection):
            if request["call"] == "clock":
                connection.sendall(frame({"id": request["id"], "ok": CLOCK}))
            else:
                connection.sendall(frame({"id": request["id"], "stream": 1, "data": b"x"}) + GREETING[:9])
                return

    with facing(peer) as agent:
        assert "in the middle" in refuses(agent, run).message


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**63), st.integers(0, 2**63))
def test_a_lying_clock_is_cut_to_what_the_host_saw(started_ns: int, ended_ns: int) -> None:
    exited = {**EXITED, "started_ns": started_ns, "ended_ns": ended_ns}
    with facing(exec_peer({"ok": exited})) as agent:
        start = time.monotonic()
        result = agent.exec(["x"], timeout_s=DEADLINE)
        bracket = time.monotonic() - start
    assert 0 <= result.wall_s <= bracket
    assert result.clock_warning


def test_an_honest_clock_on_another_epoch_gives_no_warning() -> None:
    epoch = 10**15

    def peer(connection: socket.socket) -> None:
        for request in requests(connection):
            started_ns = time.monotonic_ns() + epoch
            if request["call"] == "clock":
                answer: dict[str, object] = {**CLOCK, "monotonic_ns": started_ns}
            else:
                time.sleep(0.05)
                answer = {**EXITED, "started_ns": started_ns, "ended_ns": time.monotonic_ns() + epoch}
            connection.sendall(frame({"id": request["id"], "ok": answer}))

    with facing(peer) as agent:
        result = agent.exec(["x"], timeout_s=DEADLINE + SLACK)
    assert result.clock_warning == ""
    assert result.wall_error_s > 0
    assert abs(result.wall_s - result.guest_wall_s) <= result.wall_error_s
    assert result.guest_wall_s >= 0.05


def test_an_interrupted_call_closes_the_agent() -> None:
    with facing(answering(frame({"id": 1, "stream": 1, "data": b"x"}), hang_up=False)) as agent:

        def interrupt(*_: object) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            agent.receive_file("/x", interrupt, timeout_s=DEADLINE)
        assert agent.closed
        with pytest.raises(AgentError, match="interrupted"):
            agent.read_clock(DEADLINE)


WINDOWED = frame({"id": 0, "ok": {**HELLO, "window": 100}})


def windowed(acknowledge: Callable[[int], int]) -> Callable[[socket.socket], None]:
    """A peer that takes at most 100 bytes unacknowledged and then acknowledges `acknowledge(received)`."""

    def peer(connection: socket.socket) -> None:
        connection.sendall(WINDOWED)
        left = len(frames.frame_request(1, wire.SINK, None)) + len(
            frames.frame_request(1, wire.DATA, bytes(5000))
        )
        left += len(frames.frame_request(1, wire.END, None))
        while left and (data := connection.recv(65536)):
            assert len(data) <= 100
            left -= len(data)
            if count := acknowledge(len(data)):
                connection.sendall((wire.ACKNOWLEDGEMENT + count).to_bytes(4, "little"))
        connection.sendall(frame({"id": 1, "ok": {"bytes": 5000, "started_ns": 0, "ended_ns": 0}}))
        until_closed(connection)

    return peer


def test_no_more_than_the_window_is_on_its_way() -> None:
    with facing(windowed(lambda received: received), greet=False) as agent:
        assert agent.send_to_sink(bytes(5000), SLACK).bytes == 5000


@pytest.mark.parametrize(("acknowledged", "says"), [(0, "no answer in time"), (101, "never sent")])
def test_acknowledgements_that_fail_or_lie(acknowledged: int, says: str) -> None:
    with facing(windowed(lambda _: acknowledged), greet=False) as agent:
        assert says in refuses(agent, lambda a: a.send_to_sink(bytes(5000), DEADLINE)).message


def test_acknowledgements_without_a_window_are_garbage() -> None:
    with facing(answering((wire.ACKNOWLEDGEMENT + 5).to_bytes(4, "little"), hang_up=False)) as agent:
        assert "garbage" in refuses(agent).message


@pytest.mark.parametrize("counted", [[], [1, 2], [-1] * 1000])
def test_events_that_nobody_asked_for_are_refused(counted: list[int]) -> None:
    with (
        facing(exec_peer({"ok": {**EXITED, "counted": counted}})) as agent,
        pytest.raises(AgentError, match="counted other events"),
    ):
        agent.exec(["x"], timeout_s=DEADLINE, counters=[EVENTS["page-faults"]])


@pytest.mark.parametrize("start_s", [0.0, 1.0])
def test_who_took_long_to_start_may_take_as_long_to_answer(start_s: float) -> None:
    """A guest inside two emulators starts in minutes and answers in tens of seconds, which is no hang."""

    def peer(theirs: socket.socket) -> None:
        time.sleep(start_s)
        theirs.sendall(GREETING)
        theirs.recv(4096)
        if start_s:
            time.sleep(0.5)
            theirs.sendall(frame({"id": 1, "ok": CLOCK}))
        until_closed(theirs)

    with facing(peer, greet=False) as agent:
        agent.hello(SLACK)
        if start_s:
            assert agent.read_clock(0.1).monotonic_ns == CLOCK["monotonic_ns"]
        else:
            with pytest.raises(AgentError, match="gave no answer in time"):
                agent.read_clock(0.1)
