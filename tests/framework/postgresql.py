"""A private PostgreSQL server for tests, which can be stopped, killed and started again."""

from __future__ import annotations

import contextlib
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.framework.processes import children, wait_until

_USER = "postgres"


def program(name: str) -> str | None:
    """Return the path of one of the server's programs, which Debian keeps out of PATH; None if it is not installed."""
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return shutil.which(name, path=os.pathsep.join([os.environ["PATH"], *map(str, places)]))


@dataclass(slots=True)
class Server:
    """A server on loopback and perhaps one more address; it trusts everybody on this machine and that network."""

    directory: Path
    port: int
    address: str = "127.0.0.1"
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The URL of its database for `--ledger`, without a driver."""
        return f"postgresql://{_USER}@{self.address}:{self.port}/postgres"

    def start(self) -> None:
        """Start the server and wait until it answers."""
        postgres = program("postgres")
        assert postgres is not None
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [*_as_user(), postgres, "-D", str(self.directory / "data"), "-k", str(self.directory)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        assert wait_until(self.answers, 30), self.log()

    def answers(self) -> bool:
        """Return whether the server accepts connections."""
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return (
                b"ready to accept connections"
                in (self.directory / "log").read_bytes().rpartition(b"starting")[2]
            )
        return False

    def stop(self, number: int = signal.SIGINT) -> None:
        """Stop the server: SIGINT closes all connections in order, SIGKILL is a crash."""
        if self.process is None:
            return
        main = int((self.directory / "data/postmaster.pid").read_text().split()[0])
        processes = children(main) if number == signal.SIGKILL else []
        os.kill(main, number)
        for child in processes:  # which would notice only after a while, and keep the shared memory meanwhile
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        self.process.wait(30)
        self.process = None

    def log(self) -> str:
        """Return the server's log."""
        return (self.directory / "log").read_text()


@contextlib.contextmanager
def postgresql(address: str = "127.0.0.1", connections: int = 60) -> Iterator[Server]:
    """Yield a new server, which is removed afterwards with its data. Skips the test if PostgreSQL is not installed."""
    initdb = program("initdb")
    if initdb is None:
        pytest.skip("there is no PostgreSQL server: install the package postgresql")
    directory = Path(tempfile.mkdtemp(prefix="guestmark-pg-", dir="/tmp"))
    server = Server(directory, _free_port(), address)
    try:
        if os.getuid() == 0:
            shutil.chown(directory, _USER)
        subprocess.run(
            [*_as_user(), initdb, "-D", str(directory / "data"), "-U", _USER, "-A", "trust", "-N", "-E", "UTF8",
             "--locale=C"],
            # What it says of an error is shown by pytest.
            check=True, stdout=subprocess.DEVNULL, cwd="/",
        )  # fmt: skip
        addresses = ",".join(dict.fromkeys(("127.0.0.1", address)))
        with (directory / "data/postgresql.conf").open("a") as settings:
            settings.write(
                f"port = {server.port}\nlisten_addresses = '{addresses}'\nfsync = off\n"
                f"max_connections = {connections}\n"
                "shared_buffers = 16MB\n"
            )
        with (directory / "data/pg_hba.conf").open("a") as access:
            access.write(f"host all all {address}/24 trust\n")
        server.start()
        yield server
    finally:
        with contextlib.suppress(OSError):
            server.stop()
        shutil.rmtree(directory, ignore_errors=True)


def _as_user() -> list[str]:
    """Return the prefix of a command that runs it as the server's user, because PostgreSQL refuses to run as root."""
    if os.getuid() != 0:
        return []
    pwd.getpwnam(_USER)
    return ["setpriv", f"--reuid={_USER}", f"--regid={_USER}", "--clear-groups", "--"]


def _free_port() -> int:
    """Return a free port below the range of ports that the system gives to clients.

    A client that connects to the server while it is down could otherwise get the server's own port, and connect to
    itself.
    """
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        with socket.socket() as listening, contextlib.suppress(OSError):
            listening.bind(("127.0.0.1", random.randrange(10_000, lowest)))
            return int(listening.getsockname()[1])
