"""Whether a workload's flushes reached the host: speed is stated with durability."""

from guestmark.stats.analysis import CellResult

FLUSHES = "flushes_reached_host"  # a fact of disk workloads
MEANING = "durable: whether the guest's flushes reached the host"


def durability(result: CellResult) -> str:
    """From the trials' attestations: `yes`, `no`, `unknown`, or `mixed` when trials disagree; empty for workloads of
    which nobody asks that.
    """
    found = {trial.attestation.get(FLUSHES) for trial in result.trials if trial.attestation.get(FLUSHES)}
    return "" if not found else str(found.pop()) if len(found) == 1 else "mixed"
