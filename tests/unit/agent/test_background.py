"""Programs that run beside other calls, against the real agent as a child."""

import signal
from collections.abc import Iterator

import pytest

from guestmark.agent.binary import start_host_agent
from guestmark.agent.client import Agent
from guestmark.agent.results import CommandError
from guestmark.core.errors import AgentError
from tests.framework.processes import wait_until

LIMIT = 30.0


@pytest.fixture
def agent() -> Iterator[Agent]:
    _, transport = start_host_agent()
    with Agent(transport) as agent:
        yield agent


def test_other_calls_are_answered_while_it_runs(agent: Agent) -> None:
    server = agent.background(["sh", "-c", "echo one; sleep 0.2; echo two >&2; exec sleep 100"])
    assert server.wait(LIMIT, lambda said: b"one" in said)
    # The end of a program sweeps up what it left, but not what runs beside it.
    beside = agent.exec(["sh", "-c", "sleep 100 & sleep 0.4; echo here"], timeout_s=LIMIT)
    assert (beside.stdout, beside.leftovers) == (b"here\n", 1)
    assert server.is_running
    assert server.read_text() == "one\ntwo\n"
    server.send_signal(signal.SIGTERM)
    assert server.wait(LIMIT)
    assert server.ended is not None
    assert server.ended.signal == signal.SIGTERM
    assert agent.exec(["true"], timeout_s=LIMIT).ok


def test_waiting_for_what_does_not_come_is_no_fault(agent: Agent) -> None:
    server = agent.background(["sleep", "100"])
    assert not server.wait(0.05, lambda said: b"never" in said)
    assert server.is_running
    assert agent.read_clock().monotonic_ns > 0


def test_its_end_is_noticed_in_the_middle_of_another_call(agent: Agent) -> None:
    server = agent.background(["sh", "-c", "sleep 0.1; echo bye; exit 3"])
    assert agent.exec(["sleep", "0.5"], timeout_s=LIMIT).ok
    assert server.wait(0)
    assert server.ended is not None
    assert server.ended.status == 3
    assert server.read_text() == "bye\n"
    server.send_signal(signal.SIGTERM)  # too late, and harmless


def test_its_end_is_noticed_without_waiting() -> None:
    """Nobody else may be reading what its agent sends."""
    _, transport = start_host_agent()
    with Agent(transport) as agent:
        server = agent.background(["sh", "-c", "exit 3"])
        assert wait_until(lambda: server.wait(0.0), LIMIT)
        assert server.ended is not None
        assert server.ended.status == 3


def test_a_program_that_is_not_there_is_an_error_when_it_is_waited_for(agent: Agent) -> None:
    server = agent.background(["no-such-program"])
    with pytest.raises(CommandError, match="command not found"):
        server.wait(LIMIT)
    assert agent.exec(["true"], timeout_s=LIMIT).ok


def test_an_agent_that_dies_is_noticed_while_waiting() -> None:
    process, transport = start_host_agent()
    with Agent(transport) as agent:
        server = agent.background(["sleep", "100"])
        assert not server.wait(0.05)
        process.kill()
        with pytest.raises(AgentError, match="closed the connection"):
            server.wait(LIMIT)
