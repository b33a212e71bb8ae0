"""The answer of `guestmark capture` for a person: the table, remarks, a picture, and the packets to blame."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from guestmark.capture import table, verdict
from guestmark.capture.binary import MOST_SEQUENCES, Selection, Wanted, analyse_capture, extract_packets
from guestmark.capture.model import Document, Trace
from guestmark.capture.picture import write_picture
from guestmark.capture.units import format_seconds
from guestmark.cli.commands.capture import TABLE_ROWS, Options
from guestmark.cli.console import Console
from guestmark.core.errors import GuestmarkError, UsageError
from guestmark.page.say import say


def show_answer(given: Options, selection: Selection, found: Document, lines: tuple[str, ...] = ()) -> None:
    """Prints the table with its remarks, and writes the requested packets and picture."""
    if given.live and sys.stderr.isatty():
        # The progress on the terminal ends without a line feed.
        say("", prefix="")
    file = None if given.output == "-" else Path(given.output).open("w", encoding="utf-8")  # noqa: SIM115
    # Without a terminal that limits the width, the table omits nothing.
    is_limited = file is None and (sys.stdout.isatty() or "COLUMNS" in os.environ)
    console = Console(file=file, width=None if is_limited else table.WIDEST)
    for trace in found.files:
        rendered = table.render_trace(trace, given.by.value, named=len(found.files) > 1, width=console.width)
        console.print(rendered)
        if (line := verdict.describe_longest_waits(trace)) and not given.extract and not given.live:
            console.print(line)
        if given.details:
            for line in table.describe_requests(trace):
                console.print(line)
    for line in lines:
        console.print(line)
    if given.extract:
        _extract_packets(found.files[0], selection.files[0], given.extract)
    if file:
        file.close()
    if given.plot:
        write_picture(found, given.plot)


def _extract_packets(trace: Trace, file: str, output: Path) -> None:
    """Writes the packets that ended the longest waits for the main cause, and prints a display filter for them."""
    doubt, cause, packets = (
        verdict.find_doubt(trace),
        verdict.find_main_cause(trace.causes),
        verdict.find_guilty_packets(trace),
    )
    if doubt is not None and doubt.refused:
        raise GuestmarkError(
            f"no packet can be blamed: {doubt.reason}",
            hint="the limits below the table say what to capture",
        )
    if cause is None or not packets:
        raise GuestmarkError(
            "no packet can be blamed: no connection was seen in both directions",
            hint="capture both directions, from the beginning of a connection",
        )
    if output.exists() and output.samefile(file):
        raise UsageError(f"{output} is the capture itself", hint="name another file for --extract")
    extract_packets(file, [packet.frame for packet in packets], output)
    waited_s = sum(packet.waited_s for packet in packets)
    count = f"{len(packets)} packets" if len(packets) > 1 else "1 packet"
    waited = format_seconds(waited_s)
    say(f"{output}: {count} that ended the longest waits for {cause.name}, {waited} in total")
    say(f"to see them in {file}, display filter for Wireshark: {verdict.make_display_filter(packets)}")


def draw_picture(selection: Selection, plot: Path) -> None:
    """Draws the picture of a capture whose rows were written in another format."""
    wanted = Wanted(top=TABLE_ROWS, histograms=True, sequences=MOST_SEQUENCES, requests=True)
    found, _ = analyse_capture(selection, wanted)
    write_picture(found, plot)
