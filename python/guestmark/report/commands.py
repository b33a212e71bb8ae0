"""Commands that a report offers."""

from guestmark.ledger.model import StoredRun


def resume_command(run: StoredRun, options: str = "") -> str:
    """What takes a run on: also of somebody else's, which has to be trusted."""
    return " ".join(filter(None, ["guestmark resume", run.id, options, "" if run.is_trusted else "--trust"]))
