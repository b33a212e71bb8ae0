"""Whether a workload's flushes reached the host: speed is stated with durability."""

from guestmark.core.findings import Flushes
from guestmark.stats.analysis import CellResult

MEANING = "durable: whether the guest's flushes reached the host"


def durability(result: CellResult) -> str:
    """From the trials: `yes`, `no`, `unknown`, or `mixed` when trials disagree; empty for workloads of
    which nobody asks that.
    """
    found = verdicts(result)
    return "" if not found else found.pop() if len(found) == 1 else "mixed"


def verdicts(result: CellResult) -> set[str]:
    """What the trials say, each that says anything."""
    return {found.reached for trial in result.trials if (found := trial.facts.of(Flushes)) is not None}
