"""`guestmark export`: a run for other programs and for papers."""

from __future__ import annotations

import sys
from pathlib import PurePath
from typing import Annotated

import typer

from guestmark.cli import options
from guestmark.core.errors import UsageError
from guestmark.report.export_format import Format

_SUFFIXES = {".json": Format.JSON, ".csv": Format.CSV, ".parquet": Format.PARQUET, ".md": Format.MARKDOWN,
             ".html": Format.HTML}  # fmt: skip


def command(
    run: options.Run,
    format: Annotated[  # noqa: A002
        Format | None,
        typer.Option("--format", "-f", help="The format (default: by FILE's suffix, else json)."),
    ] = None,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="Where to write it (- for standard output).")
    ] = "-",
    ledger: options.Ledger = None,
) -> None:
    """Write a run as JSON, CSV, Parquet, Markdown, or as a page with pictures (HTML)."""
    from guestmark.cli.session import write
    from guestmark.ledger import open_ledger
    from guestmark.report import formats

    chosen = format or _SUFFIXES.get(PurePath(output).suffix, Format.JSON)
    if chosen is Format.PARQUET and output == "-" and sys.stdout.isatty():
        raise UsageError("Parquet is not for a terminal", hint="name a file: -o run.parquet")
    with open_ledger(ledger, writable=False) as opened:
        stored = opened.load_run(run)
    write(formats.render(stored, chosen), output)
