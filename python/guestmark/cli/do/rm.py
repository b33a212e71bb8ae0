"""Removes runs from lists, and restores them."""

from __future__ import annotations

from guestmark.cli.commands.rm import Options
from guestmark.core.errors import ExitStatus
from guestmark.ledger import open_ledger
from guestmark.ledger.run_manager import RunManager
from guestmark.page.say import say


def run(given: Options) -> int:
    """Removes or restores each run, one after another."""
    with open_ledger(given.ledger) as ledger:
        manager = RunManager(ledger)
        for name in given.runs:
            if given.undo:
                say(f"run {manager.restore_run(name)} is restored")
            else:
                run_id = manager.remove_run(name)
                say(f"run {run_id} is removed; guestmark rm --undo {run_id} brings it back")
    return ExitStatus.ALL_MEASURED
