"""The measurements of a bisection: a candidate beside the good build, for as many blocks as it takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from guestmark.core.errors import GuestmarkError
from guestmark.core.factor import Labelled
from guestmark.core.model import RunState
from guestmark.page.say import say, tell
from guestmark.stats.gates import ALPHA, Judged, Outcome, judge

if TYPE_CHECKING:
    from guestmark.cli.measuring import Measuring
    from guestmark.core.model import Plan
    from guestmark.engine.git_bisect import Bisection, Commit
    from guestmark.workloads.exec.plan import ExecOptions

PARAMETER = "build"  # `{build}` in the command
_FIRST = 8


def looks(most: int) -> list[int]:
    """The numbers of blocks after which a candidate is looked at: 8, 16, 32 … and `most`."""
    found = [_FIRST]
    while found[-1] * 2 < most:
        found.append(found[-1] * 2)
    return found if found[-1] >= most else [*found, most]


@dataclass(frozen=True, slots=True)
class Building:
    """The command that builds a commit (empty: nothing has to be), and how many blocks may judge it."""

    command: str
    most_blocks: int


class Steps:
    """What a bisection measures, each candidate as a run of its own in the ledger."""

    def __init__(
        self,
        given: Measuring,
        argv: Sequence[str],
        options: ExecOptions,
        bisection: Bisection,
        building: Building,
    ) -> None:
        self._given, self._argv, self._options = given, list(argv), options
        self._bisection, self._build = bisection, building.command
        self._looks = looks(building.most_blocks)
        self._shown: dict[str, str] = {}  # by hash, what was found

    def judge(self, commit: Commit) -> Outcome:
        """Builds a candidate and measures it beside the good build. One that cannot be built is undecided.

        Raises `GuestmarkError` when it was built and could not be measured.
        """
        if failed := self._bisection.build(self._bisection.candidate_build, self._build):
            say(f"{commit.shown}: not built ({failed}), skipped")
            return Outcome.UNDECIDED
        judged = self._measured(commit)
        worst = next((one for one in judged if one.outcome is not Outcome.KEPT), judged[0])
        from guestmark.report.sections.gates import said

        self._shown[commit.hash] = said(replace(worst, blocks=None))
        word = {Outcome.KEPT: "good", Outcome.BROKEN: "bad", Outcome.UNDECIDED: "skipped"}.get(worst.outcome)
        if word is None:
            raise GuestmarkError(
                f"{commit.shown}: {worst.reason}", hint="mend it, or skip it with another --good"
            )
        say(f"{commit.shown}: {word}, {self._shown[commit.hash]}, {worst.n} blocks")
        return worst.outcome

    def tell_first_bad(self, commit: Commit) -> None:
        """Prints what was found."""
        tell(f"{commit.hash} is the first bad commit")
        found = self._shown.get(commit.hash)
        tell(f"  {commit.shown}{f': {found}' if found else ''}")

    def _plan(self, commit: Commit) -> Plan:
        from guestmark.workloads.exec.plan import build

        levels = (
            Labelled("good", str(self._bisection.good_build)),
            Labelled(commit.short, str(self._bisection.candidate_build)),
        )
        options = replace(self._options, blocks=self._looks[0], parameters={PARAMETER: levels})
        return build(options, self._argv)

    def _measured(self, commit: Commit) -> tuple[Judged, ...]:
        from guestmark.core.gate import gates_of, with_gates
        from guestmark.engine.run import Audience, exclusively, prepare
        from guestmark.ledger import open_ledger
        from guestmark.ledger.remarks import Remarks

        plan = with_gates(self._plan(commit), self._given.fail_if or ())
        labels = {
            "bisect": f"{self._bisection.good.short}..{self._bisection.bad.short}",
            "commit": commit.hash,
        }
        with (
            open_ledger(self._given.ledger) as ledger,
            exclusively(plan, say, wait=self._given.wait),
        ):
            run = prepare(plan, ledger, Audience(say), said=Remarks(labels=labels))
            for blocks in self._looks:
                if not self._given.quiet:
                    say(f"{commit.shown}: measuring it beside the good one, {blocks} blocks …")
                run = run.limited_to(blocks)
                if run.measure() is RunState.INTERRUPTED:
                    raise KeyboardInterrupt
                # Each of several looks has its share of what one would be allowed (Bonferroni).
                judged = judge(gates_of(run.plan), run.judge().analysis, ALPHA / len(self._looks))
                if all(one.outcome is not Outcome.UNDECIDED for one in judged):
                    break
        return judged
