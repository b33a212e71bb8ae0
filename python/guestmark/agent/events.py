"""Reads the events that one of the agent's programs prints, one typed message per frame."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Generic, TypeVar

import msgspec

from guestmark.agent.background import Background
from guestmark.core.errors import WorkloadError

_HEADER = 4
_LONGEST_FRAME = 64 << 10

E = TypeVar("E")


def subtract_counts(after: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    """Returns how much each counter has grown, of those that were read both times."""
    return {name: after[name] - before[name] for name in before if name in after}


class EventReader(Generic[E]):
    """Frames from the output of a running program, which has until `deadline` (monotonic) for all of them.

    `subject` is what errors are about, in the plural.
    """

    def __init__(self, program: Background, event: type[E], subject: str, deadline: float) -> None:
        self._program = program
        self._event = event
        self._subject = subject
        self._deadline = deadline
        self._at = 0

    def read_event(self) -> E:
        """Returns the next event. Raises `WorkloadError` with what the program printed instead."""
        left_s = self._deadline - time.monotonic()
        if not self._is_complete() and not self._program.wait(left_s, lambda _: self._is_complete()):
            raise WorkloadError(
                f"{self._subject} exceeded their time limit", hint="raise the limit: --trial-limit"
            )
        if not self._is_complete():
            output = self._program.output[self._at :].decode(errors="replace").strip()
            raise WorkloadError(f"{self._subject} cannot be measured: {output or 'the program ended'}")
        body = self._at + _HEADER
        end = body + self._read_frame_length()
        event = msgspec.msgpack.decode(bytes(self._program.output[body:end]), type=self._event)
        self._at = end
        return event

    def _read_frame_length(self) -> int:
        return int.from_bytes(self._program.output[self._at : self._at + _HEADER], "little")

    def _is_complete(self) -> bool:
        received = len(self._program.output) - self._at
        # A length beyond that of any frame is the beginning of an error message.
        return received >= _HEADER and self._read_frame_length() <= min(received - _HEADER, _LONGEST_FRAME)


def frame_message(message: msgspec.Struct) -> bytes:
    """Frames a message for the standard input of one of the agent's programs."""
    body = msgspec.msgpack.encode(message)
    return len(body).to_bytes(_HEADER, "little") + body
