"""The workload `oltp`: transactions on a real database server, with its data on the disk under test.

Durations are in seconds and rates per second, as sysbench reports them; the rest is per transaction.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal

import msgspec

from guestmark.core.errors import PlatformUnusableError
from guestmark.core.factor import Setting, one_of
from guestmark.core.findings import Fact
from guestmark.core.machine_facts import ConfinementFacts
from guestmark.core.metric import Better, Metric
from guestmark.core.metric_spec import GUEST_WALL, WALL
from guestmark.core.model import Cell
from guestmark.core.params import Params, param
from guestmark.core.platform_kind import Program
from guestmark.core.platform_spec import PlatformSpec
from guestmark.core.units import format_size, parse_size
from guestmark.foreign.packages import find_owner
from guestmark.workloads import sysbench
from guestmark.workloads.base import Workload
from guestmark.workloads.common import metrics as disk
from guestmark.workloads.common.factors import THREADS, decides_disk_factor_on_host, parse_count
from guestmark.workloads.common.parsers import convert_number_to_text
from guestmark.workloads.sysbench.options import round_to_whole_seconds

TRANSACTIONS = Metric("transactions_per_s", "1/s", Better.HIGHER)
QUERIES = Metric("queries_per_s", "1/s", Better.HIGHER)
# Transactions that were rolled back and retried.
IGNORED_ERRORS = Metric("ignored_errors", "1")
RECONNECTS = Metric("reconnects", "1")
# Flushes for one transaction: those that the server requested from its kernel, that the guest's kernel sent to its
# disk, and that the hypervisor passed on to the host.
SERVER_FLUSHES = Metric("server_flushes_per_transaction", "1")
GUEST_FLUSHES = Metric("guest_flushes_per_transaction", "1")
HOST_FLUSHES = Metric("host_flushes_per_transaction", "1")
HOST_WRITTEN = Metric("host_written_bytes_per_transaction", "B")
HOST_WRITES = Metric("host_writes_per_transaction", "1")

BELOW = (disk.HOST_READ, disk.ALLOCATED, disk.GUEST_CPU, disk.VMM_CPU)
ALL = (
    TRANSACTIONS,
    QUERIES,
    sysbench.LATENCY_AVG,
    sysbench.LATENCY_P95,
    sysbench.LATENCY_MIN,
    sysbench.LATENCY_MAX,
    HOST_FLUSHES,
    GUEST_FLUSHES,
    SERVER_FLUSHES,
    HOST_WRITTEN,
    HOST_WRITES,
    IGNORED_ERRORS,
    RECONNECTS,
    sysbench.EVENTS_STDDEV,
    sysbench.TIME_STDDEV,
    WALL,
    GUEST_WALL,
    *BELOW,
)


class ClientSide(StrEnum):
    """Where sysbench runs, while the server is on the machine."""

    # Beside the server, over its local socket.
    MACHINE = "machine"
    # On the machine's peer, over the network.
    PEER = "peer"


CLIENT = Setting(
    "client",
    "where the database's client runs: on the machine, or on its peer over the network",
    one_of(*ClientSide),
    tuple(ClientSide),
    read=ClientSide,
    default=ClientSide.MACHINE,
)
_TITLES = {"mariadb": "MariaDB", "postgresql": "PostgreSQL"}
_NAME = re.compile(r"[a-z][a-z0-9_.-]{0,63}")
# Not in shared memory, because servers treat files there differently.
_DIRECTORY = "/var/tmp"
_SMALLEST = 5 << 20


class ServerSizes(msgspec.Struct, kw_only=True):
    """The basis of a server's settings: the sizes of its own cache and its log, and the user's settings."""

    buffer: str
    log: str
    settings: dict[str, str] = {}


def _parse_whole_mib(size: str) -> str:
    number = parse_size(size)
    if number < _SMALLEST or number % (1 << 20):
        raise ValueError(f"{size!r} is not a whole number of MiB, at least {format_size(_SMALLEST)}")
    return f"{number >> 20}M"


def _check_names(settings: dict[str, str | int | bool]) -> dict[str, str | int | bool]:
    for name in settings:
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not a valid name of a setting")
    return settings


def _build_host_data_disk(kind: str) -> list[dict[str, Any]]:
    return [{"role": "target", "location": _DIRECTORY, "host": kind}]


class OltpParams(Params, frozen=True, kw_only=True):
    """A measurement ends after `time`, or `transactions` if not 0; `buffer` is the size of the server's own cache.

    `log` is the size of its log, `settings` are further settings. `host_disk` is as in the workload `sysbench`.
    """

    server: Annotated[
        str, param("the database server", accepts=Literal["mariadb", "postgresql"], default="mariadb")
    ]
    test: Annotated[
        str,
        param(
            "sysbench test to run",
            accepts=Literal["read_only", "read_write", "write_only"],
            default="read_write",
        ),
    ]
    tables: Annotated[int, param("number of tables", default=4, ge=1, le=1000)]
    rows: Annotated[int, param("rows in each table", default=10_000, ge=1, le=1_000_000_000)]
    threads: Annotated[
        str,
        param(
            "concurrent connections",
            "number",
            coerce=convert_number_to_text,
            parse=THREADS.parse,
            default="1",
        ),
    ]
    time: Annotated[
        str,
        param(
            "how long a measurement lasts",
            "duration, whole s",
            coerce=convert_number_to_text,
            parse=round_to_whole_seconds,
            default="10",
        ),
    ]
    transactions: Annotated[
        str,
        param(
            "transactions to run; 0 = run for `time` instead",
            "number",
            coerce=convert_number_to_text,
            parse=parse_count,
            default="0",
        ),
    ]
    buffer: Annotated[str, param("size of the server's cache", "size", parse=_parse_whole_mib, default="64M")]
    log: Annotated[str, param("size of the server's log", "size", parse=_parse_whole_mib, default="48M")]
    settings: Annotated[
        dict[str, str],
        param(
            "further settings of the server",
            accepts=dict[str, str | int | bool],
            parse=_check_names,
            default={},
        ),
    ] = {}
    disks: Annotated[
        list[dict[str, Any]],
        param(
            "where the database is stored on the host: in a directory or on a loop device",
            key="host_disk",
            accepts=Literal["directory", "loop"],
            parse=_build_host_data_disk,
            default="directory",
        ),
    ]

    @classmethod
    def make(cls, *, settings: dict[str, str | int | bool], **given: Any) -> OltpParams:
        """Creates the parameters. Raises `ValueError` for an endless test, and for settings that guestmark sets."""
        from guestmark.workloads.oltp.databases import KINDS

        if given["time"] == "0" and given["transactions"] == "0":
            raise ValueError("without a limit on time or transactions, the test would never end")
        texts: dict[str, str] = {}
        for name, value in settings.items():
            if name.replace("-", "_") in KINDS[given["server"]].reserved:
                raise ValueError(f"settings.{name} is set by guestmark")
            texts[name.replace("-", "_")] = str(int(value)) if isinstance(value, bool) else str(value)
        return cls(settings=texts, **given)

    @property
    def sizes(self) -> ServerSizes:
        """The sizes from which the server's settings are derived."""
        return ServerSizes(buffer=self.buffer, log=self.log, settings=self.settings)


# The name of the server's program; sysbench's is empty.
SERVER = "server"


class Oltp(Fact, kw_only=True):
    """The server's command, and the seconds of parts outside the timing; the client has the fact `Sysbench`."""

    prepared_s: float | None = msgspec.field(name="database_prepared_s", default=None)
    from_cache: bool | None = msgspec.field(name="database_from_cache", default=None)
    server: str | None = None  # as the server reports it
    server_command: str | None = None
    client_side: str | None = None
    server_start_s: float | None = None
    server_stop_s: float | None = None
    confined_server: ConfinementFacts | None = None  # on this host
    server_log: str | None = None  # the end of its log, if something went wrong


class OltpWorkload(Workload[OltpParams]):
    """Runs a database server with sysbench as its client."""

    name = "oltp"
    help = "runs sysbench transactions on a real MariaDB or PostgreSQL server, over its local socket or a network"
    measures = ALL
    factors = (THREADS, CLIENT)
    programs = (Program("sysbench", "sysbench"),)

    @classmethod
    def describe_params(cls, params: OltpParams) -> str:
        """Names the server and the test."""
        return f"{_TITLES[params.server]} {params.test}"

    @classmethod
    def decides_factor(cls, params: OltpParams, factor: str, platform: PlatformSpec) -> bool | None:
        """Accepts factors of disks on the host if the server's disk there is an image instead of a directory."""
        return decides_disk_factor_on_host(params, factor, platform)

    @classmethod
    def acknowledging_params(cls, cell: Cell) -> Mapping[str, Any]:
        """Returns parameters with which commits to the same server, with its settings, count as acknowledgements."""
        params = cell.workload.read_params(OltpParams)
        return {"method": params.server, "settings": params.settings}

    @classmethod
    def find_packages(cls, params: OltpParams) -> tuple[str, ...]:
        """Returns the packages that installed this host's server; none if it is missing or belongs to no package."""
        from guestmark.workloads.oltp.databases import KINDS

        database = KINDS[params.server]
        names = set()
        for program in database.packages:
            try:
                package = find_owner(database.find_program(program))
            except PlatformUnusableError:
                continue  # preflight says so, with the package to install
            if package is not None:
                names.add(package)
        return tuple(sorted(names))

    @classmethod
    def trial_class(cls) -> type[Workload[OltpParams]]:
        """Imports and returns the class of its trials; done late because its imports are slow."""
        from guestmark.workloads.oltp.trial import OltpTrial

        return OltpTrial
