"""Joining the caller's terminal, or standard streams that are none, to a program's on the machine."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import select
import signal
import termios
import threading
import time
import tty
from collections import deque
from collections.abc import Iterator

import msgspec
from msgspec import UNSET, structs

from guestmark.agent import frames, wire
from guestmark.agent.frames import Link, LinkError
from guestmark.agent.results import refusal

_SEND_S = 30.0
_READ_SIZE = 64 << 10


def run_piped(
    link: Link, call_id: int, program: wire.Exec, stdin_fd: int, output_fds: tuple[int, int]
) -> int:
    """Starts the program without a terminal and joins its streams to ours until it ends: exit status, or 128 + signal.

    Its input ends where ours does. Raises as `run`, and `BrokenPipeError` when nobody
    reads what it prints.
    """
    waiting = deque([frames.request(call_id, wire.EXEC, program)])
    feed = (waiting.popleft() if waiting else b"" for _ in itertools.count())
    inputs: tuple[int, ...] = (stdin_fd,)
    while True:
        frame = link.exchange(math.inf, feed=feed, wake_fds=inputs)
        if frame is None:
            data = _typed(stdin_fd) or b""
            waiting.append(_typed_request(call_id, data))
            inputs = inputs if data else ()
            continue
        reply = _reply(frame, call_id)
        if reply.data is not UNSET:
            _write_all(output_fds[reply.stream - 1], reply.data)
        else:
            link.finish_sending(time.monotonic() + _SEND_S)  # input that it did not wait for
            return _status(reply)


def run(link: Link, call_id: int, program: wire.Exec, stdin_fd: int, stdout_fd: int) -> int:
    """Starts the program and joins the terminals until it ends: exit status, or 128 + signal.

    Raises `LinkError` when the conversation fails, `CommandError` or `CallError` when the program cannot be started.
    """
    request = frames.request(call_id, wire.EXEC, structs.replace(program, pty=_size(stdout_fd)))
    with _raw(stdin_fd), _resizes() as resized_fd:
        link.send(request, time.monotonic() + _SEND_S)
        inputs: tuple[int, ...] = (stdin_fd, resized_fd)
        while True:
            frame = link.exchange(math.inf, wake_fds=inputs)
            if frame is None:
                deadline = time.monotonic() + _SEND_S
                with contextlib.suppress(BlockingIOError):
                    os.read(resized_fd, 64)
                    link.send(frames.request(call_id, wire.WINSIZE, _size(stdout_fd)), deadline)
                typed = _typed(stdin_fd) if stdin_fd in inputs else None
                if typed is not None:
                    link.send(_typed_request(call_id, typed), deadline)
                    inputs = inputs if typed else (resized_fd,)
                continue
            reply = _reply(frame, call_id)
            if reply.data is UNSET:
                return _status(reply)
            _write_all(stdout_fd, reply.data)


def _typed_request(call_id: int, data: bytes) -> bytes:
    """What was typed, or that nothing more will be."""
    return frames.request(call_id, wire.DATA, data) if data else frames.request(call_id, wire.END, None)


def _reply(frame: bytes, call_id: int) -> frames.Reply:
    reply = frames.reply(frame)
    if reply.id != call_id:
        raise LinkError(f"answered call {reply.id} instead of {call_id}")
    return reply


def _status(reply: frames.Reply) -> int:
    """The exit status of a program that has ended. Raises `CommandError` for one that could not be started."""
    if reply.error is not UNSET:
        raise refusal(reply.error, command=True)
    assert reply.ok is not UNSET
    exited = msgspec.msgpack.decode(reply.ok, type=wire.Exited)
    return 128 + exited.signal if exited.signal else exited.status or 0


def _typed(stdin_fd: int) -> bytes | None:
    """What was typed; empty at end of input, None when there is nothing to read."""
    poller = select.poll()
    poller.register(stdin_fd, select.POLLIN)
    if not poller.poll(0):
        return None
    try:
        return os.read(stdin_fd, _READ_SIZE)
    except OSError:
        return b""


def _size(fd: int) -> wire.Winsize:
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
def _raw(fd: int) -> Iterator[None]:
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
def _resizes() -> Iterator[int]:
    """A descriptor that becomes readable when the terminal changes its size."""
    read_fd, write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
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
