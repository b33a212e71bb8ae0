"""Claims of runs: one process at a time executes a run, or several each measure a block of it.

The claim is an open-file-description lock on one byte of an empty file beside the database, chosen by the run's id.
The kernel drops it when its owner dies, so a killed run can always be resumed, and there is no need to guess whether
a process id still refers to the same process. A process that measures a block shares the lock of the run's byte, and
holds an exclusive lock of the block's byte.
"""

import fcntl
import os
import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from sqlalchemy import Engine, text
from sqlalchemy.engine import Connection

from guestmark.core.errors import TakenError
from guestmark.ledger.error_advice import explain_error
from guestmark.ledger.postgres import connect_autocommit


@dataclass(frozen=True, slots=True)
class HeldClaim:
    """A process's claim: on a whole run or, if it asked for one, on a single block."""

    run: bool
    block: int | None = None

    def __bool__(self) -> bool:
        return self.run


# `struct flock` on 64-bit Linux: type, whence, start, len, pid.
_FLOCK = struct.Struct("hhqqi4x")


def _hash_to_byte(run_id: str, block: int | None = None) -> int:
    name = run_id
    if block is not None:
        name += f"/{block}"
    return int.from_bytes(blake2b(name.encode(), digest_size=7).digest(), "little")


def _pack_flock(kind: int, byte: int) -> bytes:
    return _FLOCK.pack(kind, os.SEEK_SET, byte, 1, 0)


def _try_lock(descriptor: int, kind: int, byte: int) -> bool:
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _pack_flock(kind, byte))
    except (BlockingIOError, PermissionError):
        # POSIX allows either error if another process holds the lock.
        return False
    return True


@contextmanager
def hold_claim_in_file(
    lock_file: Path, run_id: str, where: str, blocks: Sequence[int] | None = None
) -> Iterator[HeldClaim]:
    """Claim `run_id`, or the first free one of `blocks`, inside the block; yield what is held. Never waits.

    Raises `LedgerError` about the ledger `where` if the lock file cannot be created.
    """
    try:
        descriptor = os.open(lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise explain_error(error, where, f"claiming run {run_id}") from error
    try:
        try:
            if blocks is None:
                held = HeldClaim(_try_lock(descriptor, fcntl.F_WRLCK, _hash_to_byte(run_id)))
            elif _try_lock(descriptor, fcntl.F_RDLCK, _hash_to_byte(run_id)):
                held = HeldClaim(True, _lock_first_free(descriptor, run_id, blocks))
            else:
                held = HeldClaim(False)
        except OSError as error:
            # For instance a network file system without locks.
            raise explain_error(error, where, f"claiming run {run_id}") from error
        yield held
    finally:
        os.close(descriptor)


def is_claimed_in_file(lock_file: Path, run_id: str) -> bool:
    """Return whether any process, including this one, holds a claim on `run_id` now."""
    try:
        descriptor = os.open(lock_file, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        # The run was never claimed, or the file is not accessible.
        return False
    try:
        answer = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _pack_flock(fcntl.F_WRLCK, _hash_to_byte(run_id)))
        return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)
    finally:
        os.close(descriptor)


def is_claimed_on_server(connection: Connection, run_id: str) -> bool:
    """Return whether any session holds the claim on `run_id` or a block of it.

    It takes no lock, which could block others.
    """
    high, low = divmod(_hash_to_byte(run_id), 2**32)
    return connection.execute(text(_SELECT_CLAIM), {"high": high, "low": low}).first() is not None


def _lock_first_free(descriptor: int, run_id: str, blocks: Iterable[int]) -> int | None:
    for block in blocks:
        if _try_lock(descriptor, fcntl.F_WRLCK, _hash_to_byte(run_id, block)):
            return block
    return None


class ServerClaim:
    """A claim of a run, or of the first free one of `blocks`, in PostgreSQL.

    It consists of advisory locks of one session, which the server drops when the session ends.
    """

    def __init__(self, engine: Engine, run_id: str, blocks: Sequence[int] | None = None) -> None:
        self._engine = engine
        self._run_id = run_id
        self._blocks = blocks
        self._session: Connection | None = None
        self._identity: dict[str, object] = {}  # of the session, on the server

    def try_claim(self) -> HeldClaim:
        """Try to claim; return what this process now holds."""
        session = connect_autocommit(self._engine)
        try:
            self._end_former_session(session)
            held = self._try_lock(session)
            found = session.execute(
                text(f"SELECT pid, backend_start FROM pg_stat_activity WHERE {_OWN_SESSION}")
            ).one()
        except BaseException:
            _discard_session(session)
            raise
        if not held or (self._blocks is not None and held.block is None):
            _unlock_session(session)
            return held
        self._session, self._identity = session, {"pid": found[0], "start": found[1]}
        # If the session is lost, exactly this block has to be claimed again.
        self._blocks = None if held.block is None else (held.block,)
        return held

    def _try_lock(self, session: Connection) -> HeldClaim:
        own = {"key": _hash_to_byte(self._run_id)}
        if self._blocks is None:
            return HeldClaim(bool(session.execute(text("SELECT pg_try_advisory_lock(:key)"), own).scalar()))
        if not session.execute(text("SELECT pg_try_advisory_lock_shared(:key)"), own).scalar():
            return HeldClaim(False)
        first, many = 0, _AT_FIRST
        # Usually one of the first blocks is free, so a small batch saves the server from trying them all.
        while some := self._blocks[first : first + many]:
            keys = [_hash_to_byte(self._run_id, block) for block in some]
            place = session.execute(text(_FIRST_FREE), {"keys": keys}).scalar()
            if place is not None:
                return HeldClaim(True, some[int(place) - 1])
            first, many = first + many, many * _MORE
        return HeldClaim(True, None)

    @property
    def is_held(self) -> bool:
        """Whether the claim is held, as far as is known here."""
        return self._session is not None

    def ensure_held(self) -> None:
        """Make sure that the claim is still held; claim again if the session was lost.

        Raises `TakenError` if another process has it by now, and what the database raises while it is unreachable.
        """
        if self._session is not None:
            try:
                self._session.execute(text("SELECT 1"))
            except Exception:
                self.drop()
        self.get_current_session()

    def get_current_session(self) -> Connection:
        """Return the session that holds the claim as far as is known here; every statement in it is a transaction.

        Raises as `ensure_held` does.
        """
        if self._session is None:
            self.try_claim()
        if self._session is None:
            what = f"run {self._run_id}"
            if self._blocks is not None:
                what = f"block {self._blocks[0] + 1} of {what}"
            raise TakenError(
                f"{what} was claimed by another process while the ledger's server was unreachable",
                hint="let that process finish; everything that this one has stored is safe",
            )
        assert self._session is not None
        return self._session

    def get_verified_session(self) -> Connection:
        """Return the session after checking that it holds the claim; raises as `ensure_held` does."""
        self.ensure_held()
        return self.get_current_session()

    def drop(self) -> None:
        """End the session, and with it the lock. May be called twice."""
        if self._session is not None:
            _discard_session(self._session)
            self._session = None

    def release(self) -> None:
        """Release the lock, by ending the session if need be. May be called twice."""
        if self._session is not None:
            _unlock_session(self._session)
            self._session = None

    def _end_former_session(self, session: Connection) -> None:
        """End the session that held the claim before, if the server has not noticed that it is lost."""
        if not self._identity:
            return
        if not session.execute(text(_END_SESSION), self._identity).all():
            return
        for _ in range(_TRIES):
            if not session.execute(text(_SELECT_SESSION), self._identity).all():
                return
            time.sleep(_PAUSE_S)


# Number of blocks that the first statement tries, and the factor by which each further one tries more.
_AT_FIRST, _MORE = 64, 8
# PostgreSQL filters a function's rows in order and stops at the limit, so locks of later blocks are not tried.
_FIRST_FREE = (
    "SELECT place FROM unnest(CAST(:keys AS bigint[])) WITH ORDINALITY AS wanted(key, place) "
    "WHERE pg_try_advisory_lock(key) LIMIT 1"
)
# pg_locks shows a 64-bit key as two halves (PostgreSQL's documentation, "pg_locks").
_SELECT_CLAIM = (
    "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1 AND classid = :high "
    "AND objid = :low AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) LIMIT 1"
)
_TRIES, _PAUSE_S = 50, 0.1
_OWN_SESSION = "pid = pg_backend_pid()"
_FORMER_SESSION = (
    "FROM pg_stat_activity WHERE pid = :pid AND backend_start = :start AND usename = current_user"
)
_END_SESSION = f"SELECT pg_terminate_backend(pid) {_FORMER_SESSION}"
_SELECT_SESSION = f"SELECT 1 {_FORMER_SESSION}"


def _unlock_session(session: Connection) -> None:
    """Release all locks and return the connection to the pool; a connection that fails is not used again."""
    try:
        session.execute(text("SELECT pg_advisory_unlock_all()"))
        session.close()
    except Exception:
        _discard_session(session)


def _discard_session(session: Connection) -> None:
    """Close the connection for good, whatever state it is in."""
    with suppress(Exception):
        session.invalidate()
    with suppress(Exception):
        session.close()
