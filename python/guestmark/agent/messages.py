"""Frames' payloads: the envelopes around the messages of `wire`, encoded and decoded."""

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from guestmark.agent.wire import A, Call, Failure


class Reply(msgspec.Struct, frozen=True):
    """Anything the agent sends: exactly one of `ok` (still encoded), `error` and `data` is there."""

    id: int
    ok: msgspec.Raw | UnsetType = UNSET
    error: Failure | UnsetType = UNSET
    stream: int = 1
    data: bytes | UnsetType = UNSET


class Protocol(msgspec.Struct, frozen=True):
    """The part of a hello that every version of the protocol has."""

    protocol: int


_encoder = msgspec.msgpack.Encoder()
_reply = msgspec.msgpack.Decoder(Reply)


def request(call_id: int, call: Call[A, Any], arguments: A) -> bytes:
    """A framed request with the arguments of the call; None for one that has none."""
    asked = call.name if arguments is None else {call.name: arguments}
    payload = _encoder.encode({"id": call_id, "call": asked})
    return len(payload).to_bytes(4, "little") + payload


def reply(payload: bytes | bytearray | memoryview) -> Reply:
    """Decodes a frame's payload. Raises `ValueError` when it is not a reply."""
    decoded = _reply.decode(payload)
    if sum(part is not UNSET for part in (decoded.ok, decoded.error, decoded.data)) != 1:
        raise ValueError("neither a result nor a failure nor data")
    return decoded
