"""PostgreSQL: the server's programs in `/usr/lib/postgresql/VERSION/bin`, of the newest version installed."""

from __future__ import annotations

import contextlib
import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pg8000 import native

from guestmark.core.units import parse_size
from guestmark.workloads.oltp import ServerSizes
from guestmark.workloads.oltp.databases.base import NETWORK_PORT, Database, Link, Session

# Debian's directory of the programs; elsewhere they are on the PATH.
_VERSIONS = Path("/usr/lib/postgresql")
_USER = "sysbench"
# Its local socket is also named after the port.
_PORT = NETWORK_PORT
_SMALLEST_LOG = 32 << 20  # two segments
# Flushes of the write-ahead log, for which commits wait. Version 18 counts them elsewhere, and a query must not name
# a missing column.
_FLUSHES = (
    "SELECT (xpath('/row/n/text()', query_to_xml(CASE "
    "WHEN current_setting('server_version_num')::int < 180000 THEN 'SELECT wal_sync AS n FROM pg_stat_wal' "
    "ELSE 'SELECT sum(fsyncs) AS n FROM pg_stat_io WHERE object = $$wal$$' END, true, true, '')))[1]::text"
)


class PostgreSQL(Database):
    """PostgreSQL; whatever neither guestmark nor the user sets has the server's default."""

    name = "postgresql"
    title = "PostgreSQL"
    packages = {
        "postgres": "postgresql",
        "initdb": "postgresql",
    }
    ready = b"database system is ready to accept connections"
    version = re.compile(r"starting (PostgreSQL \S+)")
    stopped = b"database system is shut down"
    # SIGINT is a "fast" shutdown: it ends connections and writes everything.
    stop_signal = signal.SIGINT
    needed_bytes = 40 << 20
    row_bytes = 200
    reserved = frozenset(
        {"data_directory", "unix_socket_directories", "port", "logging_collector", "log_destination"}
    )

    namespace = ""
    unsafe = ("synchronous_commit=off", "set synchronous_commit=off")
    checkpoint = ("checkpoint",)
    network_settings = {"listen_addresses": "0.0.0.0"}
    admission = ()
    access_rule = ("pg_hba.conf", "host all all all trust")

    @property
    def server_path(self) -> str:
        """The path of postgres."""
        return self.programs["postgres"]

    @classmethod
    def list_program_folders(cls) -> Sequence[str]:
        """Returns Debian's directories of all installed versions, newest first."""

        def version(folder: Path) -> tuple[int, ...]:
            return tuple(int(number) for number in re.findall(r"\d+", folder.parent.name))

        return [str(folder) for folder in sorted(_VERSIONS.glob("*/bin"), key=version, reverse=True)]

    def derive_settings(self, sizes: ServerSizes, threads: int) -> dict[str, str]:
        """Returns settings that let the log grow to its given size and keep the server off the network."""
        return {
            "shared_buffers": f"{parse_size(sizes.buffer) >> 20}MB",
            "max_wal_size": f"{max(_SMALLEST_LOG, parse_size(sizes.log)) >> 20}MB",
            "listen_addresses": "",
            "max_connections": str(threads + 10),
            **sizes.settings,
        }

    def list_install_commands(self, data: str, settings: Mapping[str, str]) -> list[list[str]]:
        """Returns the call of initdb."""
        return [
            [
                self.programs["initdb"], "-D", data, "-U", _USER, "-A", "trust", "--locale=C", "-E", "UTF8",
                "--no-sync",
            ]
        ]  # fmt: skip

    def build_server_command(self, data: str, settings: Mapping[str, str]) -> list[str]:
        """Returns the command; the server listens only on a local socket in the data directory."""
        options = [f"-c{name}={value}" for name, value in settings.items()]
        return [
            self.server_path,
            "-D",
            data,
            f"-cunix_socket_directories={data}",
            f"-cport={_PORT}",
            *options,
        ]

    def build_sysbench_options(self, data: str) -> list[str]:
        """Returns options for the driver pgsql over the local socket."""
        return self.build_network_options(data, _PORT)

    def build_network_options(self, address: str, port: int) -> list[str]:
        """Returns options for the driver pgsql over TCP."""
        return [
            "--db-driver=pgsql",
            f"--pgsql-host={address}",
            f"--pgsql-port={port}",
            f"--pgsql-user={_USER}",
            "--pgsql-db=postgres",
        ]

    def open_session(self, link: Link) -> Session:
        """Opens a session with pg8000."""
        return _Session(link)

    def load_session_errors(self) -> tuple[type[Exception], ...]:
        """Returns pg8000's native errors."""
        return (native.Error,)

    def locate_pid_file(self, data: str) -> str:
        """Returns the path of PostgreSQL's lock file in the data directory."""
        return f"{data}/postmaster.pid"

    def locate_socket(self, data: str) -> str:
        """Returns the path that PostgreSQL derives from its port."""
        return f"{data}/.s.PGSQL.{_PORT}"


class _Session:
    """A session over pg8000."""

    def __init__(self, link: Link) -> None:
        with _raise_plain_errors():
            self._connection = native.Connection(_USER, database="postgres", sock=link, ssl_context=False)

    def count_flushes(self) -> int:
        """Counts the flushes of the write-ahead log."""
        with _raise_plain_errors():
            ((found,),) = self._connection.run(_FLUSHES)
        return int(found)

    def execute(self, statement: str) -> list[tuple[object, ...]]:
        """Runs a statement, which the server commits automatically."""
        with _raise_plain_errors():
            return [tuple(row) for row in self._connection.run(statement) or ()]

    def close(self) -> None:
        """Closes the connection as the protocol requires."""
        self._connection.close()


@contextlib.contextmanager
def _raise_plain_errors() -> Iterator[None]:
    """Reduces pg8000's errors, which hold all fields of the protocol's message, to the server's own text."""
    try:
        yield
    except native.DatabaseError as error:
        fields = error.args[0] if error.args else ""
        text = fields.get("M", "") if isinstance(fields, dict) else str(fields)
        raise native.Error(text) from error
