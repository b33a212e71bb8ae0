"""One process executes a run at a time.

The claim is an open-file-description lock of the operating system on one byte of a file beside the database,
the byte chosen by the run's id. The kernel drops it when its owner dies, in whatever way, so a killed run can
always be resumed, and nothing has to guess whether a process id still refers to the same process. The lock file
itself stays; it is empty.
"""

import fcntl
import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path

from sqlalchemy import Engine, text
from sqlalchemy.engine import Connection

from guestmark.core.errors import LedgerError
from guestmark.ledger.faults import explain
from guestmark.ledger.server import autocommitting

_FLOCK = struct.Struct("hhqqi4x")  # struct flock on 64-bit Linux: type, whence, start, len, pid


def _byte_of(run_id: str) -> int:
    return int.from_bytes(blake2b(run_id.encode(), digest_size=7).digest(), "little")


def _request(kind: int, run_id: str) -> bytes:
    return _FLOCK.pack(kind, os.SEEK_SET, _byte_of(run_id), 1, 0)


@contextmanager
def file_claim(lock_file: Path, run_id: str, where: str) -> Iterator[bool]:
    """Yields whether this process now holds the claim on `run_id`; gives it back on leaving. Never waits.

    Raises `LedgerError` about the ledger `where` when the lock file cannot be made.
    """
    try:
        descriptor = os.open(lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise explain(error, where, f"claiming run {run_id}") from error
    try:
        try:
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _request(fcntl.F_WRLCK, run_id))
            held = True
        except (BlockingIOError, PermissionError):  # POSIX allows either for "held by another"
            held = False
        except OSError as error:  # a network file system without locks
            raise explain(error, where, f"claiming run {run_id}") from error
        yield held
    finally:
        os.close(descriptor)


def is_claimed(lock_file: Path, run_id: str) -> bool:
    """Whether any process (this one included) holds the claim on `run_id` now."""
    try:
        descriptor = os.open(lock_file, os.O_RDWR | os.O_CLOEXEC)
    except OSError:  # never claimed, or not accessible to us
        return False
    try:
        answer = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _request(fcntl.F_WRLCK, run_id))
        return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)
    finally:
        os.close(descriptor)


class ServerClaim:
    """A claim in PostgreSQL: an advisory lock of a session, which the server drops when the session ends."""

    def __init__(self, engine: Engine, run_id: str) -> None:
        self._engine = engine
        self._run_id = run_id
        self._session: Connection | None = None
        self._identity: dict[str, object] = {}  # of the session, on the server

    def take(self) -> bool:
        """Whether this process now holds the claim."""
        session = autocommitting(self._engine)
        try:
            self._end_former(session)
            key = {"key": _byte_of(self._run_id)}
            held = bool(session.execute(text("SELECT pg_try_advisory_lock(:key)"), key).scalar())
            found = session.execute(
                text(f"SELECT pid, backend_start FROM pg_stat_activity WHERE {_MINE}")
            ).one()
        except BaseException:
            _drop(session)
            raise
        if not held:
            _drop(session)
            return False
        self._session, self._identity = session, {"pid": found[0], "start": found[1]}
        return True

    def hold(self) -> None:
        """Makes sure that the claim is still held; takes it again when the session was lost.

        Raises `LedgerError` when another process has it by now, what the database raises while it is away.
        """
        if self._session is not None:
            try:
                self._session.execute(text("SELECT 1"))
            except Exception:
                self.release()
        self.session()

    def session(self) -> Connection:
        """The session that holds the claim as far as is known here, in which every statement is a transaction.

        Raises as `hold` does.
        """
        if self._session is None and not self.take():
            raise LedgerError(
                f"run {self._run_id} was claimed by another process while the ledger's server was away",
                hint="let that one finish; what this one has stored is safe",
            )
        assert self._session is not None
        return self._session

    def release(self) -> None:
        """Ends the session, and with it the lock. May be called twice."""
        if self._session is not None:
            _drop(self._session)
            self._session = None

    def _end_former(self, session: Connection) -> None:
        """Ends the session that held the claim before, if the server has not noticed that it is lost."""
        if not self._identity:
            return
        ended = session.execute(text(_END), self._identity).all()
        for _ in range(_TRIES if ended else 0):
            if not session.execute(text(_LOOK), self._identity).all():
                return
            time.sleep(_PAUSE_S)


_TRIES, _PAUSE_S = 50, 0.1
_MINE = "pid = pg_backend_pid()"
_FORMER = "FROM pg_stat_activity WHERE pid = :pid AND backend_start = :start AND usename = current_user"
_END = f"SELECT pg_terminate_backend(pid) {_FORMER}"
_LOOK = f"SELECT 1 {_FORMER}"


def _drop(session: Connection) -> None:
    """The connection is not used again, whatever state it is in."""
    with suppress(Exception):
        session.invalidate()
    with suppress(Exception):
        session.close()
