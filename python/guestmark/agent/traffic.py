"""Measures a network between two agents: one serves as the peer, the other makes every connection."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from guestmark.agent.background import Background
from guestmark.agent.binary import PROGRAM
from guestmark.agent.client import Agent
from guestmark.agent.events import EventReader, frame_message, subtract_counts
from guestmark.agent.wire import TrafficEvent, TrafficPorts, TrafficResult, TrafficTask
from guestmark.core.errors import AgentError

# Where a server listens that takes connections to all addresses of its machine.
ANY_ADDRESS = "0.0.0.0"
_START_S = 15.0
_END_S = 15.0

Counters = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class TrafficSection:
    """The timed part of one task: what was measured, and by how much the counters advanced."""

    task: TrafficTask
    result: TrafficResult
    counted: Counters


@contextlib.contextmanager
def serve_traffic(
    peer: Agent, *, address: str = ANY_ADDRESS, port: int = 0, bare_port: int = 0
) -> Iterator[TrafficPorts]:
    """Runs the server on the peer until the block is left, and yields its ports.

    `address` is an IP address, or `vsock:CID` for connections by vsock to any. Raises `WorkloadError` if it cannot
    listen there.
    """
    program = peer.background(
        [
            *(PROGRAM, "traffic", "serve", "--address", address),
            *("--port", str(port), "--bare-port", str(bare_port)),
        ],
        stdin=True,
    )
    try:
        reader = EventReader(program, TrafficEvent, "the peer's connections", time.monotonic() + _START_S)
        ports = reader.read_event().listening
        if ports is None:
            raise AgentError("traffic: the peer did not report its ports")
        yield ports
    finally:
        _end_program(program, peer)


def measure_traffic(
    agent: Agent,
    address: str,
    ports: TrafficPorts,
    tasks: Sequence[TrafficTask],
    *,
    counters: Callable[[], Counters],
    timeout_s: float,
) -> Iterator[TrafficSection]:
    """Measures one task after the other between the agent and the server at `address`.

    `counters` is read right before and right after each task. Raises `WorkloadError` if the peer cannot be reached or
    falls silent, or if all of it takes longer than `timeout_s`.
    """
    program = agent.background(
        [PROGRAM, "traffic", "measure", address, str(ports.main), str(ports.bare)], stdin=True
    )
    reader = EventReader(program, TrafficEvent, "network tests", time.monotonic() + timeout_s)
    try:
        for task in tasks:
            program.send_input(frame_message(task))
            if reader.read_event().ready != task:
                raise AgentError(f"traffic: the agent did not announce {task.test}")
            before = counters()
            # The agent waits for this byte, so that the counters are read while it does nothing.
            program.send_input(b"g")
            result = reader.read_event().measured
            after = counters()
            if result is None:
                raise AgentError(f"traffic: the agent did not measure {task.test}")
            counted = subtract_counts(after, before)
            yield TrafficSection(task, result, counted)
    finally:
        _end_program(program, agent)


def _end_program(program: Background, agent: Agent) -> None:
    if program.is_running and not agent.closed:
        program.send_signal(signal.SIGKILL)
        program.wait(_END_S)
