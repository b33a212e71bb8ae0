"""Answers of `guestmark capture`: what is read, how it is written, and what is said about it.

The options are in `cli.capture_verb`; this module is all that a command line without any needs.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from guestmark.capture.binary import (
    MOST_SEQUENCES,
    Selection,
    Wanted,
    analyse_capture,
    read_document,
    start_analysis,
)
from guestmark.core.errors import GuestmarkError, UsageError

if TYPE_CHECKING:
    from guestmark.capture.model import Document, Trace

ROWS = 20


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


@dataclass(frozen=True, slots=True)
class Request:
    """What to read and what to write.

    With `both`, the files are captures of one traffic at several points; with `details`, requests are timed one by one.
    """

    selection: Selection
    format: Format = Format.TABLE
    by: By = By.CONNECTION
    plot: Path | None = None
    extract: Path | None = None
    top: int | None = None
    output: str = "-"
    live: bool = False
    both: bool = False
    details: bool = False


def of_files(words: list[str]) -> Request | None:
    """The request of a command line that only names files; None where there are options, which a parser must read."""
    if not words or any(word.startswith("-") or not word for word in words):
        return None
    return Request(Selection(tuple(words)))


def answer(request: Request) -> int:
    """Reads, writes, and returns the exit status. Raises `GuestmarkError` for what cannot be answered."""
    if request.plot and "-" in request.selection.files and request.format is not Format.TABLE:
        raise UsageError(
            "standard input can be read only once, for the picture or for the rows",
            hint="leave out --format, or save the capture to a file first",
        )
    try:
        if request.format is Format.TABLE:
            return _table(request)
        status = _rows(request)
        if request.plot:
            _draw(request.selection, request.plot)
    except OSError as error:
        if error.filename is None:
            raise
        raise GuestmarkError(f"{error.filename} cannot be written: {error.strerror}") from error
    return status


def _table(request: Request) -> int:
    if request.both:
        from guestmark.capture import points

        top, sequences = request.top or ROWS, MOST_SEQUENCES if request.plot else 0
        joined = points.join_points(request.selection, top, sequences)
        _show(request, joined.document, joined.lines)
        return joined.status
    wanted = Wanted(
        top=request.top or ROWS,
        histograms=request.plot is not None,
        sequences=MOST_SEQUENCES if request.plot else 0,
        progress=request.live,
        guilty=True,
        requests=request.details or request.plot is not None,
    )
    with start_analysis(request.selection, wanted) as program:
        # What draws the table is imported while the program works.
        from guestmark.capture import table
        from guestmark.cli import console

        del table, console
        found, status = read_document(program)
    _show(request, found, ())
    return status


def _show(request: Request, found: Document, lines: tuple[str, ...]) -> None:
    from guestmark.capture import table, verdict
    from guestmark.cli.console import Console
    from guestmark.page.say import say

    if request.live and sys.stderr.isatty():
        say("", prefix="")
    output = request.output
    file = None if output == "-" else Path(output).open("w", encoding="utf-8")  # noqa: SIM115
    # Nothing is left out where no terminal limits the width.
    limited = file is None and (sys.stdout.isatty() or "COLUMNS" in os.environ)
    console = Console(file=file, width=None if limited else table.WIDEST)
    for trace in found.files:
        console.print(
            table.render_trace(trace, request.by.value, named=len(found.files) > 1, width=console.width)
        )
        if (line := verdict.describe_longest_waits(trace)) and not request.extract and not request.live:
            console.print(line)
        if request.details:
            for line in table.request_lines(trace):
                console.print(line)
    for line in lines:
        console.print(line)
    if request.extract:
        _extract(found.files[0], request.selection.files[0], request.extract)
    if file:
        file.close()
    if request.plot:
        from guestmark.capture import picture

        picture.write_picture(found, request.plot)


def _extract(trace: Trace, file: str, output: Path) -> None:
    """Write the packets that ended the longest waits for the main cause, and say how Wireshark shows them."""
    from guestmark.capture import verdict
    from guestmark.capture.binary import extract_packets
    from guestmark.capture.units import format_seconds
    from guestmark.page.say import say

    doubt, main, packets = (
        verdict.find_doubt(trace),
        verdict.main_cause(trace.causes),
        verdict.find_guilty_packets(trace),
    )
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
    extract_packets(file, [packet.frame for packet in packets], output)
    whole = sum(packet.waited_s for packet in packets)
    count = f"{len(packets)} packets" if len(packets) > 1 else "1 packet"
    say(f"{output}: {count} that ended the longest waits for {main.name}, {format_seconds(whole)} in all")
    say(f"in {file}, for Wireshark: {verdict.display_filter(packets)}")


def _rows(request: Request) -> int:
    from guestmark.capture import parquet
    from guestmark.capture.binary import stream_output

    options = [] if request.top is None else [f"--top={request.top}"]
    if request.format is Format.PARQUET:
        if request.output == "-":
            raise UsageError("Parquet needs a file", hint="name one: -o connections.parquet")
        return parquet.write_parquet(request.selection, request.by.value, Path(request.output), options)
    options += [f"--format={request.format.value}", f"--by={request.by.value}"]
    if request.format is Format.JSON:
        options.append("--requests")
    if request.output == "-":
        sys.stdout.flush()
        return stream_output(request.selection, options)
    with Path(request.output).open("wb") as out:
        return stream_output(request.selection, options, out.fileno())


def _draw(selection: Selection, plot: Path) -> None:
    from guestmark.capture import picture

    found, _ = analyse_capture(
        selection, Wanted(top=ROWS, histograms=True, sequences=MOST_SEQUENCES, requests=True)
    )
    picture.write_picture(found, plot)
