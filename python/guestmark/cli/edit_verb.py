"""`guestmark edit`: what is said of a run."""

from __future__ import annotations

from typing import Annotated

import typer

from guestmark.cli import options
from guestmark.core.errors import UsageError
from guestmark.page.say import say


def command(
    run: options.Run,
    *,
    name: options.Name = None,
    note: options.Note = None,
    label: options.Labels = None,
    tag: options.Tags = None,
    unlabel: Annotated[
        list[str] | None, typer.Option("--unlabel", metavar="NAME", help="Remove this label. Repeatable.")
    ] = None,
    untag: Annotated[
        list[str] | None, typer.Option("--untag", metavar="TAG", help="Remove this tag. Repeatable.")
    ] = None,
    ledger: options.Ledger = None,
) -> None:
    """Give a run a name, a note, labels and tags, or remove labels and tags."""
    from guestmark.ledger import open_ledger
    from guestmark.ledger.run_annotations import NOTHING

    said = options.remarks(name, note, label, tag)
    if said == NOTHING and not unlabel and not untag:
        raise UsageError("nothing to change", hint="give --name, --note, --label or --tag")
    with open_ledger(ledger) as opened:
        run_id = opened.annotate(run, said)
        if unlabel or untag:
            opened.take_away(run_id, labels=unlabel or (), tags=untag or ())
    say(f"run {run_id} is annotated")
