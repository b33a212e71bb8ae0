"""Removes a user's own machine or snapshot, however this process ends.

A guard is started before the machine. It waits until its input is closed everywhere, in this process and in the
supervisors of commands that work on the machine, and then destroys the machine. So the machine is also destroyed when
this process ends, even by SIGKILL. The same command is in a record, a locked file in the cache: if guard and process
are killed together, `guestmark clean` finds the unlocked record and executes its command.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shlex
import stat
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import msgspec

from guestmark.core.errors import MachineError
from guestmark.core.home import find_cache_home
from guestmark.core.machine_facts import OWN_MACHINE_PREFIX
from guestmark.core.redaction import register_variables
from guestmark.core.temporary import open_unnamed_file
from guestmark.page.text import last_inert_line, make_inert
from guestmark.platforms.affinity import mark_machine_start
from guestmark.platforms.commands import KEPT_OUTPUT, decode_output, make_error, run_command, run_to_success

_RECORDS = "machines"
_LIST_S = 20.0
# Error numbers of filesystems that do not support files without a name, such as NFS.
_UNKNOWN_FLAG = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL})
# Messages to the guard: after the first, a machine may exist; the second reports that its creation has ended.
_CREATING, _CREATED = b"creating\n", b"created\n"
# $0 is the record, $1 the time limit for destroying in seconds, and the other arguments are the command. A failed
# attempt is repeated, because a daemon that is still creating the machine may refuse. If creation did not end, the
# command is run twice in any case, because the tool's request may be fulfilled later. The guard ignores termination
# signals, because it has to outlive its machine.
_GUARD = """
trap '' INT TERM HUP PIPE
limit=$1
shift
said=
while read -r word; do said=$word; done
destroy() { timeout -k 5 "$limit" "$@"; }
case $said in
"") ;;
created) destroy "$@" || { sleep 1; destroy "$@"; } || exit 1 ;;
*) destroy "$@"; first=$?; sleep 2; destroy "$@" || [ $first = 0 ] || exit 1 ;;
esac
rm -f -- "$0"
"""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """The commands to destroy a machine whose owner has ended."""

    name: str  # of its definition
    id: str
    destroy: list[str]
    listing: list[str] = []  # prints the ids of the existing machines
    env: dict[str, str] = {}
    limit_s: float = 60.0


class Guard:
    """The process that destroys a machine once its input is closed everywhere."""

    def __init__(
        self, record: Record, process: subprocess.Popen[bytes], printed: IO[bytes], file: Path
    ) -> None:
        self._record = record
        self._process = process
        self._printed = printed
        self._file = file
        self._ended = False
        self._told = b""

    @property
    def input(self) -> int:
        """The write end of the guard's input: while any process has it open, the machine is not destroyed."""
        assert self._process.stdin is not None
        return self._process.stdin.fileno()

    def _tell(self, word: bytes) -> None:
        """Report the progress of the creation to the guard. Raises `MachineError` if the guard has ended."""
        self._told = word
        try:
            os.write(self.input, word)
        except OSError as error:
            raise MachineError(
                f"{self._record.name}: the guard that destroys the machine {self._record.id} was killed",
                hint="run guestmark clean to destroy the machine",
            ) from error

    def create(self, argv: Sequence[str], environment: Mapping[str, str], limit_s: float) -> None:
        """Run the command that creates the machine or snapshot, on the machines' processors.

        Raises `MachineError` if it fails; whatever it has created by then is destroyed.
        """
        self._tell(_CREATING)
        with mark_machine_start():
            ended = run_command(argv, environment, limit_s, hold=(self.input,))
        if ended.status is not None:
            self._tell(_CREATED)
        if not ended.ok:
            error = make_error(argv, ended)
            if not self._end_failed_creation():
                error.hint += "; parts of it may still exist: run guestmark clean to destroy them"
            raise error

    def destroy(self) -> None:
        """Destroy the machine. Raises `MachineError` if that fails."""
        if self._ended:
            return
        if problem := self._run_destroy_command():
            raise MachineError(
                f"{self._record.name}: the machine {self._record.id} could not be destroyed: {problem}",
                hint=f"try it yourself: {shlex.join(self._record.destroy)}; or run guestmark clean",
            )

    def _end_failed_creation(self) -> bool:
        """Destroy a machine after its creation failed, and return whether it no longer exists.

        Destroying fails for a machine that was never created, so the list decides if the definition can list machines.
        """
        if not self._run_destroy_command() or _is_listed(self._record) is False:
            self._file.unlink(missing_ok=True)
            return True
        # It is unknown. A command that ended by itself and reported failure has most probably created nothing.
        if not self._record.listing and self._told == _CREATED:
            self._file.unlink(missing_ok=True)
            return True
        return False

    def _run_destroy_command(self) -> str:
        """Let the guard destroy the machine; return why that failed, or an empty string."""
        self._ended = True
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        status = self._process.wait()
        if status == 0:
            return ""
        # The guard itself was killed, so this process destroys the machine.
        if status < 0:
            return _destroy_orphan(self._record, self._file)
        self._printed.seek(0)
        said = make_inert(decode_output(self._printed.read(KEPT_OUTPUT)), lines=True)
        return last_inert_line(said) or "its command failed and printed nothing"


def _is_listed(record: Record) -> bool | None:
    """Return whether the definition's command `list` prints the machine; None if that is unknown."""
    if not record.listing:
        return None
    try:
        ended = run_command(record.listing, {**os.environ, **record.env}, _LIST_S)
    except MachineError:
        return None
    if not ended.ok:
        return None
    return record.id in decode_output(ended.stdout).split()


@contextlib.contextmanager
def guard_record(record: Record) -> Iterator[Guard]:
    """Yield a guard for a machine that does not exist yet; leaving the context destroys it. Raises `MachineError`."""
    try:
        file, descriptor = _open_record(record)
    except OSError as error:
        raise _make_record_error(record, error) from error
    with open_unnamed_file() as printed:
        try:
            # The guard starts before the record gets a name, so that every named record is removed.
            process = _start_guard(record, file, descriptor, printed)
            _name_record(descriptor, file)
        except OSError as error:
            raise _make_record_error(record, error) from error
        finally:
            # From now on only the guard holds the record's lock.
            os.close(descriptor)
        guard = Guard(record, process, printed, file)
        try:
            yield guard
        except BaseException:
            # The error inside the context takes precedence; a machine that cannot be destroyed keeps its record.
            with contextlib.suppress(MachineError):
                guard.destroy()
            raise
        guard.destroy()


def _start_guard(record: Record, file: Path, descriptor: int, printed: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        ["/bin/sh", "-c", _GUARD, str(file), f"{record.limit_s:g}", *record.destroy],
        stdin=subprocess.PIPE,
        stdout=printed,
        stderr=printed,
        env={**os.environ, **record.env},
        pass_fds=(descriptor,),
        start_new_session=True,
    )


def _make_record_error(record: Record, error: OSError) -> MachineError:
    return MachineError(
        f"{record.name}: the machine's record cannot be written: {error.strerror}",
        hint=f"check that {_locate_records()} is a directory that you can write to, with free space",
    )


def _locate_records() -> Path:
    """Return the directory of records: separate for each host, as a cache may be shared."""
    return find_cache_home() / _RECORDS / os.uname().nodename


def _open_record(record: Record) -> tuple[Path, int]:
    """Write a locked record; return the path for it, and its descriptor. Raises `OSError`.

    The file has no name yet, if the filesystem supports that, so that other processes never see an empty record.
    """
    folder = _locate_records()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    file, flags = folder / f"{record.id}.json", os.O_RDWR | os.O_CLOEXEC
    try:
        descriptor = os.open(folder, flags | os.O_TMPFILE, 0o600)
    except OSError as error:
        if error.errno not in _UNKNOWN_FLAG:
            raise
        descriptor = os.open(file, flags | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with open(descriptor, "wb", closefd=False) as stream:
            stream.write(msgspec.json.encode(record))
    except OSError:
        file.unlink(missing_ok=True)
        os.close(descriptor)
        raise
    return file, descriptor


def _name_record(descriptor: int, file: Path) -> None:
    """Give a complete, locked record its name, if it has none yet. Raises `OSError`, also if the name exists."""
    if not os.fstat(descriptor).st_nlink:
        # With a directory's descriptor Python calls linkat(2), which follows the link; the path is absolute.
        os.link(f"/proc/self/fd/{descriptor}", file, src_dir_fd=descriptor, follow_symlinks=True)


@dataclass(frozen=True, slots=True)
class OrphanMachine:
    """A machine whose owner has ended; `problem` is the reason why it could not be destroyed."""

    id: str
    definition: str
    problem: str = ""

    def __str__(self) -> str:
        return f"the machine {self.id} of own:{self.definition}"


def destroy_orphans(*, dry_run: bool) -> list[OrphanMachine]:
    """Destroy machines whose owners have ended, and return them; with `dry_run` only return them.

    A machine that cannot be destroyed keeps its record, unless its definition lists machines without it.
    """
    found = []
    for file in sorted(_locate_records().glob(f"{OWN_MACHINE_PREFIX}*.json")):
        with contextlib.suppress(OSError), _open_own_record(file) as opened:
            # Fails while the machine's owner holds the lock.
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            found.append(_destroy_recorded_machine(opened.read(), file, dry_run=dry_run))
    return found


def _open_own_record(file: Path) -> IO[bytes]:
    """Open a record of this user. Raises `OSError` for another user's, whose commands would run as this user."""
    descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    state = os.fstat(descriptor)
    if state.st_uid != os.geteuid() or not stat.S_ISREG(state.st_mode) or state.st_mode & 0o022:
        os.close(descriptor)
        raise PermissionError(errno.EPERM, "it belongs to another user", str(file))
    return os.fdopen(descriptor, "rb")


def _destroy_recorded_machine(content: bytes, file: Path, *, dry_run: bool) -> OrphanMachine:
    try:
        record = msgspec.json.decode(content, type=Record)
    except msgspec.MsgspecError:
        # Creation begins only after the record is complete, so this record was never completed, or damaged later.
        return OrphanMachine(
            file.stem, "?", f"its record cannot be read; if the machine is gone, remove {file}"
        )
    register_variables(record.env)
    problem = "" if dry_run else _destroy_orphan(record, file)
    return OrphanMachine(record.id, record.name, problem)


def _destroy_orphan(record: Record, file: Path) -> str:
    """Destroy a machine with the command in its record; return why that failed, or an empty string."""
    try:
        run_to_success(record.destroy, {**os.environ, **record.env}, record.limit_s)
    except MachineError as error:
        if _is_listed(record) is not False:
            return f"{error.message}; if it is gone, remove {file}"
    file.unlink(missing_ok=True)
    return ""
