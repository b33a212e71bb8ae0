"""Declares `guestmark runs`."""

from dataclasses import dataclass
from typing import Annotated

from guestmark.cli import options
from guestmark.core.option import Option


@dataclass(frozen=True, kw_only=True)
class Options:
    """List the runs in the ledger, oldest first, and show where the ledger is."""

    json: Annotated[bool, Option("--json", "Print JSON instead of text.")] = False
    check: Annotated[
        bool, Option("--check", "Check every row for damage instead; exit with 1 if there is any.")
    ] = False
    only: Annotated[
        str | None,
        Option(
            "--filter",
            "List only these runs, e.g. 'state=complete and platform=tcg', 'tag=release', "
            "'commit=1a2b3c', 'workload~sysbench', 'since=2d'.",
            metavar="EXPR",
        ),
    ] = None
    removed: Annotated[
        bool, Option("--removed", "List the runs that were removed and can be brought back.")
    ] = False
    html: Annotated[
        str | None,
        Option(
            "--html", "Write a page of these runs to FILE, with the trends of their ratios.", metavar="FILE"
        ),
    ] = None
    ledger: options.Ledger = None
