"""Commands that a report suggests."""

from guestmark.ledger.model import StoredRun
from guestmark.page.text import join_parts


def format_resume_command(run: StoredRun, options: str = "") -> str:
    """Return the command that resumes a run; another user's run has to be trusted explicitly."""
    trust = "" if run.is_trusted else "--trust"
    return join_parts(["guestmark resume", run.id, options, trust], " ")
