"""A database server that runs on a machine, from its start to the proof that it was shut down cleanly."""

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
from guestmark.appliance.paths import scratch_parent
from guestmark.core.cause import Speaker, classify_message
from guestmark.core.errors import MachineError, WorkloadError
from guestmark.core.keeper import keeper
from guestmark.core.machine_facts import Confined
from guestmark.disks.processes import find_in_cages
from guestmark.platforms.confinement import attest_process
from guestmark.workloads.oltp.databases.base import ENVIRONMENT, Account, Database, Link, Session


@dataclass(frozen=True, slots=True)
class Launcher:
    """How a server's programs are started, and on this host what they may still access."""

    confinement: Confinement | None = None
    writable: tuple[Path, ...] = ()
    over_temporary: Path | None = None

    def exec_identity(self, account: Account) -> dict[str, Any]:
        """Returns whose the processes are, for `Agent.exec`.

        On this host they become another user only if they are confined.
        """
        return {} if self.confinement is not None else account.exec_arguments(on_host=False)

    def wrap_command(self, command: Sequence[str]) -> list[str]:
        """Returns the command that the agent has to run."""
        if self.confinement is None:
            return list(command)
        return self.confinement.wrap_command(command, self.writable, over_temporary=self.over_temporary)

    def attest_confinement(self, pid_file: str) -> Confined | None:
        """Returns the confinement of the server whose process id is in that file; None in guests, or if unknown."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            if self.confinement is not None:
                number = int(Path(pid_file).read_text().split()[0])
                return attest_process(
                    next(find_in_cages(number, str(self.writable[0])), number), self.writable
                )
        return None


def _asks_for_rings(settings: Mapping[str, str]) -> bool:
    """Tells whether settings make the server use io_uring; PostgreSQL and MariaDB have one each."""
    native = settings.get("innodb_use_native_aio", "0").lower()
    return settings.get("io_method") == "io_uring" or native not in ("0", "off")


@contextlib.contextmanager
def open_launcher(
    data: str, settings: Mapping[str, str], account: Account, *, on_host: bool, network: bool = False
) -> Iterator[Launcher]:
    """Opens a launcher of a server with that data directory, and with the directories that its settings name.

    With `network` it may use the network of whoever starts it, which is a machine's own.
    """
    if not on_host:
        yield Launcher()
        return
    named = (Path(value) for value in settings.values() if value.startswith("/"))
    other = os.geteuid() != account.uid
    confinement = Confinement(
        sockets=True, network=network, rings=_asks_for_rings(settings), own_files=True, own_memory=True,
        writes_tmp=True,
        user=(account.uid, account.gid) if other else None,
    )  # fmt: skip
    scratch = keeper().directory("server", scratch_parent())
    try:
        writable = (Path(data), *(path for path in named if path.is_dir()))
        yield Launcher(confinement, writable, scratch)
    finally:
        keeper().remove(scratch)


_STOP_S = 120.0
_KILLED_S = 10.0
# Characters of the log that a reason quotes.
_TALE = 400
_TELLING = ("[ERROR]", "FATAL", "PANIC", "ERROR:", "HINT:")


class Server:
    """One server; `log` is all it has printed so far."""

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
        self._as: dict[str, Any] = account.exec_arguments(on_host=on_host)
        self._identity = launcher.exec_identity(account)
        self._process: Background | None = None
        self.confined: Confined | None = None  # once it has started
        self._link: Link | None = None
        self._session: Session | None = None
        self._session_errors: tuple[type[Exception], ...] = (OSError, *database.session_errors())

    @property
    def command(self) -> list[str]:
        """Its command."""
        return self.database.server_command(self.data, self._settings)

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
        """The version that it printed when it started; empty before that."""
        said = self.database.version.search(self.log)
        return said[1] if said else ""

    def start_server(self, timeout_s: float) -> float:
        """Starts it; seconds until it took connections. Raises `MachineError` with its log when it does not."""
        begin = time.monotonic()
        command = self._launcher.wrap_command(self.command)
        self._process = self._agent.background(command, env=ENVIRONMENT, cwd="/", **self._identity)
        # The log says when the server takes connections; polling by connecting would cost it time, and a client's
        # start.
        in_time = self._process.wait(timeout_s, lambda said: self.database.ready in said)
        if not self.is_running:
            raise self.make_error("did not start")
        if not in_time:
            self.kill_server()
            raise self.make_error(f"was not ready after {timeout_s:g} s")
        seconds = time.monotonic() - begin
        self.confined = self._launcher.attest_confinement(self.database.pid_file(self.data))
        return seconds

    def run_client(
        self, argv: list[str], timeout_s: float, output_limit: int = 1 << 20, *, peer: Agent | None = None
    ) -> ExecResult:
        """Runs a program that talks to it, beside it or on a `peer`.

        Raises `MachineError` with the log when the server has ended meanwhile.
        """
        assert self._process is not None
        # A peer's program needs no rights on the server's files.
        agent, identity = (self._agent, self._as) if peer is None else (peer, {})
        result = agent.exec(
            argv, env=ENVIRONMENT, cwd="/", timeout_s=timeout_s, output_limit=output_limit, **identity
        )
        # A client may fail just because the server has ended, which is the better reason.
        if not (result.ok and self.is_running):
            self._raise_if_ended()
        return result

    def count_flushes(self) -> int:
        """Returns how often it has flushed its files since its start.

        All such questions share one session. Raises `WorkloadError` when it does not answer.
        """
        with self._explain_failures("does not say how often it has flushed"):
            return self._connect_session().count_flushes()

    def admit_peer(self) -> None:
        """Lets a peer's client in. Raises `WorkloadError` with the server's message."""
        for statement in self.database.admission:
            self.execute_statement(statement)

    def execute_statement(self, statement: str) -> list[tuple[object, ...]]:
        """Returns the rows of a statement, in the same session. Raises `WorkloadError` with the server's message."""
        with self._explain_failures("refuses a statement"):
            return self._connect_session().execute(statement)

    def _connect_session(self) -> Session:
        # One session serves all questions, so that none of them costs a connection near the measurement.
        if self._session is None:
            self._link = Link(self._agent, self.database.socket_path(self.data), self._as)
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
                f"{self.database.title} {what}: {said[-_TALE:]}",
                cause=classify_message(Speaker.DATABASE, said).cause,
            ) from error

    def _raise_if_ended(self) -> None:
        """Raises what is to say when it has ended, which may be heard of a moment after its clients' failures."""
        assert self._process is not None
        self._process.wait(1.0)
        if not self.is_running:
            raise self.make_error("ended while it was used")

    def stop_server(self) -> float:
        """Shuts it down; seconds it took. Raises `MachineError` unless its log and its exit status say it was clean."""
        begin = time.monotonic()
        if self._process is None:  # it was never started
            return 0.0
        if self._session is not None:
            with contextlib.suppress(*self._session_errors):
                self._session.close()
        # The session is closed first, as a connected client would make some shutdowns wait.
        self._process.send_signal(self.database.stop_signal)
        if not self._process.wait(_STOP_S):
            self.kill_server()
            raise self.make_error(f"did not shut down within {_STOP_S:g} s")
        ended = self._process.ended
        # A clean shutdown shows in three places, and a server that crashed may lack only one of them.
        if ended is None or ended.status != 0 or self.database.stopped.decode() not in self.log:
            raise self.make_error("was not shut down cleanly")
        return time.monotonic() - begin

    def make_error(self, what: str) -> MachineError:
        """Makes the error for a failure, with the log's most telling lines, and the whole log as console."""
        ended = self._process.ended if self._process else None
        how = ""
        if ended is not None:
            if ended.oom_killed:
                how = ": the machine ran out of memory"
            elif ended.signal:
                how = f": killed by {signal.Signals(ended.signal).name}"
            else:
                how = f" (exit status {ended.status})"
        hint = "give the machine more memory (--set memory=1G) or the server a smaller buffer"
        return MachineError(
            f"{self.database.title} {what}{how}{pick_telling_lines(self.log)}",
            hint=hint if ended is not None and ended.oom_killed else "",
            console=f"--- log of {self.database.title} ---\n{self.log}",
        )

    def kill_server(self) -> None:
        """Ends it at once if it runs, and what is connected to it."""
        # The link goes first: a client that waits for the server would outlive it.
        if self._link is not None:
            self._link.close()
            self._link.wait(_KILLED_S)
        if self._process is not None and self._process.is_running:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(_KILLED_S)


def pick_telling_lines(log: str) -> str:
    """Returns the lines of a log that belong into a one-line reason: complaints, else the last line."""
    lines = [" ".join(line.split()) for line in log.splitlines() if line.strip()]
    complaints = [line for line in lines if any(mark in line for mark in _TELLING)]
    said = "; ".join(complaints[:3] or lines[-1:])
    return f"; its log: {said[:_TALE]}" if said else "; it logged nothing"
