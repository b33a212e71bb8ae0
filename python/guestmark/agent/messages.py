"""Messages between the control plane and the agent: the Python side of `crates/wire`, where each field is explained."""

from enum import StrEnum
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

PROTOCOL = 1
MAX_CHUNK = 1 << 20
MAX_FRAME = MAX_CHUNK + (64 << 10)
MAX_OUTPUT = 64 << 20
ACKNOWLEDGEMENT = 1 << 31


class Kind(StrEnum):
    """Kinds of failures that a controller tells apart."""

    NOT_FOUND = "not_found"
    PERMISSION_DENIED = "permission_denied"
    BAD_FORMAT = "bad_format"
    BAD_CWD = "bad_cwd"
    BAD_REQUEST = "bad_request"
    NO_DIRECT_IO = "no_direct_io"
    OS = "os"


class Failure(msgspec.Struct, frozen=True):
    """Why a call failed."""

    kind: Kind
    message: str
    errno: int | None = None


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


class Clock(msgspec.Struct, frozen=True):
    """The clocks of the machine, nanoseconds."""

    monotonic_ns: int
    realtime_ns: int
    boottime_ns: int


class Phase(msgspec.Struct, frozen=True):
    """The end of one step of the boot on the machine's monotonic clock, nanoseconds."""

    name: str
    at_ns: int


class Hello(msgspec.Struct, frozen=True):
    """Who answers."""

    protocol: int
    version: str
    arch: str
    kernel: str
    pid: int
    uid: int
    hostname: str
    boot_id: str
    clock: Clock
    phases: tuple[Phase, ...]
    window: int | None = None


class Exited(msgspec.Struct, frozen=True):
    """How a program ended and what it used, as reported by the agent."""

    status: int | None
    signal: int | None
    timed_out: bool
    oom_killed: bool
    pid: int
    started_ns: int
    ended_ns: int
    user_us: int
    system_us: int
    max_rss_kib: int
    minor_faults: int
    major_faults: int
    voluntary_switches: int
    involuntary_switches: int
    stdout_discarded: int
    stderr_discarded: int
    leftovers: int
    counted: tuple[int, ...] = ()


class Which(msgspec.Struct, frozen=True):
    """Where a command is."""

    path: bytes


class Digest(msgspec.Struct, frozen=True):
    """SHA-256 in hexadecimal, and how many bytes it is of."""

    sha256: str
    size: int


class Done(msgspec.Struct, frozen=True):
    """Nothing to tell."""


class Locked(msgspec.Struct, frozen=True):
    """Whether the machine's lock is held; else what its holder says of itself, up to 4 KiB. `path` is where it is."""

    held: bool
    path: bytes
    holder: bytes


class Count(msgspec.Struct, frozen=True):
    """Bytes moved, and from when to when on the machine's monotonic clock."""

    bytes: int
    started_ns: int
    ended_ns: int


class Stat(msgspec.Struct, frozen=True):
    """Metadata of a file, as `stat(2)`; `blocks` are of 512 bytes."""

    mode: int
    uid: int
    gid: int
    size: int
    blocks: int
    mtime_ns: int


class Statfs(msgspec.Struct, frozen=True):
    """Size of a filesystem in blocks of `block_size` bytes; `magic` is its type."""

    magic: int
    block_size: int
    blocks: int
    free: int
    available: int


class Facts(msgspec.Struct, frozen=True):
    """What the machine is, as reported by its kernel."""

    cpu_model: str
    cpu_flags: tuple[str, ...]
    cpus_online: int
    mem_total_kib: int
    cmdline: str
    mounts: str
    clocksource: str
    hypervisor: str


_encoder = msgspec.msgpack.Encoder()
_reply = msgspec.msgpack.Decoder(Reply)


def request(call_id: int, name: str, arguments: Any = None) -> bytes:
    """A framed request: the call `name` with its `arguments` (a mapping; bytes for `data`; None when it has none)."""
    call = name if arguments is None else {name: arguments}
    payload = _encoder.encode({"id": call_id, "call": call})
    return len(payload).to_bytes(4, "little") + payload


def reply(payload: bytes | bytearray | memoryview) -> Reply:
    """Decodes a frame's payload. Raises `ValueError` when it is not a reply."""
    decoded = _reply.decode(payload)
    if sum(part is not UNSET for part in (decoded.ok, decoded.error, decoded.data)) != 1:
        raise ValueError("neither a result nor a failure nor data")
    return decoded
