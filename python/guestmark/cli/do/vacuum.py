"""Deletes removed runs for good."""

from __future__ import annotations

from guestmark.cli.commands.vacuum import Options
from guestmark.core.errors import ExitStatus
from guestmark.core.units import format_count
from guestmark.ledger import open_ledger
from guestmark.ledger.run_manager import RunManager
from guestmark.page.say import say


def run(given: Options) -> int:
    """Deletes the runs and names them."""
    with open_ledger(given.ledger) as ledger:
        deleted = RunManager(ledger).delete_removed_runs()
    names = f": {', '.join(deleted)}" if deleted else ""
    say(f"{format_count(len(deleted), 'run')} deleted{names}")
    return ExitStatus.ALL_MEASURED
