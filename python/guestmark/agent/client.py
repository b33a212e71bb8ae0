"""The control plane's side of the agent: calls, deadlines, clocks."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Self, TypeVar

import msgspec
from msgspec import UNSET

from guestmark.agent import clocks, messages, terminal
from guestmark.agent.clocks import Ping
from guestmark.agent.frames import Link, LinkError, Transport
from guestmark.agent.messages import MAX_CHUNK, MAX_OUTPUT, PROTOCOL, Hello
from guestmark.agent.results import CallError, CommandError, ExecResult, refusal
from guestmark.errors import AgentError

__all__ = ["Agent", "CallError", "CommandError", "ExecResult"]

T = TypeVar("T")
_PINGS = 6
_GRACE_S = 15.0


class Agent:
    """A machine's agent over a transport. One call at a time; not for several threads.

    Any failure of the conversation (end of stream, silence past a deadline, garbage, a reply to something never asked)
    raises `AgentError` and closes the agent: further calls are refused. A call that the agent merely refuses raises
    `CallError` and leaves it usable. An exception from outside in the middle of a call (Ctrl-C) closes it too.
    """

    def __init__(self, transport: Transport) -> None:
        self._link = Link(transport)
        self._closed = ""
        self._next_id = 1
        self._hello: Hello | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def closed(self) -> bool:
        """Whether calls are refused."""
        return bool(self._closed)

    def close(self) -> None:
        """Closes the transport: a host agent ends what it runs and exits, a guest switches off."""
        self._shut("was closed")

    def _shut(self, why: str) -> None:
        if not self._closed:
            self._closed = why
            self._link.close()

    # -- calls ---------------------------------------------------------------------------------------------------

    def hello(self, timeout_s: float = 60.0) -> Hello:
        """Who answers. The first time it waits for the agent's greeting, so call it first, with the boot's deadline.

        Raises `AgentError` when the agent speaks another protocol.
        """
        if self._hello is None:
            return self._greeting(time.monotonic() + timeout_s)
        return self._call("hello", None, Hello, timeout_s)

    def clock(self, timeout_s: float = 10.0) -> messages.Clock:
        """The machine's clocks now."""
        return self._call("clock", None, messages.Clock, timeout_s)

    def ping(self, count: int = _PINGS, timeout_s: float = 10.0) -> Ping:
        """The quickest of `count` readings of the machine's clock between two of ours."""
        self._greeted(timeout_s)
        return min((self._ping(timeout_s) for _ in range(count)), key=lambda ping: ping.round_trip_ns)

    def exec(
        self,
        argv: Sequence[str | bytes],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        uid: int | None = None,
        gid: int | None = None,
        groups: Sequence[int] | None = None,
        stdin: bytes = b"",
        timeout_s: float,
        output_limit: int = MAX_CHUNK,
        grace_s: float = _GRACE_S,
    ) -> ExecResult:
        """Runs a program until it ends or for `timeout_s`, when its whole process group is killed.

        `env` None is the agent's own environment; without `stdin` its input is `/dev/null`. At most `output_limit`
        bytes (up to `MAX_OUTPUT`) of each stream are kept, the others are counted. The agent has `grace_s` beyond the
        limit to answer. Raises `CommandError` when the program cannot be started.
        """
        if not 0 <= output_limit <= MAX_OUTPUT:
            raise ValueError(f"output_limit must be between 0 and {MAX_OUTPUT}")
        self._greeted(_GRACE_S)
        arguments = exec_arguments(argv, env=env, cwd=cwd, uid=uid, gid=gid, groups=groups)
        arguments |= {
            "stdin": bool(stdin),
            "time_limit_ns": max(1, math.ceil(timeout_s * 1e9)),
            "output_limit": output_limit,
        }
        assert self._hello is not None
        same_clock = self._hello.boot_id == clocks.host_boot_id()
        before = None if same_clock else self.ping()
        output = {1: bytearray(), 2: bytearray()}

        def keep(stream: int, data: bytes) -> None:
            kept = output.get(stream)
            if kept is None or len(kept) + len(data) > output_limit:
                raise LinkError("sent more output than it was asked for")
            kept += data

        sent_ns = time.monotonic_ns()
        exited = self._call(
            "exec",
            arguments,
            messages.Exited,
            timeout_s + grace_s,
            data=stdin,
            streaming=bool(stdin),
            on_data=keep,
        )
        received_ns = time.monotonic_ns()
        after = None if same_clock else self.ping()
        wall = clocks.on_host_clock(
            (exited.started_ns, exited.ended_ns), (before, after), (sent_ns, received_ns)
        )
        return ExecResult(
            argv=tuple(os.fsdecode(argument) for argument in argv),
            status=exited.status,
            signal=exited.signal,
            timed_out=exited.timed_out,
            oom_killed=exited.oom_killed,
            stdout=bytes(output[1]),
            stderr=bytes(output[2]),
            stdout_discarded=exited.stdout_discarded,
            stderr_discarded=exited.stderr_discarded,
            wall_s=wall.seconds,
            wall_error_s=wall.error_s,
            guest_wall_s=(exited.ended_ns - exited.started_ns) / 1e9,
            clock_warning=wall.warning,
            user_s=exited.user_us / 1e6,
            system_s=exited.system_us / 1e6,
            max_rss_bytes=exited.max_rss_kib * 1024,
            minor_faults=exited.minor_faults,
            major_faults=exited.major_faults,
            voluntary_switches=exited.voluntary_switches,
            involuntary_switches=exited.involuntary_switches,
            leftovers=exited.leftovers,
            pid=exited.pid,
            started_ns=exited.started_ns,
            ended_ns=exited.ended_ns,
        )

    def interactive(
        self,
        argv: Sequence[str | bytes],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        uid: int | None = None,
        gid: int | None = None,
        groups: Sequence[int] | None = None,
        stdin_fd: int = 0,
        stdout_fd: int = 1,
    ) -> int:
        """Runs a program on a terminal of its own that is joined to the caller's, until it ends.

        Returns its exit status, 128 + signal when one killed it. A terminal at `stdin_fd` is raw meanwhile; changes of
        its size are passed on (from the main thread). Raises `CommandError` when the program cannot be started.
        """
        self._greeted(_GRACE_S)
        arguments = exec_arguments(argv, env=env, cwd=cwd, uid=uid, gid=gid, groups=groups)
        with _Conversation(self, "exec"):
            call_id = self._next_id
            self._next_id += 1
            return terminal.run(self._link, call_id, arguments, stdin_fd, stdout_fd)

    def which(
        self, name: str, *, path: str | None = None, cwd: str | None = None, timeout_s: float = 10.0
    ) -> str:
        """Absolute path of what `exec` would run with this `PATH`. Raises `CommandError` when there is nothing."""
        arguments = {
            "name": os.fsencode(name),
            "path": None if path is None else os.fsencode(path),
            "cwd": None if cwd is None else os.fsencode(cwd),
        }
        return os.fsdecode(self._call("which", arguments, messages.Which, timeout_s, command=True).path)

    def sha256(self, path: str, timeout_s: float = 120.0) -> messages.Digest:
        """Digest and size in bytes of a file."""
        return self._call("sha256", {"path": os.fsencode(path)}, messages.Digest, timeout_s)

    def mount(
        self, source: str, target: str, fstype: str, options: str = "", timeout_s: float = 60.0
    ) -> None:
        """Mounts as `mount -t FSTYPE -o OPTIONS SOURCE TARGET` would."""
        arguments = {
            "source": os.fsencode(source),
            "target": os.fsencode(target),
            "fstype": fstype,
            "options": options,
        }
        self._call("mount", arguments, messages.Done, timeout_s)

    def umount(self, target: str, *, lazy: bool = False, timeout_s: float = 60.0) -> None:
        """Unmounts."""
        self._call("umount", {"target": os.fsencode(target), "lazy": lazy}, messages.Done, timeout_s)

    def sync(self, timeout_s: float = 120.0) -> None:
        """Writes all of the machine's caches back."""
        self._call("sync", None, messages.Done, timeout_s)

    def read_file(
        self, path: str, *, offset: int = 0, limit: int = MAX_OUTPUT, timeout_s: float = 60.0
    ) -> bytes:
        """At most `limit` bytes of a file from `offset`; works for files in `/proc` too."""
        content = bytearray()

        def keep(_: int, data: bytes) -> None:
            if len(content) + len(data) > limit:
                raise LinkError("sent more of the file than it was asked for")
            content.extend(data)

        self.receive_file(path, keep, offset=offset, limit=limit, timeout_s=timeout_s)
        return bytes(content)

    def receive_file(
        self,
        path: str,
        on_data: Callable[[int, bytes], None],
        *,
        offset: int = 0,
        limit: int = (1 << 63) - 1,
        timeout_s: float = 60.0,
    ) -> messages.Count:
        """Streams a file to `on_data(1, bytes)` in large pieces; the times are the machine's."""
        arguments = {"path": os.fsencode(path), "offset": offset, "limit": limit}
        return self._call("read_file", arguments, messages.Count, timeout_s, on_data=on_data)

    def write_file(
        self,
        path: str,
        data: bytes | Iterable[bytes],
        *,
        mode: int = 0o644,
        uid: int | None = None,
        gid: int | None = None,
        fsync: bool = False,
        timeout_s: float = 60.0,
    ) -> messages.Count:
        """Creates or replaces a file; the times are the machine's."""
        arguments = {"path": os.fsencode(path), "mode": mode, "uid": uid, "gid": gid, "fsync": fsync}
        return self._call("write_file", arguments, messages.Count, timeout_s, data=data, streaming=True)

    def sink(self, data: bytes | Iterable[bytes], timeout_s: float = 60.0) -> messages.Count:
        """Sends bytes that the agent discards, to measure the channel."""
        return self._call("sink", None, messages.Count, timeout_s, data=data, streaming=True)

    def stat(self, path: str, timeout_s: float = 10.0) -> messages.Stat:
        """Metadata of a file, symbolic links followed."""
        return self._call("stat", {"path": os.fsencode(path)}, messages.Stat, timeout_s)

    def statfs(self, path: str, timeout_s: float = 10.0) -> messages.Statfs:
        """Size of the filesystem that holds `path`."""
        return self._call("statfs", {"path": os.fsencode(path)}, messages.Statfs, timeout_s)

    def mkdir(self, path: str, *, mode: int = 0o755, parents: bool = False, timeout_s: float = 10.0) -> None:
        """Makes a directory; with `parents` also those above it, and one that exists is fine."""
        arguments = {"path": os.fsencode(path), "mode": mode, "parents": parents}
        self._call("mkdir", arguments, messages.Done, timeout_s)

    def remove(self, path: str, *, recursive: bool = False, timeout_s: float = 60.0) -> None:
        """Removes a file, an empty directory, or with `recursive` a whole one."""
        arguments = {"path": os.fsencode(path), "recursive": recursive}
        self._call("remove", arguments, messages.Done, timeout_s)

    def facts(self, timeout_s: float = 10.0) -> messages.Facts:
        """What the machine is, as its kernel says: everything attestation needs in one round trip."""
        return self._call("facts", None, messages.Facts, timeout_s)

    def power_off(self, timeout_s: float = 60.0) -> None:
        """Writes caches back and switches the machine off (a host agent exits); the agent is closed then."""
        self._call("power_off", None, messages.Done, timeout_s)
        self._shut("was switched off")

    # -- the conversation ----------------------------------------------------------------------------------------

    def _greeted(self, timeout_s: float) -> None:
        if self._hello is None:
            self.hello(timeout_s)

    def _greeting(self, deadline: float) -> Hello:
        with _Conversation(self, "hello"):
            reply = self._receive(0, deadline)
            if reply.ok is UNSET:
                raise LinkError("sent something else than its greeting")
            spoken = msgspec.msgpack.decode(reply.ok, type=messages.Protocol).protocol
            if spoken != PROTOCOL:
                raise _OtherProtocolError(spoken)
            self._hello = msgspec.msgpack.decode(reply.ok, type=Hello)
        return self._hello

    def _ping(self, timeout_s: float) -> Ping:
        sent_ns = time.monotonic_ns()
        guest_ns = self.clock(timeout_s).monotonic_ns
        return Ping(sent_ns, guest_ns, time.monotonic_ns())

    def _call(
        self,
        name: str,
        arguments: Mapping[str, Any] | None,
        result: type[T],
        timeout_s: float,
        *,
        data: bytes | Iterable[bytes] = b"",
        streaming: bool = False,
        on_data: Callable[[int, bytes], None] | None = None,
        command: bool = False,
    ) -> T:
        deadline = time.monotonic() + timeout_s
        self._greeted(timeout_s)
        with _Conversation(self, name):
            call_id = self._next_id
            self._next_id += 1
            frames = self._frames(call_id, name, arguments, data if streaming else None)
            while True:
                reply = self._receive(call_id, deadline, frames)
                if reply.data is not UNSET:
                    if on_data is None:
                        raise LinkError("sent data that was not asked for")
                    on_data(reply.stream, reply.data)
                    continue
                if reply.error is not UNSET:
                    failure = reply.error
                    self._finish_feed(frames, deadline, streaming)
                    break
                assert reply.ok is not UNSET
                decoded = msgspec.msgpack.decode(reply.ok, type=result)
                self._finish_feed(frames, deadline, streaming)
                return decoded
        raise refusal(failure.message, failure.kind, failure.errno, command=command or name == "exec")

    def _finish_feed(self, frames: Iterator[bytes], deadline: float, streaming: bool) -> None:
        """A call that ended before it took all of its data: the frame under way must be completed, no others sent."""
        if streaming:
            self._link.finish_sending(deadline)

    @staticmethod
    def _frames(
        call_id: int, name: str, arguments: Mapping[str, Any] | None, data: bytes | Iterable[bytes] | None
    ) -> Iterator[bytes]:
        first = messages.request(call_id, name, arguments)
        if len(first) > messages.MAX_FRAME:
            raise CallError(
                f"{name}: arguments and environment are {len(first)} bytes, more than {messages.MAX_FRAME}",
                "bad_request",
                None,
            )
        yield first
        if data is None:
            return
        for part in (data,) if isinstance(data, bytes) else data:
            view = memoryview(part)
            for start in range(0, len(view), MAX_CHUNK):
                yield messages.request(call_id, "data", view[start : start + MAX_CHUNK])
        yield messages.request(call_id, "end")

    def _receive(
        self, call_id: int, deadline: float, frames: Iterator[bytes] | None = None
    ) -> messages.Reply:
        payload = self._link.exchange(deadline, feed=frames)
        assert payload is not None
        reply = messages.reply(payload)
        if reply.id != call_id:
            if reply.error is not UNSET and reply.id == 0:
                raise LinkError(f"did not understand: {reply.error.message}")
            raise LinkError(f"answered call {reply.id} instead of {call_id}")
        return reply


class _OtherProtocolError(Exception):
    def __init__(self, spoken: int) -> None:
        super().__init__(spoken)
        self.spoken = spoken


class _Conversation:
    """Turns whatever goes wrong in a conversation into `AgentError`, and closes the agent then."""

    def __init__(self, agent: Agent, name: str) -> None:
        self._agent = agent
        self._name = name

    def __enter__(self) -> None:
        if self._agent._closed:
            raise AgentError(f"{self._name}: the agent {self._agent._closed}")

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if error is None or isinstance(error, (CallError, CommandError)):
            return
        match error:
            case _OtherProtocolError():
                why = f"speaks protocol {error.spoken}, not {PROTOCOL}"
                hint = "rebuild the agent: cargo build --release -p guestmark-agent; then start again"
            case LinkError():
                why, hint = str(error), ""
            case msgspec.MsgspecError() | ValueError():
                why, hint = f"sent garbage ({error})", ""
            case _:
                self._agent._shut(f"was interrupted in {self._name}")
                return
        self._agent._shut(f"{why} (in an earlier call of {self._name})")
        raise AgentError(f"{self._name}: the agent {why}", hint=hint) from error


def exec_arguments(
    argv: Sequence[str | bytes],
    *,
    env: Mapping[str, str] | None,
    cwd: str | None,
    uid: int | None,
    gid: int | None,
    groups: Sequence[int] | None,
) -> dict[str, Any]:
    """The part of an exec request that says what to run and as whom."""
    return {
        "argv": [os.fsencode(argument) for argument in argv],
        "env": None if env is None else [os.fsencode(f"{name}={value}") for name, value in env.items()],
        "cwd": None if cwd is None else os.fsencode(cwd),
        "uid": uid,
        "gid": gid,
        "groups": None if groups is None else list(groups),
    }
