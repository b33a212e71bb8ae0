"""Measures the agent's mix of system calls on the machine."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from guestmark.agent.binary import PROGRAM
from guestmark.agent.client import Agent
from guestmark.agent.events import EventReader, subtract_counts
from guestmark.agent.wire import NOTHING, Measured, Ready, SyscallEvent
from guestmark.core.errors import AgentError

_END_S = 15.0

Counters = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Section:
    """The timed part of one operation: what the agent measured, and by how much the counters advanced."""

    measured: Measured
    counted: Counters


def measure_syscalls(
    agent: Agent,
    *,
    operations: int,
    time_s: float,
    names: Sequence[str],
    counters: Callable[[], Counters],
    timeout_s: float,
) -> list[Section]:
    """Measures each operation of `names`, at least `operations` times and for `time_s`.

    The first section is empty, and shows the cost of measuring.

    `counters` is read right before and right after each timed part. Raises `WorkloadError` if the agent cannot perform
    an operation, or if all of them take longer than `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    arguments = ["--operations", str(operations), "--time", str(max(1, round(time_s * 1e9)))]
    program = agent.background([PROGRAM, "syscalls", *arguments, *names], stdin=True)
    reader = EventReader(program, SyscallEvent, "the system calls", deadline)
    sections = []
    try:
        for call in (NOTHING, *names):
            if reader.read_event().ready != Ready(name=call):
                raise AgentError(f"syscalls: the agent did not announce {call}")
            before = counters()
            # The agent waits for this byte, so that the counters are read while it does nothing.
            program.send_input(b"g")
            measured = reader.read_event().measured
            after = counters()
            if measured is None or measured.name != call:
                raise AgentError(f"syscalls: the agent did not measure {call}")
            counted = subtract_counts(after, before)
            sections.append(Section(measured, counted))
            program.send_input(b"g")
        program.wait(_END_S)
    finally:
        if program.is_running and not agent.closed:
            program.send_signal(signal.SIGKILL)
            program.wait(_END_S)
    return sections
