"""`guestmark export`: a run for other programs and for papers."""

from __future__ import annotations

import sys
from pathlib import PurePath
from typing import Annotated

import typer

from guestmark.cli import options
from guestmark.core.errors import UsageError
from guestmark.report.export_format import SUFFIXES, Format


def command(
    run: options.Run,
    format: Annotated[  # noqa: A002
        Format | None,
        typer.Option("--format", "-f", help="The format (default: by FILE's suffix; json for none)."),
    ] = None,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="Where to write it (- for standard output).")
    ] = "-",
    ledger: options.Ledger = None,
) -> None:
    """Write a run as JSON, CSV, Parquet, Markdown, or as a page with charts (HTML)."""
    from guestmark.cli.session import write
    from guestmark.ledger import open_ledger
    from guestmark.report import formats, past

    if not output:
        raise UsageError("-o names no file", hint="e.g. -o run.json, or - for standard output")
    chosen = format or _by_suffix(output)
    if chosen is Format.PARQUET and output == "-" and sys.stdout.isatty():
        raise UsageError("Parquet is not for a terminal", hint="name a file: -o run.parquet")
    with open_ledger(ledger, writable=False) as opened:
        stored = opened.load_run(run)
        analysis = past.judged(opened, stored)
    write(formats.render(stored, chosen, analysis), output)


def _by_suffix(output: str) -> Format:
    """The format that a file's name means. Raises `UsageError` for one that means none."""
    suffix = PurePath(output).suffix
    if not suffix:
        return Format.JSON
    known = SUFFIXES.get(suffix.lower())
    if known is None:
        raise UsageError(
            f"-o {output}: {suffix} is not a format that runs can be written in",
            hint=f"known: {', '.join(SUFFIXES)}; or name one: --format json",
        )
    return known
