"""Translates errors of SQLite and the operating system into advice for the user."""

import errno
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from guestmark.core.errors import LedgerError
from guestmark.ledger import server_faults
from guestmark.ledger.server_faults import first_line

_ANOTHER = "choose another ledger with --ledger FILE"
OTHER = f"or {_ANOTHER}"


def not_a_database(path: str) -> LedgerError:
    """The error for a file that is not a database."""
    return LedgerError(
        f"{path} is not a ledger: it is not an SQLite database",
        hint="it was not changed; choose another file with --ledger FILE",
    )


def _primary(error: sqlite3.Error) -> int:
    """SQLite's primary result code; the extended ones carry it in their low byte."""
    return int(getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF


def explain(error: BaseException, where: str, doing: str) -> LedgerError:
    """`LedgerError` for whatever went wrong while `doing` ("storing …") with the ledger at `where`.

    `error` may be SQLAlchemy's wrapper (its `orig` is looked at), an `sqlite3.Error` or an `OSError`.
    """
    cause = getattr(error, "orig", None) or error
    if "://" in where:
        return server_faults.explain(cause, where, doing)
    if isinstance(cause, OSError):
        return _explain_os(cause, where, doing)
    if not isinstance(cause, sqlite3.Error):
        return LedgerError(f"the ledger {where} failed while {doing}: {first_line(cause)}", hint=_ANOTHER)
    table = {
        sqlite3.SQLITE_FULL: (
            f"no space is left for the ledger {where}: failed while {doing}",
            "free some space; what is already in the ledger is safe",
        ),
        sqlite3.SQLITE_IOERR: (
            f"the ledger {where} could not be written or read ({first_line(cause)}): failed while {doing}",
            "look for a full disk, a file size limit (ulimit -f) or a failing disk; "
            "what is already in the ledger is safe",
        ),
        sqlite3.SQLITE_BUSY: (
            f"the ledger {where} is locked by another process: failed while {doing}",
            "wait for the other program (an open sqlite3 shell, perhaps) or stop it, " + OTHER,
        ),
        sqlite3.SQLITE_READONLY: (
            f"the ledger {where} cannot be written to: failed while {doing}",
            "make the file and its directory writable for you, " + OTHER,
        ),
        sqlite3.SQLITE_PERM: (
            f"the ledger {where} may not be accessed: failed while {doing}",
            _ANOTHER,
        ),
        sqlite3.SQLITE_CANTOPEN: (
            f"the ledger {where} cannot be opened: failed while {doing}",
            "make the file and its directory writable for you and free some space, " + OTHER,
        ),
        sqlite3.SQLITE_CORRUPT: (
            f"the ledger {where} is damaged ({first_line(cause)}): failed while {doing}",
            f"save what can be read: sqlite3 '{where}' .recover | sqlite3 recovered.sqlite",
        ),
        sqlite3.SQLITE_SCHEMA: (f"the ledger {where} is changing: failed while {doing}", "try again"),
    }
    table[sqlite3.SQLITE_LOCKED] = table[sqlite3.SQLITE_BUSY]
    table[sqlite3.SQLITE_PROTOCOL] = table[sqlite3.SQLITE_BUSY]
    code = _primary(cause)
    if code == sqlite3.SQLITE_NOTADB:
        return not_a_database(where)
    if code in table:
        message, hint = table[code]
        return LedgerError(message, hint=hint)
    return LedgerError(
        f"the ledger {where} failed while {doing}: {first_line(cause)}",
        hint="it may be damaged or written by another version of guestmark: repair it, " + OTHER,
    )


def _explain_os(error: OSError, where: str, doing: str) -> LedgerError:
    text = os.strerror(error.errno) if error.errno else str(error)
    hint = _ANOTHER
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        hint = "free some space; what is already in the ledger is safe"
    elif error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
        hint = "make the file and its directory writable for you, " + OTHER
    return LedgerError(f"the ledger {where} cannot be used ({text}): failed while {doing}", hint=hint)


@contextmanager
def explained(where: str, doing: str) -> Iterator[None]:
    """Turns database and operating system errors in the block into `LedgerError`; others pass through."""
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (SQLAlchemyError, sqlite3.Error, OSError, UnicodeDecodeError) as error:
        raise explain(error, where, doing) from error
