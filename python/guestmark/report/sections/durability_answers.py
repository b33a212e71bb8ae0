"""What power cuts left of each row, in a sentence."""

from __future__ import annotations

from collections.abc import Sequence

from guestmark.core.findings import Durability, Proof, Proven
from guestmark.page.text import Inline, Span, Tone, spans
from guestmark.stats.analysis import CellResult
from guestmark.stats.durability import is_about_row
from guestmark.stats.questions import DurabilityGroup
from guestmark.workloads.powercut.sections import describe_unsynced

# With more rows than this, only the figures are printed.
_SPELLED_OUT = 4
_DURABILITY_MEANINGS = {
    Durability.SYNCED_PART_PROVEN: "data that was never synced may be lost",
    Durability.REACHED: "this host's kernel was asked to flush; --prove cuts the power",
    Durability.CLAIMED: "by the hypervisor's own count; --prove cuts the power",
    Durability.LOST: "flushes do not reach the disk",
    Durability.MEMORY: "lost with the power, flushed or not",
    Durability.NOTHING: "the workload asked for no flush",
}
_DURABILITY_TONES = {
    Durability.PROVEN: Tone.FASTER,
    Durability.LOST: Tone.SLOWER,
    Durability.MEMORY: Tone.SLOWER,
}


def describe_durability(group: DurabilityGroup) -> Inline:
    """Return the rows of one durability, each with what its power cuts lost."""
    losses = [_describe_losses(result) for result in group.results]
    remarks = [""] * len(losses)
    detail = ""
    if counts := _count_losses(group.results):
        remarks = [f" {count}" for count in counts]
        detail = " (crash states that lose acknowledged records)"
    elif not any(losses):
        if group.word in _DURABILITY_MEANINGS:
            detail = f" ({_DURABILITY_MEANINGS[group.word]})"
    elif len(set(losses)) == 1:
        each = "each: " if len(losses) > 1 else ""
        detail = f" ({each}{losses[0]})"
    else:
        for number, lost in enumerate(losses):
            if lost:
                remarks[number] = f" ({lost})"
    tone = _DURABILITY_TONES.get(group.word, Tone.UNCLEAR)
    cells = [f"{result.cell.id}{remark}" for result, remark in zip(group.results, remarks, strict=True)]
    return spans(Span(str(group.word), tone), f": {', '.join(cells)}{detail}.")


def _count_losses(results: Sequence[CellResult]) -> list[str]:
    """Return for each row how many of its crash states lose acknowledged records, such as `3 of 120`.

    Empty if there are few rows, which have room for a sentence each, or if one of them is about something else.
    """
    if len(results) <= _SPELLED_OUT:
        return []
    counts = []
    for result in results:
        proven = _find_proof(result)
        if proven is None or proven.syncs or proven.word.is_about_consistency:
            return []
        counts.append(f"{proven.losing} of {proven.states:,}")
    return counts


def _find_proof(result: CellResult) -> Proven | None:
    """Return the last proof about the row itself; None if its power was not cut."""
    for trial in reversed(result.trials):
        proof = trial.facts.find_fact(Proof)
        if proof is not None and is_about_row(result, proof.proven):
            return proof.proven
    return None


def _describe_losses(result: CellResult) -> str:
    """Return in how many crash states acknowledged records are missing; empty if the row's power was not cut."""
    proven = _find_proof(result)
    if proven is None:
        return ""
    states = f"{proven.states:,} crash states"
    if proven.word.is_about_consistency:
        return f"the check fails on {proven.losing} of {states}"
    verb = "loses" if proven.losing == 1 else "lose"
    what = "what was synced" if proven.syncs else "acknowledged records"
    return f"{proven.losing} of {states} {verb} {what}{describe_unsynced(proven)}"
