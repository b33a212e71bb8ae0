"""Declares `guestmark rm`."""

from dataclasses import dataclass
from typing import Annotated

from guestmark.cli import options
from guestmark.core.option import Argument, Option


@dataclass(frozen=True, kw_only=True)
class Options:
    """Remove runs; --undo brings them back until `guestmark vacuum` deletes them.

    A removed run is not listed or shown, and later runs are not compared with it.
    """

    runs: Annotated[
        list[str], Argument("RUN...", "Runs by id, by the beginning or end of an id, by name, or `last`.")
    ]
    undo: Annotated[bool, Option("--undo", "Bring back runs that were removed.")] = False
    ledger: options.Ledger = None
