"""The judgement of a run together with earlier runs, and what is stored of it for later ones."""

from __future__ import annotations

from dataclasses import dataclass

from guestmark.ledger import run_history
from guestmark.ledger.model import StoredRun
from guestmark.ledger.store import Ledger
from guestmark.stats.analysis import Analysis


@dataclass(frozen=True, slots=True)
class Judgement:
    """A stored run and its analysis."""

    stored: StoredRun
    analysis: Analysis
    ledger: Ledger

    def remember(self) -> None:
        """Store the run's ratios, so that later runs can be compared with them. Raises `LedgerError`."""
        run_history.store_ratios(self.ledger, self.stored, self.analysis)


def judge_run(ledger: Ledger, run: str) -> Judgement:
    """Return the judgement of a stored run by its trials so far, together with earlier runs.

    `run` is an id, the beginning or end of one, or a name. Raises `LedgerError` if it names no run.
    """
    stored = ledger.load_run(run)
    return Judgement(stored, run_history.analyse_with_history(ledger, stored), ledger)
