"""`guestmark plans`: the built-in plans, and one of them as TOML to edit."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from guestmark.cli import options
from guestmark.core.context import Caller
from guestmark.core.errors import UsageError

if TYPE_CHECKING:
    from guestmark.ledger.store import Ledger


def _complete_words(incomplete: str) -> list[str]:
    return ["show", *options.complete_plan(incomplete)]


def command(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[show NAME]",
            help="Print the TOML of this plan, ready to edit. Without NAME, list the plans.",
            autocompletion=_complete_words,
        ),
    ] = None,
    ledger: options.Ledger = None,
) -> None:
    """List the built-in plans, or print one to edit.

    For each you see the question it answers, its cells, and how long it takes here, by earlier runs if there are any.
    """
    from guestmark.plan import library

    if not words:
        with options.ledger_to_read(ledger) as opened:
            _list(opened)
        return
    if words[0] != "show" or len(words) != 2:
        if words == ["show"]:
            raise UsageError("no plan is named", hint=f"known: {', '.join(library.list_plan_names())}")
        named = (
            f"did you mean guestmark plans show {words[0]}? " if words[0] in library.list_plan_names() else ""
        )
        raise UsageError(
            f"plans takes no word {words[0] if words[0] != 'show' else words[2]!r}",
            hint=f"{named}guestmark plans lists them, guestmark plans show NAME prints one",
        )
    sys.stdout.write(library.read_builtin(words[1]))


def _list(ledger: Ledger | None) -> None:
    from rich.padding import Padding
    from rich.text import Text

    from guestmark.cli.console import Console
    from guestmark.core.errors import GuestmarkError
    from guestmark.core.units import counted
    from guestmark.engine.time_estimate import estimate_time
    from guestmark.plan import library
    from guestmark.plan.load import load_outline
    from guestmark.plan.outline import assemble_plan

    console = Console()
    if not console.is_terminal:
        console.width = 1000  # a program reads it
    for name in library.list_plan_names():
        head = Text(name, style="bold")
        try:
            outline = load_outline(*library.find_plan(name))
            plan = assemble_plan(outline, Caller())
        except GuestmarkError as error:
            head.append(f"  {error.message}: {error.hint}", style="red")
            console.print(head)
            continue
        head.append(f"  {plan.title}", style="not bold")
        console.print(head)
        found = estimate_time(plan, ledger)
        platforms = ", ".join(dict.fromkeys(str(cell.platform) for cell in plan.cells))
        origin = f" ({found.origin})" if found.origin else ""
        facts = f"{counted(len(plan.cells), 'cell')} on {platforms}; {found.expectation}{origin}"
        published = "; --published shows published figures" if plan.published else ""
        console.print(Padding(Text(f"{facts}{published}", style="dim"), (0, 0, 0, 2), expand=False))
    console.print(
        Text(
            "guestmark run NAME runs one, --for 5m what fits; guestmark plans show NAME explains it",
            style="dim",
        )
    )
