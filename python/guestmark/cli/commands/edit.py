"""Declares `guestmark edit`."""

from dataclasses import dataclass
from typing import Annotated

from guestmark.cli import options
from guestmark.core.option import Option


@dataclass(frozen=True, kw_only=True)
class Options:
    """Give a run a name, a note, labels and tags, or remove labels and tags."""

    run: options.Run
    name: options.Name = None
    note: options.Note = None
    label: options.Labels = None
    tag: options.Tags = None
    unlabel: Annotated[
        list[str] | None, Option("--unlabel", "Remove this label. Repeatable.", metavar="NAME")
    ] = None
    untag: Annotated[list[str] | None, Option("--untag", "Remove this tag. Repeatable.", metavar="TAG")] = (
        None
    )
    ledger: options.Ledger = None
