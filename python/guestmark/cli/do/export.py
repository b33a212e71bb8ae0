"""Writes a run for other programs, for papers, and for other people's ledgers."""

from __future__ import annotations

import socket
import sys
from pathlib import PurePath

from guestmark.cli.commands.export import Options
from guestmark.cli.outputs import STANDARD_OUTPUT, write_document
from guestmark.core.errors import ExitStatus, UsageError
from guestmark.core.home import LATEST
from guestmark.core.units import format_count
from guestmark.ledger import open_ledger, run_history
from guestmark.ledger.bundle import PackedRun, pack_runs, strip_private_data
from guestmark.page.say import say
from guestmark.report import formats
from guestmark.report.export_format import SUFFIXES, Format


def run(given: Options) -> int:
    """Writes one run in the requested format, or several as a bundle."""
    runs = given.runs or [LATEST]
    if given.bundle is not None:
        _write_run_bundle(runs, given.bundle, given)
        return ExitStatus.ALL_MEASURED
    if not given.output:
        raise UsageError("-o names no file", hint="e.g. -o run.json, or - for standard output")
    if len(runs) > 1:
        raise UsageError("only a bundle can hold several runs", hint="e.g. --bundle runs.gmk.html")
    form = given.format or _choose_format_by_suffix(given.output)
    if form is Format.PARQUET and given.output == STANDARD_OUTPUT and sys.stdout.isatty():
        raise UsageError("Parquet cannot be shown on a terminal", hint="name a file: -o run.parquet")
    with open_ledger(given.ledger, writable=False) as ledger:
        stored = ledger.load_run(runs[0])
        analysis = run_history.analyse_with_history(ledger, stored)
    write_document(formats.export_run(stored, form, analysis), given.output)
    return ExitStatus.ALL_MEASURED


def _write_run_bundle(runs: list[str], path: str, given: Options) -> None:
    if not path:
        raise UsageError("--bundle names no file", hint="e.g. --bundle run.gmk.html")
    hidden_host_name = "" if given.host_name else socket.gethostname()
    packed = []
    with open_ledger(given.ledger, writable=False) as ledger:
        for run_id in dict.fromkeys(map(ledger.resolve_run, runs)):
            stored = strip_private_data(
                ledger.load_run(run_id), host_name=hidden_host_name, consoles=given.consoles
            )
            packed.append(PackedRun(stored, ledger.read_annotations(run_id)))
    page = formats.make_bundle_page([entry.run for entry in packed])
    write_document(pack_runs(packed, page), path)
    if path != STANDARD_OUTPUT:
        say(
            f"{path} holds {format_count(len(packed), 'run')}: open it in a browser, or guestmark import {path}"
        )


def _choose_format_by_suffix(output: str) -> Format:
    """Finds the format that a file's name implies. Raises `UsageError` for a suffix that implies none."""
    suffix = PurePath(output).suffix
    if not suffix:
        return Format.JSON
    form = SUFFIXES.get(suffix.lower())
    if form is None:
        raise UsageError(
            f"-o {output}: {suffix} is not a format that runs can be written in",
            hint=f"use {', '.join(SUFFIXES)}; or name a format: --format json; for another ledger: --bundle",
        )
    return form
