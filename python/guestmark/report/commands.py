"""Commands that a report suggests."""

from guestmark.ledger.model import StoredRun


def format_resume_command(run: StoredRun, options: str = "") -> str:
    """Return the command that resumes a run; another user's run has to be trusted explicitly."""
    trust = "" if run.is_trusted else "--trust"
    return " ".join(part for part in ("guestmark resume", run.id, options, trust) if part)
