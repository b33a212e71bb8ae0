"""Translates errors of SQLite, database servers and the operating system into advice for the user."""

from __future__ import annotations

import errno
import os
import socket
import sqlite3
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy.exc import SQLAlchemyError

from guestmark.core.cause import Cause, Speaker, classify_message
from guestmark.core.errors import LedgerError

CHOOSE_ANOTHER = "choose another ledger with --ledger FILE"
OR_CHOOSE_ANOTHER = f"or {CHOOSE_ANOTHER}"


def make_not_a_database_error(path: str) -> LedgerError:
    """Return the error for a file that is not a database."""
    return LedgerError(
        f"{path} is not a ledger: it is not an SQLite database",
        hint="it was not changed; choose another file with --ledger FILE",
    )


def _get_primary_code(error: sqlite3.Error) -> int:
    """Return SQLite's primary result code, which extended codes carry in their low byte."""
    return int(getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF


def explain_error(error: BaseException, where: str, doing: str) -> LedgerError:
    """Return a `LedgerError` for an error while `doing` ("storing …") with the ledger at `where`.

    `error` may be SQLAlchemy's wrapper, whose `orig` counts, an `sqlite3.Error` or an `OSError`.
    """
    cause = getattr(error, "orig", None) or error
    if "://" in where:
        return explain_server_error(cause, where, doing)
    if isinstance(cause, OSError):
        return _explain_os_error(cause, where, doing)
    if not isinstance(cause, sqlite3.Error):
        return LedgerError(
            f"the ledger {where} failed while {doing}: {get_first_error_line(cause)}", hint=CHOOSE_ANOTHER
        )
    table = {
        sqlite3.SQLITE_FULL: (
            f"no space is left for the ledger {where}: failed while {doing}",
            "free some space; what is already in the ledger is safe",
        ),
        sqlite3.SQLITE_IOERR: (
            f"the ledger {where} could not be written or read ({get_first_error_line(cause)}): failed while {doing}",
            "look for a full disk, a file size limit (ulimit -f) or a failing disk; "
            "what is already in the ledger is safe",
        ),
        sqlite3.SQLITE_BUSY: (
            f"the ledger {where} is locked by another process: failed while {doing}",
            "wait for the other program (perhaps an open sqlite3 shell) or stop it, " + OR_CHOOSE_ANOTHER,
        ),
        sqlite3.SQLITE_READONLY: (
            f"the ledger {where} cannot be written to: failed while {doing}",
            "make the file and its directory writable for you, " + OR_CHOOSE_ANOTHER,
        ),
        sqlite3.SQLITE_PERM: (
            f"the ledger {where} may not be accessed: failed while {doing}",
            CHOOSE_ANOTHER,
        ),
        sqlite3.SQLITE_CANTOPEN: (
            f"the ledger {where} cannot be opened: failed while {doing}",
            "make the file and its directory writable for you and free some space, " + OR_CHOOSE_ANOTHER,
        ),
        sqlite3.SQLITE_CORRUPT: (
            f"the ledger {where} is damaged ({get_first_error_line(cause)}): failed while {doing}",
            f"save what can be read: sqlite3 '{where}' .recover | sqlite3 recovered.sqlite",
        ),
        sqlite3.SQLITE_SCHEMA: (
            f"the schema of the ledger {where} is being changed: failed while {doing}",
            "try again",
        ),
    }
    table[sqlite3.SQLITE_LOCKED] = table[sqlite3.SQLITE_BUSY]
    table[sqlite3.SQLITE_PROTOCOL] = table[sqlite3.SQLITE_BUSY]
    code = _get_primary_code(cause)
    if code == sqlite3.SQLITE_NOTADB:
        return make_not_a_database_error(where)
    if code in table:
        message, hint = table[code]
        return LedgerError(message, hint=hint)
    return LedgerError(
        f"the ledger {where} failed while {doing}: {get_first_error_line(cause)}",
        hint="it may be damaged or written by another version of guestmark: repair it, " + OR_CHOOSE_ANOTHER,
    )


def _explain_os_error(error: OSError, where: str, doing: str) -> LedgerError:
    text = os.strerror(error.errno) if error.errno else str(error)
    hint = CHOOSE_ANOTHER
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        hint = "free some space; what is already in the ledger is safe"
    elif error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
        hint = "make the file and its directory writable for you, " + OR_CHOOSE_ANOTHER
    return LedgerError(f"the ledger {where} cannot be used ({text}): failed while {doing}", hint=hint)


@contextmanager
def explain_errors(where: str, doing: str) -> Iterator[None]:
    """Turn database and operating system errors in the block into `LedgerError`; others pass through."""
    try:
        yield
    except (SQLAlchemyError, sqlite3.Error, OSError, UnicodeDecodeError) as error:
        raise explain_error(error, where, doing) from error


CONNECT_S = 10  # seconds within which a server has to answer
WRONG_PASSWORD, NOT_ALLOWED = "28P01", "42501"
_PASSWORD_FILE = "~/.pgpass (host:port:database:role:password), readable by you alone"
# What the user can do, by SQLSTATE (PostgreSQL's documentation, appendix A).
_HINTS = {
    WRONG_PASSWORD: f"check the role's password, for instance in {_PASSWORD_FILE}",
    "28000": "check that the role exists, and that pg_hba.conf admits it from here with this encryption",
    "3D000": "as the server's owner, create it: createdb NAME; guestmark ledger role ROLE | psql NAME",
    NOT_ALLOWED: "as the server's owner, type: guestmark ledger role ROLE | psql DATABASE",
    "25006": "the server is read-only, like a standby: name the primary server in the URL",
    "53100": "free some space on the server; what is already in the ledger is safe",
    "53300": "raise max_connections in the server's postgresql.conf: each machine that measures holds two",
    "57P03": "the server is starting, stopping or recovering; try again when it is up",
}
_OTHERWISE = "the server's log may have more details"


def explain_server_error(cause: BaseException, where: str, doing: str) -> LedgerError:
    """Return a `LedgerError` for an error while `doing` ("storing …") with the server's ledger at `where`."""
    told = cause.args[0] if cause.args else None
    # The bundled driver passes the fields of the server's message on as a dict.
    if isinstance(told, Mapping):
        code, said = read_sqlstate(cause), str(told.get("M", ""))
        hint = _HINTS.get(code, f"{_OTHERWISE} (SQLSTATE {code})")
        return LedgerError(f"the ledger {where} failed while {doing}: {_take_first_line(said)}", hint=hint)
    beneath = _find_os_error(cause)
    if isinstance(beneath, ssl.SSLCertVerificationError):
        return LedgerError(
            f"the certificate of the ledger {where} is not accepted: {beneath.verify_message}",
            hint="sslrootcert names the certificate that signed it; verify-full also needs the host's name in it",
        )
    if isinstance(beneath, ssl.SSLError):
        return LedgerError(
            f"the ledger {where} cannot be reached over TLS ({beneath.reason or beneath}): failed while {doing}",
            hint="check sslmode, sslcert and sslkey, and read the server's log",
        )
    if beneath is not None:
        said, hint = _explain_unreachable(beneath)
        return LedgerError(f"the ledger {where} cannot be reached ({said}): failed while {doing}", hint=hint)
    said = get_first_error_line(cause)
    if classify_message(Speaker.DRIVER, said).cause is Cause.NO_TLS:
        return LedgerError(
            f"the ledger {where} cannot be reached over TLS: its server does not support it",
            hint="enable it there (ssl = on in postgresql.conf), or use sslmode=prefer if the network is trusted",
        )
    return LedgerError(f"the ledger {where} failed while {doing}: {said}", hint=_OTHERWISE)


def read_sqlstate(error: BaseException) -> str:
    """Return the code of a server's error; empty if it is not one."""
    told = error.args[0] if error.args else None
    if isinstance(told, Mapping):
        return str(told.get("C", ""))
    return str(getattr(error, "sqlstate", "") or "")


def get_first_error_line(error: BaseException) -> str:
    """Return the first line of an error's text, or its class name if there is none."""
    return _take_first_line(str(error)) or type(error).__name__


def make_password_error(role: str, file: Path) -> LedgerError:
    """Return the error for a server that wants a password when none was found in `file`."""
    hint = f"put it into {_PASSWORD_FILE}"
    if file.exists():
        hint = (
            f"{file} has no line for this server, port, database and role: host:port:database:role:password"
        )
        if file.stat().st_mode & 0o077:
            hint = f"others may read {file}, so it is not used: chmod 600 {file}"
    return LedgerError(
        f"the ledger's server asks for a password for the role {role!r}, and none was found", hint=hint
    )


def _explain_unreachable(error: OSError) -> tuple[str, str]:
    """Return why no server answers, and what to do."""
    if isinstance(error, socket.gaierror):
        return "its host name has no address", "check the host's name in the URL"
    if isinstance(error, TimeoutError):
        return (
            f"no answer within {CONNECT_S} s",
            "check that a PostgreSQL server is at this address and port, and that no firewall is in between",
        )
    if isinstance(error, FileNotFoundError):
        return "there is no such socket", "check host= and the port: the server's unix_socket_directories"
    said = os.strerror(error.errno).lower() if error.errno else str(error)
    return said, "check that the server is running and listens at this address"


def _find_os_error(error: BaseException) -> OSError | None:
    """Return the error of the operating system, or of TLS, that caused `error`; None if there is none."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError):
            return seen
        seen = seen.__cause__ or seen.__context__
    return None


def _take_first_line(text: str) -> str:
    return next(iter(text.strip().splitlines()), "")
