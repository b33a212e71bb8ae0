"""What each kind of workload adds to the section of its results, as its description names it."""

from collections.abc import Callable, Sequence

from guestmark.core import registry
from guestmark.ledger.model import StoredRun
from guestmark.page.nodes import Node
from guestmark.stats.analysis import WorkloadResult

Sections = Callable[[WorkloadResult, StoredRun], Sequence[Node]]


def compared(workload: WorkloadResult) -> bool:
    """Whether cells are compared by their values; not where all of their kinds only find something out."""
    kinds = registry.workload_kinds()
    names = {result.cell.workload.name for result in workload.cells}
    return not names or any(name not in kinds or kinds[name].compared for name in names)


def of_kind(workload: WorkloadResult, run: StoredRun) -> list[Node]:
    """What the kinds of the workloads in this table add; each kind's sections once.

    A kind that is gone since the run was stored adds nothing.
    """
    kinds = registry.workload_kinds()
    names = dict.fromkeys(result.cell.workload.name for result in workload.cells)
    paths = dict.fromkeys(path for name in names if name in kinds for path in kinds[name].sections)
    made: list[Node] = []
    for path in paths:
        sections: Sections = registry.load(path)
        made += sections(workload, run)
    return made
