"""Declares `guestmark show`."""

from dataclasses import dataclass
from typing import Annotated

from guestmark.cli import options
from guestmark.core.home import LATEST
from guestmark.core.option import Option


@dataclass(frozen=True, kw_only=True)
class Options:
    """Show the result of a run."""

    run: options.Run = LATEST
    console_of: Annotated[
        str | None,
        Option(
            "--console",
            "Show what this cell's machine and command printed in its last failed trial, or else in "
            "its last trial.",
            metavar="CELL",
        ),
    ] = None
    environment: Annotated[
        bool, Option("--environment", "Also show everything recorded about the host and the guests.")
    ] = False
    browser: Annotated[bool, Option("--open", "Open the run's page in a browser.")] = False
    details: options.Details = False
    published: options.Published = False
    baseline: options.Baseline = None
    json: options.Json = None
    csv: options.Csv = None
    markdown: options.Markdown = None
    html: options.Html = None
    ledger: options.Ledger = None
