"""Imports runs from bundles and other ledgers, and other programs' results."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from guestmark.cli.commands.import_ import Options
from guestmark.cli.outputs import build_remarks
from guestmark.core.errors import ExitStatus, GuestmarkError, LedgerError, UsageError
from guestmark.core.redaction import redact_url
from guestmark.core.units import format_count
from guestmark.engine import imported_results
from guestmark.engine.stored_run import show_actions
from guestmark.ledger import open_ledger, run_history
from guestmark.ledger.bundle import PackedRun, unpack_runs
from guestmark.ledger.model import RunOrigin
from guestmark.ledger.run_manager import RunManager
from guestmark.ledger.store import Ledger
from guestmark.ledger.validation import ReadBudget, check_annotations
from guestmark.page.say import say, tell
from guestmark.report import document
from guestmark.report.full_report import make_page
from guestmark.stats.analysis import analyse_run

# Bytes. A bundle is read into memory before anything in it is known to be true.
_LARGEST_BUNDLE = 256 << 20
_SQLITE_MAGIC = b"SQLite format 3\0"


def run(given: Options) -> int:
    """Stores the runs that are new here, and prints the id of each."""
    # Everything is read and checked before the ledger is opened, so that a damaged file leaves nothing behind.
    runs_by_source = [(source, _read_source(source, trust=given.trust)) for source in given.sources]
    tags = build_remarks(tags=given.tag).tags
    with open_ledger(given.ledger) as ledger:
        for source, (digest, runs) in runs_by_source:
            origin = RunOrigin(_describe_source(source), time.time(), digest, trusted=given.trust)
            added = [_add_run(packed, ledger, origin, tags) for packed in runs]
            known = added.count(False)
            remark = f", {known} there already" if known else ""
            say(f"{source}: {format_count(added.count(True), 'new run')}{remark}")
    return ExitStatus.ALL_MEASURED


def _add_run(packed: PackedRun, ledger: Ledger, origin: RunOrigin, tags: tuple[str, ...]) -> bool:
    """Stores a run unless the ledger has it, prints its id, and returns whether it is new."""
    origin = replace(origin, signer=packed.signer)
    _check_can_be_shown(packed)
    run_id = RunManager(ledger).import_run(packed.run, replace(packed.said, origin=origin))
    tell(run_id or packed.run.id)
    if run_id is None:
        return False
    if tags:
        ledger.annotate_run(run_id, build_remarks(tags=tags))
    if origin.trusted:
        stored = ledger.load_run(run_id)
        show_actions(run_id, stored.plan, origin, say)
        run_history.store_ratios(ledger, stored, run_history.analyse_with_history(ledger, stored))
    return True


def _describe_source(source: str) -> str:
    """Returns the source's name as it is stored, without a password."""
    return redact_url(source) if "://" in source else str(Path(source).absolute())


def _check_can_be_shown(packed: PackedRun) -> None:
    """Raises `LedgerError` for a run that no report can show, so that every stored run can be shown."""
    stored = packed.run
    try:
        analysis = analyse_run(stored.plan, stored.trials, stored.unusable, environments=stored.environments)
        document.make_result_document(stored, analysis, make_page(stored, analysis))
    except LedgerError:
        raise
    except GuestmarkError as error:
        raise LedgerError(f"run {stored.id} cannot be shown: {error.message}", hint=error.hint) from error
    except Exception as error:
        # Values from outside may break a report in any way; that is not a bug, but it must not be stored.
        raise LedgerError(
            f"run {stored.id} cannot be shown: its record contains values that guestmark never writes "
            f"({type(error).__name__}: {str(error)[:100]})",
            hint="export it again where it was measured",
        ) from error


def _read_source(source: str, *, trust: bool) -> tuple[str, Iterable[PackedRun]]:
    """Reads the runs of a bundle, all checked, with its SHA-256; or those of a ledger, one after another."""
    if "://" in source:
        return "", _read_ledger(source)
    file = Path(source)
    try:
        with file.open("rb") as stream:
            head = stream.read(len(_SQLITE_MAGIC))
            if head == _SQLITE_MAGIC:
                return "", _read_ledger(source)
            data = head + stream.read(_LARGEST_BUNDLE)
    except OSError as error:
        raise LedgerError(
            f"{source} cannot be read: {error.strerror or error}", hint="name a readable file"
        ) from error
    if len(data) > _LARGEST_BUNDLE:
        raise LedgerError(f"{source} is too large for a bundle", hint="export fewer runs into one bundle")
    digest = hashlib.sha256(data).hexdigest()
    if not imported_results.is_foreign_result(data):
        return digest, unpack_runs(data, source)
    if trust:
        raise UsageError(
            f"--trust is for guestmark's own runs, and {source} is another program's result",
            hint="import it without --trust",
        )
    return digest, imported_results.read_results(data, source, file.stat().st_mtime)


def _read_ledger(source: str) -> Iterator[PackedRun]:
    """Reads the runs of another ledger; reports one that is damaged and leaves it out."""
    with open_ledger(source, writable=False) as ledger:
        for overview in ledger.list_runs():
            try:
                # Each run has its own budget of memory and time, because the ledger may come from anybody.
                stored = ledger.load_run(overview.id, ReadBudget())
                remarks = ledger.read_annotations(overview.id)
                check_annotations(remarks.name, remarks.notes, remarks.labels, remarks.tags)
            except LedgerError as error:
                say(f"{source}: run {overview.id} is left out: {error.message}")
                continue
            yield PackedRun(stored, remarks)
