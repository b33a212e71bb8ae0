"""Shows the result of a run, as it was when it ended. `guestmark show` alone needs no parser of options."""

from __future__ import annotations

import gc
import os
import webbrowser
from dataclasses import replace

from guestmark.agent.wire import StandardOutput
from guestmark.cli.commands.show import Options
from guestmark.cli.options import check_published
from guestmark.cli.outputs import Outputs, reporting_failed_writes
from guestmark.cli.present import show_result
from guestmark.core.errors import ExitStatus, unknown
from guestmark.core.home import LATEST, LEDGER, default_path
from guestmark.core.model import TrialStatus
from guestmark.ledger import open_ledger, run_history
from guestmark.ledger.model import StoredRun
from guestmark.page.say import say, tell
from guestmark.plan.matrix import change_baseline
from guestmark.report import formats
from guestmark.report.export_format import Format
from guestmark.stats.analysis import Analysis
from guestmark.workloads.exec.command import command_of

_DETAILS = "--details"


def show_named_run(words: list[str]) -> int | None:
    """Shows what `show [RUN] [--details]` names. None, and nothing is done, where several runs are named."""
    names = [word for word in words if word != _DETAILS]
    if len(names) > 1:
        return None
    outputs = Outputs(details=_DETAILS in words)
    _show_report(names[0] if names else LATEST, outputs, os.environ.get(LEDGER) or None)
    return ExitStatus.ALL_MEASURED


def run(given: Options) -> int:
    """Shows the run's report, its page in a browser, or the console of one of its cells."""
    outputs = Outputs(
        json=given.json,
        csv=given.csv,
        markdown=given.markdown,
        html=given.html,
        published=given.published,
        environment=given.environment,
        details=given.details,
    )
    if given.console_of is not None:
        outputs.check()
        with open_ledger(given.ledger, writable=False) as ledger:
            stored = ledger.load_run(given.run)
        _show_console(stored, given.console_of)
    elif given.browser:
        outputs.check()
        _open_in_browser(*_load_analysed(given.run, given.ledger, given.baseline))
    else:
        _show_report(given.run, outputs, given.ledger, given.baseline)
    return ExitStatus.ALL_MEASURED


def _show_report(
    name: str, outputs: Outputs, ledger_path: str | None = None, baseline: str | None = None
) -> None:
    """Prints the run and writes its documents. `baseline` replaces the run's own."""
    # It reads, prints and ends: there is no garbage worth looking for.
    gc.disable()
    outputs.check()
    stored, analysis = _load_analysed(name, ledger_path, baseline)
    if outputs.published:
        check_published(stored.plan)
    show_result(stored, outputs, analysis, is_latest=name == LATEST, may_page=True)


def _load_analysed(
    name: str, ledger_path: str | None, baseline: str | None = None
) -> tuple[StoredRun, Analysis]:
    """The run with its analysis beside earlier runs."""
    with open_ledger(ledger_path, writable=False) as ledger:
        stored = ledger.load_run(name)
        if baseline is not None:
            cells = change_baseline(stored.plan.cells, baseline)
            stored = replace(stored, plan=replace(stored.plan, cells=cells))
        return stored, run_history.judged(ledger, stored)


def _open_in_browser(stored: StoredRun, analysis: Analysis) -> None:
    """Writes the run's page beside the ledger, where only its owner writes, and hands it to the desktop's browser."""
    folder = default_path().parent / "pages"
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{stored.id}.html"
    formats.write(file, formats.render(stored, Format.HTML, analysis))
    tell(str(file))
    if not webbrowser.open(file.as_uri()):
        say("no browser was found; open that file in one")


def _show_console(stored: StoredRun, cell_id: str) -> None:
    """Prints the console of the cell's last failed trial, or else of its last, without control characters."""
    ids = [cell.id for cell in stored.plan.cells]
    if cell_id not in ids:
        raise unknown("cell", cell_id, ids)
    trials = [trial for trial in stored.trials if trial.cell_id == cell_id]
    failed = [trial for trial in trials if trial.status is not TrialStatus.OK]
    if not trials:
        say(f"{cell_id} has no trial in run {stored.id}")
        return
    console = (failed or trials)[-1].console
    if console.strip():
        with reporting_failed_writes():
            tell(console)
    command = command_of(stored.plan.cells[ids.index(cell_id)])
    if command is not None and command.output is StandardOutput.NULL:
        say("standard output went to /dev/null; exec --show-output keeps it")
    elif not console.strip():
        say("nothing was printed")
