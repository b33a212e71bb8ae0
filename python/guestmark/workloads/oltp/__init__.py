"""Transactions on a real database server, its data on the disk under test."""

from collections.abc import Mapping
from typing import Any

from guestmark.core.platform_kind import Program
from guestmark.core.platform_spec import PlatformSpec
from guestmark.core.workload_kind import WorkloadKind
from guestmark.disks.spec import DEFAULTS as DISK_FACTORS
from guestmark.workloads.common.factors import THREADS
from guestmark.workloads.oltp import metrics

_TITLES = {"mariadb": "MariaDB", "postgresql": "PostgreSQL"}
_UNMOUNTED = frozenset({"format", "bus", "aio", "cluster_size"})  # of a loop device on the host


def _decides(params: Mapping[str, Any], name: str, platform: PlatformSpec) -> bool | None:
    if name in DISK_FACTORS and platform.is_this_host and params["disks"][0]["host"] == "loop":
        return name not in _UNMOUNTED
    return None


WORKLOADS = (
    WorkloadKind(
        "oltp",
        "transactions of sysbench on a real MariaDB or PostgreSQL server over its local socket",
        params="guestmark.workloads.oltp.params:OltpParams",
        run="guestmark.workloads.oltp.workload:OltpWorkload",
        metrics=lambda _params: metrics.ALL,
        label=lambda params: f"{_TITLES[params['server']]} {params['test']}",
        factors=(THREADS,),
        decides=_decides,
        programs=(Program("sysbench", "sysbench"),),
        packages="guestmark.workloads.oltp.packages:of_server",
    ),
)
