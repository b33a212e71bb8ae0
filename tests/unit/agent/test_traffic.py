"""Both ends of the network tests over loopback, and what they find of a peer that dies, lies or queues."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator

import pytest

from guestmark.agent.binary import PROGRAM, start_host_agent
from guestmark.agent.client import Agent
from guestmark.agent.traffic import TrafficSection, measure_traffic, serve_traffic
from guestmark.agent.wire import TrafficPorts, TrafficResult, TrafficTask, TrafficTest, TrafficTimes
from guestmark.core.errors import WorkloadError
from guestmark.core.own_program import find_agent_binary
from tests.framework.standing_queue import HERE, standing_queue

LIMIT = 60.0
SHORT_NS = 40_000_000


@pytest.fixture
def agent() -> Iterator[Agent]:
    _, transport = start_host_agent()
    with Agent(transport) as agent:
        yield agent


@pytest.fixture
def peer() -> Iterator[Agent]:
    _, transport = start_host_agent()
    with Agent(transport) as agent:
        yield agent


def task(test: TrafficTest, *, flows: int = 1, size: int = 64, time_ns: int = SHORT_NS) -> TrafficTask:
    return TrafficTask(test=test, time_ns=time_ns, flows=flows, request=1, response=1, size=size)


def measure(
    agent: Agent, ports: TrafficPorts, *tasks: TrafficTask, limit_s: float = LIMIT
) -> list[TrafficSection]:
    return list(measure_traffic(agent, HERE, ports, tasks, counters=dict, timeout_s=limit_s))


def check_times(times: TrafficTimes | None) -> TrafficTimes:
    assert times is not None
    assert times.count > 0
    assert times.elapsed_ns >= SHORT_NS
    ordered = [times.lowest_ns, times.p50_ns, times.p90_ns, times.p99_ns, times.p999_ns, times.highest_ns]
    assert ordered == sorted(ordered)
    assert times.lowest_ns > 0
    assert times.lowest_ns <= times.mean_ns <= times.highest_ns
    assert times.mean_ns * times.count <= 1.1 * times.elapsed_ns + times.highest_ns
    return times


def check_result(test: TrafficTest, result: TrafficResult, flows: int) -> None:
    up = test in {TrafficTest.UPLOAD, TrafficTest.REQUEST_IN_UPLOAD, TrafficTest.REQUEST_IN_BOTH}
    down = test in {TrafficTest.DOWNLOAD, TrafficTest.REQUEST_IN_DOWNLOAD, TrafficTest.REQUEST_IN_BOTH}
    assert sorted(flow.upload for flow in result.flows) == [False] * (flows * down) + [True] * (flows * up)
    for flow in result.flows:
        assert flow.bytes > 0
        assert flow.elapsed_ns > 0
        assert flow.sender is not None
        assert flow.sender.congestion_control
        assert flow.sender.segment > 500
    assert (result.times is None) == (
        test
        in {
            TrafficTest.UPLOAD,
            TrafficTest.DOWNLOAD,
            TrafficTest.DATAGRAMS_UP,
            TrafficTest.DATAGRAMS_DOWN,
        }
    )
    if result.times is not None:
        check_times(result.times)
    if test in {TrafficTest.DATAGRAMS_UP, TrafficTest.DATAGRAMS_DOWN}:
        assert result.datagrams is not None
        assert 0 < result.datagrams.received <= result.datagrams.sent
        lost = result.datagrams.sent - result.datagrams.received
        # On a busy machine the kernel's own queue of loopback drops some before they reach the socket.
        assert result.datagrams.overflowed is not None
        assert 0 <= result.datagrams.overflowed <= lost
    assert result.cpu_ns > 0
    assert result.peer_cpu_ns > 0


@pytest.mark.parametrize("test", TrafficTest)
def test_each_test_measures_what_its_name_says(agent: Agent, peer: Agent, test: TrafficTest) -> None:
    with serve_traffic(peer) as ports:
        for flows in (1, 3):
            (section,) = measure(agent, ports, task(test, flows=flows))
            check_result(test, section.result, flows)


def test_one_program_does_all_tasks_in_their_order(agent: Agent, peer: Agent) -> None:
    tasks = [task(test) for test in TrafficTest] + [task(TrafficTest.DATAGRAMS_UP, size=1400)]
    with serve_traffic(peer) as ports:
        sections = measure(agent, ports, *tasks)
    assert [section.task for section in sections] == tasks
    again = agent.exec(["sh", "-c", "pgrep -c guestmark-agent -P $PPID"], timeout_s=LIMIT)
    assert again.stdout.strip() == b"0"


def test_a_stream_is_counted_for_as_long_as_was_asked(agent: Agent, peer: Agent) -> None:
    with serve_traffic(peer) as ports:
        for test in (TrafficTest.UPLOAD, TrafficTest.DOWNLOAD):
            (section,) = measure(agent, ports, task(test, time_ns=200_000_000))
            (flow,) = section.result.flows
            assert 0.19e9 <= flow.elapsed_ns <= 0.3e9


def test_a_peer_that_is_not_there_costs_one_line(agent: Agent) -> None:
    with socket.create_server((HERE, 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(WorkloadError, match=r"connect to 127.0.0.1:\d+: Connection refused"):
        measure(agent, TrafficPorts(main=port, bare=port), task(TrafficTest.UPLOAD))


def test_a_peer_of_another_kind_costs_one_line(agent: Agent) -> None:
    """A server that closes at once, as an unrelated one might."""
    with socket.create_server((HERE, 0)) as server:
        pid = os.fork()
        if pid == 0:
            while True:
                server.accept()[0].close()
        try:
            port = server.getsockname()[1]
            with pytest.raises(WorkloadError, match="closed the connection too early"):
                measure(agent, TrafficPorts(main=port, bare=port), task(TrafficTest.REQUEST))
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def test_the_server_outlives_garbage_and_clients_that_leave(agent: Agent, peer: Agent) -> None:
    with serve_traffic(peer) as ports:
        for garbage in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 100, b"\x04\0\0\0abcd"):
            for port in (ports.main, ports.bare):
                with socket.create_connection((HERE, port)) as stranger:
                    stranger.sendall(garbage)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            stranger.sendto(b"x" * 100, (HERE, ports.main))
        (section,) = measure(agent, ports, task(TrafficTest.DATAGRAMS_DOWN))
        check_result(TrafficTest.DATAGRAMS_DOWN, section.result, 1)
        (section,) = measure(agent, ports, task(TrafficTest.TRANSACTION))
        check_times(section.result.times)


@contextlib.contextmanager
def lone_server() -> Iterator[tuple[subprocess.Popen[bytes], TrafficPorts]]:
    """A server with its ports chosen beforehand, without an agent."""
    with socket.create_server((HERE, 0)) as first, socket.create_server((HERE, 0)) as second:
        ports = TrafficPorts(main=first.getsockname()[1], bare=second.getsockname()[1])
    command = [str(find_agent_binary()), "traffic", "serve", "--port", str(ports.main)]
    server = subprocess.Popen(
        [*command, "--bare-port", str(ports.bare)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with server:
        assert server.stdout is not None
        server.stdout.read(4)
        try:
            yield server, ports
        finally:
            server.kill()


def test_the_server_ends_with_its_standard_input() -> None:
    with lone_server() as (server, _):
        assert server.stdin is not None
        assert server.poll() is None
        server.stdin.close()
        assert server.wait(10) == 0


@pytest.mark.parametrize("test", [TrafficTest.UPLOAD, TrafficTest.DOWNLOAD, TrafficTest.REQUEST])
def test_a_peer_that_dies_in_the_middle_costs_one_line(agent: Agent, test: TrafficTest) -> None:
    with lone_server() as (server, ports):

        def kill() -> dict[str, float]:
            # Called right before the byte that begins the test, and after it: the first call kills.
            server.kill()
            return {}

        begun = time.monotonic()
        with pytest.raises(WorkloadError, match="network tests cannot be measured: guestmark-agent: "):
            list(
                measure_traffic(
                    agent, HERE, ports, [task(test, time_ns=10**9)], counters=kill, timeout_s=LIMIT
                )
            )
        assert time.monotonic() - begun < 5


@pytest.mark.long
@pytest.mark.parametrize("test", [TrafficTest.UPLOAD, TrafficTest.DOWNLOAD, TrafficTest.REQUEST])
def test_a_peer_that_stops_reading_costs_one_line(agent: Agent, test: TrafficTest) -> None:
    with lone_server() as (server, ports):

        def stop() -> dict[str, float]:
            server.send_signal(signal.SIGSTOP)
            return {}

        with pytest.raises(WorkloadError, match="the other end was silent for 20 s"):
            list(
                measure_traffic(
                    agent, HERE, ports, [task(test, time_ns=10**9)], counters=stop, timeout_s=LIMIT
                )
            )


def test_the_time_limit_ends_all_of_it(agent: Agent, peer: Agent) -> None:
    with serve_traffic(peer) as ports, pytest.raises(WorkloadError, match="exceeded their time limit"):
        measure(agent, ports, task(TrafficTest.UPLOAD, time_ns=30 * 10**9), limit_s=0.3)
    left = agent.exec(["sh", "-c", "pgrep -c guestmark-agent -P $PPID"], timeout_s=LIMIT)
    assert left.stdout.strip() == b"0"


@pytest.mark.parametrize(
    "words", [[], ["serve", "--port"], ["serve", "x"], ["measure"], ["measure", HERE, "1"]]
)
def test_the_program_says_how_it_is_used(agent: Agent, words: list[str]) -> None:
    done = agent.exec([PROGRAM, "traffic", *words], timeout_s=LIMIT)
    assert done.status == 125
    assert b"usage: guestmark-agent traffic" in done.stderr


QUEUE_S = 0.050


def test_latency_under_load_finds_a_planted_queue(agent: Agent, peer: Agent) -> None:
    """Requests wait for as long as the queue is, in the direction that has the streams, and only there."""
    span_ns = 600_000_000
    tests = (
        TrafficTest.REQUEST,
        TrafficTest.REQUEST_IN_UPLOAD,
        TrafficTest.REQUEST_IN_DOWNLOAD,
        TrafficTest.REQUEST_IN_BOTH,
    )
    with (
        serve_traffic(peer) as ports,
        standing_queue(ports.main, ports.bare, rate=2e6, queue_s=QUEUE_S) as (main, bare),
    ):
        tasks = [task(test, flows=2, time_ns=span_ns) for test in tests]
        found = [
            section.result.times for section in measure(agent, TrafficPorts(main=main, bare=bare), *tasks)
        ]
    idle, up, down, both = [times for times in found if times is not None]
    # Medians: a busy processor adds to the relay's slowest pieces, and so to a mean.
    for loaded, queues in ((up, 1), (down, 1), (both, 2)):
        assert (loaded.p50_ns - idle.p50_ns) / 1e9 == pytest.approx(queues * QUEUE_S, rel=0.1)
