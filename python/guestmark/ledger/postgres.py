"""A ledger on a PostgreSQL server: how to reach it by libpq's parameters, and what a lost connection means.

The driver is pg8000, in pure Python, which does not read libpq's files and variables: what labs rely on (sslmode and
its certificates, password files, sockets) is translated here. psycopg would do that, but for a refused connection it
reports libpq's text and no SQLSTATE, and it is a tenth slower with eight writers; and database servers under test,
which are reached through an agent, need pg8000 anyway. This module also waits for a server that restarts, defines the
rights of a role, and counts the connections that the server has left.
"""

from __future__ import annotations

import getpass
import logging
import os
import re
import socket
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.engine import URL, Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.schema import CreateIndex, CreateTable

from guestmark.core.cause import Cause, Speaker, classify_message
from guestmark.core.errors import LedgerError
from guestmark.core.redaction import register_secret
from guestmark.ledger import schema
from guestmark.ledger.error_advice import CONNECT_S, WRONG_PASSWORD, make_password_error, read_sqlstate
from guestmark.ledger.rows import PREPARED_OPTIONS, LedgerWriter, load_postgresql_dialect

DRIVER = "pg8000"
_PORT = 5432
# TCP keepalive: an idle connection is probed after _IDLE_S, every _AGAIN_S, _TIMES times; sent data must be
# acknowledged within _LOST_S. So the claim of a machine that has vanished is free after half a minute.
_IDLE_S, _AGAIN_S, _TIMES, _LOST_S = 15, 5, 3, 30
# libpq's parameters, each with its environment variable.
_PARAMETERS = {
    "host": "PGHOST",
    "port": "PGPORT",
    "user": "PGUSER",
    "dbname": "PGDATABASE",
    "password": "PGPASSWORD",
    "passfile": "PGPASSFILE",
    "sslmode": "PGSSLMODE",
    "sslrootcert": "PGSSLROOTCERT",
    "sslcert": "PGSSLCERT",
    "sslkey": "PGSSLKEY",
    "application_name": "PGAPPNAME",
}
_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
# SQLSTATEs after which trying again may work: connections (08), shutdown or start-up (57P), too many connections,
# serialization failures and deadlocks (PostgreSQL's documentation, appendix A).
_LATER = re.compile(r"08...|57P..|53300|40001|40P01")


# A line of a password file: host, port, database and user, then the password. A backslash escapes colons and itself.
_PASSWORD_LINE = re.compile(r"((?:\\.|[^:\\])*):" * 4 + "(.*)")


def make_server_engine(url: URL) -> Engine:
    """Return the engine for a server. `postgresql://` means the bundled driver; any other driver is used as it is.

    Raises `LedgerError` for invalid parameters, and SQLAlchemy's errors for drivers that are not installed.
    """
    if url.drivername not in {"postgresql", "postgres", f"postgresql+{DRIVER}"}:
        return create_engine(url, pool_pre_ping=True)
    parameters = read_parameters(url)
    # Otherwise the pool logs a traceback for each connection that it cannot close because the server is gone.
    logging.getLogger("sqlalchemy.pool").setLevel(logging.CRITICAL)
    bare = URL.create(f"postgresql+{DRIVER}")
    engine = create_engine(bare, pool_pre_ping=True)

    @event.listens_for(engine, "do_connect")
    def _open_server_connection(dialect: Any, _record: Any, _args: Any, _named: Any) -> Any:
        try:
            return _connect_driver(dialect.dbapi, parameters)
        except dialect.dbapi.DatabaseError as error:
            if read_sqlstate(error) != WRONG_PASSWORD or "password" in parameters:
                raise
            raise make_password_error(parameters["user"], _find_password_file(parameters)) from error

    # Ledgers in files do not need this import.
    from guestmark.ledger.prepared_statements import enable_prepared_statements

    enable_prepared_statements(engine)
    return engine


def connect_autocommit(engine: Engine) -> Connection:
    """Return a connection in which every statement is its own transaction."""
    # Prepared statements bypass the bundled driver's transactions, while changing the isolation level and changing it
    # back takes a round trip each.
    connection = engine.connect()
    if engine.dialect.driver == DRIVER:
        return connection.execution_options(**PREPARED_OPTIONS)
    return connection.execution_options(isolation_level="AUTOCOMMIT")


def read_parameters(url: URL, environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return libpq's parameters: from the URL, else its query, else libpq's variables, else its defaults."""
    if environment is None:
        environment = os.environ
    found: dict[str, str] = {}
    for name, variable in _PARAMETERS.items():
        if given := environment.get(variable):
            found[name] = given
    found |= _read_url_parameters(url)
    found.setdefault("host", "localhost")
    found.setdefault("port", str(_PORT))
    found.setdefault("user", getpass.getuser())
    found.setdefault("dbname", found["user"])
    found.setdefault("sslmode", "prefer")
    found.setdefault("application_name", "guestmark")
    if found["sslmode"] not in _MODES:
        raise LedgerError(
            f"the ledger's sslmode {found['sslmode']!r} is unknown", hint=f"use one of {', '.join(_MODES)}"
        )
    if not found["port"].isdigit():
        raise LedgerError(
            f"the ledger's port {found['port']!r} is not a number", hint=f"the usual port is {_PORT}"
        )
    if "password" not in found and (password := _read_password(found)) is not None:
        found["password"] = password
    register_secret(found.get("password"))
    return found


def _read_url_parameters(url: URL) -> dict[str, str]:
    """Return the parameters in the URL. Those before its query take precedence."""
    found: dict[str, str] = {}
    for name, value in url.query.items():
        if name not in _PARAMETERS:
            raise LedgerError(
                f"the ledger's URL has an unknown parameter {name!r}", hint=f"known: {', '.join(_PARAMETERS)}"
            )
        found[name] = value if isinstance(value, str) else value[-1]
    given = {"host": url.host, "port": url.port, "user": url.username, "dbname": url.database}
    for name, part in given.items():
        if part:
            found[name] = str(part)
    if url.password is not None:
        found["password"] = str(url.password)
    return found


def is_transient(error: BaseException) -> bool:
    """Return whether the same statement may work once the server or the network is back."""
    cause: BaseException = error
    if isinstance(error, DBAPIError):
        if error.connection_invalidated:
            return True
        cause = error.orig or error
    if isinstance(cause, OSError):
        return True
    if _LATER.fullmatch(read_sqlstate(cause)) or _is_creation_race(cause):
        return True
    return type(cause).__name__ == "InterfaceError" and not read_sqlstate(cause)


def _is_creation_race(error: BaseException) -> bool:
    """Return whether another process has just created the same table, so that the next try finds it."""
    told = error.args[0] if error.args else None
    # The bundled driver passes a field of the protocol's message on; psycopg and others have libpq's attribute.
    diagnosis = getattr(error, "diag", None)
    name = told.get("n") if isinstance(told, Mapping) else getattr(diagnosis, "constraint_name", None)
    # The table exists already, or the type that each table has, or a row of the catalogue for one of these.
    return read_sqlstate(error) in {"42P07", "42710"} or (
        read_sqlstate(error) == "23505" and str(name).startswith("pg_")
    )


def _connect_driver(driver: Any, parameters: Mapping[str, str]) -> Any:
    mode, host = parameters["sslmode"], parameters["host"]
    named: dict[str, Any] = {
        "user": parameters["user"],
        # Without one, the driver itself would fail when a server asks for it.
        "password": parameters.get("password", ""),
        "database": parameters["dbname"],
        "application_name": parameters["application_name"],
        "timeout": CONNECT_S,
        "tcp_keepalive": True,
        "startup_params": {"default_transaction_isolation": "read committed"},
    }
    if host.startswith("/"):
        link = driver.connect(unix_sock=f"{host}/.s.PGSQL.{parameters['port']}", **named)
        _remove_timeout(link)
        return link
    named["startup_params"] |= {
        "tcp_keepalives_idle": str(_IDLE_S),
        "tcp_keepalives_interval": str(_AGAIN_S),
        "tcp_keepalives_count": str(_TIMES),
        "tcp_user_timeout": f"{_LOST_S}s",
    }
    named |= {"host": host, "port": int(parameters["port"])}
    if mode in {"disable", "allow"}:
        # None would mean TLS if the server has it.
        link = driver.connect(**named, ssl_context=False)
    else:
        try:
            link = driver.connect(**named, ssl_context=_make_tls_context(parameters))
        except driver.InterfaceError as error:
            if mode != "prefer" or classify_message(Speaker.DRIVER, str(error)).cause is not Cause.NO_TLS:
                raise
            link = driver.connect(**named, ssl_context=False)
    _remove_timeout(link)
    return link


def _remove_timeout(link: Any) -> None:
    """Remove the time limit, which was for connecting: a statement may wait longer for locks of others.

    Keepalive probes still notice a server that the network has lost, as the server notices a lost machine.
    """
    sock = getattr(link, "_usock", None)
    if sock is None:
        return
    sock.settimeout(None)
    if sock.family == socket.AF_UNIX:
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _IDLE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _AGAIN_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _TIMES)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _LOST_S * 1000)


def _make_tls_context(parameters: Mapping[str, str]) -> ssl.SSLContext:
    mode = parameters["sslmode"]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = mode == "verify-full"
    context.verify_mode = ssl.CERT_REQUIRED if mode.startswith("verify") else ssl.CERT_NONE
    try:
        root = parameters.get("sslrootcert", "")
        own = Path("~/.postgresql/root.crt").expanduser()
        if root == "system":
            context.load_default_certs()
        elif root or own.exists():
            context.load_verify_locations(root or str(own))
            # As in libpq: with a root certificate, `require` means `verify-ca`.
            if mode == "require":
                context.verify_mode = ssl.CERT_REQUIRED
        elif mode.startswith("verify"):
            raise LedgerError(
                f"sslmode={mode} needs a root certificate",
                hint="name it: sslrootcert=FILE, or sslrootcert=system",
            )
        if certificate := parameters.get("sslcert"):
            context.load_cert_chain(certificate, parameters.get("sslkey"))
    except (OSError, ssl.SSLError) as error:
        raise LedgerError(
            f"the ledger's certificates cannot be read: {error}", hint="check sslrootcert, sslcert and sslkey"
        ) from error
    return context


def _find_password_file(parameters: Mapping[str, str]) -> Path:
    return Path(parameters.get("passfile", "~/.pgpass")).expanduser()


def _read_password(parameters: Mapping[str, str]) -> str | None:
    """Return the password from libpq's password file, which only its owner may read; None if there is none."""
    file = _find_password_file(parameters)
    try:
        if file.stat().st_mode & 0o077:
            return None
        lines = file.read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    wanted = [parameters[name] for name in ("host", "port", "dbname", "user")]
    for line in lines:
        found = _PASSWORD_LINE.fullmatch(line)
        if found is not None and _matches_password_line(found.groups()[:4], wanted):
            return _remove_escapes(found[5])
    return None


def _matches_password_line(fields: Sequence[str], wanted: Sequence[str]) -> bool:
    for field, value in zip(fields, wanted, strict=True):
        # An escaped star is the name "*".
        if field != "*" and _remove_escapes(field) != value:
            return False
    return True


def _remove_escapes(field: str) -> str:
    return re.sub(r"\\(.)", r"\1", field)


T = TypeVar("T")

PATIENCE_S = 600.0
_FIRST_S, _LONGEST_S = 0.2, 5.0
_SAY_AFTER_S = 2.0
# Seconds for which a server may be unreachable after Ctrl-C.
_INTERRUPTED_S = 5.0


class Patience:
    """How long a server may be unreachable; `notice` gets a line when it is lost and when it is back."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self.patience_s = patience_s
        self.notice: Callable[[str], None] = lambda _text: None
        # If it returns True, an unreachable server is soon given up.
        self.is_interrupted: Callable[[], bool] = lambda: False

    def retry_until_done(self, action: Callable[[], T], transient: Callable[[BaseException], bool]) -> T:
        """Call `action` until it succeeds, what it raises is not transient, or patience has run out.

        An action may have taken effect although it raised: it has to notice that itself when it is called again.
        """
        begin, pause, said = time.monotonic(), _FIRST_S, False
        while True:
            try:
                done = action()
            except Exception as error:
                waited = time.monotonic() - begin
                hurried = self.is_interrupted() and waited > _INTERRUPTED_S
                if not transient(error) or hurried or waited + pause > self.patience_s:
                    raise
                if not said and waited >= _SAY_AFTER_S:
                    said = True
                    self.notice(
                        "the ledger's server does not answer; waiting for it, "
                        f"{self.patience_s / 60:.0f} minutes at most"
                    )
            else:
                if said:
                    self.notice("the ledger's server is back")
                return done
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_S)


# Trials are added and never changed or removed; checksums and what is left out are replaced.
_RIGHTS = {
    schema.schema.name: "SELECT",
    schema.runs.name: "SELECT, INSERT, UPDATE (state, owner, plan)",
    schema.environments.name: "SELECT, INSERT",
    schema.unusable.name: "SELECT, INSERT, DELETE",
    schema.trials.name: "SELECT, INSERT",
    schema.checks.name: "SELECT, INSERT, DELETE",
    schema.comparisons.name: "SELECT, INSERT, DELETE",
    schema.remarks.name: "SELECT, INSERT, DELETE",
    schema.attempts.name: "SELECT, INSERT, UPDATE (outcome, refused)",
}


def make_setup_script(role: str) -> str:
    """Return SQL for the owner of the database that creates missing tables and the role. It may be run again."""
    postgresql = load_postgresql_dialect()
    quoted = postgresql.dialect().identifier_preparer.quote_identifier(role)
    literal = "'" + role.replace("'", "''") + "'"
    tables = [*schema.metadata.sorted_tables, schema.comparisons, schema.remarks, schema.attempts]
    lines = ["BEGIN;"]
    for table in tables:
        made = CreateTable(table, if_not_exists=True).compile(dialect=postgresql.dialect())
        lines.append(f"{str(made).strip()};")
    for index in schema.comparisons.indexes:
        made_index = CreateIndex(index, if_not_exists=True).compile(dialect=postgresql.dialect())
        lines.append(f"{str(made_index).strip()};")
    lines += [
        f"INSERT INTO {schema.schema.name} (version) SELECT {schema.SCHEMA_VERSION}"
        f" WHERE NOT EXISTS (SELECT FROM {schema.schema.name});",
        f"DO $do$ BEGIN IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = {literal}) THEN"
        f" CREATE ROLE {quoted} LOGIN; END IF; END $do$;",
        f"GRANT USAGE ON SCHEMA public TO {quoted};",
    ]
    for name, rights in _RIGHTS.items():
        lines += [f"REVOKE ALL ON {name} FROM {quoted};", f"GRANT {rights} ON {name} TO {quoted};"]
    lines.append("COMMIT;")
    return "\n".join(lines) + "\n"


# The connections of a fleet's coordinator.
COORDINATOR_CONNECTIONS = 2
# Each machine has one connection, and one machine in ten briefly has a second one.
_MACHINES_PER_SPARE = 10
# Connections for people who look at runs meanwhile, and for the server's owner.
_SPARE = 20
# Any role may read these counters, while pg_stat_activity hides the sessions of others.
_SELECT_CONNECTIONS = """SELECT current_setting('max_connections')::int,
  current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
  - (SELECT sum(numbackends)::int FROM pg_stat_database)"""


@dataclass(frozen=True, slots=True)
class ConnectionRoom:
    """Of a server's `most` connections `free` are left; `needed` is how many a fleet takes."""

    most: int
    free: int
    needed: int

    @property
    def is_enough(self) -> bool:
        """True if every machine gets its connections."""
        return self.free >= self.needed

    @property
    def advised(self) -> int:
        """The value to set `max_connections` to."""
        return self.most - self.free + self.needed + _SPARE


def find_connection_room(ledger: LedgerWriter, machines: int) -> ConnectionRoom | None:
    """Return the room on the ledger's server for this many machines; None if the ledger is a file."""
    if ledger.is_file:
        return None

    def ask(connection: Connection) -> tuple[int, int]:
        most, free = connection.execute(text(_SELECT_CONNECTIONS)).one()
        # One more than now, as this connection will be closed.
        return int(most), int(free) + 1

    most, free = ledger.run_transaction("asking how many connections the server accepts", ask)
    return ConnectionRoom(
        most, free, machines + -(-machines // _MACHINES_PER_SPARE) + COORDINATOR_CONNECTIONS
    )
