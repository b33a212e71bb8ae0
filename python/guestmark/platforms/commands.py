"""Runs the user's commands that make machines fresh, create them, inspect them and enter them.

A command runs under a supervisor, which ends it with everything that it has started when this process ends, or when the
command takes too long or prints too much. If it ends by itself, its background processes stay: they may be the machine.
"""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO

from guestmark.agent.binary import build_supervise_command
from guestmark.core.errors import MachineError
from guestmark.core.temporary import open_unnamed_file
from guestmark.core.units import format_size
from guestmark.page.text import last_inert_line, make_inert

KEPT_OUTPUT = 64 << 10  # bytes at the end of a long output that are read
# A command that prints more bytes is ended, because it would fill the disk.
MOST_OUTPUT = 64 << 20
_LOOK_S = 0.25  # seconds between two checks of the output's size


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended: `status` is its exit status, 128 or more for a signal; None if guestmark ended it."""

    status: int | None
    stdout: bytes
    errors: bytes  # its standard error
    why: str = ""  # why guestmark ended it; empty if it ended by itself

    @property
    def ok(self) -> bool:
        """True if the command succeeded."""
        return self.status == 0

    @property
    def last(self) -> str:
        """The last non-empty line of standard error, or else of standard output, without control characters."""
        return _last_line(self.errors) or _last_line(self.stdout)

    def describe(self) -> str:
        """Describe the end, as in "exited with status 3: no such image"."""
        how = self.why
        if self.status is not None:
            how = f"exited with status {self.status}"
        if self.last:
            how += f": {self.last}"
        return how


def run_command(
    argv: Sequence[str],
    environment: Mapping[str, str],
    limit_s: float,
    *,
    stdin: bytes = b"",
    hold: Sequence[int] = (),
    kept_output: int = KEPT_OUTPUT,
    most_output: int = MOST_OUTPUT,
) -> Ended:
    """Run a command until it ends, `limit_s` seconds have passed, or it has printed `most_output` bytes.

    The last `kept_output` bytes of each output are returned. Descriptors in `hold` stay open until all of the command's
    processes have ended. Raises `MachineError` if it cannot be started.
    """
    # Files are used instead of pipes, because a daemon that the command leaves behind may keep its output open.
    with open_unnamed_file() as stdout, open_unnamed_file() as stderr:
        with run_supervised(argv, environment, stdout, stderr, hold=hold, takes_input=bool(stdin)) as process:
            if stdin:
                threading.Thread(target=_feed_input, args=(process.stdin, stdin), daemon=True).start()
            why = _wait_for_program_end(process, limit_s, (stdout, stderr), most_output)
        # The supervisor has ended by now, and with it all processes that it ends.
        status = None if why else process.returncode
        return Ended(status, _read_end(stdout, kept_output), _read_end(stderr, kept_output), why)


def run_to_success(
    argv: Sequence[str], environment: Mapping[str, str], limit_s: float, *, hold: Sequence[int] = ()
) -> str:
    """Run a command and return what it printed.

    Raises `MachineError` with the last line if it cannot be started, fails, or takes longer than `limit_s` seconds.
    """
    ended = run_command(argv, environment, limit_s, hold=hold)
    if not ended.ok:
        raise make_error(argv, ended)
    return decode_output(ended.stdout)


def make_error(argv: Sequence[str], ended: Ended) -> MachineError:
    """Return the error for a command that failed."""
    return MachineError(
        f"{argv[0]} {ended.describe()}",
        hint=f"try it yourself: {shlex.join(argv)}",
        console=decode_output(ended.stdout),
    )


def decode_output(output: bytes) -> str:
    """Return a command's output as text; undecodable bytes are replaced."""
    return output.decode(errors="replace")


@contextlib.contextmanager
def run_supervised(
    argv: Sequence[str],
    environment: Mapping[str, str],
    stdout: IO[bytes],
    stderr: IO[bytes],
    *,
    hold: Sequence[int] = (),
    takes_input: bool = False,
) -> Iterator[subprocess.Popen[bytes]]:
    """Yield the supervisor of a command, which is killed when the block is left or this process ends.

    Raises `MachineError` if the command cannot be started.
    """
    _check_startable(argv, environment)
    lifeline, ours = os.pipe()
    try:
        process = subprocess.Popen(
            build_supervise_command(argv, lifeline_fd=lifeline, hold=hold, keep_started=True),
            stdin=subprocess.PIPE if takes_input else subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env=environment,
            pass_fds=(lifeline, *hold),
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        os.close(ours)
        said = error.strerror if isinstance(error, OSError) else str(error)
        raise MachineError(f"{argv[0]} cannot be started: {said}") from error
    finally:
        os.close(lifeline)
    try:
        yield process
    finally:
        os.close(ours)
        process.wait()


def _check_startable(argv: Sequence[str], environment: Mapping[str, str]) -> None:
    """Raise `MachineError` if the program is missing, with a better message than the supervisor's."""
    if shutil.which(argv[0], path=environment.get("PATH", os.defpath)) is None:
        why = "No such file or directory"
        if os.path.exists(argv[0]):
            why = "it is not an executable file"
        raise MachineError(f"{argv[0]} cannot be started: {why}", hint=f"check that {argv[0]} is installed")


def _feed_input(pipe: IO[bytes] | None, data: bytes) -> None:
    """Write a command's input; the command may end before it has read all of it."""
    assert pipe is not None
    with contextlib.suppress(OSError):
        pipe.write(data)
    with contextlib.suppress(OSError):
        pipe.close()


def _wait_for_program_end(
    process: subprocess.Popen[bytes], limit_s: float, outputs: Sequence[IO[bytes]], most_output: int
) -> str:
    """Wait for the end of a command; return why it has to be killed, empty if it has ended."""
    deadline = time.monotonic() + limit_s
    # `Popen.wait` sleeps up to 50 ms too long, which would count as the command's time.
    handle = os.pidfd_open(process.pid)
    try:
        while True:
            left = deadline - time.monotonic()
            if select.select([handle], [], [], max(0.0, min(left, _LOOK_S)))[0]:
                process.wait()
                return ""
            if left <= 0:
                return f"did not end within {limit_s:g} s"
            if any(os.fstat(output.fileno()).st_size > most_output for output in outputs):
                return f"printed more than {format_size(most_output)}"
    finally:
        os.close(handle)


def wait_for_success(
    run: Callable[[float], Ended], limit_s: float, pause_s: float, *, first_pause_s: float | None = None
) -> Ended:
    """Run a command repeatedly, passing the remaining seconds, until it succeeds; return how the last one ended.

    No attempt begins after the limit. Pauses begin with `first_pause_s`, if given, and double up to `pause_s`, so
    that an early success is noticed early.
    """
    deadline, most_s = time.monotonic() + limit_s, pause_s
    pause_s = most_s if first_pause_s is None else first_pause_s
    while True:
        ended = run(max(0.1, deadline - time.monotonic()))
        if ended.ok or time.monotonic() + pause_s > deadline:
            return ended
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, most_s)


def _read_end(file: IO[bytes], most: int) -> bytes:
    file.seek(max(0, file.seek(0, os.SEEK_END) - most))
    return file.read(most)


def _last_line(output: bytes) -> str:
    # ssh ends its own lines with CR LF.
    text = output[-KEPT_OUTPUT:].decode(errors="replace").replace("\r\n", "\n")
    return last_inert_line(make_inert(text, lines=True))
