"""Whether machines that should be strangers are twins."""

from guestmark.core.workload_kind import WorkloadKind
from guestmark.workloads.clones.facts import ALL

WORKLOADS = (
    WorkloadKind(
        "clones",
        "starts machines of one kind, or clones of one template, and looks whether they share secrets, ids and layouts",
        params="guestmark.workloads.clones.params:Clones",
        run="guestmark.workloads.clones.workload:ClonesWorkload",
        metrics=lambda _params: ALL,
        label=lambda _params: "clones",
        compared=False,
        sections=("guestmark.workloads.clones.sections:sections",),
        conclusion="guestmark.workloads.clones.sections:conclusion",
    ),
)
