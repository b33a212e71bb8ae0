"""What removes a machine or a snapshot of the user's own, however this process ends.

A guard is started before the machine is. It waits until nobody holds its input any more, neither this process nor the
supervisor of a command that works on the machine, and destroys the machine: so does the end of this process, SIGKILL
too. What the guard would do is also in a record, a locked file in the cache: where guard and process are killed
together, `guestmark clean` finds a record that nobody holds, and does it.
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
from guestmark.platforms.affinity import starting_machine
from guestmark.platforms.commands import KEPT_OUTPUT, decode_output, make_error, run_command, run_to_success

_RECORDS = "machines"
_LIST_S = 20.0
# Of filesystems that have no files without a name, such as NFS.
_UNKNOWN_FLAG = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL})
# What the guard is told: a machine may be there from the first on, and creating it has ended at the second.
_CREATING, _CREATED = b"creating\n", b"created\n"
# Of $0 the record, of $1 the seconds that a destroy may take, then the command itself. Destroying is tried twice: a
# daemon that is just creating the machine refuses the first time. Where creating has not come to its end, it is done
# twice: what its tool had asked for may come about later. Signals to end do not reach the guard: it ends when what it
# answers for has ended.
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
    """What has to be done about a machine when nobody answers for it any more."""

    name: str  # of its definition
    id: str
    destroy: list[str]
    listing: list[str] = []  # prints the ids of the machines that are there
    env: dict[str, str] = {}
    limit_s: float = 60.0


class Guard:
    """The process that destroys a machine when nobody holds its input any more."""

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
        """Descriptor: as long as anybody has it, the machine is not destroyed."""
        assert self._process.stdin is not None
        return self._process.stdin.fileno()

    def _tell(self, word: bytes) -> None:
        """Tell the guard how far the machine is. Raises `MachineError` when there is no guard any more."""
        self._told = word
        try:
            os.write(self.input, word)
        except OSError as error:
            raise MachineError(
                f"{self._record.name}: what destroys the machine {self._record.id} was killed",
                hint="guestmark clean destroys it",
            ) from error

    def make(self, argv: Sequence[str], environment: Mapping[str, str], limit_s: float) -> None:
        """Run the command that makes what is guarded, on the machines' processors: what it starts inherits them.

        Raises `MachineError` when it fails; what it has made by then is destroyed.
        """
        self._tell(_CREATING)
        with starting_machine():
            ended = run_command(argv, environment, limit_s, hold=(self.input,))
        if ended.status is not None:
            self._tell(_CREATED)
        if not ended.ok:
            error = make_error(argv, ended)
            if not self._end_failed_creation():
                error.hint += "; it may be half there, and was not destroyed: guestmark clean tries it again"
            raise error

    def end(self) -> None:
        """Destroy the machine. Raises `MachineError` when that fails."""
        if self._ended:
            return
        if problem := self._destroy():
            raise MachineError(
                f"{self._record.name}: the machine {self._record.id} could not be destroyed: {problem}",
                hint=f"try it by hand: {shlex.join(self._record.destroy)}; guestmark clean tries it again",
            )

    def _end_failed_creation(self) -> bool:
        """Destroy what there is of a machine, and return whether none is there any more.

        A machine that never was cannot be destroyed: where its definition can list machines, that decides.
        """
        if not self._destroy() or _is_listed(self._record) is False:
            self._file.unlink(missing_ok=True)
            return True
        # Nobody knows. What ended by itself, and said that it had failed, has most probably made nothing.
        if not self._record.listing and self._told == _CREATED:
            self._file.unlink(missing_ok=True)
            return True
        return False

    def _destroy(self) -> str:
        """Let the guard destroy the machine, and return why that failed."""
        self._ended = True
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        status = self._process.wait()
        if status == 0:
            return ""
        # The guard itself was killed: then its work is done here.
        if status < 0:
            return _destroy_orphan(self._record, self._file)
        self._printed.seek(0)
        said = make_inert(decode_output(self._printed.read(KEPT_OUTPUT)), lines=True)
        return last_inert_line(said) or "its command failed and printed nothing"


def _is_listed(record: Record) -> bool | None:
    """Tell by the definition's command `list` whether a machine is there; None where nobody can tell."""
    if not record.listing:
        return None
    try:
        ended = run_command(record.listing, {**os.environ, **record.env}, _LIST_S)
    except MachineError:
        return None
    return record.id in decode_output(ended.stdout).split() if ended.ok else None


@contextlib.contextmanager
def guard_record(record: Record) -> Iterator[Guard]:
    """Yield a guard for a machine that is not there yet; leaving the context destroys it. Raises `MachineError`."""
    try:
        file, descriptor = _open_record(record)
    except OSError as error:
        raise _make_record_error(record, error) from error
    with open_unnamed_file() as printed:
        try:
            # Before the record has a name: from now on somebody removes it.
            process = _start_guard(record, file, descriptor, printed)
            _name_record(descriptor, file)
        except OSError as error:
            raise _make_record_error(record, error) from error
        finally:
            # From now on the guard alone holds the record's lock.
            os.close(descriptor)
        guard = Guard(record, process, printed, file)
        try:
            yield guard
        except BaseException:
            # What failed inside counts for more than a machine that cannot be destroyed, which its record remembers.
            with contextlib.suppress(MachineError):
                guard.end()
            raise
        guard.end()


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
        f"{record.name}: nothing can remember the machine: {error.strerror}",
        hint=f"{_records_folder()} needs to be a folder of yours with room",
    )


def _records_folder() -> Path:
    """Return where records are: by host, as a cache may be shared."""
    return find_cache_home() / _RECORDS / os.uname().nodename


def _open_record(record: Record) -> tuple[Path, int]:
    """Write a locked record: the path that it is to have, and the descriptor. Raises `OSError`.

    It has no name yet, so that no record without content is ever seen, where the filesystem knows such files.
    """
    folder = _records_folder()
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
    """Give a whole and locked record its name, if it has none yet. Raises `OSError`, also for a name that exists."""
    if not os.fstat(descriptor).st_nlink:
        # With a directory's descriptor Python calls linkat(2), which follows the link; the path is absolute.
        os.link(f"/proc/self/fd/{descriptor}", file, src_dir_fd=descriptor, follow_symlinks=True)


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

    A machine that cannot be destroyed keeps its record, unless its definition can list machines, and does not list it.
    """
    found = []
    for file in sorted(_records_folder().glob(f"{OWN_MACHINE_PREFIX}*.json")):
        with contextlib.suppress(OSError), _open_own_record(file) as opened:
            # Whoever answers for the machine has this lock.
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            found.append(_destroy_recorded(opened.read(), file, dry_run=dry_run))
    return found


def _open_own_record(file: Path) -> IO[bytes]:
    """Open a record of this user's. Raises `OSError` for another's: its commands would run as this user."""
    descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    state = os.fstat(descriptor)
    if state.st_uid != os.geteuid() or not stat.S_ISREG(state.st_mode) or state.st_mode & 0o022:
        os.close(descriptor)
        raise PermissionError(errno.EPERM, "it is another user's", str(file))
    return os.fdopen(descriptor, "rb")


def _destroy_recorded(content: bytes, file: Path, *, dry_run: bool) -> OrphanMachine:
    try:
        record = msgspec.json.decode(content, type=Record)
    except msgspec.MsgspecError:
        # Creating begins when the record is whole: this was torn before, or damaged later.
        return OrphanMachine(
            file.stem, "?", f"its record cannot be read; if the machine is gone, remove {file}"
        )
    register_variables(record.env)
    problem = "" if dry_run else _destroy_orphan(record, file)
    return OrphanMachine(record.id, record.name, problem)


def _destroy_orphan(record: Record, file: Path) -> str:
    """Destroy a machine by its record, and return why that failed."""
    try:
        run_to_success(record.destroy, {**os.environ, **record.env}, record.limit_s)
    except MachineError as error:
        if _is_listed(record) is not False:
            return f"{error.message}; if it is gone, remove {file}"
    file.unlink(missing_ok=True)
    return ""
