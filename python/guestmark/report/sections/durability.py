"""The words for how durable flushed writes are, and the proofs that power cuts gave.

Speed is shown together with durability: one column is about what a row itself flushed, another about its disk.
"""

from guestmark.core.findings import Durability, Proven
from guestmark.page.nodes import Node, Note
from guestmark.page.tables import RowName
from guestmark.page.text import line
from guestmark.stats.analysis import CellResult, WorkloadResult
from guestmark.workloads.powercut.sections import (
    build_proof_table,
    describe_early_returns,
    describe_torn_superblocks,
    find_proof,
    summarize_proof,
)

MEANING = (
    "durability of what the row itself flushed: proven by power cuts (unsynced data does not count), seen to "
    "reach the kernel, claimed by the hypervisor, lost, in memory"
)
DISK_MEANING = (
    "its disk: what power cuts showed for guestmark's own synced records on such a disk, not for the row"
)


def make_proof_nodes(workload: WorkloadResult) -> list[Node]:
    """Return what power cuts have shown of the disks of a workload that measures something else (`--prove`).

    The table has a row for each proof, which several cells may share; notes below it say why a disk is not proven.
    """
    shared: list[tuple[Proven, list[CellResult]]] = []
    for result in workload.shown_cells:
        proven = find_proof(result)
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
    rows = [(RowName((_name_cells(results),)), proven) for proven, results in shared]
    nodes: list[Node] = [build_proof_table(("disk of",), rows)]
    for proven, results in shared:
        if proven.word is not Durability.PROVEN:
            nodes.append(Note(line(f"{results[0].cell.id}: {summarize_proof(proven)}")))
        if proven.early_states:
            nodes.append(Note(line(f"{results[0].cell.id}: {describe_early_returns(proven)}")))
        if proven.torn_superblocks:
            nodes.append(Note(line(f"{results[0].cell.id}: {describe_torn_superblocks(proven)}")))
    return nodes


def _name_cells(results: list[CellResult]) -> str:
    more = f" and {len(results) - 1} more" if len(results) > 1 else ""
    return f"{results[0].cell.id}{more}"
