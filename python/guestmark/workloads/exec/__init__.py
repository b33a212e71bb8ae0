"""Any command: the very same binary on every platform."""

from collections.abc import Mapping
from typing import Any

from guestmark.core.metric import Metric
from guestmark.core.metric_spec import DEFAULT_METRICS
from guestmark.core.model import Cell
from guestmark.core.workload_kind import WorkloadKind
from guestmark.workloads.common.factors import decides_on_host
from guestmark.workloads.exec.command import Command


def _metrics(command: Command) -> tuple[Metric, ...]:
    return (*(spec.metric for spec in command.specs), *DEFAULT_METRICS)


def _label(command: Command) -> str:
    import shlex

    return shlex.join(command.argv)


def _syncs(cell: Cell) -> Mapping[str, Any]:
    from guestmark.workloads.exec.workload import syncs

    return syncs(cell)


WORKLOADS = (
    WorkloadKind(
        "exec",
        "runs any command: the host's own binary on every platform",
        params="guestmark.workloads.exec.params:ExecParams",
        run="guestmark.workloads.exec.workload:ExecWorkload",
        metrics=_metrics,
        label=_label,
        reads=Command,
        packages="guestmark.workloads.exec.workload:of_command",
        decides=decides_on_host,
        runs_on_disk=True,
        acknowledges=_syncs,
        command=lambda command: command.argv,
    ),
)
