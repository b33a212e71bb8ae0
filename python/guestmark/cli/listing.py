"""`--list`: the cells of a plan, without measuring them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from guestmark.cli import options
from guestmark.page.say import say, tell

if TYPE_CHECKING:
    from guestmark.core.model import Plan

LIST = "Show the cells that would run and how long they take; run nothing."


def show_cells(plan: Plan, ledger_path: str | None) -> None:
    """Prints the cells on standard output, one per line, and remarks on standard error."""
    from guestmark.core.units import counted
    from guestmark.engine.budget import estimate

    for cell in plan.cells:
        marks = ["baseline"] if cell.baseline else []
        marks += [f"null copy of {cell.null_of}"] if cell.null_of else []
        tell(f"{cell.id}{f'  # {marks[0]}' if marks else ''}")
    sys.stdout.flush()
    if usual := _unsaid(plan):
        say(f"defaults of all cells: {usual}")
    for note in plan.context.notes:
        say(note)
    with options.ledger_to_read(ledger_path) as ledger:
        found = estimate(plan, ledger)
    origin = f" ({found.origin})" if found.origin else ""
    say(f"{counted(len(plan.cells), 'cell')}: {found.expectation}{origin}")


def _unsaid(plan: Plan) -> str:
    """The factors at the levels that ids leave out."""
    found = {
        f"{name}={level}": None
        for cell in plan.cells
        for name, level in cell.factors.items()
        if f"{name}={level}" not in (cell.null_of or cell.id).split()
    }
    return " ".join(found)
