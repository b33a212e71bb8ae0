"""MariaDB: `mariadbd` of the packages mariadb-server-core and mariadb-client-core; no service is needed."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping

import pymysql

from guestmark.workloads.oltp import ServerSizes
from guestmark.workloads.oltp.databases.base import NETWORK_PORT, Database, Link, Session

DATABASE = "sbtest"
# The user for clients on another machine, where root is not allowed.
_PEER = "sysbench"
# Flushes of data files, and of the log, which older servers count separately.
_FLUSHES = (
    "SELECT SUM(VARIABLE_VALUE) FROM information_schema.GLOBAL_STATUS "
    "WHERE VARIABLE_NAME IN ('INNODB_DATA_FSYNCS', 'INNODB_OS_LOG_FSYNCS')"
)


class MariaDB(Database):
    """MariaDB without configuration files: whatever neither guestmark nor the user sets has the server's default."""

    name = "mariadb"
    title = "MariaDB"
    packages = {
        "mariadbd": "mariadb-server-core",
        "mariadb-install-db": "mariadb-server-core",
        "my_print_defaults": "mariadb-client-core",
    }
    ready = b"ready for connections"
    version = re.compile(r"Starting (MariaDB \S+)")
    stopped = b"Shutdown complete"
    stop_signal = signal.SIGTERM
    needed_bytes = 30 << 20
    row_bytes = 200
    reserved = frozenset({"datadir", "socket", "user", "log_error", "bootstrap", "defaults_file", "pid_file"})

    namespace = f"{DATABASE}."
    unsafe = (
        "innodb_flush_log_at_trx_commit=0",
        "set global innodb_flush_log_at_trx_commit=0",
    )
    checkpoint = ("set global innodb_log_checkpoint_now=1",)
    network_settings = {"skip_networking": "0", "bind_address": "0.0.0.0", "port": str(NETWORK_PORT)}
    admission = (f"create user {_PEER}@'%'", f"grant all on {DATABASE}.* to {_PEER}@'%'")
    access_rule = ("", "")

    @property
    def server_path(self) -> str:
        """The path of mariadbd."""
        return self.programs["mariadbd"]

    def derive_settings(self, sizes: ServerSizes, threads: int) -> dict[str, str]:
        """Returns settings with which I/O is the same everywhere and caches begin empty.

        They disable io_uring and a memory-mapped log, which MariaDB would choose by kernel and filesystem.
        """
        return {
            "innodb_buffer_pool_size": sizes.buffer,
            # Newer servers reserve terabytes of address space for a growing buffer; UML does not have as much.
            "loose_innodb_buffer_pool_size_max": sizes.buffer,
            "innodb_log_file_size": sizes.log,
            "innodb_use_native_aio": "0",
            "loose_innodb_log_file_mmap": "0",
            "innodb_buffer_pool_dump_at_shutdown": "0",
            "innodb_buffer_pool_load_at_startup": "0",
            "skip_networking": "1",
            "skip_name_resolve": "1",
            "max_connections": str(threads + 10),
            **sizes.settings,
        }

    def list_install_commands(self, data: str, settings: Mapping[str, str]) -> list[list[str]]:
        """Returns the call of mariadb-install-db, without the schema `sys`."""
        return [
            [
                self.programs["mariadb-install-db"], "--no-defaults", f"--datadir={data}",
                "--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve",
                f"--innodb-log-file-size={settings['innodb_log_file_size']}", "--innodb-use-native-aio=0",
            ],
            ["rm", "-r", f"{data}/sys"],  # a hundred views for people to read, which every trial would have to copy
            ["mkdir", f"{data}/{DATABASE}"],
        ]  # fmt: skip

    def build_server_command(self, data: str, settings: Mapping[str, str]) -> list[str]:
        """Returns the command; the server reads no option file and listens on a local socket only."""
        options = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
        return [
            self.server_path, "--no-defaults", f"--datadir={data}", f"--socket={self.locate_socket(data)}",
            f"--pid-file={self.locate_pid_file(data)}", *options,
        ]  # fmt: skip

    def build_sysbench_options(self, data: str) -> list[str]:
        """Returns options for the driver mysql over the local socket."""
        return [
            "--db-driver=mysql",
            f"--mysql-socket={self.locate_socket(data)}",
            "--mysql-user=root",
            f"--mysql-db={DATABASE}",
        ]

    def build_network_options(self, address: str, port: int) -> list[str]:
        """Returns options for the driver mysql over TCP."""
        return [
            "--db-driver=mysql",
            f"--mysql-host={address}",
            f"--mysql-port={port}",
            f"--mysql-user={_PEER}",
            f"--mysql-db={DATABASE}",
        ]

    def open_session(self, link: Link) -> Session:
        """Opens a session with PyMySQL."""
        return _Session(link)

    def load_session_errors(self) -> tuple[type[Exception], ...]:
        """Returns PyMySQL's base error."""
        return (pymysql.MySQLError,)

    def locate_pid_file(self, data: str) -> str:
        """Returns a path in the data directory."""
        return f"{data}/server.pid"

    def locate_socket(self, data: str) -> str:
        """Returns a path in the data directory."""
        return f"{data}/server.sock"


class _Session:
    """A session over PyMySQL."""

    def __init__(self, link: Link) -> None:
        self._connection = pymysql.Connection(
            user="root", password="", defer_connect=True, ssl_disabled=True, autocommit=None
        )
        self._connection.connect(link)

    def count_flushes(self) -> int:
        """Counts the flushes of InnoDB's files and log."""
        with self._connection.cursor() as cursor:
            cursor.execute(_FLUSHES)
            ((found,),) = cursor.fetchall()
        return int(found)

    def execute(self, statement: str) -> list[tuple[object, ...]]:
        """Runs a statement, which the server commits automatically."""
        with self._connection.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())

    def close(self) -> None:
        """Closes the connection as the protocol requires."""
        self._connection.close()
