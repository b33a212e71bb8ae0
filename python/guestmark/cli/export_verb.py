"""`guestmark export`: a run for other programs, for papers, and for other people's ledgers."""

from __future__ import annotations

import sys
from pathlib import PurePath
from typing import Annotated

import typer

from guestmark.cli import options
from guestmark.core.errors import UsageError
from guestmark.core.home import LATEST
from guestmark.core.units import counted
from guestmark.page.say import say
from guestmark.report.export_format import SUFFIXES, Format


def command(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN...]",
            help="A run's id, its beginning or end, its name, or `last` (the default); several for a bundle.",
            autocompletion=options.complete_run,
        ),
    ] = None,
    *,
    format: Annotated[  # noqa: A002
        Format | None,
        typer.Option("--format", "-f", help="The format (default: by FILE's suffix; json for none)."),
    ] = None,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="Where to write it (- for standard output).")
    ] = "-",
    bundle: Annotated[
        str | None,
        typer.Option(
            "--bundle",
            metavar="FILE.gmk.html",
            help="Write a file to share: a page for any browser, which `guestmark import` reads, too.",
        ),
    ] = None,
    host_name: Annotated[
        bool, typer.Option("--host-name", help="Keep the names of host and user in a bundle.")
    ] = False,
    consoles: Annotated[
        bool, typer.Option("--consoles", help="Put what machines printed into a bundle, too.")
    ] = False,
    ledger: options.Ledger = None,
) -> None:
    """Write a run as JSON, CSV, Parquet, Markdown or HTML, or runs as a bundle to share.

    A bundle is one file with whole runs, all trials included, without names of host and user.
    """
    from guestmark.cli.session import write
    from guestmark.ledger import open_ledger, run_history
    from guestmark.report import formats

    runs = runs or [LATEST]
    if bundle is not None:
        _bundle(runs, bundle, ledger, host_name=host_name, consoles=consoles)
        return
    if not output:
        raise UsageError("-o names no file", hint="e.g. -o run.json, or - for standard output")
    if len(runs) > 1:
        raise UsageError("only a bundle holds several runs", hint="e.g. --bundle runs.gmk.html")
    chosen = format or _by_suffix(output)
    if chosen is Format.PARQUET and output == "-" and sys.stdout.isatty():
        raise UsageError("Parquet is not for a terminal", hint="name a file: -o run.parquet")
    with open_ledger(ledger, writable=False) as opened:
        stored = opened.load_run(runs[0])
        analysis = run_history.judged(opened, stored)
    write(formats.render(stored, chosen, analysis), output)


def _bundle(runs: list[str], path: str, ledger: str | None, *, host_name: bool, consoles: bool) -> None:
    import socket

    from guestmark.cli.session import write
    from guestmark.ledger import open_ledger
    from guestmark.ledger.bundle import Packed, pack, shareable
    from guestmark.report import formats

    if not path:
        raise UsageError("--bundle names no file", hint="e.g. --bundle run.gmk.html")
    name = "" if host_name else socket.gethostname()
    with open_ledger(ledger, writable=False) as opened:
        packed = [
            Packed(
                shareable(opened.load_run(run_id), host_name=name, consoles=consoles),
                opened.remarks(run_id),
            )
            for run_id in dict.fromkeys(map(opened.resolve, runs))
        ]
    write(pack(packed, formats.bundle_page([each.run for each in packed])), path)
    if path != "-":
        say(f"{path} holds {counted(len(packed), 'run')}: open it in a browser, or guestmark import {path}")


def _by_suffix(output: str) -> Format:
    """The format that a file's name means. Raises `UsageError` for one that means none."""
    suffix = PurePath(output).suffix
    if not suffix:
        return Format.JSON
    known = SUFFIXES.get(suffix.lower())
    if known is None:
        raise UsageError(
            f"-o {output}: {suffix} is not a format that runs can be written in",
            hint=f"known: {', '.join(SUFFIXES)}; or name one: --format json; --bundle for another ledger",
        )
    return known
