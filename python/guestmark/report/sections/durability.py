"""Whether what a workload flushed survives a power cut: speed is stated with durability.

A word stands in a row only if it was found out for that row. What guestmark's own records have shown of the disk below
it is the disk's, and stands in a column of its own.
"""

from guestmark.core.findings import Durability, Flushes, Proof, Proven, Traffic
from guestmark.core.model import Trial
from guestmark.page.nodes import Node, Note
from guestmark.page.tables import RowName
from guestmark.page.text import line
from guestmark.setting.disk import read_disk_requests
from guestmark.stats.analysis import CellResult, WorkloadResult

MEANING = (
    "durability of what the row itself flushed: proven by power cuts, of the synced part only if it left more, seen to "
    "reach the kernel, claimed by the hypervisor, lost, in memory"
)
DISK_MEANING = (
    "its disk: what power cuts showed for records that guestmark synced on such a disk, not for the row"
)
_NOT_KEPT = frozenset({Durability.LOST, Durability.MEMORY})


def durability(result: CellResult) -> str:
    """From the trials: a word of `Durability`, or `mixed` when trials disagree; empty for workloads of which nobody
    asks that.
    """
    return _said(verdicts(result))


def of_disk(result: CellResult) -> str:
    """The word of its disk's own proof, likewise; empty where there is none, or the proof is the row's."""
    found = {
        proof.proven.word
        for trial in result.trials
        if (proof := trial.facts.of(Proof)) is not None and not of_row(result, proof.proven)
    }
    return _said(found)


def of_row(result: CellResult, proven: Proven) -> bool:
    """Whether a proof is about what the row itself acknowledged: it says so, or the row's own disk was logged."""
    return proven.of_row or any(disk.get("logged") for disk in read_disk_requests(result.cell) or ())


def verdicts(result: CellResult) -> set[Durability]:
    """What the trials say, each that says anything."""
    return {word for trial in result.trials if (word := _word(result, trial)) is not None}


def _said(found: set[Durability]) -> str:
    return "" if not found else str(next(iter(found))) if len(found) == 1 else "mixed"


def _word(result: CellResult, trial: Trial) -> Durability | None:
    """What is proven of the row itself; else what its own flushes say, which a disk that keeps nothing takes back."""
    flushes, proof, traffic = trial.facts.of(Flushes), trial.facts.of(Proof), trial.facts.of(Traffic)
    if proof is not None and of_row(result, proof.proven):
        return proof.proven.word
    if traffic is not None and not traffic.wrote:  # nothing of this workload is on that disk
        return None
    if flushes is None:
        return None if proof is None else Durability.UNKNOWN
    if proof is not None and proof.proven.word in _NOT_KEPT and flushes.word is not Durability.NOTHING:
        return proof.proven.word
    return flushes.word


def proofs(workload: WorkloadResult) -> list[Node]:
    """What power cuts have shown of the disks of a workload that measures something else (`--prove`): a row for each
    proof, which several cells may share, and for what is not proven the reason.
    """
    from guestmark.workloads.powercut.sections import proof_of, sentence, table

    shared: list[tuple[Proven, list[CellResult]]] = []
    for result in workload.shown_cells:
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
