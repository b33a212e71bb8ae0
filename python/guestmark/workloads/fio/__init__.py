"""fio with the user's job file on the disk under test.

Rates are bytes or operations a second over all jobs; latencies are in seconds.
"""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from guestmark.core.findings import Fact
from guestmark.core.levels import Levels
from guestmark.core.metric import Better, Metric
from guestmark.core.metric_spec import GUEST_WALL, SYSTEM, USER, WALL
from guestmark.core.model import Cell
from guestmark.core.platform_kind import Program
from guestmark.core.platform_spec import PlatformSpec
from guestmark.core.workload_kind import WorkloadKind
from guestmark.workloads.common.factors import THREADS, decides_on_host
from guestmark.workloads.common.metrics import BELOW, THROUGHPUT
from guestmark.workloads.sysbench import READ_THROUGHPUT, READS, WRITE_THROUGHPUT, WRITES

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


JOB_FILE = "guestmark.fio"  # what a job file is called on the disk
THREADS_VARIABLE = "THREADS"  # what the factor `threads` is called in a job file
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def variables_of(job: str) -> list[str]:
    """The names of all variables in the text of a job file, in order."""
    return _VARIABLE.findall(job)


def environment(values: Mapping[str, str], levels: Levels) -> dict[str, str]:
    """The variables of a job file: those of the plan, and how many threads there are."""
    return {THREADS_VARIABLE: str(levels.get(THREADS) or 1), **values}


class FioJob(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters as a stored plan has them: a job file's text and name, values of its variables, its disk."""

    job: str
    name: str = ""
    values: dict[str, str] = {}
    disks: list[dict[str, Any]] = []


def _decides(params: FioJob, name: str, platform: PlatformSpec) -> bool | None:
    if name == THREADS.name:
        return None if THREADS_VARIABLE in variables_of(params.job) else False
    return decides_on_host(params, name, platform)


def _syncs(cell: Cell) -> Mapping[str, Any]:
    """The same job, its files laid out before."""
    params = cell.workload.read_params(FioJob)
    return {
        "method": "syncs",
        "command": ["fio", "--output-format=json", JOB_FILE],
        "before": [f"fio --create_only=1 {JOB_FILE} >/dev/null"],
        "files": {JOB_FILE: params.job},
        "env": environment(params.values, cell.levels),
    }


WORKLOADS = (
    WorkloadKind(
        "fio",
        "runs an fio job file on the disk under test",
        params="guestmark.workloads.fio.workload:FioParams",
        run="guestmark.workloads.fio.workload:FioWorkload",
        metrics=lambda _params: ALL,
        label=lambda params: f"fio {params.name}".strip(),
        reads=FioJob,
        factors=(THREADS,),
        decides=_decides,
        acknowledges=_syncs,
        programs=(Program("fio", "fio"),),
    ),
)
