"""Whether what a workload flushed survives a power cut: speed is stated with durability."""

from guestmark.core.findings import Durability, Flushes, Proof
from guestmark.core.model import Trial
from guestmark.stats.analysis import CellResult

MEANING = (
    "durability: what is sure of flushed writes: proven by power cuts, seen to reach the kernel, claimed by the "
    "hypervisor, lost, in memory"
)


def durability(result: CellResult) -> str:
    """From the trials: a word of `Durability`, or `mixed` when trials disagree; empty for workloads of which nobody
    asks that.
    """
    found = verdicts(result)
    return "" if not found else str(found.pop()) if len(found) == 1 else "mixed"


def verdicts(result: CellResult) -> set[Durability]:
    """What the trials say, each that says anything."""
    return {word for trial in result.trials if (word := _word(trial)) is not None}


def _word(trial: Trial) -> Durability | None:
    """What a trial's own flushes say; of what may have been flushed, what is proven of the same disk."""
    flushes, proof = trial.facts.of(Flushes), trial.facts.of(Proof)
    if proof is None:
        return None if flushes is None else flushes.word
    if flushes is not None and flushes.word is Durability.NOTHING:
        return flushes.word
    return proof.proven.word
