"""A fixed mix of system calls, each in nanoseconds, and what the hypervisor did for each."""

from guestmark.core.workload_kind import Topic, WorkloadKind, agent_is_enough, takes_only
from guestmark.workloads.syscalls import metrics
from guestmark.workloads.syscalls.metrics import Mix


def _label(mix: Mix) -> str:
    from guestmark.agent.wire import SYSTEM_CALLS

    return "system calls" if len(mix.calls) == len(SYSTEM_CALLS) else f"system calls: {', '.join(mix.calls)}"


WORKLOADS = (
    WorkloadKind(
        "syscalls",
        "a fixed mix of system calls, each in nanoseconds, and what the hypervisor did for each",
        params="guestmark.workloads.syscalls.params:SyscallsParams",
        run="guestmark.workloads.syscalls.workload:SyscallsWorkload",
        metrics=lambda mix: metrics.of_calls(mix.calls),
        label=_label,
        reads=Mix,
        needs_root=agent_is_enough,
        topic=Topic.CALLS,
        sections=("guestmark.workloads.syscalls.sections:sections",),
        takes=takes_only("memory", "smp", "cpu", "machine", "kernel", "kernel_args", "placement"),
    ),
)
