"""fio with the user's job file on the disk under test."""

from collections.abc import Mapping
from typing import Any

import msgspec

from guestmark.core.model import Cell
from guestmark.core.platform_kind import Program
from guestmark.core.platform_spec import PlatformSpec
from guestmark.core.workload_kind import WorkloadKind
from guestmark.workloads.common.factors import THREADS, decides_on_host
from guestmark.workloads.fio import metrics
from guestmark.workloads.fio.metrics import JOB_FILE, THREADS_VARIABLE, FioJob, environment, variables_of


def _decides(params: FioJob, name: str, platform: PlatformSpec) -> bool | None:
    if name == THREADS.name:
        return None if THREADS_VARIABLE in variables_of(params.job) else False
    return decides_on_host(params, name, platform)


def _syncs(cell: Cell) -> Mapping[str, Any]:
    """The same job, its files laid out before."""
    params = msgspec.convert(cell.workload.params, FioJob)
    return {
        "method": "syncs",
        "command": ["fio", "--output-format=json", JOB_FILE],
        "before": [f"fio --create_only=1 {JOB_FILE} >/dev/null"],
        "files": {JOB_FILE: params.job},
        "env": environment(params.values, cell.factors),
    }


WORKLOADS = (
    WorkloadKind(
        "fio",
        "runs an fio job file on the disk under test",
        params="guestmark.workloads.fio.params:FioParams",
        run="guestmark.workloads.fio.workload:FioWorkload",
        metrics=lambda _params: metrics.ALL,
        label=lambda params: f"fio {params.name}".strip(),
        reads=FioJob,
        factors=(THREADS,),
        decides=_decides,
        acknowledges=_syncs,
        programs=(Program("fio", "fio"),),
    ),
)
