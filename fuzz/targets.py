"""What is fuzzed of Python: how each target takes an input, what it may refuse it with, and words to mutate with."""

from __future__ import annotations

import contextlib
import socket
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from guestmark.agent import wire
from guestmark.agent.client import Agent
from guestmark.agent.frames import Transport
from guestmark.appliance import bzimage
from guestmark.core.context import Caller
from guestmark.core.errors import GuestmarkError
from guestmark.plan.load import load_outline
from guestmark.plan.outline import assemble_plan
from guestmark.platforms.own.definition import parse_definition
from guestmark.platforms.own.store import describe_execution
from guestmark.workloads.netboot import rom

_FOLDER = Path(tempfile.gettempdir())
_SEPARATOR = b"\n--\n"
_ANSWER_S = 1.0
_SOCKET = 256 << 10
GREETING = msgspec.msgpack.encode(
    {
        "id": 0,
        "ok": {
            "protocol": wire.PROTOCOL, "version": "0", "arch": "x", "kernel": "k", "pid": 1, "uid": 0,
            "hostname": "h", "boot_id": "another", "window": None,
            "clock": {"monotonic_ns": 1, "realtime_ns": 1, "boottime_ns": 1}, "phases": [],
        },
    }
)  # fmt: skip


@dataclass(frozen=True)
class Target:
    """`take` is given an input and may raise `refusals` only."""

    take: Callable[[bytes], object]
    refusals: tuple[type[Exception], ...]
    words: tuple[bytes, ...]


def framed(payload: bytes) -> bytes:
    """A frame as the agent sends it."""
    return len(payload).to_bytes(4, "little") + payload


def stream_of(data: bytes) -> bytes:
    """Behind a first byte that is even, parts that become frames; else the bytes as they are."""
    if data[:1] and data[0] % 2:
        return data[1:]
    return b"".join(map(framed, data[1:].split(_SEPARATOR)))


CALLS: tuple[Callable[[Agent], object], ...] = (
    lambda agent: agent.exec(["true"], timeout_s=_ANSWER_S, grace_s=0.0, output_limit=1000),
    lambda agent: agent.read_facts(timeout_s=_ANSWER_S),
    lambda agent: agent.read_clock(timeout_s=_ANSWER_S),
    lambda agent: agent.read_file("/x", limit=1000, timeout_s=_ANSWER_S),
    lambda agent: agent.checksum("/x", timeout_s=_ANSWER_S),
    lambda agent: agent.stat("/x", timeout_s=_ANSWER_S),
    lambda agent: agent.background(["true"], stdin=True).wait(_ANSWER_S),
    lambda agent: agent.write_file("/x", b"x" * 5000, timeout_s=_ANSWER_S),
)


def _replies(data: bytes) -> None:
    """The first byte says which call is answered, the rest is what an agent sends before it hangs up."""
    if not data:
        return
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET)
        theirs.setblocking(False)
        try:
            theirs.send(framed(GREETING) + stream_of(data[1:]))
        except BlockingIOError:
            ours.close()
            return
        theirs.shutdown(socket.SHUT_WR)
        with Agent(Transport.of_socket(ours)) as agent:
            CALLS[data[0] % len(CALLS)](agent)


def _plan(data: bytes) -> None:
    assemble_plan(load_outline(data.decode(errors="replace"), "plan.toml"), Caller())


def _machine(data: bytes) -> None:
    """A file of a machine: read, described and filled in as before its commands run."""
    text = data.decode(errors="replace")
    definition = parse_definition(text, Path("machine.toml"))
    describe_execution(definition)
    values = {**definition.list_placeholder_values({}), "id": "guestmark-0"}
    for _, template in definition.iterate_commands():
        for word in template.fill(values, ["echo", "a b"]):
            # What no program can be given.
            assert "\0" not in word


def _file(function: Callable[[Path], object]) -> Callable[[bytes], None]:
    def take(data: bytes) -> None:
        with tempfile.NamedTemporaryFile(dir=_FOLDER) as file:
            file.write(data)
            file.flush()
            function(Path(file.name))

    return take


def _kernel(path: Path) -> None:
    """All readers of a kernel, whatever it is."""
    bzimage.has_pvh_entry(path.read_bytes())
    with contextlib.suppress(bzimage.NotABzImageError):
        bzimage.read_release(path)
    bzimage.has_pvh_entry(bzimage.unpack_elf(path))


TARGETS = {
    "replies": Target(
        _replies,
        (GuestmarkError,),
        (
            _SEPARATOR,
            b"\x82\xa2id\x01",
            b"\xa2ok",
            b"\xa5error",
            b"\xa4data",
            b"\xa6stream",
            b"\xc0",
            b"\xc3",
            b"\xdd\xff\xff\xff\xff",
            b"\xc6\xff\xff\xff\xff",
            b"\xdf\xff\xff\xff\xff",
            b"\xcf" + b"\xff" * 8,
            b"\xcb\x7f\xf8" + b"\0" * 6,
            b"\xd9\x02\xff\xfe",
            b"\x00\x00\x00\x80",
            b"\xff\xff\xff\x7f",
            b"\x91" * 200,
        ),
    ),
    "plan": Target(
        _plan,
        (GuestmarkError,),
        (
            b"\n",
            b"[",
            b"]",
            b"[[",
            b"]]",
            b"{",
            b"}",
            b"=",
            b'"',
            b"'",
            b"'''",
            b",",
            b".",
            b"#",
            b"1e400",
            b"-1",
            b"nan",
            b"0",
            b"inf",
            b"true",
            b"1979-05-27",
            b"99999999999999999999",
            b'"9999999999999999999G"',
            b'""',
            b'"\\u0000"',
            b"[workloads.x]\n",
            b"[factors]\n",
            b"[[exclude]]\n",
            b"[policy]\n",
            b'kind = "exec"\n',
            b"baseline",
            b"params.",
            b'"tcg/tcg/tcg"',
            b'"host"',
            b'"*"',
            b'"!"',
            b"scale",
            b"[" * 3000,
            b"\xff",
            "ü".encode(),
            b"levels",
            b'size = ["1G", "2G"]\n',
            b"platforms = []\n",
            b"published",
            b"metrics",
            b"blocks = 10000000000\n",
        ),
    ),
    "machine": Target(
        _machine,
        (GuestmarkError,),
        (
            b"\n",
            b"{",
            b"}",
            b"{id}",
            b"{command}",
            b"{line}",
            b"{image}",
            b"{image...}",
            b"{{",
            b"...",
            b"=",
            b'"',
            b"'",
            b"\\",
            b"[",
            b"]",
            b",",
            b"#",
            b"$",
            b"[parameters]\n",
            b"[env]\n",
            b"[timeouts]\n",
            b"nan",
            b"inf",
            b"1e400",
            b"99999999999999999999",
            b"-1",
            b"true",
            b'"\\u0000"',
            b'"\\u001b"',
            b'"\\ud800"',
            b"levels",
            b"default",
            b"help",
            b"name",
            b"create",
            b"exec",
            b"destroy",
            b"list",
            b"\xff",
            "ü".encode(),
            b"[" * 3000,
        ),
    ),
    "rom": Target(
        _file(rom.read_rom),
        (GuestmarkError,),
        (b"\x55\xaa", b"PCIR", b"HdrS", b"\0\0", b"\xff\xff", b"\x1c\0", b"\x03\x80"),
    ),
    "kernel": Target(
        _file(_kernel),
        (GuestmarkError,),
        (
            b"\x7fELF\x02\x01",
            b"HdrS",
            b"Linux version ",
            b"Xen\0",
            b"\x12\0\0\0",
            b"\x38\0",
            b"\xfd7zXZ\0",
            b"\x1f\x8b\x08",
            b"BZh9",
            b"\x5d\0\0",
            b"\x04\0\0\0",
            b"\xff" * 8,
            b"\0" * 8,
        ),
    ),
}
