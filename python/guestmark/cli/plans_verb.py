"""`guestmark plans`: the built-in plans, and one of them as TOML to edit."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from guestmark.cli import options
from guestmark.errors import UsageError

if TYPE_CHECKING:
    from guestmark.ledger.store import Ledger


def _complete_words(incomplete: str) -> list[str]:
    return ["show", *options.complete_plan(incomplete)]


def command(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[show NAME]",
            help="Print this plan's TOML, ready to edit; without it, list the plans.",
            autocompletion=_complete_words,
        ),
    ] = None,
    ledger: options.Ledger = None,
) -> None:
    """List the built-in plans, or print one to edit.

    Shown for each: the question it answers, its cells, and how long it takes here at least, estimated from earlier runs
    in the ledger where there are some.
    """
    from guestmark.plan import library

    if not words:
        with options.ledger_to_read(ledger) as opened:
            _list(opened)
        return
    if words[0] != "show" or len(words) != 2:
        raise UsageError(
            f"plans {' '.join(words)}: that is not known",
            hint="guestmark plans, or guestmark plans show NAME",
        )
    sys.stdout.write(library.builtin(words[1]))


def _list(ledger: Ledger | None) -> None:
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    from guestmark.errors import GuestmarkError
    from guestmark.experiment.estimate import estimate
    from guestmark.plan import library
    from guestmark.plan.load import load
    from guestmark.plan.outline import assemble
    from guestmark.plan.units import format_duration

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 1000  # a program reads it
    for name in library.names():
        head = Text(name, style="bold")
        try:
            outline = load(*library.find(name))
            plan = assemble(outline, {})
        except GuestmarkError as error:
            head.append(f"  {error.message}: {error.hint}", style="red")
            console.print(head)
            continue
        head.append(f"  {plan.title}", style="not bold")
        console.print(head)
        found = estimate(plan, ledger)
        platforms = ", ".join(dict.fromkeys(cell.platform for cell in plan.cells))
        takes = f"takes {format_duration(found.seconds)}" if found.block_s else "time unknown"
        most = format_duration(plan.policy.time_limit_s)
        limit = "" if found.exactly else f" or more, at most {most} and a block,"
        origin = f" ({found.origin})" if found.origin else ""
        facts = f"{len(plan.cells)} cells on {platforms}; {takes}{limit} for {found.blocks} blocks{origin}"
        published = "; --published shows published figures" if plan.published else ""
        console.print(Padding(Text(f"{facts}{published}", style="dim"), (0, 0, 0, 2), expand=False))
        for paragraph in outline.description.split("\n\n"):
            if paragraph.strip():
                console.print(Padding(Text(" ".join(paragraph.split())), (0, 0, 0, 2), expand=False))
        console.print()
    console.print(
        Text("guestmark run NAME runs one; guestmark plans show NAME > mine.toml makes it yours", style="dim")
    )
