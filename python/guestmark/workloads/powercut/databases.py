"""Commits rows one by one with a real server on the disk under test, and recovers them from every crash state."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from guestmark.agent.client import Agent
from guestmark.core.cause import Cause
from guestmark.core.errors import MachineError, WorkloadError
from guestmark.powercut import records
from guestmark.powercut.records import Method
from guestmark.powercut.recovery import Recovered, allow_changes
from guestmark.workloads.oltp import ServerSizes
from guestmark.workloads.oltp.databases import KINDS
from guestmark.workloads.oltp.databases.base import Account, Database
from guestmark.workloads.oltp.databases.prepared import DATA, Prepared, find_prepared
from guestmark.workloads.oltp.databases.server import Server, open_launcher

_READY_S = 60.0
# Several servers recover at once, and one that is only slow must not be taken for one that has lost its data.
_RECOVERED_S = 300.0
_TABLE = "records"
# The control's rows have separate numbers.
_UNSAFE_FROM = 1_000_000
# Number of rows that are all changed before each checkpoint, so that it overwrites pages that recovery needs.
_PAGES, _PAGE_ROWS, _PAGE_BYTES = "pages", 200, 500
_CHECKPOINTS = 4  # in one log


class Rows:
    """Commits rows to a machine's disk, and reads those that a crash has left; the server runs as `account`.

    `settings` are the server's; they decide what a commit waits for. After each quarter of the `count` records every
    row of another table changes and a checkpoint follows, which writes pages that a power cut may tear.
    """

    def __init__(self, method: Method, account: Account, settings: Mapping[str, str], count: int) -> None:
        self._method = method
        # Records from one checkpoint to the next.
        self._between = max(1, count // _CHECKPOINTS)
        self._kind: Database = KINDS[method.value]()
        self._account = account
        self._settings = self._kind.derive_settings(
            ServerSizes(buffer="32M", log="8M", settings=dict(settings)), 1
        )
        self._server: Server | None = None

    @property
    def unsafe_setting(self) -> str:
        """The setting with which the control is run."""
        return self._kind.unsafe[0]

    def find_prepared(self) -> Prepared:
        """Returns a data directory of the server, from the cache or newly created."""
        return find_prepared(self._kind, self._settings, tables=1, rows=1, account=self._account)

    @contextlib.contextmanager
    def serve_rows(self, agent: Agent, directory: str, *, on_host: bool) -> Iterator[None]:
        """Runs the server on the machine with a table to fill; kills it at the end, as a power cut would."""
        data = f"{directory}/{DATA}"
        with open_launcher(data, self._settings, self._account, on_host=on_host) as launched:
            server = Server(agent, self._kind, data, self._settings, account=self._account, launcher=launched)
            try:
                server.start_server(_READY_S)
                server.execute_statement(
                    f"create table {self._name_table(_TABLE)} "
                    "(number integer primary key, content varchar(600))"
                )
                self._fill_pages(server)
                self._server = server
                yield
            finally:
                self._server = None
                server.kill_server()

    def stop_server(self) -> None:
        """Shuts the server down cleanly, after which its files contain all data."""
        assert self._server is not None
        self._server.stop_server()

    def commit_rows(
        self,
        tag: str,
        count: int,
        mark: Callable[[int], None],
        requests: Callable[[], int],
        *,
        unsafe: bool = False,
    ) -> tuple[range, ...]:
        """Commits `count` rows and marks each acknowledged one.

        Returns for each checkpoint the range of its requests in the log, which `requests` counts. If `unsafe`, no
        commit waits for a flush, and there are no checkpoints.
        """
        server = self._server
        assert server is not None
        if unsafe:
            server.execute_statement(self._kind.unsafe[1])
        first = _UNSAFE_FROM if unsafe else 0
        checkpoints: list[range] = []
        for number in range(count):
            content = records.make_record(tag, number, self._method.record_size).decode()
            server.execute_statement(
                f"insert into {self._name_table(_TABLE)} values ({first + number}, '{content}')"
            )
            full = not unsafe and (number + 1) % self._between == 0
            if full:
                self._update_pages(server, (number + 1) // self._between)
            mark(number + 1)
            if full:
                before = requests()
                self._make_checkpoint(server)
                checkpoints.append(range(before, requests()))
        return tuple(checkpoints)

    def _fill_pages(self, server: Server) -> None:
        """Creates the table whose pages checkpoints write, and writes it to its file."""
        content = "0" * _PAGE_BYTES
        rows = ", ".join(f"({number}, 0, '{content}')" for number in range(_PAGE_ROWS))
        table = self._name_table(_PAGES)
        server.execute_statement(
            f"create table {table} (number integer primary key, change_number integer, content varchar(600))"
        )
        server.execute_statement(f"insert into {table} values {rows}")
        self._make_checkpoint(server)

    def _update_pages(self, server: Server, change: int) -> None:
        content = str(change % 10) * _PAGE_BYTES
        server.execute_statement(
            f"update {self._name_table(_PAGES)} set change_number = {change}, content = '{content}'"
        )

    def _make_checkpoint(self, server: Server) -> None:
        for statement in self._kind.checkpoint:
            server.execute_statement(statement)

    def _find_page_damage(self, server: Server, newest: int) -> str:
        """Returns what is wrong with the table that checkpoints write; empty if it has the last acknowledged change."""
        changes = server.execute_statement(
            f"select change_number, count(*), count(distinct number) from {self._name_table(_PAGES)} "
            "group by change_number"
        )
        if len(changes) != 1:
            return f"its table of {_PAGE_ROWS} rows mixes rows of {len(changes)} changes"
        change, rows, numbers = (int(str(value)) for value in changes[0])
        if rows != _PAGE_ROWS or numbers != _PAGE_ROWS:
            return f"its table of {_PAGE_ROWS} rows now has {rows} rows with {numbers} different numbers"
        acknowledged = (newest + 1) // self._between
        if change >= acknowledged:
            return ""
        return f"its table is at change {change}, but change {acknowledged} was acknowledged"

    def read(
        self, agent: Agent, directory: Path, names: Sequence[str], newest: int, *, exact: bool
    ) -> Recovered:
        """Lets the server recover its data and returns the rows that it has then; see `recovery.Reader`."""
        allow_changes(agent, directory)
        data = str(directory / DATA)
        # These files name processes of a machine that has ended; on this host other processes may have these ids.
        stale = [
            self._kind.locate_pid_file(data),
            self._kind.locate_socket(data),
            f"{self._kind.locate_socket(data)}.lock",
        ]
        agent.exec(["rm", "-f", *stale], timeout_s=_READY_S)
        with open_launcher(data, self._settings, self._account, on_host=True) as launched:
            server = Server(agent, self._kind, data, self._settings, account=self._account, launcher=launched)
            try:
                server.start_server(_RECOVERED_S)
                rows = server.execute_statement(f"select content from {self._name_table(_TABLE)}")
                damage = self._find_page_damage(server, newest)
            except WorkloadError as error:
                if error.cause is not Cause.NO_TABLE:  # otherwise the table did not exist yet
                    return Recovered({}, damage=error.message)
                rows, damage = [], ""
            except MachineError as error:
                return Recovered({}, damage=error.message)
            finally:
                server.kill_server()
        if damage:
            return Recovered({}, damage=damage)
        content = "\n".join(str(row[0]) for row in rows).encode()
        return Recovered(dict.fromkeys(names, content))

    def _name_table(self, name: str) -> str:
        return f"{self._kind.namespace}{name}"
