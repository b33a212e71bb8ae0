"""The start and the end of a guest, phase by phase."""

from guestmark.core.workload_kind import Topic, WorkloadKind
from guestmark.workloads.boot.metrics import ALL, Booted


def _label(params: Booted) -> str:
    import shlex

    work = f" with {shlex.join(params.command)}" if params.command else ""
    return f"boot{work}{', initcalls traced' if params.watch.initcalls else ''}"


WORKLOADS = (
    WorkloadKind(
        "boot",
        "how a guest starts and shuts down, phase by phase",
        params="guestmark.workloads.boot.params:BootParams",
        run="guestmark.workloads.boot.workload:BootWorkload",
        metrics=lambda _params: ALL,
        label=_label,
        reads=Booted,
        watches=lambda params: params.watch.initcalls,
        topic=Topic.START,
        packages="guestmark.workloads.boot.params:of_command",
        needs_root=lambda params: bool(params.command) or params.watch.initcalls,
        sections=("guestmark.workloads.boot.sections:sections",),
    ),
)
