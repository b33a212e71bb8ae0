"""What a database server says when it refuses, or the network before it: in a line, with what to do about it."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Mapping
from pathlib import Path

from guestmark.core.errors import LedgerError

CONNECT_S = 10  # how long a server may take to answer
WRONG_PASSWORD, NOT_ALLOWED = "28P01", "42501"
_PASSWORD_FILE = "~/.pgpass (host:port:database:role:password), which nobody else may read"
# By SQLSTATE, what the user can do. Source: PostgreSQL's documentation, appendix A.
_HINTS = {
    WRONG_PASSWORD: f"check the role's password; it belongs into {_PASSWORD_FILE}",
    "28000": "the role has to exist, and the server's pg_hba.conf to let it in from here, with this encryption",
    "3D000": "make it, as the server's owner: createdb NAME; guestmark ledger role ROLE | psql NAME",
    NOT_ALLOWED: "as the server's owner: guestmark ledger role ROLE | psql DATABASE",
    "25006": "this server only lets its ledger be read, as a standby does; write to the primary",
    "53100": "make room on the server; what is already in the ledger is safe",
    "53300": "raise max_connections in the server's postgresql.conf: each machine that measures holds two",
    "57P03": "the server is starting, stopping or recovering; try again when it is up",
}
_OTHERWISE = "the server's log may say more"


def explain(cause: BaseException, where: str, doing: str) -> LedgerError:
    """`LedgerError` for what went wrong while `doing` ("storing …") with the server's ledger at `where`."""
    told = cause.args[0] if cause.args else None
    if isinstance(told, Mapping):  # as the bundled driver passes on what the server said
        code, said = sqlstate(cause), str(told.get("M", ""))
        hint = _HINTS.get(code, f"{_OTHERWISE} (SQLSTATE {code})")
        return LedgerError(f"the ledger {where} failed while {doing}: {_line(said)}", hint=hint)
    beneath = _beneath(cause)
    if isinstance(beneath, ssl.SSLCertVerificationError):
        return LedgerError(
            f"the certificate of the ledger {where} is not accepted: {beneath.verify_message}",
            hint="sslrootcert names what it was signed with; verify-full also wants the name of the host in it",
        )
    if isinstance(beneath, ssl.SSLError):
        return LedgerError(
            f"the ledger {where} cannot be reached over TLS ({beneath.reason or beneath}): failed while {doing}",
            hint="check sslmode, sslcert and sslkey, and what the server's log says",
        )
    if beneath is not None:
        said, hint = _unreached(beneath)
        return LedgerError(f"the ledger {where} cannot be reached ({said}): failed while {doing}", hint=hint)
    said = first_line(cause)
    if "SSL" in said:
        return LedgerError(
            f"the ledger {where} cannot be reached over TLS: its server does not speak it",
            hint="turn it on there (ssl = on in postgresql.conf), or say sslmode=prefer where the network is trusted",
        )
    return LedgerError(f"the ledger {where} failed while {doing}: {said}", hint=_OTHERWISE)


def sqlstate(error: BaseException) -> str:
    """The code of a server's error; empty when it is not one."""
    told = error.args[0] if error.args else None
    return str(told.get("C", "")) if isinstance(told, Mapping) else str(getattr(error, "sqlstate", "") or "")


def first_line(error: BaseException) -> str:
    """Of what an error says; what it is called when it says nothing."""
    return _line(str(error)) or type(error).__name__


def no_password(role: str, file: Path) -> LedgerError:
    """The error for a server that wants a password where none was found; `file` is where it was looked for."""
    hint = f"put it into {_PASSWORD_FILE}"
    if file.exists():
        shared = file.stat().st_mode & 0o077
        hint = f"others may read {file}, so it is not used: chmod 600 {file}" if shared else (
            f"{file} has no line for this server, port, database and role: host:port:database:role:password"
        )  # fmt: skip
    return LedgerError(
        f"the ledger's server wants a password of the role {role!r}, and none was found", hint=hint
    )


def _unreached(error: OSError) -> tuple[str, str]:
    """Why nobody answers, and what to do."""
    if isinstance(error, socket.gaierror):
        return "its host has no address", "check the host's name in the URL"
    if isinstance(error, TimeoutError):
        return (
            f"no answer within {CONNECT_S} s",
            "check that a PostgreSQL server is at this address and port, and that no firewall is in between",
        )
    if isinstance(error, FileNotFoundError):
        return "there is no such socket", "check host= and the port: the server's unix_socket_directories"
    said = os.strerror(error.errno).lower() if error.errno else str(error)
    return said, "check that its server runs and listens there"


def _beneath(error: BaseException) -> OSError | None:
    """The error of the operating system, or of TLS, that it comes from."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError):
            return seen
        seen = seen.__cause__ or seen.__context__
    return None


def _line(text: str) -> str:
    return next(iter(text.strip().splitlines()), "")
