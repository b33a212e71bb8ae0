"""`guestmark import`: runs from bundles, from other ledgers, and other programs' results."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from guestmark.cli import options
from guestmark.core.errors import GuestmarkError, LedgerError, UsageError
from guestmark.core.units import counted
from guestmark.page.say import say, tell

if TYPE_CHECKING:
    from guestmark.ledger.bundle import Packed

_LARGEST = 256 << 20  # bytes of a bundle


def command(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            help="Bundles of `export --bundle`, ledgers (files or URLs), JSON of hyperfine and fio, Phoronix results.",
        ),
    ],
    *,
    tag: Annotated[
        list[str] | None, typer.Option("--tag", metavar="TAG", help="Give every run this tag. Repeatable.")
    ] = None,
    trust: Annotated[
        bool,
        typer.Option(
            "--trust",
            help="These runs are yours: they may be resumed, and count among earlier runs of this host.",
        ),
    ] = False,
    ledger: options.Ledger = None,
) -> None:
    """Import runs from bundles and other ledgers, and results of other programs.

    The ids of the runs are printed, one on each line. A run that is already there stays as it is. Everything is
    checked before it is stored, within limits of memory and time. Imported runs can be shown and compared. Only with
    --trust do `resume` and `compare --confirm` run their commands.

    Results of hyperfine, fio and the Phoronix Test Suite become runs of one session each, labelled `foreign`. They can
    be shown and compared, and never count among earlier runs.
    """
    from guestmark.engine.stored_run import show_actions
    from guestmark.ledger import open_ledger, run_history
    from guestmark.ledger.model import Origin
    from guestmark.ledger.run_manager import Shelf

    tags = options.remarks(None, None, None, tag).tags
    found = [(source, _runs(source, trust)) for source in sources]
    with open_ledger(ledger) as opened:
        shelf = Shelf(opened)
        for source, (digest, runs) in found:
            new, known = 0, 0
            for packed in runs:
                origin = Origin(_shown(source), time.time(), digest, trusted=trust, signer=packed.signer)
                _check_shown(packed)
                run_id = shelf.add(packed.run, replace(packed.said, origin=origin))
                tell(run_id or packed.run.id)
                if run_id is None:
                    known += 1
                    continue
                new += 1
                if tags:
                    opened.annotate(run_id, options.remarks(None, None, None, tags))
                if trust:
                    stored = opened.load_run(run_id)
                    show_actions(run_id, stored.plan, origin, say)
                    run_history.remember(opened, stored, run_history.judged(opened, stored))
            there = f", {known} there already" if known else ""
            say(f"{source}: {counted(new, 'new run')}{there}")


def _shown(source: str) -> str:
    """The source as it is remembered, without a password."""
    from guestmark.core.redaction import redact_url

    return redact_url(source) if "://" in source else str(Path(source).absolute())


def _check_shown(packed: Packed) -> None:
    """Raises `LedgerError` for a run that no report can be made of, so that none is stored that cannot be shown."""
    from guestmark.report import document
    from guestmark.report.full_report import make_page
    from guestmark.stats.analysis import analyse_run

    run = packed.run
    try:
        analysis = analyse_run(run.plan, run.trials, run.unusable, environments=run.environments)
        document.result_document(run, analysis, make_page(run, analysis))
    except GuestmarkError:
        raise
    except (
        Exception
    ) as error:  # whatever its values do to a report: it is not a bug, and it must not be stored
        raise LedgerError(
            f"run {run.id} cannot be shown: its record holds what guestmark does not write "
            f"({type(error).__name__}: {str(error)[:100]})",
            hint="export it again where it was measured",
        ) from error


def _runs(source: str, trust: bool) -> tuple[str, Iterable[Packed]]:
    """The runs of a bundle, all checked, with its SHA-256; or those of a ledger, one after another."""
    from guestmark.engine import imported_results
    from guestmark.ledger.bundle import unpack

    if "://" in source:
        return "", _of_ledger(source)
    file = Path(source)
    try:
        with file.open("rb") as stream:
            head = stream.read(16)
            if head == b"SQLite format 3\0":
                return "", _of_ledger(source)
            data = head + stream.read(_LARGEST)
    except OSError as error:
        raise LedgerError(
            f"{source} cannot be read: {error.strerror or error}", hint="give a readable file"
        ) from error
    if len(data) > _LARGEST:
        raise LedgerError(f"{source} is too large for a bundle", hint="export fewer runs into one bundle")
    if imported_results.is_foreign_result(data):
        if trust:
            raise UsageError(
                f"--trust is for guestmark's own runs, and {source} is another program's result",
                hint="import it without --trust",
            )
        return hashlib.sha256(data).hexdigest(), imported_results.read_results(
            data, source, file.stat().st_mtime
        )
    return hashlib.sha256(data).hexdigest(), unpack(data, source)


def _of_ledger(source: str) -> Iterator[Packed]:
    from guestmark.ledger import open_ledger
    from guestmark.ledger.bundle import Packed
    from guestmark.ledger.validation import Budget, check_said

    with open_ledger(source, writable=False) as other:
        for overview in other.runs():
            try:
                run = other.load_run(overview.id, Budget())
                said = other.remarks(overview.id)
                check_said(said.name, said.notes, said.labels, said.tags)
            except LedgerError as error:
                say(f"{source}: run {overview.id} is left out: {error.message}")
                continue
            yield Packed(run, said)
