"""Rows that a real server commits one by one on the disk under test, and recovers from every crash state."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from guestmark.agent.client import Agent
from guestmark.core.cause import Cause
from guestmark.core.errors import MachineError, WorkloadError
from guestmark.powercut import records
from guestmark.powercut.records import Method
from guestmark.powercut.recovery import Recovered
from guestmark.workloads.oltp import ServerSizes
from guestmark.workloads.oltp.databases import KINDS
from guestmark.workloads.oltp.databases.base import Account, Database
from guestmark.workloads.oltp.databases.prepared import DATA, Prepared, find_prepared
from guestmark.workloads.oltp.databases.server import Server, open_launcher

_READY_S = 60.0
_TABLE = "records"
# The control's rows have numbers of their own.
_UNSAFE_FROM = 1_000_000


class Rows:
    """Commits rows on a machine's disk, and reads what a crash left of them; the server runs as `account`.

    `settings` are the server's own; they decide what a commit waits for.
    """

    def __init__(self, method: Method, account: Account, settings: Mapping[str, str]) -> None:
        self._method = method
        self._kind: Database = KINDS[method.value]()
        self._account = account
        self._settings = self._kind.derive_settings(
            ServerSizes(buffer="32M", log="8M", settings=dict(settings)), 1
        )
        self._server: Server | None = None

    @property
    def unsafe_setting(self) -> str:
        """The setting that the control is run with."""
        return self._kind.unsafe[0]

    def find_prepared(self) -> Prepared:
        """Returns a data directory of the server, from the cache or made now."""
        return find_prepared(self._kind, self._settings, tables=1, rows=1, account=self._account)

    @contextlib.contextmanager
    def serve_rows(self, agent: Agent, directory: str, *, on_host: bool) -> Iterator[None]:
        """Runs the server on the machine, with a table to fill, and kills it at the end, as a power cut would."""
        data = f"{directory}/{DATA}"
        with open_launcher(data, self._settings, self._account, on_host=on_host) as launched:
            server = Server(agent, self._kind, data, self._settings, account=self._account, launcher=launched)
            try:
                server.start_server(_READY_S)
                server.execute_statement(
                    f"create table {self._table_name} (number integer primary key, content varchar(600))"
                )
                self._server = server
                yield
            finally:
                self._server = None
                server.kill_server()

    def stop_server(self) -> None:
        """Shuts the server down cleanly: all that it was given is in its files then."""
        assert self._server is not None
        self._server.stop_server()

    def commit_rows(self, tag: str, count: int, mark: Callable[[int], None], *, unsafe: bool = False) -> None:
        """Commits so many rows, marking each that is acknowledged; `unsafe`: no commit waits for a flush."""
        server = self._server
        assert server is not None
        if unsafe:
            server.execute_statement(self._kind.unsafe[1])
        first = _UNSAFE_FROM if unsafe else 0
        for number in range(count):
            content = records.make_record(tag, number, self._method.record_size).decode()
            server.execute_statement(f"insert into {self._table_name} values ({first + number}, '{content}')")
            mark(number + 1)

    def read(
        self, agent: Agent, directory: Path, names: Sequence[str], newest: int, *, exact: bool
    ) -> Recovered:
        """See `recovery.Reader`: the server recovers its data, and tells the rows that it has then."""
        data = str(directory / DATA)
        # They name processes of a machine that is gone; here, others may have their numbers.
        stale = [
            self._kind.pid_file(data),
            self._kind.socket_path(data),
            f"{self._kind.socket_path(data)}.lock",
        ]
        agent.exec(["rm", "-f", *stale], timeout_s=_READY_S)
        with open_launcher(data, self._settings, self._account, on_host=True) as launched:
            server = Server(agent, self._kind, data, self._settings, account=self._account, launcher=launched)
            try:
                server.start_server(_READY_S)
                rows = server.execute_statement(f"select content from {self._table_name}")
            except WorkloadError as error:
                if error.cause is not Cause.NO_TABLE:  # else it was not there yet
                    return Recovered({}, damage=error.message)
                rows = []
            except MachineError as error:
                return Recovered({}, damage=error.message)
            finally:
                server.kill_server()
        content = "\n".join(str(row[0]) for row in rows).encode()
        return Recovered(dict.fromkeys(names, content))

    @property
    def _table_name(self) -> str:
        return f"{self._kind.namespace}{_TABLE}"
