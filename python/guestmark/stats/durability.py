"""The word for a row's durability: whether what its workload flushed survives a power cut.

A word describes a row only if it was determined for that row. A proof by guestmark's own records describes only the
disk below it.
"""

from collections.abc import Collection

from guestmark.core.findings import Durability, Flushes, Proof, Proven, Traffic
from guestmark.core.model import Trial
from guestmark.stats.analysis import CellResult

MIXED = "mixed"  # trials disagree
_NOT_KEPT = frozenset({Durability.LOST, Durability.MEMORY})


def describe_row_durability(result: CellResult) -> str:
    """Return the word for what the row itself flushed; empty if no trial has determined it."""
    return _choose_common_word(find_durability(result))


def describe_disk_durability(result: CellResult) -> str:
    """Return the word that a proof of the row's disk found; empty without one, or if the proof is about the row."""
    words = set()
    for trial in result.trials:
        proof = trial.facts.find_fact(Proof)
        if proof is not None and not is_about_row(result, proof.proven):
            words.add(proof.proven.word)
    return _choose_common_word(words)


def find_durability(result: CellResult) -> set[Durability]:
    """Return the words of all trials that have determined what became of the data that the row itself flushed."""
    words = set()
    for trial in result.trials:
        word = _judge_trial(result, trial)
        if word is not None:
            words.add(word)
    return words


def is_about_row(result: CellResult, proven: Proven) -> bool:
    """Return True if a proof is about what the row itself acknowledged: it records that, or the disk was logged."""
    return proven.of_row or any(disk.get("logged") for disk in result.cell.workload.params.get("disks") or ())


def _choose_common_word(words: Collection[Durability]) -> str:
    if not words:
        return ""
    if len(words) > 1:
        return MIXED
    return str(next(iter(words)))


def _judge_trial(result: CellResult, trial: Trial) -> Durability | None:
    flushes, proof, traffic = (
        trial.facts.find_fact(Flushes),
        trial.facts.find_fact(Proof),
        trial.facts.find_fact(Traffic),
    )
    if proof is not None and is_about_row(result, proof.proven):
        return proof.proven.word
    if traffic is not None and not traffic.wrote:
        # The workload wrote nothing to the proven disk.
        return None
    if flushes is None:
        return None if proof is None else Durability.UNKNOWN
    # A flush that reached the kernel does not help if the disk was shown not to keep data.
    if (
        proof is not None
        and proof.proven.word in _NOT_KEPT
        and flushes.durability_word is not Durability.NOTHING
    ):
        return proof.proven.word
    return flushes.durability_word
