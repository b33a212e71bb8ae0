"""The distribution's own sysbench: cpu, memory, threads, mutex, fileio."""

from guestmark.core.platform_kind import Program
from guestmark.core.platform_spec import PlatformSpec
from guestmark.core.workload_kind import WorkloadKind
from guestmark.setting.base import is_disk_setting
from guestmark.workloads.common.factors import decides_on_host
from guestmark.workloads.sysbench import metrics
from guestmark.workloads.sysbench.options import FACTORS, OPTIONS, TESTS, SysbenchRun


def _label(run: SysbenchRun) -> str:
    more = {"fileio": ("file_test_mode",), "memory": ("memory_oper",), "cpu": ("cpu_max_prime",)}
    return " ".join(["sysbench", run.test, *(run.options[name] for name in more.get(run.test, ()))])


def _decides(run: SysbenchRun, name: str, platform: PlatformSpec) -> bool | None:
    """Options of other tests, and disks where there are none, mean nothing; a loop device is like a guest's disk."""
    option = OPTIONS.get(name)
    if option is not None:
        return None if option.test in ("", run.test) else False
    if is_disk_setting(name) and run.test != "fileio":
        return False
    return decides_on_host(run, name, platform)


WORKLOADS = (
    WorkloadKind(
        "sysbench",
        f"the distribution's sysbench: {', '.join(TESTS)}",
        params="guestmark.workloads.sysbench.params:SysbenchParams",
        run="guestmark.workloads.sysbench.workload:SysbenchWorkload",
        metrics=lambda run: metrics.of_test(run.test),
        label=_label,
        reads=SysbenchRun,
        factors=tuple(FACTORS.values()),
        decides=_decides,
        programs=(Program("sysbench", "sysbench"),),
    ),
)
