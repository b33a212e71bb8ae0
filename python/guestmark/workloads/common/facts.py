"""Reads facts of the trials that a report describes."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from guestmark.core.findings import Fact
from guestmark.core.model import Trial
from guestmark.stats.analysis import CellResult, WorkloadResult

F = TypeVar("F", bound=Fact)
T = TypeVar("T")


def list_facts(trials: Sequence[Trial], kind: type[F]) -> list[F]:
    """Returns the facts of a kind, in the order of the trials that have one."""
    facts = []
    for trial in trials:
        fact = trial.facts.find_fact(kind)
        if fact is not None:
            facts.append(fact)
    return facts


def pair_with_cells(
    workload: WorkloadResult, find: Callable[[CellResult], T | None]
) -> list[tuple[CellResult, T]]:
    """Returns each shown cell with what `find` finds in it, without those in which it finds nothing."""
    pairs = []
    for result in workload.shown_cells:
        if found := find(result):
            pairs.append((result, found))
    return pairs
