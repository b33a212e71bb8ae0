"""What each kind of workload adds to the section of its results: the one table that lists them."""

from collections.abc import Callable, Mapping, Sequence

from guestmark.ledger.model import StoredRun
from guestmark.page.nodes import Node
from guestmark.report.sections import explanations, latency, phases, shares
from guestmark.stats.analysis import WorkloadResult

Sections = Callable[[WorkloadResult, StoredRun], Sequence[Node]]

OF_KIND: Mapping[str, tuple[Sections, ...]] = {
    "boot": (phases.sections,),
    "guestfs-run": (phases.sections,),
    "netboot": (shares.sections, latency.sections),
    "syscalls": (explanations.calls,),
}


def of_kind(workload: WorkloadResult, run: StoredRun) -> list[Node]:
    """What the kinds of the workloads in this table add; each kind's sections once."""
    names = dict.fromkeys(result.cell.workload.name for result in workload.cells)
    wanted = dict.fromkeys(sections for name in names for sections in OF_KIND.get(name, ()))
    return [node for sections in wanted for node in sections(workload, run)]
