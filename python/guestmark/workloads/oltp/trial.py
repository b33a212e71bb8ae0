"""The trial of `oltp`: the server starts and shuts down outside the timing, with its data on the disk under test.

The same server loads the tables once, on the host, and every trial gets a copy of the data directory: on the host in
a directory, for a guest inside a freshly formatted image.
"""

from __future__ import annotations

import contextlib
import math
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from guestmark.agent.client import Agent, ExecResult
from guestmark.core.errors import AgentError, MachineError, PlatformUnusableError, UsageError, WorkloadError
from guestmark.core.findings import TARGET, Reached
from guestmark.core.metric import Measurement, Metric
from guestmark.core.metric_spec import GUEST_WALL, WALL
from guestmark.core.model import Cell, Plan
from guestmark.core.units import format_size, parse_size
from guestmark.disks.location import is_in_memory
from guestmark.disks.mounted import locate_working_directory
from guestmark.disks.preflight import count_free_bytes
from guestmark.platforms.base import Machine, Platform
from guestmark.setting.disk import Disks, DiskSpec
from guestmark.setting.filesystem import FILESYSTEM, Filesystem
from guestmark.workloads import oltp
from guestmark.workloads.common.factors import THREADS, warn_of_shared_processors
from guestmark.workloads.common.flushes import Changes, CounterReading
from guestmark.workloads.common.metrics import to_measurements
from guestmark.workloads.common.moving import find_target, sync_everything
from guestmark.workloads.common.networks import find_network, require_network
from guestmark.workloads.common.program import OUTPUT_LIMIT, compare_program, judge_exit
from guestmark.workloads.oltp import CLIENT, SERVER, ClientSide, Oltp, OltpParams, OltpWorkload
from guestmark.workloads.oltp.databases import KINDS
from guestmark.workloads.oltp.databases.base import (
    ENVIRONMENT,
    NETWORK_PORT,
    Account,
    Database,
    find_sysbench,
)
from guestmark.workloads.oltp.databases.prepared import DATA, Prepared, find_prepared
from guestmark.workloads.oltp.databases.server import Launcher, Server, open_launcher
from guestmark.workloads.sysbench import Sysbench
from guestmark.workloads.sysbench import output as sysbench_report
from guestmark.workloads.sysbench.output import Report
from guestmark.workloads.sysbench.trial import list_event_spread

_SOCKET_LIMIT = 107  # longest path of a Unix socket, in bytes
_TRIAL = "/guestmark-disks-12345678/guestmark-trial-12345678/mounted/data"  # stands for a directory name of a trial


def check_cells(cells: Iterable[Cell], account: Account) -> list[str]:
    """Checks the cells and returns remarks for the user.

    Raises `PlatformUnusableError` naming the package of a missing program, `UsageError` for tables that cannot fit on
    their disk, or for a directory on the host that the server cannot use.
    """
    find_sysbench()
    remarks: dict[str, None] = {}
    for cell in cells:
        database = KINDS[_read_params(cell).server]()
        (disk,) = cell.view(Disks)
        on_host = cell.platform.is_this_host
        if disk.filesystem is Filesystem.NONE and not on_host:
            raise UsageError(
                f"{cell.id}: a database needs a filesystem on its disk", hint="use --set filesystem=ext4"
            )
        _require_space_for_tables(cell, database, disk, on_directory=on_host and not disk.loop)
        if on_host:
            _check_directory(database, disk, account)
            if not disk.loop and is_in_memory(disk.location):
                remarks[
                    f"{cell.id}: {disk.location} is in memory, where MariaDB does not flush its log and a flush would "
                    "cost nothing, while a guest's disk is always flushed; use --set location=DIRECTORY with a "
                    "directory on a disk"
                ] = None
        if remark := _warn_of_threads(cell):
            remarks[remark] = None
    return list(remarks)


def _require_space_for_tables(cell: Cell, database: Database, disk: DiskSpec, *, on_directory: bool) -> None:
    params = _read_params(cell)
    needed = database.needed_bytes + parse_size(params.log) + database.row_bytes * params.tables * params.rows
    room = count_free_bytes(disk.location) if on_directory else disk.size
    if needed > room:
        where = f"but its disk has {format_size(room)}"
        if on_directory:
            where = f"but {disk.location} has {room / 1e9:.1f} GB free"
        raise UsageError(
            f"{cell.id}: {params.tables} tables of {params.rows} rows need at least {needed / 1e6:.0f} MB, "
            f"{where}",
            hint="use a larger disk (--set size=8G), another directory (--set location=DIRECTORY), or --scale",
        )


def _check_directory(database: Database, disk: DiskSpec, account: Account) -> None:
    socket = database.locate_socket(disk.location.rstrip("/") + _TRIAL)
    if len(os.fsencode(socket)) > _SOCKET_LIMIT:
        raise UsageError(
            f"the path {disk.location} is too long for the server's socket",
            hint="choose a directory with a shorter path: --set location=DIRECTORY",
        )
    for folder in (Path(disk.location), *Path(disk.location).parents):
        if os.geteuid() == 0 and not _can_enter_directory(folder, account):
            raise UsageError(
                f"the server runs as user {account.uid}, who cannot enter {folder}",
                hint="choose another directory: --set location=DIRECTORY",
            )


def _can_enter_directory(folder: Path, account: Account) -> bool:
    status = folder.stat()
    if status.st_uid == account.uid:
        return bool(status.st_mode & stat.S_IXUSR)
    if status.st_gid == account.gid:
        return bool(status.st_mode & stat.S_IXGRP)
    return bool(status.st_mode & stat.S_IXOTH)


def _warn_of_threads(cell: Cell) -> str:
    said = warn_of_shared_processors(cell, cell.levels.get(THREADS) or int(_read_params(cell).threads))
    return f"{cell.id}: {said}" if said else ""


def _read_params(cell: Cell) -> OltpParams:
    return cell.workload.read_params(OltpParams)


# Filesystems on which the hypervisor's user owns all files.
_OF_ITS_SERVER = frozenset({"9p", "hostfs"})
# A disk with less free space counts as full, because servers extend files by a few megabytes at a time.
_FULL_BYTES = 8 << 20


class OltpTrial(OltpWorkload):
    """Runs one server for all iterations of a trial, and requires its clean shutdown."""

    def __init__(self, plan: Plan, cell: Cell) -> None:
        super().__init__(plan, cell)
        self._found = self.facts.add(Oltp())
        self._client = self.facts.add(Sysbench())
        # The factor overrides the parameter.
        self._threads = cell.levels.get(THREADS) or int(self.params.threads)
        self._peer_asks = cell.levels[CLIENT] is ClientSide.PEER
        self._found.client_side = cell.levels[CLIENT].value
        self._peer: Agent | None = None
        self._on_host = cell.platform.is_this_host
        self._account = Account.choose_account(plan.context.uid or 0, plan.context.gid or 0)
        self._kind: Database = KINDS[self.params.server]()
        # The server needs one connection for each client thread.
        self._settings = self._kind.derive_settings(self.params.sizes, self._threads)
        # The loaded tables do not depend on the user.
        self._network_settings = self._kind.network_settings if self._peer_asks else {}
        self._server: Server | None = None
        self._client_words: list[str] = []
        self._stack = contextlib.ExitStack()
        self._mounted = False
        self._failed = False
        self._unclean: MachineError | None = None

    @classmethod
    def check_request(cls, plan: Plan, cells: Sequence[Cell]) -> None:
        """Raises `UsageError` for a cell whose client would run on a peer although the machine has none."""
        require_network(cell for cell in cells if cell.levels[CLIENT] is ClientSide.PEER)

    @classmethod
    def preflight(cls, plan: Plan, cells: Sequence[Cell]) -> Sequence[str]:
        """Raises `PlatformUnusableError` for a missing package, `UsageError` for data that cannot fit on its disk."""
        account = Account.choose_account(plan.context.uid or 0, plan.context.gid or 0)
        return check_cells(cells, account)

    @classmethod
    def impossible(cls, cell: Cell) -> str:
        """Returns why the server cannot run: it is not installed, or cannot own its files; empty if it can."""
        try:
            KINDS[cls.params_of(cell.workload).server]()
        except PlatformUnusableError as error:
            return f"{error.message} ({error.hint})"
        filesystem = cell.levels.get(FILESYSTEM) or ""
        if filesystem in _OF_ITS_SERVER and os.geteuid() == 0:
            return (
                f"files created over {filesystem} belong to root, the hypervisor's user, and the database server, "
                "which runs as nobody, cannot open them (use virtiofs, or do not run guestmark as root)"
            )
        return ""

    @contextlib.contextmanager
    def machine(self, platform: Platform) -> Iterator[Machine]:
        """Starts the platform's machine with the loaded tables on its disk.

        Raises at its end the error of a server that did not shut down cleanly.
        """
        made = self._find_prepared()
        self._found.prepared_s, self._found.from_cache = made.seconds, made.was_there
        disks = [{**disk, "tree": str(made.tree)} for disk in self.params.disks]
        workload = replace(self.cell.workload, params={**self.cell.workload.params, "disks": disks})
        with self._stack, platform.start(replace(self.cell, workload=workload)) as machine:
            yield machine
            if self._unclean is not None:
                raise self._unclean

    def prepare(self, machine: Machine) -> None:
        """Mounts the disk and starts the server. Raises `MachineError` with the log if it does not start."""
        agent, disk = machine.agent, find_target(machine)
        if self._peer_asks:
            self._peer = find_network(machine).peer
        for name, program, whose in (
            (SERVER, self._kind.server_path, agent),
            ("", find_sysbench(), self._peer or agent),
        ):
            found = compare_program(whose, program, path=ENVIRONMENT["PATH"], cwd="/", cell=self.cell)
            found.add_facts(self.facts, name)
            if found.warning:
                self.warnings.append(found.warning)
        directory = disk.mount(agent)
        self._mounted = True
        self.facts.add(disk.facts, TARGET)
        self.facts.add(locate_working_directory(agent, directory))
        self._server = Server(
            agent,
            self._kind,
            f"{directory}/{DATA}",
            {**self._settings, **self._network_settings},
            account=self._account,
            launcher=self._open_launcher(f"{directory}/{DATA}"),
        )
        self._found.server_command = " ".join(self._server.command)
        self._client_words = self._make_client_words(machine, self._server)
        self._client.command = " ".join(self._client_words)
        with self._explain_failures(machine):
            if self._peer_asks:
                self._write_access_rule(agent, self._server.data)
            self._found.server_start_s = self._server.start_server(self.limit_s)
            if self._peer_asks:
                self._server.admit_peer()
        self._found.server = self._server.version
        self._found.confined_server = self._server.confined
        if self._on_host and not (self._server.confined and self._server.confined.protects_files):
            self.warnings.append(
                f"nothing prevents {self._kind.title} from changing other files of its user on this host"
            )

    def run(self, machine: Machine) -> list[Measurement]:
        """Measures once. Raises `WorkloadError`, or `MachineError` with the log if the server has ended."""
        server = self._server
        assert server is not None
        with self._explain_failures(machine):
            sync_everything(machine.agent)
            flushes = server.count_flushes()
            below = CounterReading.read_before(machine)
            report, result = self._run_client(server)
            flushes = server.count_flushes() - flushes
            changes = below.read_changes(flushed=flushes > 0)
        changes.add_facts(self.facts)
        return to_measurements(
            [
                *_list_sysbench_values(report, result, in_machine=self._peer is None),
                *_list_values_per_transaction(report, flushes, changes, self._on_host),
            ]
        )

    def cleanup(self, machine: Machine) -> None:
        """Shuts the server down and unmounts the disk; an unclean shutdown is raised when the machine ends."""
        try:
            if self._server is not None and not self._failed:
                self._found.server_stop_s = self._server.stop_server()
        except MachineError as error:
            if not machine.agent.closed:
                self._unclean = error
            self._keep_log()
            raise WorkloadError(error.message, hint=error.hint, cause=error.cause) from error
        finally:
            if self._server is not None and not machine.agent.closed:
                self._server.kill_server()
            if self._mounted and not machine.agent.closed:
                self._mounted = False
                find_target(machine).umount(machine.agent, drop_caches=False)

    def _find_prepared(self) -> Prepared:
        return find_prepared(
            self._kind,
            self._settings,
            tables=self.params.tables,
            rows=self.params.rows,
            account=self._account,
        )

    def _open_launcher(self, data: str) -> Launcher:
        """Opens a launcher for the server, which lasts as long as the machine."""
        return self._stack.enter_context(
            open_launcher(data, self._settings, self._account, on_host=self._on_host, network=self._peer_asks)
        )

    def _write_access_rule(self, agent: Agent, data: str) -> None:
        """Allows a peer's client to connect, if the server reads its access rules from a file."""
        name, rule = self._kind.access_rule
        if name:
            path = f"{data}/{name}"
            agent.write_file(path, agent.read_file(path) + f"{rule}\n".encode())

    def _make_client_words(self, machine: Machine, server: Server) -> list[str]:
        """Returns sysbench's command. Raises `PlatformUnusableError` if the peer cannot reach the machine."""
        params = self.params
        if self._peer_asks:
            way = self._kind.build_network_options(*find_network(machine).reach_machine(NETWORK_PORT))
        else:
            way = self._kind.build_sysbench_options(server.data)
        return [
            find_sysbench(), f"oltp_{params.test}", *way,
            f"--tables={params.tables}", f"--table-size={params.rows}", f"--threads={self._threads}",
            f"--time={params.time}", f"--events={params.transactions}", "--rand-seed=1", "run",
        ]  # fmt: skip

    def _run_client(self, server: Server) -> tuple[Report, ExecResult]:
        result = server.run_client(self._client_words, self.limit_s, OUTPUT_LIMIT, peer=self._peer)
        # sysbench reports errors on standard output, which say more than its status.
        if result.status not in (0, None):
            sysbench_report.check_faults(result.stdout.decode(errors="replace"))
        judge_exit(result, self.warnings, self.limit_s)
        report = sysbench_report.parse_report(result.stdout.decode(errors="replace"))
        self._client.version = report.version
        self.warnings += [f"sysbench: {text}" for text in report.warnings]
        return report, result

    @contextlib.contextmanager
    def _explain_failures(self, machine: Machine) -> Iterator[None]:
        """Adds the server's log and the machine's console to errors raised inside.

        Also adds that the disk is full, which servers report in many ways or not at all.
        """
        try:
            yield
        except (MachineError, WorkloadError) as error:
            self._failed = True
            self._keep_log()
            if isinstance(error, MachineError) and error.console:
                error.console = f"{machine.console()}\n{error.console}".lstrip()
            if (free := self._count_free_bytes(machine)) < _FULL_BYTES:
                error.message += f"; its disk has {free / 1e6:.1f} MB free"
                error.hint = "use a larger disk (--set size=8G), fewer rows, or a shorter time"
            raise

    def _count_free_bytes(self, machine: Machine) -> float:
        """Returns the bytes that users other than root can still write to the disk under test; infinite if unknown."""
        assert self._server is not None
        try:
            there = machine.agent.statfs(self._server.data)
        except AgentError:
            return math.inf
        return there.available * there.block_size

    def _keep_log(self) -> None:
        if self._server is not None:
            self._found.server_log = self._server.log[-65536:]


def _list_sysbench_values(
    report: Report, result: ExecResult, *, in_machine: bool
) -> list[tuple[Metric, float]]:
    sql = report.sql
    if sql is None:
        raise WorkloadError("sysbench printed no SQL statistics")
    if not sql.transactions:
        raise WorkloadError("no transaction finished in time", hint="use a longer params.time, or fewer rows")
    values = [
        (oltp.TRANSACTIONS, sql.transactions_per_s),
        (oltp.QUERIES, sql.queries_per_s),
        *list_event_spread(report),
        (oltp.IGNORED_ERRORS, float(sql.ignored_errors)),
        (oltp.RECONNECTS, float(sql.reconnects)),
        (WALL, result.wall_s),
    ]
    # A client on the peer is not timed by a machine's clock.
    if in_machine:
        values.append((GUEST_WALL, result.guest_wall_s))
    return values


def _list_values_per_transaction(
    report: Report, server_flushes: int, changes: Changes, on_host: bool
) -> list[tuple[Metric, float]]:
    """Returns the known counts on the layers below the server, per transaction."""
    assert report.sql is not None
    transactions, counted = report.sql.transactions, changes.counters
    reached: Mapping[str, int | None] = {Reached.NO: 0, Reached.YES: counted.guest_flushes}
    host_flushes = counted.host_flushes
    if host_flushes is None:
        verdict = changes.flushes.reached if changes.flushes else Reached.UNKNOWN
        directly = on_host and counted.guest_flushes is None  # a directory, not a loop device
        host_flushes = server_flushes if directly and verdict == Reached.YES else reached.get(verdict)
    shares: list[tuple[Metric, int | None]] = [
        (oltp.SERVER_FLUSHES, server_flushes),
        (oltp.GUEST_FLUSHES, counted.guest_flushes),
        (oltp.HOST_FLUSHES, host_flushes),
        (oltp.HOST_WRITTEN, counted.host_written),
        (oltp.HOST_WRITES, counted.host_writes),
    ]
    known = {measurement.metric: measurement.value for measurement in changes.to_measurements(transactions)}
    return [
        *((metric, value / transactions) for metric, value in shares if value is not None),
        *((metric, known[metric]) for metric in oltp.BELOW if metric in known),
    ]
