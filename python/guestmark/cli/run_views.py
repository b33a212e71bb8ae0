"""Rarer views of a run that need more than its answer: a page in a browser, a cell's console, another baseline."""

from __future__ import annotations

import webbrowser
from dataclasses import replace

from guestmark.agent.wire import StandardOutput
from guestmark.cli.outputs import report_failed_writes, write_file
from guestmark.core.errors import make_unknown_name_error
from guestmark.core.home import find_default_ledger
from guestmark.core.model import TrialStatus
from guestmark.ledger.model import StoredRun
from guestmark.page.say import say, tell
from guestmark.plan.matrix import change_baseline
from guestmark.report import formats
from guestmark.report.export_format import Format
from guestmark.stats.analysis import Analysis
from guestmark.workloads.exec.command import read_stored_command


def open_in_browser(stored: StoredRun, analysis: Analysis) -> None:
    """Writes the run's page beside the ledger, where only its owner can write, and opens it in the browser."""
    # A page in a public directory could be replaced before the browser opens it.
    folder = find_default_ledger().parent / "pages"
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{stored.id}.html"
    write_file(file, formats.export_run(stored, Format.HTML, analysis))
    tell(str(file))
    if not webbrowser.open(file.as_uri()):
        say("no browser was found; open that file yourself")


def show_console(stored: StoredRun, cell_id: str) -> None:
    """Prints the console of the cell's last failed trial, or else of its last, without control characters."""
    ids = [cell.id for cell in stored.plan.cells]
    if cell_id not in ids:
        raise make_unknown_name_error("cell", cell_id, ids)
    trials = [trial for trial in stored.trials if trial.cell_id == cell_id]
    failed = [trial for trial in trials if trial.status is not TrialStatus.OK]
    if not trials:
        say(f"{cell_id} has no trial in run {stored.id}")
        return
    console = (failed or trials)[-1].console
    if console.strip():
        with report_failed_writes():
            tell(console)
    command = read_stored_command(stored.plan.cells[ids.index(cell_id)])
    if command is not None and command.output is StandardOutput.NULL:
        say("standard output went to /dev/null; exec --show-output keeps it")
    elif not console.strip():
        say("nothing was printed")


def replace_baseline(stored: StoredRun, baseline: str) -> StoredRun:
    """Compares the run's cells with another baseline, named as `--baseline` names it."""
    cells = change_baseline(stored.plan.cells, baseline)
    return replace(stored, plan=replace(stored.plan, cells=cells))
