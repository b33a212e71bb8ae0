"""Programs that keep running on the machine while other calls are made, such as servers under test."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Protocol

import msgspec
from msgspec import UNSET

from guestmark.agent import frames, wire
from guestmark.agent.results import make_refusal

_SEND_S = 30.0


class AgentChannel(Protocol):
    """The part of an agent's conversation that a running program uses."""

    def send(self, message: bytes, timeout_s: float) -> None:
        """Sends one request."""

    def receive_background(self, deadline: float) -> bool:
        """Receives replies to background calls until `deadline` (monotonic); returns whether there was one."""


class Background:
    """A background program, started by `Agent.background`. Closing its agent kills it with all its children.

    `output` holds what its two streams have sent so far; any call may receive more. With `hear`, that function is
    called with the number of a stream and each piece of it instead. `ended` is set once the program has ended.
    """

    def __init__(
        self, agent: AgentChannel, call_id: int, hear: Callable[[int, bytes], None] | None = None
    ) -> None:
        self._agent = agent
        self._id = call_id
        self._hear = hear
        self._failure: wire.Failure | None = None
        self.output = bytearray()
        self.ended: wire.Exited | None = None

    def handle_reply(self, reply: frames.Reply) -> None:
        """Stores a reply to its call, whichever call was waiting when the reply arrived."""
        if reply.data is not UNSET and self._hear is not None:
            self._hear(reply.stream, reply.data)
        elif reply.data is not UNSET:
            self.output += reply.data
        elif reply.error is not UNSET:
            self._failure = reply.error
        elif reply.ok is not UNSET:
            self.ended = msgspec.msgpack.decode(reply.ok, type=wire.Exited)

    @property
    def is_running(self) -> bool:
        """True until the program's exit has been reported."""
        return self.ended is None and self._failure is None

    def wait(self, timeout_s: float, until: Callable[[bytes], bool] = lambda _: False) -> bool:
        """Waits until the program ends or `until` holds for its output; returns whether that was before `timeout_s`.

        Raises `CommandError` if the program could not be started.
        """
        deadline = time.monotonic() + timeout_s
        while self.is_running and not until(bytes(self.output)):
            if not self._agent.receive_background(deadline):
                return False
        if self._failure is not None:
            raise make_refusal(self._failure, command=True)
        return True

    def send_input(self, data: bytes) -> None:
        """Sends bytes to its standard input, if it was started with one; ignored after it has ended."""
        if self.is_running:
            self._agent.send(frames.frame_request(self._id, wire.DATA, data), _SEND_S)

    def send_signal(self, number: int) -> None:
        """Sends a signal to its process group; ignored after it has ended."""
        if self.is_running:
            self._agent.send(frames.frame_request(self._id, wire.KILL, wire.Kill(signal=number)), _SEND_S)

    def read_text(self) -> str:
        """Returns the output so far; undecodable bytes are replaced."""
        return os.fsdecode(bytes(self.output)).encode("utf-8", "replace").decode()
