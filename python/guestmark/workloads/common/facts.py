"""Reads facts of the trials that a report describes."""

from collections.abc import Sequence
from typing import TypeVar

from guestmark.core.findings import Fact
from guestmark.core.model import Trial

F = TypeVar("F", bound=Fact)


def list_facts(trials: Sequence[Trial], kind: type[F]) -> list[F]:
    """Returns the facts of a kind, in the order of the trials that have one."""
    facts = []
    for trial in trials:
        fact = trial.facts.find_fact(kind)
        if fact is not None:
            facts.append(fact)
    return facts
