"""`guestmark capture`: who is slow in a packet capture, the client or the server?"""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from guestmark.core.errors import GuestmarkError, UsageError

if TYPE_CHECKING:
    from guestmark.capture.binary import Selection
    from guestmark.capture.model import Trace

ROWS = 20
_GRACE_MS = 2000  # in which a tool that captures hands over what it still has


class Format(StrEnum):
    """What the answer can be written as."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    TCP_STATS = "tcp-stats"
    PARQUET = "parquet"


class By(StrEnum):
    """What a row is."""

    CONNECTION = "connection"
    ENDPOINT = "endpoint"


def command(  # noqa: PLR0917 - one parameter per option
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE...", help="pcap, pcapng or Wireshark's CSV, also .gz, .zst, .xz, .bz2; - is stdin."
        ),
    ] = None,
    filter_by: Annotated[
        str | None,
        typer.Option(
            "--filter", metavar="HOST|PORT|FLOW", help="10.0.0.1, 10.0.0.0/8, 80, http, A:80, A:80-B:1024"
        ),
    ] = None,
    format: Annotated[Format, typer.Option("--format", "-f", help="The format.")] = Format.TABLE,  # noqa: A002
    by: Annotated[By, typer.Option("--by", help="What a row is.")] = By.CONNECTION,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Also draw a picture: one HTML file.")
    ] = None,
    extract: Annotated[
        Path | None,
        typer.Option(
            "--extract", metavar="OUT", help="Write the packets that ended the longest waits, as pcapng."
        ),
    ] = None,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="Where to write it (- is standard output).")
    ] = "-",
    top: Annotated[
        int | None, typer.Option("--top", min=1, help=f"Only the N longest connections (table: {ROWS}).")
    ] = None,
    live: Annotated[
        str | None,
        typer.Option("--live", metavar="IFACE", help="Capture from this interface until Ctrl-C, then tell."),
    ] = None,
    merge: Annotated[
        bool,
        typer.Option("--merge", help="Treat all FILEs as one trace, in this order, instead of one each."),
    ] = False,
    memory: Annotated[
        int | None,
        typer.Option(
            "--memory",
            metavar="MB",
            min=1,
            help="Memory for open connections (default: an eighth of what is available).",
        ),
    ] = None,
) -> None:
    """Say who is slow in a packet capture: the client, the server, the network or something else."""
    from guestmark.capture.binary import Selection

    if (live is None) == (not files):
        raise UsageError(
            "which capture?",
            hint="name files, - for standard input, or an interface with --live (one of these)",
        )
    if extract and (live or merge or len(files or ()) != 1 or files == ["-"] or format is not Format.TABLE):
        raise UsageError(
            "packets are taken out of one file, which is read twice, beside the table",
            hint="guestmark capture FILE --extract OUT.pcapng",
        )
    if live is not None:
        from guestmark.agent.binary import ending_with_us
        from guestmark.capture.live import capturing

        with capturing(live, partial(ending_with_us, grace_ms=_GRACE_MS)) as source:
            selection = Selection(("-",), filter_by, merge, memory, source)
            status = _answer(selection, format, by, plot, top, output, live=True)
        raise typer.Exit(status)
    selection = Selection(tuple(files or ()), filter_by, merge, memory)
    raise typer.Exit(_answer(selection, format, by, plot, top, output, extract=extract))


def _answer(  # noqa: PLR0917 - what the options say
    selection: Selection,
    format: Format,  # noqa: A002
    by: By,
    plot: Path | None,
    top: int | None,
    output: str,
    *,
    live: bool = False,
    extract: Path | None = None,
) -> int:
    if plot and "-" in selection.files and format is not Format.TABLE:
        raise UsageError(
            "standard input can be read only once, for the picture or for the rows",
            hint="leave out --format, or save the capture to a file first",
        )
    try:
        if format is Format.TABLE:
            return _table(selection, by, plot, top, output, live=live, extract=extract)
        status = _rows(selection, format, by, top, output)
        if plot:
            _draw(selection, plot)
    except OSError as error:
        if error.filename is None:
            raise
        raise GuestmarkError(f"{error.filename} cannot be written: {error.strerror}") from error
    return status


def _table(
    selection: Selection,
    by: By,
    plot: Path | None,
    top: int | None,
    output: str,
    *,
    live: bool,
    extract: Path | None,
) -> int:
    from guestmark.capture import table
    from guestmark.capture.binary import MOST_SEQUENCES, analyse
    from guestmark.cli.console import Console
    from guestmark.page.say import say

    document, status = analyse(
        selection,
        top=top or ROWS,
        histograms=plot is not None,
        sequences=MOST_SEQUENCES if plot else 0,
        progress=live,
        guilty=extract is not None,
    )
    if live and sys.stderr.isatty():
        say("", prefix="")
    file = None if output == "-" else Path(output).open("w", encoding="utf-8")  # noqa: SIM115
    # Nothing is left out where no terminal limits the width.
    limited = file is None and (sys.stdout.isatty() or "COLUMNS" in os.environ)
    console = Console(file=file, width=None if limited else table.WIDEST)
    for trace in document.files:
        console.print(table.render(trace, by.value, named=len(document.files) > 1, width=console.width))
    if extract:
        _extract(document.files[0], selection.files[0], extract)
    if file:
        file.close()
    if plot:
        from guestmark.capture import picture

        picture.write(document, plot)
    return status


def _extract(trace: Trace, file: str, output: Path) -> None:
    """Write the packets that ended the longest waits for the main cause, and say how Wireshark shows them."""
    from guestmark.capture import verdict
    from guestmark.capture.binary import extract
    from guestmark.capture.units import duration
    from guestmark.page.say import say

    doubt, main, packets = verdict.doubt(trace), verdict.main_part(trace.causes), verdict.guilty(trace)
    if doubt is not None and doubt.refused:
        raise GuestmarkError(
            f"no packet can be blamed: {doubt.reason}",
            hint="see the limits below the table for what to capture",
        )
    if main is None or not packets:
        raise GuestmarkError(
            "no packet can be blamed: no connection was seen in both directions",
            hint="capture both directions, from the beginning of a connection",
        )
    if output.exists() and output.samefile(file):
        raise UsageError(f"{output} is the capture itself", hint="name another file for --extract")
    extract(file, [packet.frame for packet in packets], output)
    whole = sum(packet.waited_s for packet in packets)
    count = f"{len(packets)} packets" if len(packets) > 1 else "1 packet"
    say(f"{output}: {count} that ended the longest waits for {main.name}, {duration(whole)} in all")
    say(f"in {file}, for Wireshark: {verdict.display_filter(packets)}")


def _rows(selection: Selection, format: Format, by: By, top: int | None, output: str) -> int:  # noqa: A002
    from guestmark.capture import parquet
    from guestmark.capture.binary import stream

    options = [] if top is None else [f"--top={top}"]
    if format is Format.PARQUET:
        if output == "-":
            raise UsageError("Parquet needs a file", hint="name one: -o connections.parquet")
        return parquet.write(selection, by.value, Path(output), options)
    options += [f"--format={format.value}", f"--by={by.value}"]
    if output == "-":
        sys.stdout.flush()
        return stream(selection, options)
    with Path(output).open("wb") as out:
        return stream(selection, options, out.fileno())


def _draw(selection: Selection, plot: Path) -> None:
    from guestmark.capture import picture
    from guestmark.capture.binary import MOST_SEQUENCES, analyse

    document, _ = analyse(selection, top=ROWS, histograms=True, sequences=MOST_SEQUENCES)
    picture.write(document, plot)
