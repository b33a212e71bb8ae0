"""What power cuts have shown of the disks of a workload that measures something else (`--prove`)."""

from guestmark.core.findings import Durability, Proven
from guestmark.page.nodes import Node, Note
from guestmark.page.tables import RowName
from guestmark.page.text import line
from guestmark.stats.analysis import CellResult, WorkloadResult
from guestmark.workloads.powercut.sections import proof_of, sentence, table


def sections(workload: WorkloadResult) -> list[Node]:
    """A row for each proof, which several cells may share, and for what is not proven the reason."""
    shared: list[tuple[Proven, list[CellResult]]] = []
    for result in workload.shown:
        proven = proof_of(result)
        if proven is None:
            continue
        for known, results in shared:
            if known == proven:
                results.append(result)
                break
        else:
            shared.append((proven, [result]))
    if not shared:
        return []
    rows = [(RowName((_named(results),)), proven) for proven, results in shared]
    nodes: list[Node] = [table(("disk of",), rows)]
    for proven, results in shared:
        if proven.word is not Durability.PROVEN:
            nodes.append(Note(line(f"{results[0].cell.id}: {sentence(proven)}")))
    return nodes


def _named(results: list[CellResult]) -> str:
    more = f" and {len(results) - 1} more" if len(results) > 1 else ""
    return f"{results[0].cell.id}{more}"
