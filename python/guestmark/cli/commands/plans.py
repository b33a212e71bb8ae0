"""Declares `guestmark plans`."""

from dataclasses import dataclass
from typing import Annotated

from guestmark.cli import options
from guestmark.core.option import Argument, Candidates


@dataclass(frozen=True, kw_only=True)
class Options:
    """List the built-in plans, or print one to edit.

    For each plan you see the question that it answers, its cells, and how long it takes here, estimated from earlier
    runs if there are any.
    """

    words: Annotated[
        list[str] | None,
        Argument(
            "[show NAME]",
            "Print the TOML of this plan, ready to edit. Without NAME, list the plans.",
            candidates=Candidates.PLANS_WORDS,
        ),
    ] = None
    ledger: options.Ledger = None
