"""The control plane's side of the agent: calls, deadlines, clocks, the caller's terminal."""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import termios
import threading
import time
import tty
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypedDict, Unpack

import msgspec
from msgspec import UNSET, structs

from guestmark.agent import frames, wire
from guestmark.agent.background import Background
from guestmark.agent.bulk import BulkCalls
from guestmark.agent.conversation import ConversationGuard
from guestmark.agent.frames import Link, LinkError
from guestmark.agent.results import CallError, CommandError, ExecResult, make_refusal
from guestmark.agent.wire import MAX_CHUNK, MAX_OUTPUT
from guestmark.core.errors import AgentError
from guestmark.core.performance_events import PerformanceEvent

_SEND_S = 30.0
_READ_SIZE = 64 << 10


def run_piped(
    link: Link, call_id: int, program: wire.Exec, stdin_fd: int, output_fds: tuple[int, int]
) -> int:
    """Starts the program without a terminal and joins its streams to ours until it ends.

    Returns its exit status, or 128 + signal. Its input ends when ours does. Raises as `run_on_terminal`, and
    `BrokenPipeError` if our output has no reader.
    """
    waiting = deque([frames.frame_request(call_id, wire.EXEC, program)])
    feed = _take_endlessly(waiting)
    inputs: tuple[int, ...] = (stdin_fd,)
    while True:
        frame = link.exchange(math.inf, feed=feed, wake_fds=inputs)
        if frame is None:
            data = _read_typed(stdin_fd) or b""
            waiting.append(_frame_typed(call_id, data))
            inputs = inputs if data else ()
            continue
        reply = _decode_reply(frame, call_id)
        if reply.data is not UNSET:
            _write_all(output_fds[reply.stream - 1], reply.data)
        else:
            # The program may have ended before it read all of its input.
            link.finish_sending(time.monotonic() + _SEND_S)
            return _read_exit_status(reply)


def _take_endlessly(waiting: deque[bytes]) -> Iterator[bytes]:
    """Yields what is waiting, and no bytes while nothing is."""
    while True:
        if waiting:
            yield waiting.popleft()
        else:
            yield b""


def run_on_terminal(link: Link, call_id: int, program: wire.Exec, stdin_fd: int, stdout_fd: int) -> int:
    """Starts the program and joins the terminals until it ends; returns its exit status, or 128 + signal.

    Raises `LinkError` if the conversation fails, `CommandError` or `CallError` if the program cannot be started.
    """
    request = frames.frame_request(
        call_id, wire.EXEC, structs.replace(program, pty=_read_terminal_size(stdout_fd))
    )
    with _set_raw_mode(stdin_fd), _watch_resizes() as resized_fd:
        link.send(request, time.monotonic() + _SEND_S)
        inputs: tuple[int, ...] = (stdin_fd, resized_fd)
        while True:
            frame = link.exchange(math.inf, wake_fds=inputs)
            if frame is None:
                deadline = time.monotonic() + _SEND_S
                with contextlib.suppress(BlockingIOError):
                    os.read(resized_fd, 64)
                    link.send(
                        frames.frame_request(call_id, wire.WINSIZE, _read_terminal_size(stdout_fd)), deadline
                    )
                typed = _read_typed(stdin_fd) if stdin_fd in inputs else None
                if typed is not None:
                    link.send(_frame_typed(call_id, typed), deadline)
                    inputs = inputs if typed else (resized_fd,)
                continue
            reply = _decode_reply(frame, call_id)
            if reply.data is UNSET:
                return _read_exit_status(reply)
            _write_all(stdout_fd, reply.data)


def _frame_typed(call_id: int, data: bytes) -> bytes:
    """Frames what was typed, or the end of the input for no bytes."""
    if data:
        return frames.frame_request(call_id, wire.DATA, data)
    return frames.frame_request(call_id, wire.END, None)


def _decode_reply(frame: bytes, call_id: int) -> frames.Reply:
    reply = frames.decode_reply(frame)
    if reply.id != call_id:
        raise LinkError(f"answered call {reply.id} instead of {call_id}")
    return reply


def _read_exit_status(reply: frames.Reply) -> int:
    """Returns the exit status of a program that has ended. Raises `CommandError` if it could not be started."""
    if reply.error is not UNSET:
        raise make_refusal(reply.error, command=True)
    assert reply.ok is not UNSET
    exited = msgspec.msgpack.decode(reply.ok, type=wire.Exited)
    if exited.signal:
        return 128 + exited.signal
    return exited.status or 0


def _read_typed(stdin_fd: int) -> bytes | None:
    """Returns what was typed; empty at the end of the input, None if there is nothing to read."""
    poller = select.poll()
    poller.register(stdin_fd, select.POLLIN)
    if not poller.poll(0):
        return None
    try:
        return os.read(stdin_fd, _READ_SIZE)
    except OSError:
        return b""


def _read_terminal_size(fd: int) -> wire.Winsize:
    """Returns the size of the terminal; 24 by 80 if `fd` is not a terminal."""
    try:
        size = os.get_terminal_size(fd)
    except OSError:
        return wire.Winsize(rows=24, cols=80)
    return wire.Winsize(rows=size.lines, cols=size.columns)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


@contextlib.contextmanager
def _set_raw_mode(fd: int) -> Iterator[None]:
    """Puts a terminal into raw mode; does nothing if it is not a terminal."""
    if not os.isatty(fd):
        yield
        return
    saved = termios.tcgetattr(fd)
    try:
        tty.setraw(fd)
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, saved)


@contextlib.contextmanager
def _watch_resizes() -> Iterator[int]:
    """Yields a descriptor that becomes readable when the terminal's size changes."""
    read_fd, write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    # Python installs signal handlers in the main thread only.
    in_main = threading.current_thread() is threading.main_thread()

    def notice(*_: object) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(write_fd, b"x")

    previous = signal.signal(signal.SIGWINCH, notice) if in_main else None
    try:
        yield read_fd
    finally:
        if in_main:
            signal.signal(signal.SIGWINCH, previous)
        os.close(read_fd)
        os.close(write_fd)


__all__ = ["Agent", "CallError", "CommandError", "ExecResult"]

_GRACE_S = 15.0
_ENDLESS = (1 << 63) - 1


class ProgramContext(TypedDict, total=False):
    """The environment and identity a program runs with; whatever is missing or None is the agent's own."""

    env: Mapping[str, str] | None
    cwd: str | None
    uid: int | None
    gid: int | None
    groups: Sequence[int] | None


class Agent(BulkCalls):
    """A machine's agent over a transport. It takes one call at a time, and must not be shared by threads.

    Any failure of the conversation (end of stream, silence past a deadline, garbage, a reply to something never asked)
    raises `AgentError` and closes the agent: further calls are refused. A call that the agent merely refuses raises
    `CallError` and leaves it usable. An exception from outside during a call (Ctrl-C) closes it too.
    """

    # False where it runs commands in the machine from outside.
    in_machine = True

    def exec(
        self,
        argv: Sequence[str | bytes],
        *,
        stdin: bytes | Iterable[bytes] = b"",
        timeout_s: float,
        output_limit: int = MAX_CHUNK,
        grace_s: float = _GRACE_S,
        counters: Sequence[PerformanceEvent] = (),
        stdout: wire.StandardOutput = wire.StandardOutput.PIPE,
        tail: bool = False,
        question: bool = False,
        **where: Unpack[ProgramContext],
    ) -> ExecResult:
        """Runs a program until it ends or for `timeout_s`, after which its whole process group is killed.

        Without `stdin` its input is `/dev/null`. At most `output_limit` bytes (up to `MAX_OUTPUT`) of each stream are
        kept, the first ones or with `tail` the last ones; the rest are counted. If `stdout` is NULL, nothing of it is
        kept. The agent gets `grace_s` beyond the limit to answer. A `question` changes nothing on the machine, so its
        answer may come ahead. Raises `CommandError` if the program cannot be started.
        """
        if not 0 <= output_limit <= MAX_OUTPUT:
            raise ValueError(f"output_limit must be between 0 and {MAX_OUTPUT}")
        self._ensure_greeted(_GRACE_S)
        program = structs.replace(
            _encode_program(argv, output_limit, stdin=bool(stdin), **where),
            time_limit_ns=max(1, math.ceil(timeout_s * 1e9)),
            stdout=stdout,
            tail=tail,
            counters=tuple(map(_encode_event, counters)),
        )
        before = self._ping_if_needed()
        output = {1: bytearray(), 2: bytearray()}

        def keep(stream: int, data: bytes) -> None:
            kept = output.get(stream)
            if kept is None or len(kept) + len(data) > output_limit:
                raise LinkError("sent more output than requested")
            kept += data

        exited = self._call(
            wire.EXEC,
            program,
            timeout_s + grace_s,
            data=stdin,
            streaming=bool(stdin),
            on_data=keep,
            question=question,
        )
        received_ns = time.monotonic_ns()
        if len(exited.counted) != len(counters):
            self.close()
            raise AgentError("exec: the agent counted other events than requested")
        wall = self._relate_duration(
            (exited.started_ns, exited.ended_ns), before, (self._sent_ns, received_ns)
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
            counted=exited.counted,
        )

    def background(
        self,
        argv: Sequence[str | bytes],
        *,
        stdin: bool = False,
        output_limit: int = MAX_OUTPUT,
        hear: Callable[[int, bytes], None] | None = None,
        **where: Unpack[ProgramContext],
    ) -> Background:
        """Starts a program that runs while other calls are made; its output arrives as it is printed.

        With `stdin` its input is what `Background.send_input` sends, else `/dev/null`. With `hear`, that function is
        called with the number of each stream and all that arrives on it, and nothing is kept. `Background.wait` reports
        if it could not be started.
        """
        limit = output_limit if hear is None else _ENDLESS
        program = _encode_program(argv, limit, stdin=stdin, stream=True, **where)
        return self.start_background(program, _GRACE_S, hear)

    def run_interactive(
        self,
        argv: Sequence[str | bytes],
        *,
        stdin_fd: int = 0,
        stdout_fd: int = 1,
        **where: Unpack[ProgramContext],
    ) -> int:
        """Runs a program on a terminal of its own that is joined to the caller's, until it ends.

        Returns its exit status, or 128 + signal if a signal killed it. A terminal at `stdin_fd` is in raw mode
        meanwhile; changes of its size are passed on (from the main thread). Raises `CommandError` if the program cannot
        be started.
        """
        self._ensure_greeted(_GRACE_S)
        program = _encode_program(argv, _ENDLESS, stdin=True, **where)
        with ConversationGuard(self, wire.EXEC.name):
            call_id = self._next_id
            self._next_id += 1
            return run_on_terminal(self._link, call_id, program, stdin_fd, stdout_fd)

    def run_piped(
        self,
        argv: Sequence[str | bytes],
        *,
        stdin_fd: int = 0,
        output_fds: tuple[int, int] = (1, 2),
        **where: Unpack[ProgramContext],
    ) -> int:
        """Runs a program with its standard streams joined to these descriptors, without a terminal, until it ends.

        Returns and raises as `run_interactive`; `BrokenPipeError` if its output has no reader.
        """
        self._ensure_greeted(_GRACE_S)
        program = _encode_program(argv, _ENDLESS, stdin=True, stream=True, **where)
        with ConversationGuard(self, wire.EXEC.name):
            call_id = self._next_id
            self._next_id += 1
            return run_piped(self._link, call_id, program, stdin_fd, output_fds)

    def which(
        self, name: str, *, path: str | None = None, cwd: str | None = None, timeout_s: float = 10.0
    ) -> str:
        """Returns the absolute path of what `exec` would run with this `PATH`.

        Raises `CommandError` if there is nothing.
        """
        sought = wire.Lookup(name=os.fsencode(name), path=_encode_optional(path), cwd=_encode_optional(cwd))
        return os.fsdecode(self._call(wire.WHICH, sought, timeout_s, command=True).path)

    def sha256(self, path: str, timeout_s: float = 120.0) -> wire.Digest:
        """Returns the digest and size in bytes of a file."""
        return self._call(wire.SHA256, _encode_path(path), timeout_s)

    def digest_tree(self, path: str, timeout_s: float = 120.0) -> bytes:
        """Returns a digest of all that programs can observe about the files below a directory, except times."""
        return self._call(wire.TREE, _encode_path(path), timeout_s).xxh3

    def mount(
        self, source: str, target: str, fstype: str, options: str = "", timeout_s: float = 60.0
    ) -> None:
        """Mounts as `mount -t FSTYPE -o OPTIONS SOURCE TARGET` would."""
        mount = wire.Mount(
            source=os.fsencode(source), target=os.fsencode(target), fstype=fstype, options=options
        )
        self._call(wire.MOUNT, mount, timeout_s)

    def umount(self, target: str, *, lazy: bool = False, timeout_s: float = 60.0) -> None:
        """Unmounts a filesystem."""
        self._call(wire.UMOUNT, wire.Umount(target=os.fsencode(target), lazy=lazy), timeout_s)

    def lock(self, holder: bytes, timeout_s: float = 10.0) -> wire.Locked:
        """Asks for exclusive use of the machine, which the agent then holds until it ends; never waits."""
        return self._call(wire.LOCK, wire.Lock(holder=holder), timeout_s)

    def sync(self, timeout_s: float = 120.0) -> None:
        """Writes back all caches of the machine."""
        self._call(wire.SYNC, None, timeout_s)

    def read_file(
        self, path: str, *, offset: int = 0, limit: int = MAX_OUTPUT, timeout_s: float = 60.0
    ) -> bytes:
        """Returns at most `limit` bytes of a file from `offset`; also of files in `/proc`."""
        content = bytearray()

        def keep(_: int, data: bytes) -> None:
            if len(content) + len(data) > limit:
                raise LinkError("sent more of the file than requested")
            content.extend(data)

        self.receive_file(path, keep, offset=offset, limit=limit, timeout_s=timeout_s)
        return bytes(content)

    def receive_file(
        self,
        path: str,
        on_data: Callable[[int, bytes], None],
        *,
        offset: int = 0,
        limit: int = _ENDLESS,
        timeout_s: float = 60.0,
    ) -> wire.Count:
        """Streams a file to `on_data(1, bytes)` in large pieces; times are on the machine's clock."""
        part = wire.ReadFile(path=os.fsencode(path), offset=offset, limit=limit)
        return self._call(wire.READ_FILE, part, timeout_s, on_data=on_data)

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
    ) -> wire.Count:
        """Creates or replaces a file; times are on the machine's clock."""
        file = wire.WriteFile(path=os.fsencode(path), mode=mode, uid=uid, gid=gid, fsync=fsync)
        return self._call(wire.WRITE_FILE, file, timeout_s, data=data, streaming=True)

    def send_to_sink(self, data: bytes | Iterable[bytes], timeout_s: float = 60.0) -> wire.Count:
        """Sends bytes that the agent discards, to measure the channel."""
        return self._call(wire.SINK, None, timeout_s, data=data, streaming=True)

    def stat(self, path: str, timeout_s: float = 10.0) -> wire.Stat:
        """Returns metadata of a file; symbolic links are followed."""
        return self._call(wire.STAT, _encode_path(path), timeout_s)

    def statfs(self, path: str, timeout_s: float = 10.0) -> wire.Statfs:
        """Returns the size of the filesystem that holds `path`."""
        return self._call(wire.STATFS, _encode_path(path), timeout_s)

    def mkdir(self, path: str, *, mode: int = 0o755, parents: bool = False, timeout_s: float = 10.0) -> None:
        """Creates a directory; with `parents` also the directories above it, and it may exist already."""
        directory = wire.Mkdir(path=os.fsencode(path), mode=mode, parents=parents)
        self._call(wire.MKDIR, directory, timeout_s)

    def remove(self, path: str, *, recursive: bool = False, timeout_s: float = 60.0) -> None:
        """Removes a file or an empty directory; with `recursive`, a directory and all in it."""
        self._call(wire.REMOVE, wire.Remove(path=os.fsencode(path), recursive=recursive), timeout_s)

    def read_facts(self, timeout_s: float = 10.0) -> wire.Facts:
        """Returns what the machine's kernel reports about it: everything attestation needs, in one round trip."""
        return self._call(wire.FACTS, None, timeout_s)

    def touch_memory(self, size: int, timeout_s: float = 60.0) -> wire.Touched:
        """Allocates `size` bytes, which the agent keeps, and writes to each page once.

        A second call with the same size writes to the same pages. Raises `CallError` if there is not enough memory.
        """
        return self._call(wire.TOUCH, wire.Touch(bytes=size), timeout_s)

    def fork_child(self, size: int, timeout_s: float = 60.0) -> wire.Forked:
        """Forks a child that touches `size` bytes of memory of its own, and waits for its end."""
        return self._call(wire.FORK, wire.Touch(bytes=size), timeout_s)

    def power_off(self, timeout_s: float = 60.0) -> None:
        """Writes caches back and shuts the machine down (a host agent exits); then closes the agent."""
        self._call(wire.POWER_OFF, None, timeout_s)
        self._close_because("was shut down")


def _encode_optional(text: str | None) -> bytes | None:
    return None if text is None else os.fsencode(text)


def _encode_event(event: PerformanceEvent) -> wire.Event:
    return wire.Event(kind=event.kind, config=event.config, user_only=event.user_only)


def _encode_path(path: str) -> wire.Path:
    return wire.Path(path=os.fsencode(path))


def _encode_program(
    argv: Sequence[str | bytes],
    output_limit: int,
    *,
    stdin: bool,
    stream: bool = False,
    **where: Unpack[ProgramContext],
) -> wire.Exec:
    """Encodes a program to run: its arguments, user, and streams."""
    variables: tuple[bytes, ...] | None = None
    if (env := where.get("env")) is not None:
        variables = tuple(os.fsencode(f"{name}={value}") for name, value in env.items())
    numbers: tuple[int, ...] | None = None
    if (groups := where.get("groups")) is not None:
        numbers = tuple(groups)
    return wire.Exec(
        argv=tuple(os.fsencode(argument) for argument in argv),
        env=variables,
        cwd=_encode_optional(where.get("cwd")),
        uid=where.get("uid"),
        gid=where.get("gid"),
        groups=numbers,
        stdin=stdin,
        output_limit=output_limit,
        stream=stream,
    )
