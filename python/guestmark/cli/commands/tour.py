"""Declares `guestmark tour`."""

from dataclasses import dataclass
from typing import Annotated

from guestmark.cli import options


@dataclass(frozen=True, kw_only=True)
class Options:
    """See what virtualization costs here, roughly, in one to three minutes.

    The tour finds out which platforms work, measures one small thing of each kind on them (computing, system calls,
    memory, a disk, the start of a guest, a file sent into it), and suggests what to run next. It runs the plan `tour`,
    and the run is kept in the ledger like any other.

    Exit status: 0 all measured, 1 some trials failed, 2 the command line is wrong, 3 nothing could be measured, 130
    interrupted (guestmark resume continues).
    """

    on: Annotated[
        list[str] | None,
        options.make_platforms_option("Guests to compare with the host, instead of all that work here."),
    ] = None
    blocks: options.Blocks = None
    json: options.Json = None
    markdown: options.Markdown = None
    html: options.Html = None
    ledger: options.Ledger = None
    quiet: options.Quiet = False
