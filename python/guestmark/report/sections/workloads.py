"""Sections that kinds of workloads add to a report, lists of failures, and the origin of an imported run."""

from collections.abc import Callable, Collection, Sequence

from guestmark.core import registry
from guestmark.core.actions import list_actions
from guestmark.core.model import CellStatus
from guestmark.ledger.model import RunOrigin, SignatureStatus, StoredRun
from guestmark.page.nodes import Command, Definitions, Node, Note, NoteKind, Part, Section
from guestmark.page.text import Span, Tone, line, spans
from guestmark.stats.analysis import WorkloadResult

_FAILED = {CellStatus.UNUSABLE, CellStatus.FAILED, CellStatus.PARTIAL}
_Sections = Callable[[WorkloadResult, StoredRun], Sequence[Node]]


def is_compared(workload: WorkloadResult) -> bool:
    """Return whether cells are compared by their values; False if all their kinds only determine facts."""
    kinds = registry.index_workload_kinds()
    names = {result.cell.workload.name for result in workload.cells}
    return not names or any(name not in kinds or kinds[name].compared for name in names)


def make_kind_nodes(workload: WorkloadResult, run: StoredRun) -> list[Node]:
    """Return the nodes that the kinds of workloads in this table add; each kind's sections once.

    A kind that no longer exists adds nothing.
    """
    kinds = registry.index_workload_kinds()
    names = dict.fromkeys(result.cell.workload.name for result in workload.cells)
    makers: dict[_Sections, None] = {}
    for name in names:
        if name in kinds:
            makers |= dict.fromkeys(kinds[name].report_sections())
    nodes: list[Node] = []
    for make_sections in makers:
        nodes += make_sections(workload, run)
    return nodes


def conclude_uncompared_workload(workload: WorkloadResult, run: StoredRun) -> Sequence[Node]:
    """Return the conclusion of a workload whose cells are not compared; empty for other workloads."""
    kind = registry.index_workload_kinds().get(workload.workload.name)
    conclude: _Sections | None = None if kind is None else kind.report_conclusion()
    if is_compared(workload) or conclude is None:
        return ()
    return conclude(workload, run)


def make_origin_section(run: StoredRun, origin: RunOrigin, *, whole: bool) -> Section:
    """Return the origin of an imported run; with `whole` also its commands, and as whom, where and how they run."""
    warning = f"This run {origin.describe()}; figures and names are unverified"
    nodes: list[Node] = [Note(line(warning), NoteKind.WARNING)]
    if origin.standing is not SignatureStatus.OWN:
        nodes.append(Command("If this run is your own", f"guestmark ledger sign {run.id}"))
    if whole and (rows := list_actions(run.plan)):
        nodes.append(Definitions("What it runs", tuple(rows)))
    if whole and origin.sha256:
        nodes.append(Definitions("The bundle", (("SHA-256", origin.sha256),)))
    return Section(Part.WORKLOAD, "Imported", tuple(nodes), titled=False)


def list_failures(workload: WorkloadResult, told: Collection[str] = ()) -> list[Node]:
    """Return a line for each cell that failed, wholly or in part, or could not be tried, and for a missing baseline.

    Cells whose ids are `told` have been named with their reasons elsewhere.
    """
    nodes: list[Node] = []
    for result in workload.cells:
        if result.status in _FAILED and result.cell.id not in told:
            tone, kind = Tone.ERROR, NoteKind.ERROR
            if result.status is CellStatus.PARTIAL:
                tone, kind = Tone.WARNING, NoteKind.WARNING
            cell = Span(f"{result.cell.id}: ", Tone.STRONG)
            text = spans(cell, Span(result.status.value, tone), f" – {result.reason}")
            nodes.append(Note(text, kind))
    baseline, metric = workload.baseline, workload.metrics[:1]
    if baseline and metric and metric[0].name not in baseline.summary and len(workload.shown_cells) > 1:
        text = line(f"No comparison is possible: the baseline {baseline.cell.id} was not measured")
        nodes.append(Note(text, NoteKind.ERROR))
    return nodes
