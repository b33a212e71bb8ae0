"""What a power cut would leave of a machine's disk."""

from guestmark.core.workload_kind import WorkloadKind
from guestmark.workloads.powercut.metrics import ALL, Cut


def _label(params: Cut) -> str:
    return f"power cut: {params.words}"


WORKLOADS = (
    WorkloadKind(
        "powercut",
        "cuts the power at every moment of a log of writes, and looks for acknowledged data",
        params="guestmark.workloads.powercut.params:Powercut",
        run="guestmark.workloads.powercut.workload:PowercutWorkload",
        metrics=lambda _params: ALL,
        label=_label,
        reads=Cut,
        compared=False,
        decides=lambda _params, factor, platform: (
            True
            if not platform.is_guest and factor in {"filesystem", "mount", "mkfs", "size", "cache"}
            else None
        ),
        sections=("guestmark.workloads.powercut.sections:sections",),
        conclusion="guestmark.workloads.powercut.sections:conclusion",
    ),
)
