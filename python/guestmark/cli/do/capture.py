"""Finds out who is slow in a packet capture. A line that only names files needs no option parser."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

from guestmark.capture.binary import (
    MOST_SEQUENCES,
    NotPermittedError,
    Selection,
    Wanted,
    read_document,
    run_with_output,
    start_analysis,
)
from guestmark.cli.commands.capture import TABLE_ROWS, Format, Options
from guestmark.core.errors import GuestmarkError, UsageError

# Time that a capturing tool gets to deliver its remaining packets.
_GRACE_MS = 2000


def analyse_named_files(files: list[str]) -> int:
    """Analyses the files on a line without options."""
    return run(Options(files=files))


def run(given: Options) -> int:
    """Reads the capture, writes the answer, and returns the exit status."""
    _check_options(given)
    files = tuple(given.files or ("-",))
    if given.live is None:
        return _write_answer(given, Selection(files, given.filter_by, given.merge, given.memory))
    selection = Selection((given.live,), given.filter_by, given.merge, given.memory, live=True)
    try:
        return _write_answer(given, selection)
    except NotPermittedError:
        return _capture_with_other_tool(given, replace(selection, files=files, live=False))


def _check_options(given: Options) -> None:
    """Raises `UsageError` for options that cannot be combined."""
    files, is_table = given.files or [], given.format is Format.TABLE
    if (given.live is None) == (not files):
        raise UsageError(
            "capture takes either files or --live",
            hint="name files, - for standard input, or an interface: --live IFACE",
        )
    is_one_file = len(files) == 1 and files != ["-"]
    # Packets are chosen in a first pass and copied in a second one, so a stream cannot be extracted from.
    if given.extract and (given.live or given.merge or not is_one_file or not is_table):
        raise UsageError(
            "--extract takes one file, which it reads twice, and only the table format",
            hint="guestmark capture FILE --extract OUT.pcapng",
        )
    if given.both and (given.live is not None or given.merge or given.extract or not is_table):
        raise UsageError(
            "--both takes only files, and writes only the table and the picture",
            hint="guestmark capture --both CLIENT.pcapng SERVER.pcapng --plot BOTH.html",
        )
    _check_views(given, is_table=is_table)


def _check_views(given: Options, *, is_table: bool) -> None:
    """Raises `UsageError` for views beside the table that the input or the format does not allow."""
    files = given.files or []
    if given.details and (given.both or not is_table):
        raise UsageError(
            "--details are shown below the table of one capture; --format json always includes them",
            hint="guestmark capture FILE --details",
        )
    if given.plot and "-" in files and not is_table:
        raise UsageError(
            "standard input can be read only once, for the picture or for the rows",
            hint="leave out --format, or save the capture to a file first",
        )
    if given.both:
        from guestmark.capture.points import check_several_files

        check_several_files(tuple(files))


def _capture_with_other_tool(given: Options, selection: Selection) -> int:
    """Captures with a tool such as dumpcap, which often has the capability that we lack."""
    from guestmark.agent.binary import supervise_command
    from guestmark.capture.live import capture_packets

    assert given.live is not None
    end = partial(supervise_command, grace_ms=_GRACE_MS)
    with capture_packets(given.live, end, whole=given.details) as source:
        return _write_answer(given, replace(selection, source=source))


def _write_answer(given: Options, selection: Selection) -> int:
    try:
        if given.format is Format.TABLE:
            return _write_table(given, selection)
        status = _write_rows(given, selection)
        if given.plot:
            from guestmark.cli.capture_answer import draw_picture

            draw_picture(selection, given.plot)
    except OSError as error:
        if error.filename is None:
            raise
        raise GuestmarkError(f"{error.filename} cannot be written: {error.strerror}") from error
    return status


def _write_table(given: Options, selection: Selection) -> int:
    rows = given.top or TABLE_ROWS
    sequences = MOST_SEQUENCES if given.plot else 0
    if given.both:
        from guestmark.capture.points import join_points
        from guestmark.cli.capture_answer import show_answer

        joined = join_points(selection, rows, sequences)
        show_answer(given, selection, joined.document, joined.lines)
        return joined.status
    wanted = Wanted(
        top=rows,
        histograms=given.plot is not None,
        sequences=sequences,
        progress=given.live is not None,
        guilty=True,
        requests=given.details or given.plot is not None,
    )
    with start_analysis(selection, wanted) as program:
        # Importing the code that draws the table takes as long as reading a small capture, so it happens meanwhile.
        from guestmark.cli.capture_answer import show_answer

        found, status = read_document(program)
    show_answer(given, selection, found)
    return status


def _write_rows(given: Options, selection: Selection) -> int:
    options = [] if given.top is None else [f"--top={given.top}"]
    if given.format is Format.PARQUET:
        from guestmark.capture import parquet

        if given.output == "-":
            raise UsageError("Parquet needs a file", hint="name one: -o connections.parquet")
        return parquet.write_parquet(selection, given.by.value, Path(given.output), options)
    options += [f"--format={given.format.value}", f"--by={given.by.value}"]
    if given.format is Format.JSON:
        options.append("--requests")
    if given.output == "-":
        # The analyser writes to the same descriptor, past Python's buffer.
        sys.stdout.flush()
        return run_with_output(selection, options)
    with Path(given.output).open("wb") as out:
        return run_with_output(selection, options, out.fileno())
