"""How gates end a command: files for build servers, and the exit status that `git bisect run` understands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from guestmark.core.errors import GateStatus
from guestmark.report import ci_reports
from guestmark.report.sections import gate_outcomes
from guestmark.stats.gates import JudgedGate, Outcome, combine_outcomes

if TYPE_CHECKING:
    from guestmark.ledger.model import StoredRun
    from guestmark.stats.analysis import Analysis

_STATUS_OF_OUTCOME = {
    Outcome.KEPT: GateStatus.KEPT,
    Outcome.BROKEN: GateStatus.BROKEN,
    Outcome.UNDECIDED: GateStatus.UNDECIDED,
    Outcome.UNMEASURED: GateStatus.FAILED,
}


def report_gates(
    run: StoredRun, analysis: Analysis, save: Callable[[bytes], None] | None = None
) -> GateStatus | None:
    """Reports the run's gates and returns the exit status that they call for; None if it has none.

    `save` gets the JUnit XML; GitHub's summary is written if there is one.
    """
    if not run.plan.context.gates:
        return None
    # The files come first: a build server shows them even if the status stops the build.
    judged = gate_outcomes.judge_own_gates(analysis)
    if save is not None:
        save(ci_reports.make_junit(judged, run))
    ci_reports.append_summary(judged, run)
    return derive_gate_status(judged)


def derive_gate_status(judged: Sequence[JudgedGate]) -> GateStatus:
    """Returns the exit status that all gates together call for."""
    return _STATUS_OF_OUTCOME[combine_outcomes(judged)]
