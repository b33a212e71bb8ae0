"""Shows the result of a run, as it was when it ended. `guestmark show` alone needs no option parser."""

from __future__ import annotations

import gc
import os
from typing import TYPE_CHECKING

from guestmark.cli.outputs import Outputs, check_published
from guestmark.cli.present import show_result
from guestmark.cli.run_views import open_in_browser, replace_baseline, show_console
from guestmark.core.errors import ExitStatus
from guestmark.core.home import LATEST, LEDGER
from guestmark.ledger import open_ledger, run_history
from guestmark.ledger.model import StoredRun
from guestmark.stats.analysis import Analysis

if TYPE_CHECKING:
    from guestmark.cli.commands.show import Options

_DETAILS = "--details"


def show_named_run(words: list[str]) -> int | None:
    """Shows what `show [RUN] [--details]` names. Returns None and does nothing if several runs are named."""
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
        show_console(stored, given.console_of)
    elif given.browser:
        outputs.check()
        open_in_browser(*_load_analysed(given.run, given.ledger, given.baseline))
    else:
        _show_report(given.run, outputs, given.ledger, given.baseline)
    return ExitStatus.ALL_MEASURED


def _show_report(
    name: str, outputs: Outputs, ledger_path: str | None = None, baseline: str | None = None
) -> None:
    """Prints the run and writes its documents. `baseline` replaces the run's own."""
    # This reads, prints and exits, so garbage collection is not worth its time.
    gc.disable()
    outputs.check()
    stored, analysis = _load_analysed(name, ledger_path, baseline)
    if outputs.published:
        check_published(stored.plan)
    show_result(stored, outputs, analysis, is_latest=name == LATEST, may_page=True)


def _load_analysed(
    name: str, ledger_path: str | None, baseline: str | None = None
) -> tuple[StoredRun, Analysis]:
    """Loads the run and analyses it together with earlier runs."""
    with open_ledger(ledger_path, writable=False) as ledger:
        stored = ledger.load_run(name)
        if baseline is not None:
            stored = replace_baseline(stored, baseline)
        return stored, run_history.analyse_with_history(ledger, stored)
