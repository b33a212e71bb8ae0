"""Commands of the user's that make machines fresh, create them, look at them and enter them.

A command runs under a supervisor: it ends, with all that it has started, when this process does, when it takes too long
or prints too much. Once it has ended by itself, what it has left in the background stays: that may be the machine.
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

from guestmark.agent.binary import supervise_command
from guestmark.core.errors import MachineError
from guestmark.core.temporary import open_unnamed_file
from guestmark.core.units import format_size
from guestmark.page.text import last_inert_line, make_inert

KEPT_OUTPUT = 64 << 10  # bytes of a long output that are read, from its end
# Bytes after which a command is ended: it would fill the disk.
MOST_OUTPUT = 64 << 20
_LOOK_S = 0.25  # how often the size of the output is looked at


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended: `status` is its exit status, 128 and more for a signal; None if it was ended by us."""

    status: int | None
    stdout: bytes
    errors: bytes  # its standard error
    why: str = ""  # it was ended by us, in words

    @property
    def ok(self) -> bool:
        """Whether it succeeded."""
        return self.status == 0

    @property
    def last(self) -> str:
        """The last line that says something, of standard error if there is one; safe to show."""
        return _last_line(self.errors) or _last_line(self.stdout)

    def describe(self) -> str:
        """Describe its end as in "ended with status 3: no such image"."""
        how = f"ended with status {self.status}" if self.status is not None else self.why
        return f"{how}: {self.last}" if self.last else how


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

    Of each output the last `kept_output` bytes are returned. Descriptors in `hold` stay open until nothing of the
    command runs any more. Raises `MachineError` when it cannot be started.
    """
    # Files, not pipes: a daemon that the command leaves behind may hold its output for ever.
    with open_unnamed_file() as stdout, open_unnamed_file() as stderr:
        with supervised_process(
            argv, environment, stdout, stderr, hold=hold, takes_input=bool(stdin)
        ) as process:
            if stdin:
                threading.Thread(target=_feed, args=(process.stdin, stdin), daemon=True).start()
            why = _await_end(process, limit_s, (stdout, stderr), most_output)
        # Its supervisor has ended by now, and so has all that was to end with it.
        status = None if why else process.returncode
        return Ended(status, _read_end(stdout, kept_output), _read_end(stderr, kept_output), why)


def run_to_success(
    argv: Sequence[str], environment: Mapping[str, str], limit_s: float, *, hold: Sequence[int] = ()
) -> str:
    """Run a command and return what it printed.

    Raises `MachineError` when it cannot be started, fails, or takes longer than `limit_s` seconds, with its last line.
    """
    ended = run_command(argv, environment, limit_s, hold=hold)
    if not ended.ok:
        raise make_error(argv, ended)
    return decode_output(ended.stdout)


def make_error(argv: Sequence[str], ended: Ended) -> MachineError:
    """Return the error for a command that ended in this way."""
    return MachineError(
        f"{argv[0]} {ended.describe()}",
        hint=f"try it by hand: {shlex.join(argv)}",
        console=decode_output(ended.stdout),
    )


def decode_output(output: bytes) -> str:
    """Return what a command printed as text, whatever it is."""
    return output.decode(errors="replace")


@contextlib.contextmanager
def supervised_process(
    argv: Sequence[str],
    environment: Mapping[str, str],
    stdout: IO[bytes],
    stderr: IO[bytes],
    *,
    hold: Sequence[int] = (),
    takes_input: bool = False,
) -> Iterator[subprocess.Popen[bytes]]:
    """Yield the supervisor of a command. What still runs when the block is left, or this process ends, is killed.

    Raises `MachineError` when the command cannot be started.
    """
    _check_startable(argv, environment)
    lifeline, ours = os.pipe()
    try:
        process = subprocess.Popen(
            supervise_command(argv, lifeline_fd=lifeline, hold=hold, keep_started=True),
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
    """Raise `MachineError` for a program that is not there, which the supervisor would say in words of its own."""
    if shutil.which(argv[0], path=environment.get("PATH", os.defpath)) is None:
        why = "it is not a program" if os.path.exists(argv[0]) else "No such file or directory"
        raise MachineError(f"{argv[0]} cannot be started: {why}", hint=f"is {argv[0]} installed?")


def _feed(pipe: IO[bytes] | None, data: bytes) -> None:
    """Write the input of a command, which may end before it has read all of it."""
    assert pipe is not None
    with contextlib.suppress(OSError):
        pipe.write(data)
    with contextlib.suppress(OSError):
        pipe.close()


def _await_end(
    process: subprocess.Popen[bytes], limit_s: float, outputs: Sequence[IO[bytes]], most_output: int
) -> str:
    """Wait for the end of a command; return in words why it has to be ended by us, empty if it has ended."""
    deadline = time.monotonic() + limit_s
    # `Popen.wait` would sleep up to 50 ms too long, which would count as the command's.
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


def await_success(
    run: Callable[[float], Ended], limit_s: float, pause_s: float, *, first_pause_s: float | None = None
) -> Ended:
    """Run a command again and again, with the seconds that are left, until it succeeds; return how the last one ended.

    There is no other attempt when it could not begin before the limit. Pauses begin with `first_pause_s`, if given, and
    double up to `pause_s`, so that what is soon there is soon seen.
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
