"""`guestmark export`: a run for other programs and for papers."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from guestmark.cli import options


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
    from guestmark.ledger import open_ledger
    from guestmark.report import formats

    with open_ledger(ledger, writable=False) as opened:
        stored = opened.load_run(run)
    formats.write(stored, format.value, output)
