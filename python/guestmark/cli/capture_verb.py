"""`guestmark capture`: who is slow in a packet capture, the client or the server?"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from guestmark.capture.binary import NotPermittedError, Selection
from guestmark.cli.captures import ROWS, By, Format, Request, answer
from guestmark.core.errors import UsageError

_GRACE_MS = 2000  # in which a tool that captures hands over what it still has


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
        Path | None,
        typer.Option("--plot", "--html", metavar="FILE", help="Also draw a picture: one HTML file."),
    ] = None,
    extract: Annotated[
        Path | None,
        typer.Option(
            "--extract", metavar="OUT", help="Write the packets that ended the longest waits, as pcapng."
        ),
    ] = None,
    details: Annotated[
        bool, typer.Option("--details", help="Also time requests one by one: HTTP/1, TLS handshakes and DNS.")
    ] = False,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="Where to write it (- is standard output).")
    ] = "-",
    top: Annotated[
        int | None,
        typer.Option(
            "--top", metavar="N", min=1, help=f"Only the N connections that waited longest (table: {ROWS})."
        ),
    ] = None,
    live: Annotated[
        str | None,
        typer.Option(
            "--live", metavar="IFACE", help="Capture from this interface until Ctrl-C, then report."
        ),
    ] = None,
    merge: Annotated[
        bool,
        typer.Option("--merge", help="Treat all FILEs as one trace, in this order, instead of one each."),
    ] = False,
    both: Annotated[
        bool,
        typer.Option(
            "--both", help="FILEs are captures of the same traffic at two points or more: one answer of all."
        ),
    ] = False,
    memory: Annotated[
        int | None,
        typer.Option(
            "--memory",
            metavar="MB",
            min=1,
            help="Memory for open connections (default: an eighth of the available memory).",
        ),
    ] = None,
) -> None:
    """Find who is slow in a packet capture: the client, the server, the network or something else."""
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
    if both and (live is not None or merge or extract or format is not Format.TABLE):
        raise UsageError(
            "--both reads files and writes the table and the picture",
            hint="guestmark capture --both CLIENT.pcapng SERVER.pcapng --plot BOTH.html",
        )
    if details and (both or format is not Format.TABLE):
        raise UsageError(
            "--details are shown below the table of one capture; --format json always has them",
            hint="guestmark capture FILE --details",
        )
    selection = Selection(tuple(files or ("-",)), filter_by, merge, memory)
    if both:
        from guestmark.capture.points import need_several

        need_several(selection.files)
    request = Request(selection, format, by, plot, extract, top, output, both=both, details=details)
    if live is None:
        raise typer.Exit(answer(request))
    try:
        status = answer(replace(request, selection=replace(selection, files=(live,), live=True), live=True))
    except NotPermittedError:
        # Tools that capture are often installed with the right to.
        from guestmark.agent.binary import ending_with_us
        from guestmark.capture.live import capture_packets

        with capture_packets(live, partial(ending_with_us, grace_ms=_GRACE_MS), whole=details) as source:
            selection = replace(selection, source=source)
            status = answer(replace(request, selection=selection, live=True))
    raise typer.Exit(status)
