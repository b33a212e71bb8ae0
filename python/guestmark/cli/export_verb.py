"""`guestmark export`: a run for other programs and for papers."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated

import typer

from guestmark.cli import options
from guestmark.errors import UsageError


class Format(StrEnum):
    """What a run can be written as."""

    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"
    MARKDOWN = "markdown"


def command(
    run: options.Run,
    format: Annotated[Format, typer.Option("--format", "-f", help="The format.")] = Format.JSON,  # noqa: A002
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="Where to write it (- for standard output).")
    ] = "-",
    ledger: options.Ledger = None,
) -> None:
    """Write a run as JSON, CSV, Parquet or Markdown."""
    from guestmark.cli.session import write
    from guestmark.ledger import open_ledger
    from guestmark.report import formats

    if format is Format.PARQUET and output == "-" and sys.stdout.isatty():
        raise UsageError("Parquet is not for a terminal", hint="name a file: -o run.parquet")
    with open_ledger(ledger, writable=False) as opened:
        stored = opened.load_run(run)
    write(formats.render(stored, formats.Format(format.value)), output)
