"""Runs a database server on a machine, from its start to a verified clean shutdown."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from guestmark.agent.background import Background
from guestmark.agent.client import Agent, ExecResult
from guestmark.agent.confinement import Confinement
from guestmark.appliance.paths import choose_scratch_parent
from guestmark.core.cause import Speaker, classify_message
from guestmark.core.errors import MachineError, WorkloadError
from guestmark.core.keeper import keeper
from guestmark.core.machine_facts import ConfinementFacts
from guestmark.disks.processes import find_sandboxed_processes
from guestmark.platforms.confinement import attest_process
from guestmark.workloads.oltp.databases.base import ENVIRONMENT, Account, Database, Link, Session


@dataclass(frozen=True, slots=True)
class Launcher:
    """The way to start a server's programs; on this host it limits what they can access."""

    confinement: Confinement | None = None
    writable: tuple[Path, ...] = ()
    over_temporary: Path | None = None

    def build_exec_identity(self, account: Account) -> dict[str, Any]:
        """Returns arguments of `Agent.exec` that set the user of the processes.

        On this host confined processes change their user themselves.
        """
        if self.confinement is not None:
            return {}
        return account.build_exec_arguments(on_host=False)

    def wrap_command(self, command: Sequence[str]) -> list[str]:
        """Returns the command as the agent has to run it."""
        if self.confinement is None:
            return list(command)
        return self.confinement.wrap_command(command, self.writable, over_temporary=self.over_temporary)

    def attest_confinement(self, pid_file: str) -> ConfinementFacts | None:
        """Returns the confinement of the server whose process id is in that file; None in guests or if unknown."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            if self.confinement is not None:
                number = int(Path(pid_file).read_text().split()[0])
                return attest_process(
                    next(find_sandboxed_processes(number, str(self.writable[0])), number), self.writable
                )
        return None


def _uses_io_uring(settings: Mapping[str, str]) -> bool:
    """Returns whether settings make the server use io_uring; PostgreSQL and MariaDB have one setting each."""
    native = settings.get("innodb_use_native_aio", "0").lower()
    return settings.get("io_method") == "io_uring" or native not in ("0", "off")


@contextlib.contextmanager
def open_launcher(
    data: str, settings: Mapping[str, str], account: Account, *, on_host: bool, network: bool = False
) -> Iterator[Launcher]:
    """Opens a launcher for a server that may use that data directory and the directories that its settings name.

    With `network` it may use the network of its parent process, which is the machine's own.
    """
    if not on_host:
        yield Launcher()
        return
    named = (Path(value) for value in settings.values() if value.startswith("/"))
    other = os.geteuid() != account.uid
    confinement = Confinement(
        sockets=True, network=network, rings=_uses_io_uring(settings), own_files=True, own_memory=True,
        writes_tmp=True,
        user=(account.uid, account.gid) if other else None,
    )  # fmt: skip
    scratch = keeper().directory("server", choose_scratch_parent())
    try:
        writable = (Path(data), *(path for path in named if path.is_dir()))
        yield Launcher(confinement, writable, scratch)
    finally:
        keeper().remove(scratch)


_STOP_S = 120.0
_KILLED_S = 10.0
# Characters of the log that an error quotes.
_QUOTED = 400
_TELLING = ("[ERROR]", "FATAL", "PANIC", "ERROR:", "HINT:")


class Server:
    """A server; `log` is everything that it has printed so far."""

    def __init__(
        self, agent: Agent, database: Database, data: str, settings: Mapping[str, str], *, account: Account,
        launcher: Launcher,
    ) -> None:  # fmt: skip
        self.database = database
        self.data = data
        self._agent = agent
        self._settings = settings
        self._launcher = launcher
        on_host = launcher.confinement is not None
        self._as: dict[str, Any] = account.build_exec_arguments(on_host=on_host)
        self._identity = launcher.build_exec_identity(account)
        self._process: Background | None = None
        self.confined: ConfinementFacts | None = None  # set once it has started
        self._link: Link | None = None
        self._session: Session | None = None
        self._session_errors: tuple[type[Exception], ...] = (OSError, *database.load_session_errors())

    @property
    def command(self) -> list[str]:
        """The server's command."""
        return self.database.build_server_command(self.data, self._settings)

    @property
    def log(self) -> str:
        """The server's log so far."""
        return self._process.read_text() if self._process else ""

    @property
    def is_running(self) -> bool:
        """True from the start until the exit has been reported."""
        return self._process is not None and self._process.is_running

    @property
    def version(self) -> str:
        """The version that the server printed at start; empty before that."""
        said = self.database.version.search(self.log)
        return said[1] if said else ""

    def start_server(self, timeout_s: float) -> float:
        """Starts the server; returns the seconds until it accepts connections. Raises `MachineError` with its log."""
        begin = time.monotonic()
        command = self._launcher.wrap_command(self.command)
        self._process = self._agent.background(command, env=ENVIRONMENT, cwd="/", **self._identity)
        # The log shows when the server accepts connections; polling by connecting would cost it time, and the start of
        # a client.
        in_time = self._process.wait(timeout_s, lambda said: self.database.ready in said)
        if not self.is_running:
            raise self.make_error("did not start")
        if not in_time:
            self.kill_server()
            raise self.make_error(f"was not ready after {timeout_s:g} s")
        seconds = time.monotonic() - begin
        self.confined = self._launcher.attest_confinement(self.database.locate_pid_file(self.data))
        return seconds

    def run_client(
        self, argv: list[str], timeout_s: float, output_limit: int = 1 << 20, *, peer: Agent | None = None
    ) -> ExecResult:
        """Runs a client program, beside the server or on a `peer`.

        Raises `MachineError` with the log if the server has ended meanwhile.
        """
        assert self._process is not None
        # A program on the peer needs no access to the server's files.
        agent, identity = (self._agent, self._as) if peer is None else (peer, {})
        result = agent.exec(
            argv, env=ENVIRONMENT, cwd="/", timeout_s=timeout_s, output_limit=output_limit, **identity
        )
        # A client may fail only because the server has ended, which is the better reason.
        if not (result.ok and self.is_running):
            self._raise_if_ended()
        return result

    def count_flushes(self) -> int:
        """Returns how many times the server has flushed its files since its start.

        All such queries share one session. Raises `WorkloadError` if the server does not answer.
        """
        with self._explain_failures("does not report how often it has flushed"):
            return self._connect_session().count_flushes()

    def admit_peer(self) -> None:
        """Allows a peer's client to connect. Raises `WorkloadError` with the server's message."""
        for statement in self.database.admission:
            self.execute_statement(statement)

    def execute_statement(self, statement: str) -> list[tuple[object, ...]]:
        """Runs a statement in the shared session; returns its rows. Raises `WorkloadError` with the server's text."""
        with self._explain_failures("rejected a statement"):
            return self._connect_session().execute(statement)

    def _connect_session(self) -> Session:
        # One session serves all queries, so that none of them opens a connection near the measurement.
        if self._session is None:
            self._link = Link(self._agent, self.database.locate_socket(self.data), self._as)
            self._session = self.database.open_session(self._link)
        return self._session

    @contextlib.contextmanager
    def _explain_failures(self, what: str) -> Iterator[None]:
        try:
            yield
        except self._session_errors as error:
            self._raise_if_ended()
            said = str(error)
            raise WorkloadError(
                f"{self.database.title} {what}: {said[-_QUOTED:]}",
                cause=classify_message(Speaker.DATABASE, said).cause,
            ) from error

    def _raise_if_ended(self) -> None:
        """Raises an error if the server has ended, which may become known a moment after its clients fail."""
        assert self._process is not None
        self._process.wait(1.0)
        if not self.is_running:
            raise self.make_error("exited while in use")

    def stop_server(self) -> float:
        """Shuts the server down; returns the seconds. Raises `MachineError` if log or status shows an unclean end."""
        begin = time.monotonic()
        if self._process is None:  # it was never started
            return 0.0
        if self._session is not None:
            with contextlib.suppress(*self._session_errors):
                self._session.close()
        # The session is closed first, because some servers wait for connected clients.
        self._process.send_signal(self.database.stop_signal)
        if not self._process.wait(_STOP_S):
            self.kill_server()
            raise self.make_error(f"did not shut down within {_STOP_S:g} s")
        ended = self._process.ended
        # A clean shutdown shows in three places; a crashed server may lack only one of them.
        if ended is None or ended.status != 0 or self.database.stopped.decode() not in self.log:
            raise self.make_error("did not shut down cleanly")
        return time.monotonic() - begin

    def make_error(self, what: str) -> MachineError:
        """Returns the error for a failure, with the most informative lines of the log, and all of it as console."""
        ended = self._process.ended if self._process else None
        how = hint = ""
        if ended is not None:
            if ended.oom_killed:
                how = ": the machine ran out of memory"
                hint = "give the machine more memory (--set memory=1G) or the server a smaller buffer"
            elif ended.signal:
                how = f": killed by {signal.Signals(ended.signal).name}"
            else:
                how = f" (exit status {ended.status})"
        return MachineError(
            f"{self.database.title} {what}{how}{pick_telling_lines(self.log)}",
            hint=hint,
            console=f"--- log of {self.database.title} ---\n{self.log}",
        )

    def kill_server(self) -> None:
        """Kills the server if it runs, and closes connections to it."""
        # The link is closed first: a client that waits for the server would outlive it.
        if self._link is not None:
            self._link.close()
            self._link.wait(_KILLED_S)
        if self._process is not None and self._process.is_running:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(_KILLED_S)


def pick_telling_lines(log: str) -> str:
    """Returns the lines of a log for a one-line reason: error messages, else the last line."""
    lines = [" ".join(line.split()) for line in log.splitlines() if line.strip()]
    complaints = []
    for line in lines:
        if any(mark in line for mark in _TELLING):
            complaints.append(line)
    said = "; ".join(complaints[:3] or lines[-1:])
    if not said:
        return "; it logged nothing"
    return f"; its log: {said[:_QUOTED]}"
