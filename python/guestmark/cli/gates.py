"""How gates end a command: files for build servers, and the exit status that `git bisect run` understands."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from guestmark.core.errors import ExitStatus, GateStatus

if TYPE_CHECKING:
    from guestmark.ledger.model import StoredRun
    from guestmark.stats.analysis import Analysis
    from guestmark.stats.gates import JudgedGate


def judge(
    run: StoredRun, analysis: Analysis, save: Callable[[bytes], None] | None = None
) -> GateStatus | None:
    """The exit status that the run's gates ask for, None when it has none.

    `save` gets JUnit's XML; GitHub's summary is written where there is one.
    """
    if not run.plan.context.gates:
        return None
    from guestmark.report import ci_reports
    from guestmark.report.sections import gate_outcomes

    judged = gate_outcomes.judge_own_gates(analysis)
    if save is not None:
        save(ci_reports.junit(judged, run))
    ci_reports.append_summary(judged, run)
    return status_of(judged)


def status_of(judged: Sequence[JudgedGate]) -> GateStatus:
    """The exit status that all of them ask for."""
    from guestmark.stats.gates import Outcome, combine_outcomes

    return {
        Outcome.KEPT: GateStatus.KEPT,
        Outcome.BROKEN: GateStatus.BROKEN,
        Outcome.UNDECIDED: GateStatus.UNDECIDED,
        Outcome.UNMEASURED: GateStatus.FAILED,
    }[combine_outcomes(judged)]


def failed(status: int) -> int:
    """The exit status of a command with gates that ended with `status` before they could be judged."""
    if status >= GateStatus.FAILED or (status == ExitStatus.USAGE and not _in_bisection()):
        return status
    return GateStatus.FAILED + status if status else ExitStatus.ALL_MEASURED


def _in_bisection() -> bool:
    """Whether `git bisect` is under way here, which would take the status of a wrong command line for a bad commit."""
    here = Path.cwd()
    for folder in (here, *here.parents):
        git = folder / ".git"
        try:
            if git.is_file():  # of a linked worktree
                git = folder / git.read_text().partition("gitdir: ")[2].strip()
            if git.is_dir():
                return (git / "BISECT_START").exists()
        except OSError:
            return True  # nobody can say
    return False


def asked(arguments: Sequence[str] | None = None) -> bool:
    """Whether the command line of this process has a gate; what follows `--` is the measured command's."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    mine = words[: words.index("--")] if "--" in words else words
    return (
        mine[:1] in (["gate"], ["bisect"])
        or mine[:2] == ["changes", "bisect"]
        or any(word.split("=")[0] == "--fail-if" for word in mine)
    )
