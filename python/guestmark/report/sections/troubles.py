"""Everything that went wrong, cell by cell."""

from collections.abc import Sequence

from guestmark.core.model import CellStatus
from guestmark.ledger.model import StoredRun
from guestmark.page.nodes import Node, Note, NoteKind
from guestmark.page.text import Span, Tone, spans
from guestmark.stats.analysis import WorkloadResult

_WRONG = {CellStatus.UNUSABLE, CellStatus.FAILED, CellStatus.PARTIAL}


def sections(workload: WorkloadResult, run: StoredRun) -> Sequence[Node]:
    """The trouble of each cell, as `lines` has it."""
    return lines(workload)


def lines(workload: WorkloadResult) -> list[Node]:
    """A line for each cell that failed, wholly or in part, or could not be tried, and for a missing baseline."""
    nodes: list[Node] = []
    for result in workload.cells:
        if result.status in _WRONG:
            partial = result.status is CellStatus.PARTIAL
            nodes.append(
                Note(
                    spans(
                        Span(f"{result.cell.id}: ", Tone.STRONG),
                        Span(result.status.value, Tone.WARNING if partial else Tone.ERROR),
                        f" – {result.reason}",
                    ),
                    NoteKind.WARNING if partial else NoteKind.ERROR,
                )
            )
    baseline, metric = workload.baseline, workload.metrics[:1]
    if baseline and metric and metric[0].name not in baseline.summary and len(workload.shown) > 1:
        nodes.append(
            Note(
                spans(f"No comparison is possible: the baseline {baseline.cell.id} was not measured"),
                NoteKind.ERROR,
            )
        )
    return nodes
