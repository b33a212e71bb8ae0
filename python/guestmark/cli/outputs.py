"""Where a result goes: the terminal, standard output, and files."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guestmark.cli.style import Style
from guestmark.core.errors import GuestmarkError, UsageError
from guestmark.core.temporary import replace_file
from guestmark.ledger.run_annotations import NO_ANNOTATIONS, Annotations
from guestmark.ledger.validation import RESERVED, WORD_PATTERN
from guestmark.page.figures import TimeUnit
from guestmark.page.text import make_inert
from guestmark.report.export_format import Format
from guestmark.report.row_order import RowOrder

if TYPE_CHECKING:
    from guestmark.cli.measure_options import MeasureOptions
    from guestmark.core.model import Plan
    from guestmark.ledger.model import StoredRun
    from guestmark.page.nodes import Page

# Used in place of a path.
STANDARD_OUTPUT = "-"
# The option of hyperfine that names the file of each format.
_EXPORT_OPTIONS = {
    Format.HYPERFINE: "--export-json",
    Format.HYPERFINE_CSV: "--export-csv",
    Format.HYPERFINE_MARKDOWN: "--export-markdown",
    Format.HYPERFINE_ASCIIDOC: "--export-asciidoc",
    Format.HYPERFINE_ORGMODE: "--export-orgmode",
}


@dataclass(frozen=True, slots=True)
class Outputs:
    """Where results go, and how the run that produces them is measured.

    Paths are as typed: `-` for standard output, None for nowhere.
    """

    json: str | None = None
    csv: str | None = None
    markdown: str | None = None
    html: str | None = None
    # Files in hyperfine's formats.
    exports: Mapping[Format, str] = field(default_factory=dict)
    # A file for the outcome of the gates, which are limits that the run must meet, as typed.
    junit: str | None = None
    gates: tuple[str, ...] = ()
    remarks: Annotations = NO_ANNOTATIONS  # a name, notes, labels and tags of the run

    style: Style = Style.AUTO
    # The unit of all times; None selects one that fits each time.
    unit: TimeUnit | None = None
    sort: RowOrder = RowOrder.AUTO
    quiet: bool = False
    # Show the whole report instead of the answer.
    details: bool = False
    # Show the machines that the run was measured on.
    environment: bool = False
    # Show published figures beside the measured ones.
    published: bool = False
    # Show what commands print, after each trial.
    show_output: bool = False
    # The user chose what the others are compared with, so that tables name it as hyperfine does.
    has_reference: bool = False
    # Makes a page that replaces the report on the terminal and precedes it in files.
    page: Callable[[StoredRun], Page] | None = None

    # Cut the power of the run's disks.
    prove: bool = False
    # Wall time of the whole command, which decides what is measured.
    budget_s: float | None = None
    # Keep the disk images of trials that fail or are interrupted.
    keep: bool = False
    # Wait for machines that another guestmark uses.
    wait: bool = True
    # Make the host quieter while the run lasts.
    quiet_host: bool = False
    # Measure although most of the platforms that were named cannot be used.
    partial: bool = True

    def list_files(self) -> list[tuple[str, Format, str]]:
        """Lists option, format and destination of each document that was asked for."""
        requested = [
            ("--json", Format.JSON, self.json),
            ("--csv", Format.CSV, self.csv),
            ("--markdown", Format.MARKDOWN, self.markdown),
            ("--html", Format.HTML, self.html),
        ]
        for form, path in self.exports.items():
            requested.append((_EXPORT_OPTIONS[form], form, path))
        return [(option, form, path) for option, form, path in requested if path is not None]

    @property
    def save_junit(self) -> Callable[[bytes], None] | None:
        """Writes the outcome of the gates; None if it was not asked for."""
        path = self.junit
        return None if path is None else lambda data: write_document(data, path)

    @property
    def takes_stdout(self) -> bool:
        """Whether a document goes to standard output, so that nothing else may."""
        return self.junit == STANDARD_OUTPUT or any(path == STANDARD_OUTPUT for *_, path in self.list_files())

    def check(self) -> None:
        """Raises `UsageError` for outputs that cannot be written, before anything is measured."""
        paths = [(option, path) for option, _, path in self.list_files()]
        if self.junit is not None:
            paths.append(("--junit", self.junit))
        if sum(path == STANDARD_OUTPUT for _, path in paths) > 1:
            raise UsageError("only one document can go to standard output", hint="write the others to files")
        for option, path in paths:
            if path != STANDARD_OUTPUT:
                _check_writable(option, path)


def _check_writable(option: str, path: str) -> None:
    if not path or os.path.isdir(path):
        raise UsageError(f"{option} {path!r} is not a file name", hint=f"e.g. {option} result")
    folder = os.path.dirname(os.path.abspath(path))
    if not os.access(path if os.path.exists(path) else folder, os.W_OK):
        raise UsageError(
            f"{option} {path} cannot be written",
            hint=f"check that {folder} exists and that you can write to it",
        )


def collect_outputs(given: MeasureOptions, **more: Any) -> Outputs:
    """Collects where the result of a measuring command goes; `more` are fields of `Outputs` that it decides itself."""
    fields: dict[str, Any] = {
        "json": given.json,
        "csv": given.csv,
        "markdown": given.markdown,
        "html": given.html,
        "exports": _collect_exports(given),
        "junit": given.junit,
        "gates": tuple(given.fail_if or ()),
        "remarks": build_remarks(given.name, given.note, given.label, given.tag),
        "quiet": given.quiet,
        "details": given.details,
        "prove": given.prove,
        "keep": given.keep,
        "wait": given.wait,
        "quiet_host": given.quiet_host,
    }
    return Outputs(**{**fields, **more})


def _collect_exports(given: MeasureOptions) -> Mapping[Format, str]:
    paths = {
        Format.HYPERFINE: given.export_json,
        Format.HYPERFINE_CSV: given.export_csv,
        Format.HYPERFINE_MARKDOWN: given.export_markdown,
        Format.HYPERFINE_ASCIIDOC: given.export_asciidoc,
        Format.HYPERFINE_ORGMODE: given.export_orgmode,
    }
    return {form: path for form, path in paths.items() if path is not None}


def build_remarks(
    name: str | None = None,
    note: str | None = None,
    labels: Iterable[str] | None = None,
    tags: Iterable[str] | None = None,
) -> Annotations:
    """Builds the remarks of these options on a run. Raises `UsageError` for names that could not be typed again."""
    # `last` always means the newest run, and a name with blanks could not be typed in a filter.
    if name is not None and (not WORD_PATTERN.fullmatch(name) or name in RESERVED):
        raise UsageError(
            f"--name {name!r} cannot be a run's name",
            hint="use letters, digits and .:/_-, e.g. before-upgrade",
        )
    for tag in tags or ():
        if not WORD_PATTERN.fullmatch(tag):
            raise UsageError(f"--tag {tag!r} cannot be a tag", hint="use letters, digits and .:/_-")
    return Annotations(
        name=name or "",
        notes=(note.strip(),) if note and note.strip() else (),
        labels=dict(_parse_label(text) for text in labels or ()),
        tags=tuple(tags or ()),
    )


def _parse_label(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not WORD_PATTERN.fullmatch(name) or not value.strip():
        raise UsageError(f"--label {text!r} is not NAME=VALUE", hint="e.g. --label commit=1a2b3c")
    return name, value.strip()


def check_published(plan: Plan) -> None:
    """Raises `UsageError` if the plan has no figures for `--published`."""
    if not plan.published:
        raise UsageError(
            f"--published: plan {plan.name} has no published figures",
            hint="see docs/reference/plan-files.md",
        )


@contextmanager
def report_failed_writes() -> Iterator[None]:
    """Reports a failed write to standard output in one line. A closed pipe is not an error; see `error_report`."""
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        if error.errno in {errno.EPIPE, errno.EIO}:
            raise
        # Writing the rest of the buffer would fail once more when the interpreter exits.
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, sys.stdout.fileno())
        os.close(sink)
        raise GuestmarkError(
            f"standard output cannot be written: {error.strerror or error}",
            hint="the run is in the ledger all the same: guestmark show last prints it again",
        ) from error


def write_document(data: bytes, path: str) -> None:
    """Writes a document to a file, or for `-` to standard output. Raises `GuestmarkError` if it cannot."""
    if path != STANDARD_OUTPUT:
        write_file(Path(path), data)
        return
    with report_failed_writes():
        sys.stdout.flush()
        # Documents hold text unchanged, but a terminal would obey control characters in it.
        if sys.stdout.isatty():
            data = make_inert(data.decode(errors="replace"), lines=True).encode()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def write_file(file: Path, data: bytes) -> None:
    """Writes `data` to `file`, all of it or nothing: an older file is replaced only by a complete one.

    Raises `GuestmarkError` if that cannot be done.
    """
    try:
        # A pipe or a terminal cannot be replaced.
        if file.exists() and not file.is_file():
            file.write_bytes(data)
            return
        target = file.resolve()
        # The new file has the permissions of the old one, or those that open(2) would have given it.
        mode = target.stat().st_mode & 0o777 if target.exists() else 0o666 & ~_read_umask()
        with replace_file(target) as part:
            part.write_bytes(data)
            part.chmod(mode)
    except OSError as error:
        raise GuestmarkError(
            f"{file} cannot be written: {error.strerror or error}",
            hint="the run is in the ledger all the same: guestmark export writes it again",
        ) from error


def _read_umask() -> int:
    # The mask can only be read by setting it.
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
