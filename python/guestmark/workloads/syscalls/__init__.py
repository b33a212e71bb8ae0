"""A fixed mix of system calls, each in nanoseconds, and what the hypervisor did for each."""

from collections.abc import Mapping
from typing import Any

from guestmark.agent.syscall_names import CALLS
from guestmark.core.workload_kind import WorkloadKind, agent_is_enough, takes_only
from guestmark.workloads.syscalls import metrics


def _label(params: Mapping[str, Any]) -> str:
    calls = params["calls"]
    return "system calls" if len(calls) == len(CALLS) else f"system calls: {', '.join(calls)}"


WORKLOADS = (
    WorkloadKind(
        "syscalls",
        "a fixed mix of system calls, each in nanoseconds, and what the hypervisor did for each",
        params="guestmark.workloads.syscalls.params:SyscallsParams",
        run="guestmark.workloads.syscalls.workload:SyscallsWorkload",
        metrics=lambda params: metrics.of_calls(params["calls"]),
        label=_label,
        needs_root=agent_is_enough,
        sections=("guestmark.workloads.syscalls.sections:sections",),
        takes=takes_only("memory", "smp", "cpu", "machine", "kernel", "kernel_args", "placement"),
    ),
)
