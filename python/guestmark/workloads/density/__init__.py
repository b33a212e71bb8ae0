"""How many machines fit: what one more takes of memory, of idle processors, and of the others' speed."""

import shlex

from guestmark.core.platform_spec import PlatformSpec
from guestmark.core.workload_kind import WorkloadKind
from guestmark.workloads.density.metrics import ALL, GUESTS, Crowd


def _label(params: Crowd) -> str:
    return f"density with {shlex.join(params.command)}"[:80]


def _here(factor: str, platform: PlatformSpec) -> bool:
    return factor != GUESTS.name or not platform.is_elsewhere


WORKLOADS = (
    WorkloadKind(
        "density",
        "what one more machine costs a host that holds several: memory, idle time, starts, speed of the others",
        params="guestmark.workloads.density.params:DensityParams",
        run="guestmark.workloads.density.workload:DensityWorkload",
        metrics=lambda _params: ALL,
        label=_label,
        reads=Crowd,
        factors=(GUESTS,),
        takes=_here,
        crowd=lambda _cell: True,
        packages="guestmark.workloads.density.params:of_command",
        command=lambda params: params.command,
        sections=("guestmark.workloads.density.sections:sections",),
    ),
)
