"""The result of a run, as it was when it ended. `guestmark show` alone comes here without a parser of options."""

from __future__ import annotations

import gc
import os
from dataclasses import replace
from typing import TYPE_CHECKING

from guestmark.cli.session import Outputs, show
from guestmark.core.home import LATEST, LEDGER

if TYPE_CHECKING:
    from guestmark.ledger.model import StoredRun
    from guestmark.stats.analysis import Analysis

_DETAILS = "--details"


def plainly(words: list[str]) -> bool:
    """Shows what `show [RUN] [--details]` names. False, and nothing is done, where there is more to parse."""
    runs = [word for word in words if word != _DETAILS]
    if len(runs) > 1 or len(words) > len(runs) + 1 or any(word.startswith("-") or not word for word in runs):
        return False
    run(runs[0] if runs else LATEST, Outputs(details=_DETAILS in words), os.environ.get(LEDGER) or None)
    return True


def run(name: str, outputs: Outputs, ledger: str | None = None, baseline: str | None = None) -> None:
    """Prints the run and writes its documents. `baseline` replaces the run's own."""
    gc.disable()  # it reads, prints and ends: looking for garbage while modules are loaded takes a tenth of the time
    outputs.check()
    stored, analysis = judged(name, ledger, baseline)
    if outputs.published:
        from guestmark.cli import options

        options.check_published(stored.plan)
    show(stored, outputs, analysis, latest=name == LATEST, read=True)


def judged(name: str, ledger: str | None, baseline: str | None = None) -> tuple[StoredRun, Analysis]:
    """The run with its analysis beside earlier runs."""
    from guestmark.ledger import open_ledger, run_history

    with open_ledger(ledger, writable=False) as opened:
        stored = opened.load_run(name)
        if baseline is not None:
            from guestmark.plan.matrix import change_baseline  # with what reads plans

            stored = replace(
                stored, plan=replace(stored.plan, cells=change_baseline(stored.plan.cells, baseline))
            )
        return stored, run_history.judged(opened, stored)


def load(name: str, ledger: str | None) -> StoredRun:
    """The run without an analysis."""
    from guestmark.ledger import open_ledger

    with open_ledger(ledger, writable=False) as opened:
        return opened.load_run(name)
