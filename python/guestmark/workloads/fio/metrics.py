"""What `fio` measures over all jobs of its job file, and finds out.

Rates are bytes or operations a second, latencies are in seconds.
"""

import msgspec

from guestmark.core.findings import Fact
from guestmark.core.metric import Better, Metric
from guestmark.core.metric_spec import GUEST_WALL, SYSTEM, USER, WALL
from guestmark.disks.metrics import BELOW
from guestmark.workloads.common.metrics import THROUGHPUT
from guestmark.workloads.sysbench.metrics import READ_THROUGHPUT, READS, WRITE_THROUGHPUT, WRITES

OPERATIONS = Metric("operations_per_s", "1/s", Better.HIGHER)  # reads and writes
READ_LATENCY = Metric("read_latency_avg_s", "s")  # from the request to its completion
READ_P99 = Metric("read_latency_p99_s", "s")  # of the worst job
WRITE_LATENCY = Metric("write_latency_avg_s", "s")
WRITE_P99 = Metric("write_latency_p99_s", "s")
SYNC_LATENCY = Metric("sync_latency_avg_s", "s")
RUNTIME = Metric("runtime_s", "s")  # of the longest job, as fio says

ALL = (
    THROUGHPUT,
    OPERATIONS,
    READ_THROUGHPUT,
    WRITE_THROUGHPUT,
    READS,
    WRITES,
    READ_LATENCY,
    READ_P99,
    WRITE_LATENCY,
    WRITE_P99,
    SYNC_LATENCY,
    RUNTIME,
    WALL,
    GUEST_WALL,
    USER,
    SYSTEM,
    *BELOW,
)


class Fio(Fact, kw_only=True):
    """The program as it names itself."""

    version: str | None = msgspec.field(name="fio", default=None)
