"""Commands that a report offers."""

from guestmark.ledger.model import StoredRun


def resume_command(run: StoredRun, options: str = "") -> str:
    """Return the command that takes a run on; somebody else's run has to be trusted explicitly."""
    trust = "" if run.is_trusted else "--trust"
    return " ".join(part for part in ("guestmark resume", run.id, options, trust) if part)
