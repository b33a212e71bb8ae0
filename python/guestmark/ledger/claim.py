"""One process executes a run at a time.

The claim is an open-file-description lock of the operating system on one byte of a file beside the database,
the byte chosen by the run's id. The kernel drops it when its owner dies, in whatever way, so a killed run can
always be resumed, and nothing has to guess whether a process id still refers to the same process. The lock file
itself stays; it is empty.
"""

import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path

from sqlalchemy import text
from sqlalchemy.engine import Connection

from guestmark.ledger.faults import explain

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


def server_claim(connection: Connection, run_id: str) -> bool:
    """Whether this PostgreSQL session now holds the claim; the server drops it when the session ends."""
    key = {"key": _byte_of(run_id)}
    return bool(connection.execute(text("SELECT pg_try_advisory_lock(:key)"), key).scalar())
