"""The life of a machine of the user's own: created, and destroyed however this process ends.

A guard is started before the machine is. It waits until nobody holds its input any more, and destroys the machine: so
does the end of this process, SIGKILL too. What the guard would do is also in a record, a locked file in the cache:
where guard and process are killed together, `guestmark clean` finds a record that nobody holds, and does it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import msgspec

from guestmark.core.errors import MachineError
from guestmark.core.home import cache_home
from guestmark.core.temporary import open_unnamed_file
from guestmark.page.text import last_inert_line, make_inert
from guestmark.platforms.affinity import starting_machine
from guestmark.platforms.own.definition import Definition, Template

PREFIX = "guestmark-"  # of every id, so that people know whose machines these are
_RECORDS = "machines"
_PAUSE_S = 0.2
_KEPT_OUTPUT = 64 << 10  # bytes of what a command printed that are looked at
# Destroying is tried twice: a daemon that is just creating the machine refuses the first time. Signals to end do not
# reach the guard: it ends when what it answers for has ended.
_GUARD = """
trap '' INT TERM HUP PIPE
cat > /dev/null
{destroy} || {{ sleep 1; {destroy}; }} || exit 1
rm -f -- {record}
"""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What has to be done about a machine when nobody answers for it any more."""

    name: str  # of its definition
    id: str
    destroy: list[str]
    env: dict[str, str] = {}
    limit_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Made:
    """A machine that exists; `began` is when its creation was ordered, on the monotonic clock."""

    definition: Definition
    id: str
    values: Mapping[str, str]
    began: float
    created: float

    def fill(self, template: Template, command: Sequence[str] = ()) -> list[str]:
        """Return the argument list of one of the definition's commands for this machine."""
        return template.fill({**self.values, "id": self.id}, command)

    def run(self, template: Template, limit_s: float) -> str:
        """Run one of the definition's commands and return what it printed. Raises `MachineError`."""
        return run_command(self.fill(template), self.environment, limit_s).stdout

    @property
    def environment(self) -> dict[str, str]:
        """The environment of its commands."""
        return make_command_environment(self.definition)


def make_command_environment(definition: Definition) -> dict[str, str]:
    """Return the environment that a definition's commands have: this process's, and what the file adds."""
    return {**os.environ, **definition.env}


@dataclass(frozen=True, slots=True)
class Printed:
    """What a command printed: its standard output, and the last line of both outputs that says something."""

    stdout: str
    last: str


def run_command(argv: Sequence[str], environment: Mapping[str, str], limit_s: float) -> Printed:
    """Run a command of a definition to its end.

    Raises `MachineError` when it cannot be started, fails, or takes longer than `limit_s` seconds, with its last line.
    """
    # Files, not pipes: a daemon that the command leaves behind may hold its output for ever.
    with open_unnamed_file() as stdout, open_unnamed_file() as stderr:
        try:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            raise MachineError(
                f"{argv[0]} cannot be started: {error.strerror}", hint=f"is {argv[0]} installed?"
            ) from error
        by_hand = f"try it by hand: {shlex.join(argv)}"
        try:
            status = process.wait(limit_s)
        except BaseException as error:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if isinstance(error, subprocess.TimeoutExpired):
                said = _read_output(stdout, stderr)
                raise MachineError(
                    f"{argv[0]} did not end within {limit_s:g} s{_format_detail(said.last)}", hint=by_hand
                ) from error
            raise
        said = _read_output(stdout, stderr)
        if status != 0:
            raise MachineError(
                f"{argv[0]} {_describe_exit(status)}{_format_detail(said.last)}",
                hint=by_hand,
                console=said.stdout,
            )
        return said


def _read_output(stdout: IO[bytes], stderr: IO[bytes]) -> Printed:
    texts = []
    for file in (stdout, stderr):
        file.seek(max(0, file.seek(0, os.SEEK_END) - _KEPT_OUTPUT))
        texts.append(file.read(_KEPT_OUTPUT).decode(errors="replace"))
    return Printed(
        texts[0],
        last_inert_line(make_inert(texts[1], lines=True))
        or last_inert_line(make_inert(texts[0], lines=True)),
    )


def _describe_exit(status: int) -> str:
    if status < 0:
        return f"was killed by {signal.Signals(-status).name}"
    return f"ended with status {status}"


def _format_detail(last: str) -> str:
    return f": {last}" if last else ""


@contextlib.contextmanager
def create_machine(definition: Definition, values: Mapping[str, str]) -> Iterator[Made]:
    """Create a machine with these values of its parameters; it is destroyed when the context is left.

    A definition without `create` stands for a machine that is there, and is left alone. Raises `MachineError` for a
    command that fails, also for a machine that cannot be destroyed.
    """
    ident = f"{PREFIX}{secrets.token_hex(8)}"
    if not definition.create:
        now = time.monotonic()
        yield Made(definition, ident, values, now, now)
        return
    filled = {**values, "id": ident}
    environment = make_command_environment(definition)
    record = Record(
        name=definition.name,
        id=ident,
        destroy=definition.destroy.fill(filled),
        env=dict(definition.env),
        limit_s=definition.timeouts.destroy,
    )
    with _guard_record(record) as guard:
        began = time.monotonic()
        try:
            # On the machines' processors, not on the control plane's: what it starts inherits them.
            with starting_machine():
                run_command(definition.create.fill(filled), environment, definition.timeouts.create)
        except MachineError:
            # It may be half there. What destroy says of a machine that never was, is not told.
            guard.end(quiet=True)
            raise
        made = Made(definition, ident, values, began, time.monotonic())
        if definition.ready:
            _await_ready(made)
        yield made


def _await_ready(made: Made) -> None:
    """Run the command `ready` until it succeeds. Raises `MachineError` with its last words at the limit."""
    limit = made.definition.timeouts.ready
    deadline = time.monotonic() + limit
    while True:
        left = deadline - time.monotonic()
        try:
            made.run(made.definition.ready, max(0.1, left))
        except MachineError as error:
            if time.monotonic() + _PAUSE_S > deadline:
                raise MachineError(
                    f"{made.definition.name} was not ready after {limit:g} s ({error.message})",
                    hint=error.hint,
                    cause=error.cause,
                ) from error
            time.sleep(_PAUSE_S)
        else:
            return


class _Guard:
    """The process that destroys a machine when nobody holds its input any more."""

    def __init__(
        self, record: Record, process: subprocess.Popen[bytes], printed: IO[bytes], file: Path
    ) -> None:
        self._record = record
        self._process = process
        self._printed = printed
        self._file = file
        self._ended = False

    def end(self, *, quiet: bool = False) -> None:
        """Destroy the machine. Raises `MachineError` when that fails, unless it shall be `quiet`."""
        if self._ended:
            return
        self._ended = True
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        status = self._process.wait()
        if status == 0:
            return
        if quiet:
            self._file.unlink(missing_ok=True)
            return
        self._printed.seek(0)
        last = last_inert_line(
            make_inert(self._printed.read(_KEPT_OUTPUT).decode(errors="replace"), lines=True)
        )
        raise MachineError(
            f"{self._record.name}: the machine {self._record.id} could not be destroyed{_format_detail(last)}",
            hint=f"try it by hand: {shlex.join(self._record.destroy)}; guestmark clean tries it again",
        )


@contextlib.contextmanager
def _guard_record(record: Record) -> Iterator[_Guard]:
    file, descriptor = _write_record(record)
    destroy = shlex.join(["timeout", "-k", "5", f"{record.limit_s:g}", *record.destroy])
    script = _GUARD.format(destroy=destroy, record=shlex.quote(str(file)))
    with open_unnamed_file() as printed:
        try:
            process = subprocess.Popen(
                ["/bin/sh", "-c", script],
                stdin=subprocess.PIPE,
                stdout=printed,
                stderr=printed,
                env={**os.environ, **record.env},
                pass_fds=(descriptor,),
                start_new_session=True,
            )
        finally:
            # From now on the guard alone holds the record's lock.
            os.close(descriptor)
        guard = _Guard(record, process, printed, file)
        try:
            yield guard
        except BaseException:
            # What failed inside counts for more than a machine that cannot be destroyed, which its record remembers.
            with contextlib.suppress(MachineError):
                guard.end()
            raise
        guard.end()


def _records_folder() -> Path:
    """Return where records are: by host, as a cache may be shared."""
    return cache_home() / _RECORDS / os.uname().nodename


def _write_record(record: Record) -> tuple[Path, int]:
    """Write a record and lock it: its path, and the descriptor that has the lock."""
    folder = _records_folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = folder / f"{record.id}.json"
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.write(descriptor, msgspec.json.encode(record))
    return file, descriptor


@dataclass(frozen=True, slots=True)
class OrphanMachine:
    """A machine that nobody answers for any more; `problem` says why it could not be destroyed."""

    id: str
    definition: str
    problem: str = ""

    def __str__(self) -> str:
        return f"the machine {self.id} of own:{self.definition}"


def destroy_orphans(*, dry_run: bool) -> list[OrphanMachine]:
    """Destroy machines that nobody answers for any more, and return them; with `dry_run` only return them.

    A machine that cannot be destroyed keeps its record.
    """
    found = []
    for file in sorted(_records_folder().glob(f"{PREFIX}*.json")):
        with contextlib.suppress(OSError, msgspec.MsgspecError), file.open("rb") as opened:
            # Whoever answers for the machine has this lock.
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            record = msgspec.json.decode(opened.read(), type=Record)
            problem = "" if dry_run else _destroy_orphan(record, file)
            found.append(OrphanMachine(record.id, record.name, problem))
    return found


def _destroy_orphan(record: Record, file: Path) -> str:
    """Destroy a machine by its record, and return why that failed."""
    try:
        run_command(record.destroy, {**os.environ, **record.env}, record.limit_s)
    except MachineError as error:
        return error.message
    file.unlink(missing_ok=True)
    return ""
