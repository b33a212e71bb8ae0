"""Describes each kind of database server by one class, and connects to their local sockets."""

from __future__ import annotations

import io
import os
import pwd
import re
import shutil
import signal
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from guestmark.agent.binary import PROGRAM
from guestmark.core.errors import PlatformUnusableError
from guestmark.workloads.oltp import ServerSizes

if TYPE_CHECKING:
    from guestmark.agent.background import Background
    from guestmark.agent.client import Agent


_DEFAULT_S = 60.0


class Link:
    """A connection that the agent opens; its bytes pass through the agent's channel.

    Starting a client program would cost a guest far more. Has the socket methods that PyMySQL and pg8000 use. Raises
    `OSError` if the connection cannot be opened or has ended, `TimeoutError` if nothing arrives in time.
    """

    def __init__(self, agent: Agent, path: str, account: Mapping[str, Any]) -> None:
        self._relay: Background = agent.background([PROGRAM, "connect", path], stdin=True, **account)
        self._taken = 1
        self._limit_s = _DEFAULT_S
        self._relay.wait(_DEFAULT_S, bool)
        if not self._relay.output.startswith(b"\0"):
            self._relay.wait(1.0)  # seconds for all of its error message
            raise ConnectionError(self._relay.read_text().strip() or "the connection timed out")

    def settimeout(self, limit_s: float | None) -> None:
        """Sets how long to wait for an answer; None, which for a socket means for ever, stands for a minute."""
        self._limit_s = _DEFAULT_S if limit_s is None else limit_s

    def sendall(self, data: bytes) -> None:
        """Sends all of the data."""
        if not self._relay.is_running:
            raise ConnectionError("the connection is closed")
        self._relay.send_input(bytes(data))

    def recv(self, size: int) -> bytes:
        """Receives at least one byte, at most `size`; empty if the server has closed the connection."""
        relay, begin = self._relay, self._taken
        if not relay.wait(self._limit_s, lambda said: len(said) > begin):
            raise TimeoutError("no answer in time")
        self._taken = min(begin + size, len(relay.output))
        return bytes(relay.output[begin : self._taken])

    def makefile(self, mode: Literal["rb", "rwb"]) -> io.BufferedReader | io.BufferedRWPair:
        """Returns a buffered reader, or reader and writer."""
        stream = _Stream(self)
        return io.BufferedReader(stream) if mode == "rb" else io.BufferedRWPair(stream, stream)

    def close(self) -> None:
        """Closes the connection without waiting."""
        self._relay.send_signal(signal.SIGTERM)

    def wait(self, timeout_s: float) -> None:
        """Waits until nothing of the connection is left on the machine."""
        self._relay.wait(timeout_s)


class _Stream(io.RawIOBase):
    """A link as a raw stream; closing the stream leaves the link open."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._link.recv(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def write(self, data: Any) -> int:
        self._link.sendall(bytes(data))
        return len(data)


SYSBENCH = "sysbench"
ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
_NOBODY = "nobody"
# The port on which servers listen for a peer; networks that forward ports to a machine forward this one.
NETWORK_PORT = 20000


@dataclass(frozen=True, slots=True)
class Account:
    """The account that a server and its clients run as, because servers refuse to run as root."""

    uid: int
    gid: int

    @classmethod
    def choose_account(cls, uid: int, gid: int) -> Account:
        """Returns the caller's own account; for root, `nobody`."""
        if uid != 0:
            return cls(uid, gid)
        try:
            entry = pwd.getpwnam(_NOBODY)
        except KeyError:
            return cls(65534, 65534)
        return cls(entry.pw_uid, entry.pw_gid)

    def build_exec_arguments(self, *, on_host: bool) -> dict[str, int | list[int]]:
        """Returns arguments of `Agent.exec`; none if the agent already runs as that account and cannot change it."""
        if on_host and os.geteuid() == self.uid:
            return {}
        return {"uid": self.uid, "gid": self.gid, "groups": [self.gid]}


class Session(Protocol):
    """A session with a running server; its methods raise what `Database.open_session` raises."""

    def count_flushes(self) -> int:
        """Returns how many times the server has flushed its files since it started."""

    def execute(self, statement: str) -> list[tuple[object, ...]]:
        """Runs one statement in its own transaction and returns its rows."""

    def close(self) -> None:
        """Closes the session."""


class Database(ABC):
    """One kind of database server. Its programs are looked up on the host; guests have the same files."""

    name: ClassVar[str]
    title: ClassVar[str]
    packages: ClassVar[Mapping[str, str]]  # package by program
    ready: ClassVar[bytes]  # logged when the server accepts connections
    version: ClassVar[re.Pattern[str]]  # matches the version it prints at start
    # The last line of its log after a clean shutdown.
    stopped: ClassVar[bytes]
    stop_signal: ClassVar[int]  # requests a clean shutdown
    # Bytes of a data directory without tables and log.
    needed_bytes: ClassVar[int]
    # Minimal bytes of one of sysbench's rows, including indexes.
    row_bytes: ClassVar[int]
    reserved: ClassVar[frozenset[str]]  # settings that guestmark sets itself
    namespace: ClassVar[str]  # precedes the name of a table
    # The setting with which commits wait for no flush, and the statement that sets it.
    unsafe: ClassVar[tuple[str, str]]
    # Statements that write all pages to their files, so that recovery begins after them.
    checkpoint: ClassVar[tuple[str, ...]]
    # Settings to accept a peer's connections on `NETWORK_PORT`, and statements that admit its client.
    network_settings: ClassVar[Mapping[str, str]]
    admission: ClassVar[tuple[str, ...]]
    # A file of the data directory, and the line in it that admits a peer's client; empty if statements do that.
    access_rule: ClassVar[tuple[str, str]]

    def __init__(self) -> None:
        self.programs = {program: self.find_program(program) for program in self.packages}

    @property
    @abstractmethod
    def server_path(self) -> str:
        """Path of the server's binary."""

    @classmethod
    def list_program_folders(cls) -> Sequence[str]:
        """Returns directories besides the usual ones that may contain its programs."""
        return ()

    @classmethod
    def find_program(cls, program: str) -> str:
        """Returns a program's absolute path. Raises `PlatformUnusableError`, which names the package."""
        path = os.pathsep.join([*cls.list_program_folders(), ENVIRONMENT["PATH"]])
        found = shutil.which(program, path=path)
        if found is None:
            raise PlatformUnusableError(
                f"{program}, which the workload oltp needs for {cls.title}, is not installed",
                hint=f"install the package {cls.packages[program]}",
            )
        return str(Path(found).resolve())

    @abstractmethod
    def derive_settings(self, sizes: ServerSizes, threads: int) -> dict[str, str]:
        """Returns the server's settings by name, including the user's."""

    @abstractmethod
    def list_install_commands(self, data: str, settings: Mapping[str, str]) -> list[list[str]]:
        """Returns commands that create the data directory `data` without tables."""

    @abstractmethod
    def build_server_command(self, data: str, settings: Mapping[str, str]) -> list[str]:
        """Returns the command that runs the server in the foreground, logging to standard error."""

    @abstractmethod
    def build_sysbench_options(self, data: str) -> list[str]:
        """Returns sysbench's options for connecting over the local socket."""

    @abstractmethod
    def build_network_options(self, address: str, port: int) -> list[str]:
        """Returns sysbench's options for connecting from a peer."""

    @abstractmethod
    def open_session(self, link: Link) -> Session:
        """Opens a session over a connection to the server's socket. Raises the `load_session_errors`, and `OSError`."""

    @abstractmethod
    def load_session_errors(self) -> tuple[type[Exception], ...]:
        """Returns the exceptions that the driver of its sessions raises."""

    @abstractmethod
    def locate_pid_file(self, data: str) -> str:
        """Returns the path of the file whose first line is the running server's process id."""

    @abstractmethod
    def locate_socket(self, data: str) -> str:
        """Returns the path of the local socket."""


def find_sysbench() -> str:
    """Returns the path of sysbench. Raises `PlatformUnusableError`, which names the package."""
    found = shutil.which(SYSBENCH, path=ENVIRONMENT["PATH"])
    if found is None:
        raise PlatformUnusableError("sysbench is not installed", hint="install the package sysbench")
    return found
