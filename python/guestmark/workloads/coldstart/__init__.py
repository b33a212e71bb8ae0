"""Starts: from the decision to create a machine to a touched working set, and until it is gone."""

from guestmark.core.platform_spec import PlatformSpec
from guestmark.core.units import format_size
from guestmark.core.workload_kind import WorkloadKind, agent_is_enough
from guestmark.workloads.coldstart.metrics import ALL, PAGE_CACHE, PATTERN, Launch, Launching, pattern_of


def _label(params: Launching) -> str:
    how = {Launch.NEW: "start", Launch.FORK: "fork", Launch.RESUMED: "resume"}[params.launch]
    return f"{how}, {format_size(params.touch)} touched"


def _decides(params: Launching, factor: str, _platform: PlatformSpec) -> bool | None:
    """What is not made anew has no pattern, nor a cache to be read from."""
    if factor in (PATTERN.name, PAGE_CACHE.name) and params.launch is not Launch.NEW:
        return False
    return None


WORKLOADS = (
    WorkloadKind(
        "coldstart",
        "how long a start really takes, phase by phase, until a working set has been touched",
        params="guestmark.workloads.coldstart.params:ColdstartParams",
        run="guestmark.workloads.coldstart.workload:ColdstartWorkload",
        metrics=lambda _params: ALL,
        label=_label,
        reads=Launching,
        factors=(PATTERN, PAGE_CACHE),
        decides=_decides,
        crowd=lambda cell: pattern_of(cell.factors).several,
        needs_root=agent_is_enough,
        sections=("guestmark.workloads.coldstart.sections:sections",),
    ),
)
