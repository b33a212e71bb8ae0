"""Transactions on a real database server, its data on the disk under test."""

from collections.abc import Mapping
from typing import Any

import msgspec

from guestmark.core.model import Cell
from guestmark.core.platform_kind import Program
from guestmark.core.workload_kind import WorkloadKind
from guestmark.workloads.common.factors import THREADS, decides_on_host
from guestmark.workloads.oltp import metrics
from guestmark.workloads.oltp.metrics import OltpTest

_TITLES = {"mariadb": "MariaDB", "postgresql": "PostgreSQL"}


def _commits(cell: Cell) -> Mapping[str, Any]:
    """Rows that the same server commits with the same settings."""
    params = msgspec.convert(cell.workload.params, OltpTest)
    return {"method": params.server, "settings": params.settings}


WORKLOADS = (
    WorkloadKind(
        "oltp",
        "transactions of sysbench on a real MariaDB or PostgreSQL server over its local socket",
        params="guestmark.workloads.oltp.params:OltpParams",
        run="guestmark.workloads.oltp.workload:OltpWorkload",
        metrics=lambda _params: metrics.ALL,
        label=lambda params: f"{_TITLES[params.server]} {params.test}",
        reads=OltpTest,
        factors=(THREADS,),
        decides=decides_on_host,
        programs=(Program("sysbench", "sysbench"),),
        acknowledges=_commits,
        packages="guestmark.workloads.oltp.workload:of_server",
    ),
)
