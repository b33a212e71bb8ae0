"""Transactions on a real database server, its data on the disk under test.

Durations in seconds, rates a second, as sysbench says them; the rest is per transaction.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from guestmark.core.findings import Fact
from guestmark.core.machine_facts import Confined
from guestmark.core.metric import Better, Metric
from guestmark.core.metric_spec import GUEST_WALL, WALL
from guestmark.core.model import Cell
from guestmark.core.platform_kind import Program
from guestmark.core.workload_kind import WorkloadKind
from guestmark.workloads import sysbench
from guestmark.workloads.common import metrics as disk
from guestmark.workloads.common.factors import THREADS, decides_on_host

TRANSACTIONS = Metric("transactions_per_s", "1/s", Better.HIGHER)
QUERIES = Metric("queries_per_s", "1/s", Better.HIGHER)
IGNORED_ERRORS = Metric("ignored_errors", "1")  # transactions that were rolled back and tried again
RECONNECTS = Metric("reconnects", "1")
# For one transaction: what the server asked its kernel to flush, what the guest's kernel sent to its disk, and what the
# hypervisor passed on to the host.
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
_TITLES = {"mariadb": "MariaDB", "postgresql": "PostgreSQL"}


class Sizes(msgspec.Struct, kw_only=True):
    """What a server's settings follow from: its own cache, the size of its log, and the user's settings."""

    buffer: str
    log: str
    settings: dict[str, str] = {}


class OltpTest(Sizes, kw_only=True):
    """The parameters as a stored plan has them; see `OltpParams`."""

    server: str
    test: str
    tables: int
    rows: int
    threads: str
    time: str
    transactions: str
    disks: list[dict[str, Any]]


SERVER = "server"  # the name of the server's program; sysbench has none


class Oltp(Fact, kw_only=True):
    """The server as it was called, and how long what is outside of the timing took; the client is a `Sysbench`."""

    prepared_s: float | None = msgspec.field(name="database_prepared_s", default=None)
    from_cache: bool | None = msgspec.field(name="database_from_cache", default=None)
    server: str | None = None  # as it names itself
    server_command: str | None = None
    server_start_s: float | None = None
    server_stop_s: float | None = None
    confined_server: Confined | None = None  # on this host
    server_log: str | None = None  # its end, when something went wrong


def _commits(cell: Cell) -> Mapping[str, Any]:
    """Rows that the same server commits with the same settings."""
    params = cell.workload.read_params(OltpTest)
    return {"method": params.server, "settings": params.settings}


WORKLOADS = (
    WorkloadKind(
        "oltp",
        "transactions of sysbench on a real MariaDB or PostgreSQL server over its local socket",
        params="guestmark.workloads.oltp.workload:OltpParams",
        run="guestmark.workloads.oltp.workload:OltpWorkload",
        metrics=lambda _params: ALL,
        label=lambda params: f"{_TITLES[params.server]} {params.test}",
        reads=OltpTest,
        factors=(THREADS,),
        decides=decides_on_host,
        programs=(Program("sysbench", "sysbench"),),
        acknowledges=_commits,
        packages="guestmark.workloads.oltp.workload:of_server",
    ),
)
