"""The distribution's own sysbench: cpu, memory, threads, mutex, fileio."""

from collections.abc import Mapping
from typing import Any

from guestmark.core.platform_kind import Program
from guestmark.core.platform_spec import PlatformSpec
from guestmark.core.workload_kind import WorkloadKind
from guestmark.setting.base import is_disk_setting
from guestmark.workloads.common.factors import decides_on_host
from guestmark.workloads.sysbench import metrics
from guestmark.workloads.sysbench.options import FACTORS, OPTIONS, TESTS


def _label(params: Mapping[str, Any]) -> str:
    options = params["options"]
    more = {"fileio": ("file_test_mode",), "memory": ("memory_oper",), "cpu": ("cpu_max_prime",)}
    return " ".join(["sysbench", params["test"], *(options[name] for name in more.get(params["test"], ()))])


def _decides(params: Mapping[str, Any], name: str, platform: PlatformSpec) -> bool | None:
    """Options of other tests, and disks where there are none, mean nothing; a loop device is like a guest's disk."""
    option = OPTIONS.get(name)
    if option is not None:
        return None if option.test in ("", params["test"]) else False
    if is_disk_setting(name) and params["test"] != "fileio":
        return False
    return decides_on_host(params, name, platform)


WORKLOADS = (
    WorkloadKind(
        "sysbench",
        f"the distribution's sysbench: {', '.join(TESTS)}",
        params="guestmark.workloads.sysbench.params:SysbenchParams",
        run="guestmark.workloads.sysbench.workload:SysbenchWorkload",
        metrics=lambda params: metrics.of_test(params["test"]),
        label=_label,
        factors=tuple(FACTORS.values()),
        decides=_decides,
        programs=(Program("sysbench", "sysbench"),),
    ),
)
