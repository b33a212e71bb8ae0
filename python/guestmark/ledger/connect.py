"""Opens the database of a ledger: checks or creates it, and applies the settings that make it durable."""

from __future__ import annotations

import errno
import os
import re
import sqlite3
import time
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

from sqlalchemy import Engine, create_engine, event, insert, select, update
from sqlalchemy.engine import URL, Connection, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError
from sqlalchemy.pool import QueuePool

from guestmark.core.errors import LedgerError
from guestmark.core.home import find_default_ledger
from guestmark.core.model import Plan
from guestmark.core.redaction import redact_url, register_secret
from guestmark.ledger import checksums, codec, schema
from guestmark.ledger.environment_variables import strip_unrecorded
from guestmark.ledger.error_advice import (
    CHOOSE_ANOTHER,
    NOT_ALLOWED,
    OR_CHOOSE_ANOTHER,
    explain_errors,
    make_not_a_database_error,
    read_sqlstate,
)
from guestmark.ledger.postgres import make_server_engine
from guestmark.ledger.schema import (
    APPLICATION_ID,
    SCHEMA_VERSION,
    WRITING,
    attempts,
    comparisons,
    metadata,
    remarks,
)


def copy_ledger(file: Path, version: int) -> Path:
    """Copy the ledger as it is now, readable by its owner alone. Raises `sqlite3.Error`, `OSError`."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    copy = file.with_name(f"{file.name}.schema-{version}.{stamp}")
    copy.touch(mode=0o600)
    try:
        with closing(sqlite3.connect(file)) as source, closing(sqlite3.connect(copy)) as target:
            source.backup(target)
    except BaseException:
        copy.unlink(missing_ok=True)
        raise
    return copy


def upgrade_rows(connection: Connection) -> None:
    """Upgrade from schema 1 to 2, inside a transaction: add checksums, remove variables' values that may be secrets.

    Plans that are damaged already stay as they are and get no checksum, which would vouch for them.
    """
    schema.checks.create(connection, checkfirst=True)
    for run in connection.execute(select(schema.runs)).all():
        with suppress(LedgerError):
            plan = codec.load_json(run.plan, Plan, f"the plan of run {run.id}")
            kept = codec.dump_json(replace(plan, context=strip_unrecorded(plan.context)))
            connection.execute(update(schema.runs).where(schema.runs.c.id == run.id).values(plan=kept))
            checksums.store_checksums(connection, schema.runs, run.id)
        for table in (schema.environments, schema.unusable, schema.trials):
            checksums.store_checksums(connection, table, run.id)


_LONGEST_VALUE = 256 << 20  # bytes of a text or a console
_MOST_MEMORY = 2 << 30  # bytes that SQLite may take
_STATEMENT_S = 120.0
_SHOWN_PARAMETERS = {
    "host",
    "port",
    "user",
    "dbname",
}  # parameters of a URL that say which ledger it is, never a password


@dataclass(frozen=True, slots=True)
class OpenedStore:
    """An opened database. `where` is its path, or its URL without the password; `file` is None for a server."""

    engine: Engine
    where: str
    file: Path | None


def begin_writing(engine: Engine) -> AbstractContextManager[Connection]:
    """Begin a transaction that will write: it takes the write lock now, not when it first writes."""
    return engine.execution_options(**{WRITING: True}).begin()


def connect_ledger(where: str | Path | None, *, writable: bool, busy_timeout_s: float) -> OpenedStore:
    """Open the database, and if `writable`, create or complete it. Raises `LedgerError`."""
    if isinstance(where, str) and "://" in where:
        try:
            url = make_url(where)
        except (ArgumentError, ValueError) as error:
            raise LedgerError(
                f"{redact_url(where)} is not a database URL",
                hint="e.g. postgresql://ROLE@HOST:5432/DATABASE?sslmode=verify-full",
            ) from error
        register_secret(url.password)
        for value in url.normalized_query.get("password", ()):
            register_secret(value)
        # libpq accepts both spellings.
        if url.get_backend_name() == "postgres":
            url = url.set(drivername="postgresql")
        if url.get_backend_name() != "sqlite":
            return _connect_server(url)
        if not url.database or url.database == ":memory:":
            raise LedgerError("a ledger in memory would be lost at once", hint="give a file: sqlite:///FILE")
        where = url.database
    try:
        # Links are followed: a run's claim is a lock on a file beside the ledger, which must be the same for all.
        file = (find_default_ledger() if where is None else Path(where).expanduser()).resolve()
    except (OSError, RuntimeError) as error:
        raise LedgerError(
            f"the ledger {where or ''} cannot be found: {error}", hint=CHOOSE_ANOTHER
        ) from error
    return _connect_file(file, writable, busy_timeout_s)


# --- SQLite -------------------------------------------------------------------------------------------------


def _connect_file(file: Path, writable: bool, busy_timeout_s: float) -> OpenedStore:
    shown = str(file)
    with explain_errors(shown, "opening it"):
        fresh = _check_file(file, writable, busy_timeout_s)
    engine = _make_file_engine(file, writable, busy_timeout_s)
    try:
        with explain_errors(shown, "opening it"):
            if fresh:
                _make_tables(engine, busy_timeout_s)
            else:
                # An unreadable ledger fails now rather than at the first trial.
                with engine.connect() as connection:
                    if file != find_default_ledger().resolve():
                        _check_pages(connection, shown)
                    _check_structure(connection, shown)
                    connection.exec_driver_sql("SELECT id FROM runs LIMIT 1").all()
    except LedgerError:
        engine.dispose()
        raise
    return OpenedStore(engine, shown, file)


def _check_file(file: Path, writable: bool, busy_timeout_s: float) -> bool:
    """Return whether the tables still have to be created.

    Raises `LedgerError` for a file that is not a ledger, and leaves it unchanged.
    """
    if file.is_dir():
        raise LedgerError(
            f"{file} is a directory, not a ledger", hint=f"try --ledger {file / 'ledger.sqlite'}"
        )
    if file.exists() and not file.is_file():
        raise LedgerError(
            f"{file} is not a regular file, so it cannot be a ledger", hint="choose a file with --ledger FILE"
        )
    _check_companions(file)
    if not file.exists():
        if not writable:
            raise LedgerError(
                f"there is no ledger at {file}", hint="`guestmark exec` creates one on its first run"
            )
        _make_file(file)
        return True
    with file.open("rb") as stream:
        head = stream.read(16)
    if head and head != b"SQLite format 3\0":
        raise make_not_a_database_error(str(file))
    kind, version, tables = _read_identity(file, writable, busy_timeout_s)
    if kind == 0 and version == 0 and tables == 0:
        return True
    if kind != APPLICATION_ID:
        raise LedgerError(
            f"{file} is another program's SQLite database, not a ledger",
            hint="it was not changed; choose another file with --ledger FILE",
        )
    _check_version(version, str(file))
    if writable and version < SCHEMA_VERSION:
        _upgrade_file(file, version, busy_timeout_s)
    return False


_JOURNAL = "-journal"
_COMPANIONS = ("-wal", "-shm", _JOURNAL, "-claims")
_JOURNAL_MAGIC = bytes.fromhex("d9d505f920a163d7")


def _check_companions(file: Path) -> None:
    """Raise `LedgerError` unless the files that SQLite uses beside this one are plain files of its own.

    SQLite writes to them, and after rolling back a journal that names another file it deletes that file
    (*super-journal* in "Atomic Commit In SQLite"): a prepared journal could delete any file of the user.
    """
    for suffix in _COMPANIONS:
        beside = file.with_name(file.name + suffix)
        if beside.is_symlink() or (beside.exists() and not beside.is_file()):
            raise _make_foreign_database_error(str(file), f"{beside.name} beside it is not a plain file")
    with suppress(FileNotFoundError), file.with_name(file.name + _JOURNAL).open("rb") as journal:
        length = journal.seek(0, os.SEEK_END)
        journal.seek(max(0, length - len(_JOURNAL_MAGIC)))
        if length > len(_JOURNAL_MAGIC) and journal.read() == _JOURNAL_MAGIC:
            raise _make_foreign_database_error(
                str(file), f"{file.name}{_JOURNAL} beside it names another file"
            )


_TABLES = {
    table.name: set(table.columns.keys())
    for table in (*metadata.sorted_tables, comparisons, remarks, attempts)
}


def _check_structure(connection: Connection, where: str) -> None:
    """Raise `LedgerError` unless tables are as guestmark creates them: no view, trigger, virtual or computed column.

    These could run code or hide rows. Other tables and views are left alone; nothing reads them.
    """
    for kind, name, table, definition in connection.exec_driver_sql(
        "SELECT type, name, tbl_name, sql FROM sqlite_master"
    ):
        text = str(definition or "").upper()
        if kind == "trigger":
            raise _make_foreign_database_error(where, f"it has the trigger {name!r}")
        if kind == "table" and text.startswith("CREATE VIRTUAL"):
            raise _make_foreign_database_error(where, f"it has the virtual table {name!r}")
        if kind == "view" and name in _TABLES:
            raise _make_foreign_database_error(where, f"{name} is a view")
        if kind == "index" and table in _TABLES and (" WHERE " in text or text.count("(") > 1):
            raise _make_foreign_database_error(
                where, f"{table} has the index {name!r}, which computes something"
            )
        if kind == "table" and name in _TABLES:
            found = connection.exec_driver_sql(f'PRAGMA table_xinfo("{name}")').all()
            if {column.name for column in found} != _TABLES[name] or any(column.hidden for column in found):
                raise _make_foreign_database_error(where, f"the table {name} has other columns")
            if re.search(r"\bCHECK\s*\(", text):
                raise _make_foreign_database_error(where, f"the table {name} has a CHECK constraint")


def _check_pages(connection: Connection, where: str) -> None:
    """Raise `LedgerError` for pages that two tables share, or that form a cycle, which a reader would never leave."""
    found = str(connection.exec_driver_sql("PRAGMA quick_check(1)").scalar())
    if found != "ok":
        raise LedgerError(
            f"the ledger {where} is damaged: {found.splitlines()[-1]}",
            hint=f"save what can be read: sqlite3 '{where}' .recover | sqlite3 recovered.sqlite",
        )


def _make_foreign_database_error(where: str, why: str) -> LedgerError:
    return LedgerError(
        f"the ledger {where} was not created by guestmark: {why}",
        hint=f"do not trust it; {CHOOSE_ANOTHER}",
    )


def _upgrade_file(file: Path, version: int, busy_timeout_s: float) -> None:
    """Upgrade an older ledger once, and leave a copy of the old one beside it."""
    copy_ledger(file, version)
    engine = _make_file_engine(file, True, busy_timeout_s)
    try:
        with begin_writing(engine) as connection:
            if (
                connection.exec_driver_sql("PRAGMA user_version").scalar() == version
            ):  # no other process was faster
                upgrade_rows(connection)
                connection.exec_driver_sql(f"PRAGMA user_version = {SCHEMA_VERSION}")
    finally:
        engine.dispose()


def _read_identity(file: Path, writable: bool, busy_timeout_s: float) -> tuple[int, int, int]:
    """Return application id, schema version and number of tables of the database in `file`, without writing."""
    try:
        return _probe_file(_make_uri(file, "ro"), busy_timeout_s)
    except sqlite3.OperationalError as error:
        if writable:
            # A process that died while it wrote left a journal to roll back, which takes write access.
            if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_READONLY:
                return _probe_file(_make_uri(file, "rw"), busy_timeout_s)
            raise
        # Read-only storage: SQLite cannot create its shared memory beside the file, and no process can be writing.
        if os.access(file.parent, os.W_OK):
            raise
        return _probe_file(_make_uri(file, "ro", immutable=True), busy_timeout_s)


def _probe_file(uri: str, busy_timeout_s: float) -> tuple[int, int, int]:
    with closing(_connect_safely(uri, busy_timeout_s)) as probe:
        # All three are read in one transaction: another process may be creating the tables.
        probe.execute("BEGIN")
        kind = probe.execute("PRAGMA application_id").fetchone()[0]
        version = probe.execute("PRAGMA user_version").fetchone()[0]
        tables = probe.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        return kind, version, tables


def _check_version(version: int, where: str) -> None:
    if version > SCHEMA_VERSION:
        raise LedgerError(
            f"the ledger {where} was written by a newer guestmark (schema {version}, not {SCHEMA_VERSION})",
            hint="update guestmark, " + OR_CHOOSE_ANOTHER,
        )
    if version < 1:
        raise LedgerError(
            f"the ledger {where} is damaged: it has no schema version", hint="repair it, " + OR_CHOOSE_ANOTHER
        )


def _make_file(file: Path) -> None:
    """Create an empty file that only its owner can read, as a plan holds the caller's environment.

    SQLite gives the files beside it the same permissions.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    except FileExistsError as error:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from error
    try:
        os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        # Another process was faster.
        return


def _make_uri(file: Path, mode: str, *, immutable: bool = False) -> str:
    uri = f"file:{quote(str(file))}?mode={mode}"
    if immutable:
        uri += "&immutable=1"
    return uri


class _TimedConnection(sqlite3.Connection):
    """A connection that limits the time of a statement: crafted pages can form a table without end."""

    # The monotonic time at which the current statement began.
    begun = 0.0

    def is_over(self) -> bool:
        """Return whether the statement has taken too long."""
        return time.monotonic() > self.begun + _STATEMENT_S


def _connect_safely(uri: str, busy_timeout_s: float) -> _TimedConnection:
    """Connect to a file that may come from anywhere, so that its content is data and never code."""
    # isolation_level=None: transactions are begun by SQLAlchemy's events and nowhere else.
    link: _TimedConnection = sqlite3.connect(
        uri,
        uri=True,
        timeout=busy_timeout_s,
        isolation_level=None,
        check_same_thread=False,
        factory=_TimedConnection,
    )
    link.begun = time.monotonic()
    link.set_progress_handler(link.is_over, 1_000_000)
    link.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_VALUE)
    link.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    link.setlimit(sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH, 1)
    for pragma in (
        "trusted_schema = OFF", "cell_size_check = ON", "mmap_size = 0", f"hard_heap_limit = {_MOST_MEMORY}"
    ):  # fmt: skip
        link.execute(f"PRAGMA {pragma}")
    return link


def _make_file_engine(file: Path, writable: bool, busy_timeout_s: float) -> Engine:
    frozen = not writable and not os.access(file.parent, os.W_OK)
    uri = _make_uri(file, "rw" if writable else "ro", immutable=frozen)

    def connect_to_file() -> sqlite3.Connection:
        link = _connect_safely(uri, busy_timeout_s)
        link.execute("PRAGMA foreign_keys = ON")
        if writable:
            # In WAL mode only FULL syncs at every commit.
            link.execute("PRAGMA synchronous = FULL")
        return link

    engine = create_engine(
        "sqlite+pysqlite://",
        creator=connect_to_file,
        pool_size=1,
        max_overflow=4,
        poolclass=QueuePool,
    )

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        writing = connection.get_execution_options().get(WRITING, False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")

    @event.listens_for(engine, "before_cursor_execute")
    def _record_duration(connection: Connection, *_: object) -> None:
        link = connection.connection.driver_connection
        if isinstance(link, _TimedConnection):
            link.begun = time.monotonic()

    return engine


def _make_tables(engine: Engine, busy_timeout_s: float) -> None:
    """Create the tables and mark the file as a ledger, in one transaction; harmless if another process did so."""
    if _enable_wal(engine, busy_timeout_s) != "wal":
        raise LedgerError(
            "the ledger's filesystem does not support write-ahead logging",
            hint="choose a file on a local filesystem with --ledger FILE",
        )
    with begin_writing(engine) as connection:
        metadata.create_all(connection, tables=[t for t in metadata.sorted_tables if t is not schema.schema])
        connection.exec_driver_sql(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.exec_driver_sql(f"PRAGMA user_version = {SCHEMA_VERSION}")


def _enable_wal(engine: Engine, busy_timeout_s: float) -> str:
    """Ask for write-ahead logging, which cannot be done in a transaction; return the journal mode.

    SQLite's busy timeout does not cover this: if another process changes the mode too, it may fail at once.
    """
    end = time.monotonic() + busy_timeout_s
    raw = engine.raw_connection()
    try:
        while True:
            try:
                return str(raw.cursor().execute("PRAGMA journal_mode = WAL").fetchone()[0])
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > end:
                    raise
                time.sleep(0.01)
    finally:
        raw.close()


# --- a database server --------------------------------------------------------------------------------------


def _upgrade_server(connection: Connection, version: int, shown: str) -> None:

    try:
        # A second process waits for this lock, and then finds the upgrade done.
        if connection.execute(select(schema.schema.c.version).with_for_update()).scalar() == version:
            upgrade_rows(connection)
            connection.execute(update(schema.schema).values(version=SCHEMA_VERSION))
    except DBAPIError as error:
        if read_sqlstate(error.orig or error) != NOT_ALLOWED:
            raise
        raise LedgerError(
            f"the ledger {shown} was created by an older guestmark, and this role may not upgrade it",
            hint="open it once as its owner: guestmark runs --ledger URL; then `guestmark ledger role` again",
        ) from error


def _connect_server(url: URL) -> OpenedStore:
    query = {name: value for name, value in url.query.items() if name in _SHOWN_PARAMETERS}
    shown = url.set(query=query).render_as_string()
    try:
        engine = make_server_engine(url)
    except (NoSuchModuleError, ModuleNotFoundError, ArgumentError) as error:
        raise LedgerError(
            f"there is no driver for the ledger {shown}: {error}",
            hint="use the bundled one: postgresql://…, or install that driver into guestmark's environment",
        ) from error
    if engine.dialect.name != "postgresql":
        raise LedgerError(
            f"the ledger {shown} is on a kind of server that guestmark does not support",
            hint="use SQLite (a file) or PostgreSQL",
        )
    try:
        with explain_errors(shown, "opening it"), engine.begin() as connection:
            if not schema.has_table(connection, schema.schema):
                metadata.create_all(connection)
                connection.execute(insert(schema.schema).values(version=SCHEMA_VERSION))
            version = connection.execute(select(schema.schema.c.version)).scalar() or 0
            _check_version(version, shown)
            # Unlike a file, a server has backups of its own.
            if version < SCHEMA_VERSION:
                _upgrade_server(connection, version, shown)
    except LedgerError:
        engine.dispose()
        raise
    return OpenedStore(engine, shown, None)
