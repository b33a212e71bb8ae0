"""`guestmark rm`: runs out of sight, and back."""

from __future__ import annotations

from typing import Annotated

import typer

from guestmark.cli import options
from guestmark.page.say import say


def command(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN...", help="Runs by id, beginning, end or name; or `last`."),
    ],
    *,
    undo: Annotated[bool, typer.Option("--undo", help="Bring runs back that were removed.")] = False,
    ledger: options.Ledger = None,
) -> None:
    """Remove runs; --undo brings them back until `guestmark vacuum` deletes them.

    A removed run is not listed or shown, and later runs are not compared with it.
    """
    from guestmark.ledger import open_ledger
    from guestmark.ledger.run_manager import Shelf

    with open_ledger(ledger) as opened:
        shelf = Shelf(opened)
        for run in runs:
            if undo:
                say(f"run {shelf.restore(run)} is back")
            else:
                run_id = shelf.remove(run)
                say(f"run {run_id} is removed; guestmark rm --undo {run_id} brings it back")
