"""`guestmark vacuum`: removed runs are deleted."""

from __future__ import annotations

from guestmark.cli import options
from guestmark.core.units import counted
from guestmark.page.say import say


def command(ledger: options.Ledger = None) -> None:
    """Delete removed runs for good, and free their space on the disk."""
    from guestmark.ledger import open_ledger
    from guestmark.ledger.run_manager import Shelf

    with open_ledger(ledger) as opened:
        gone = Shelf(opened).vacuum()
    say(f"{counted(len(gone), 'run')} deleted{': ' if gone else ''}{', '.join(gone)}")
