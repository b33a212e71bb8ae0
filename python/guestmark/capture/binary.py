"""Finds and calls `guestmark-capture`."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from guestmark.core.errors import GuestmarkError, UsageError
from guestmark.core.own_program import find_own_program, run_setup

if TYPE_CHECKING:
    from guestmark.capture.model import Document, Trace

NAME = "guestmark-capture"
BUILD = "build it: cargo build --release -p guestmark-agent; or set GUESTMARK_CAPTURE to its path"
USAGE_STATUS = 2
_UNAVAILABLE, _NOT_PERMITTED = 69, 77  # as in sysexits.h
# The most connections of which the program keeps the packets in time.
MOST_SEQUENCES = 8


@functools.cache
def _find_binary(override: str | None) -> Path:
    found = find_own_program(NAME, override, variable="GUESTMARK_CAPTURE")
    # A fresh checkout has not built it yet.
    if found is None and run_setup("capture"):
        found = find_own_program(NAME, override, variable="GUESTMARK_CAPTURE")
    if found is None:
        raise GuestmarkError("the analysis program (guestmark-capture) is missing", hint=BUILD)
    return found


def find_capture_binary() -> Path:
    """Return the path of `guestmark-capture`: `GUESTMARK_CAPTURE`, the checkout's build, or beside the scripts.

    A checkout builds it on first use. Raises `GuestmarkError` if there is none.
    """
    return _find_binary(os.environ.get("GUESTMARK_CAPTURE"))


@dataclass(frozen=True, slots=True)
class Selection:
    """What to analyse. `filter_by` is HOST, PORT or FLOW; `memory_mb` bounds the memory for open connections."""

    files: tuple[str, ...]
    filter_by: str | None = None
    merge: bool = False
    memory_mb: int | None = None
    # A file descriptor that becomes the program's standard input.
    source: int | None = None
    live: bool = False  # the one of `files` is an interface

    def to_arguments(self) -> list[str]:
        """Return the arguments of the program."""
        out = []
        if self.filter_by is not None:
            out.append(f"--filter={self.filter_by}")
        if self.merge:
            out.append("--merge")
        if self.live:
            out.append("--live")
        if self.memory_mb is not None:
            out.append(f"--memory={self.memory_mb}")
        return [*out, "--", *self.files]


def run_with_output(selection: Selection, options: Sequence[str], output: int | None = None) -> int:
    """Run the program with `output` (a file descriptor; None for standard output); return its exit status."""
    sys.stdout.flush()
    command = [str(find_capture_binary()), *options, *selection.to_arguments()]
    with _run_program(command, selection, output) as program:
        return check_status(program.wait())


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the document has to contain; `top` limits it to the connections that waited longest.

    The first `sequences` of them are listed packet by packet. `guilty` adds the packets that ended the longest waits,
    `requests` adds HTTP/1 requests, TLS handshakes and DNS queries. `progress` is written to standard error.
    """

    top: int | None = None
    histograms: bool = False
    sequences: int = 0
    progress: bool = False
    guilty: bool = False
    requests: bool = False

    def to_arguments(self) -> list[str]:
        """Return the arguments of the program."""
        out = ["--format=json"]
        if self.top is not None:
            out.append(f"--top={self.top}")
        if self.sequences:
            out.append(f"--sequences={self.sequences}")
        flags = ("histograms", "progress", "guilty", "requests")
        return out + [f"--{flag}" for flag in flags if getattr(self, flag)]


@contextlib.contextmanager
def start_analysis(selection: Selection, wanted: Wanted) -> Iterator[subprocess.Popen[bytes]]:
    """Yield the running program, for `read_document`; meanwhile the caller can prepare for the answer."""
    command = [str(find_capture_binary()), *wanted.to_arguments(), *selection.to_arguments()]
    with _run_program(command, selection, subprocess.PIPE) as program:
        yield program


def read_document(program: subprocess.Popen[bytes]) -> tuple[Document, int]:
    """Return the analysis of all files and the program's exit status (1: some file could not be read to its end).

    Errors in files are also reported on standard error. Raises `UsageError` for a bad filter, `GuestmarkError` for an
    answer that cannot be understood.
    """
    # These imports take as long as the program needs for half a gigabyte, so they run beside it.
    import msgspec

    from guestmark.capture.model import SCHEMA, Document

    written, _ = program.communicate()
    status = check_status(program.returncode)
    try:
        found = msgspec.json.decode(written, type=Document)
    except msgspec.DecodeError as error:
        raise GuestmarkError(
            f"guestmark-capture returned an invalid document: {error}", hint=BUILD
        ) from error
    if found.schema != SCHEMA:
        raise GuestmarkError(f"guestmark-capture uses the schema {found.schema}, not {SCHEMA}", hint=BUILD)
    return found, status


def analyse_capture(selection: Selection, wanted: Wanted = Wanted()) -> tuple[Document, int]:
    """Run the program and return its answer and status. Raises as `read_document` does."""
    with start_analysis(selection, wanted) as program:
        return read_document(program)


def extract_packets(file: str, frames: Iterable[int], output: Path) -> None:
    """Write the packets `frames` of `file` to `output`, as pcapng. Raises `GuestmarkError` if that fails."""
    numbers = ",".join(str(frame) for frame in sorted(frames))
    command = [str(find_capture_binary()), f"--extract={output}", f"--frames={numbers}", "--", file]
    if check_status(subprocess.run(command, check=False).returncode):
        raise GuestmarkError(f"{output} was not written", hint="see the message above")


def analyse_file(path: Path, *, filter_by: str | None = None, sequence: bool = False) -> Trace:
    """Return the analysis of one capture file. Raises `GuestmarkError` if it cannot be read to its end."""
    wanted = Wanted(histograms=True, sequences=int(sequence))
    found, _ = analyse_capture(Selection((str(path),), filter_by), wanted)
    trace = found.files[0]
    if trace.error:
        raise GuestmarkError(
            f"{path}: at byte {trace.error.offset}: {trace.error.reason}", hint=trace.error.hint
        )
    return trace


class NotPermittedError(GuestmarkError):
    """This process may not capture packets; an installed capture tool may be able to."""


@contextlib.contextmanager
def _run_program(
    command: Sequence[str], selection: Selection, output: int | None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run the program while the context lasts; an error in the context kills it.

    A signal ends the capture, not the analysis: Ctrl-C ends the program that writes a capture to standard input. If the
    analysis program captures by itself, SIGINT and SIGTERM are passed on to it.
    """
    started: list[subprocess.Popen[bytes]] = []

    def end_capture(*_: object) -> None:
        for program in started:
            program.send_signal(signal.SIGINT)

    handlers: dict[signal.Signals, signal.Handlers | Callable[..., None]] = {}
    if selection.live:
        handlers = {signal.SIGINT: end_capture, signal.SIGTERM: end_capture}
    elif "-" in selection.files and selection.source is None:
        handlers = {signal.SIGINT: signal.SIG_IGN}
    with (
        handle_signals(handlers),
        subprocess.Popen(command, stdin=selection.source, stdout=output) as program,
    ):
        started.append(program)
        try:
            yield program
        except BaseException:
            program.kill()
            raise


@contextlib.contextmanager
def handle_signals(
    handlers: Mapping[signal.Signals, signal.Handlers | Callable[..., None]],
) -> Iterator[None]:
    """Install signal handlers while the context lasts; outside the main thread, this does nothing."""
    # Python lets only the main thread set signal handlers.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def check_status(status: int) -> int:
    """Return the program's exit status.

    Raises `UsageError` for bad arguments, `GuestmarkError` if a signal ended the program or nothing was captured.
    """
    if status == USAGE_STATUS:
        raise UsageError("the capture was not analysed", hint="see the messages above")
    if status == _UNAVAILABLE:
        raise GuestmarkError("nothing was captured", hint="see the message above")
    if status == _NOT_PERMITTED:
        raise NotPermittedError(
            "capturing is not permitted", hint="capturing needs root or CAP_NET_RAW: run it with sudo"
        )
    if status < 0:
        raise GuestmarkError(f"guestmark-capture was killed by signal {-status}")
    return status
