"""The workload `sysbench`: the distribution's sysbench with its tests cpu, memory, threads, mutex and fileio.

Durations are in seconds and rates per second; bytes a second are shown in MB/s (10^6 bytes).
"""

from __future__ import annotations

import msgspec

from guestmark.core.findings import Fact
from guestmark.core.metric import Better, Metric
from guestmark.core.metric_spec import GUEST_WALL, SYSTEM, USER, WALL
from guestmark.core.platform_kind import Program
from guestmark.core.platform_spec import PlatformSpec
from guestmark.setting.base import is_disk_setting
from guestmark.workloads.base import Workload
from guestmark.workloads.common.factors import decides_disk_factor_on_host
from guestmark.workloads.common.metrics import BELOW, THROUGHPUT
from guestmark.workloads.sysbench.options import FACTORS, OPTIONS, TESTS, SysbenchParams

EVENTS_RATE = Metric("events_per_s", "1/s", Better.HIGHER)
TOTAL_TIME = Metric("total_time_s", "s")
# Time of all events, summed over threads: the "e.total" of older versions.
EVENT_TOTAL = Metric("event_total_s", "s")
OUTSIDE = Metric("outside_events_s", "s")  # threads × total time − event total
LATENCY_MIN = Metric("latency_min_s", "s")
LATENCY_AVG = Metric("latency_avg_s", "s")
LATENCY_MAX = Metric("latency_max_s", "s")
LATENCY_P95 = Metric("latency_p95_s", "s")
# Fairness: standard deviation of the number of events over threads.
EVENTS_STDDEV = Metric("thread_events_stddev", "1")
# Fairness: standard deviation of the time in events over threads.
TIME_STDDEV = Metric("thread_time_stddev_s", "s")
READ_THROUGHPUT = Metric("read_throughput", "B/s", Better.HIGHER)
WRITE_THROUGHPUT = Metric("write_throughput", "B/s", Better.HIGHER)
READS = Metric("reads_per_s", "1/s", Better.HIGHER)
WRITES = Metric("writes_per_s", "1/s", Better.HIGHER)
FSYNCS = Metric("fsyncs_per_s", "1/s", Better.HIGHER)
OPERATIONS = Metric("operations_per_s", "1/s", Better.HIGHER)

COMMON = (
    EVENTS_RATE,
    TOTAL_TIME,
    EVENT_TOTAL,
    OUTSIDE,
    LATENCY_AVG,
    LATENCY_P95,
    LATENCY_MIN,
    LATENCY_MAX,
    EVENTS_STDDEV,
    TIME_STDDEV,
    WALL,
    GUEST_WALL,
    USER,
    SYSTEM,
)
FILEIO = (THROUGHPUT, READ_THROUGHPUT, WRITE_THROUGHPUT, READS, WRITES, FSYNCS)
MEMORY = (THROUGHPUT, OPERATIONS)


def list_test_metrics(test: str) -> tuple[Metric, ...]:
    """Returns the metrics of a sysbench test, beginning with the primary one, which every test has."""
    if test == "fileio":
        return (EVENTS_RATE, *FILEIO, *COMMON[1:], *BELOW)
    if test == "memory":
        return (EVENTS_RATE, *MEMORY, *COMMON[1:])
    return COMMON


class Sysbench(Fact, kw_only=True):
    """sysbench's command, and the seconds, not part of the timing, that its files took to create and remove."""

    version: str | None = msgspec.field(name="sysbench", default=None)
    command: str | None = msgspec.field(name="sysbench_command", default=None)
    prepare_s: float | None = msgspec.field(name="sysbench_prepare_s", default=None)
    prepare_flush_s: float | None = None
    cleanup_s: float | None = msgspec.field(name="sysbench_cleanup_s", default=None)


# The option that distinguishes runs of a test in a table.
_LABELLING = {"fileio": ("file_test_mode",), "memory": ("memory_oper",), "cpu": ("cpu_max_prime",)}


class SysbenchWorkload(Workload[SysbenchParams]):
    """Runs one of sysbench's tests."""

    name = "sysbench"
    help = f"the distribution's sysbench: {', '.join(TESTS)}"
    factors = tuple(FACTORS.values())
    shares_machine = True
    programs = (Program("sysbench", "sysbench"),)

    @classmethod
    def list_metrics(cls, params: SysbenchParams) -> tuple[Metric, ...]:
        """Returns the metrics of the test."""
        return list_test_metrics(params.test)

    @classmethod
    def describe_params(cls, params: SysbenchParams) -> str:
        """Names the test, and the option that distinguishes its runs."""
        more = (params.options[name] for name in _LABELLING.get(params.test, ()))
        return " ".join(["sysbench", params.test, *more])

    @classmethod
    def decides_factor(cls, params: SysbenchParams, factor: str, platform: PlatformSpec) -> bool | None:
        """Rejects options of other tests, and factors of missing disks; a loop device is like a guest's disk."""
        option = OPTIONS.get(factor)
        if option is not None:
            return None if option.test in ("", params.test) else False
        if is_disk_setting(factor) and params.test != "fileio":
            return False
        return decides_disk_factor_on_host(params, factor, platform)

    @classmethod
    def trial_class(cls) -> type[Workload[SysbenchParams]]:
        """Imports and returns the class of its trials; done late because its imports are slow."""
        from guestmark.workloads.sysbench.trial import SysbenchTrial

        return SysbenchTrial
