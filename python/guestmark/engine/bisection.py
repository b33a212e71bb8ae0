"""Search by git bisect for the commit that made a command slower or lose data, each candidate beside the good build.

The worktrees are separate from the user's checkout, which is not touched. Each candidate is measured in its own
run, for as many blocks as are needed.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum, auto
from pathlib import Path

from guestmark.core.context import Caller
from guestmark.core.errors import GuestmarkError, UsageError
from guestmark.core.factor import Labelled
from guestmark.core.gate import Gate, add_gates, read_plan_gates
from guestmark.core.model import Plan, RunState
from guestmark.engine.audience import Audience, hold_machines
from guestmark.engine.run import RunOptions, prepare_run
from guestmark.ledger.run_annotations import Annotations
from guestmark.ledger.store import Ledger
from guestmark.plan.outline import Overrides
from guestmark.stats.analysis import Analysis
from guestmark.stats.gates import ALPHA, JudgedGate, Outcome, combine_outcomes, judge_gates
from guestmark.workloads.exec.plan import ExecOptions, build_plan
from guestmark.workloads.powercut import plan as powercut_plan

PARAMETER = "build"  # `{build}` in the command
# The number of blocks after which a candidate is analysed first.
FIRST_LOOK = 8

# At most this many of the last lines of a failed build are quoted.
_TAIL_LINES = 5


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit: its full hash, and a description with short hash and subject."""

    hash: str
    description: str

    @property
    def short_hash(self) -> str:
        """The first digits of its hash."""
        return self.description.partition(" ")[0]


class Bisection:
    """A worktree of the good build, and one that git moves from candidate to candidate."""

    def __init__(self, repository: Path, parent: Path, good: str, bad: str) -> None:
        self._repository = repository
        # The paths are equally long, as a path's length alone can change the layout of a program's stack.
        self.good_build, self.candidate_build = parent / "good", parent / "next"
        self.good, self.bad = self._read_commit(good), self._read_commit(bad)
        if not self._try_git(
            repository, "merge-base", "--is-ancestor", self.good.hash, self.bad.hash, check=False
        )[0]:
            raise UsageError(
                f"--good {good} is not an ancestor of {bad}", hint="give the older commit as --good"
            )

    @contextmanager
    def make_worktrees(self) -> Iterator[None]:
        """Create both worktrees, the second one at the bad commit, and remove them at the end of the block."""
        try:
            for folder, commit in ((self.good_build, self.good), (self.candidate_build, self.bad)):
                self._run_git(
                    self._repository, "worktree", "add", "--quiet", "--detach", str(folder), commit.hash
                )
            yield
        finally:
            self._try_git(self.candidate_build, "bisect", "reset", check=False)
            for folder in (self.good_build, self.candidate_build):
                self._try_git(self._repository, "worktree", "remove", "--force", str(folder), check=False)
            self._try_git(self._repository, "worktree", "prune", check=False)

    def start_bisect(self) -> Commit | None:
        """Return the first candidate; None if the bad commit is the only one."""
        self._run_git(self.candidate_build, "bisect", "start", "--no-checkout", self.bad.hash, self.good.hash)
        return None if self._find_first_bad() else self._check_out_candidate()

    def mark_candidate(self, word: str) -> Commit | str | None:
        """Tell git that the candidate is `good` or `bad`, or to `skip` it.

        Return the next one, the hash of the first bad commit once it is found, or None if only skipped ones are left.
        """
        ok, _ = self._try_git(self.candidate_build, "bisect", word, check=False)
        if found := self._find_first_bad():
            return found
        return self._check_out_candidate() if ok else None

    def _find_first_bad(self) -> str:
        """Return the hash of the first bad commit; empty if it is not known yet.

        It is known when all that leads to the bad commit is good. What git says of it depends on its version and on
        the user's language.
        """
        suspects = self._run_git(
            self.candidate_build,
            "rev-list",
            "--max-count=2",
            "refs/bisect/bad",
            "--not",
            "--glob=refs/bisect/good-*",
        ).split()
        return suspects[0] if len(suspects) == 1 else ""

    def run_build(self, folder: Path, command: str) -> str:
        """Run the build command in a worktree; return its last lines if it failed, else an empty string."""
        if not command:
            return ""
        done = subprocess.run(
            ["/bin/sh", "-c", command],
            cwd=folder,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        if done.returncode == 0:
            return ""
        tail = (done.stdout + done.stderr).strip().splitlines()[-_TAIL_LINES:]
        return "; ".join(tail) or f"exit status {done.returncode}"

    def find_commit(self, name: str) -> Commit:
        """Return the commit that a branch, tag or hash names."""
        return self._read_commit(name)

    def _check_out_candidate(self) -> Commit:
        commit = self._read_commit("BISECT_HEAD", self.candidate_build)
        self._run_git(self.candidate_build, "checkout", "--quiet", "--detach", "--force", commit.hash)
        return commit

    def _read_commit(self, name: str, where: Path | None = None) -> Commit:
        ok, said = self._try_git(
            where or self._repository,
            "log",
            "-1",
            "--format=%H %h %s",
            f"{name}^{{commit}}",
            "--",
            check=False,
        )
        if not ok:
            raise UsageError(f"there is no commit {name!r} in {self._repository}", hint="git log lists them")
        digest, _, shown = said.strip().partition(" ")
        return Commit(digest, shown)

    def _run_git(self, where: Path, *words: str) -> str:
        return self._try_git(where, *words)[1]

    @staticmethod
    def _try_git(where: Path, *words: str, check: bool = True) -> tuple[bool, str]:
        try:
            done = subprocess.run(
                ["git", "-C", str(where), "-c", "advice.detachedHead=false", *words],
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
            )
        except OSError as error:
            raise GuestmarkError(
                f"git cannot be run: {error.strerror}", hint="install the package git"
            ) from error
        if check and done.returncode:
            last = (done.stderr or done.stdout).strip().splitlines()[-1:]
            raise GuestmarkError(f"git {words[0]} failed: {''.join(last)}", hint=f"run it in {where}")
        return done.returncode == 0, done.stdout + done.stderr


def _make_power_cut_plan(power: PowerCutOptions, argv: Sequence[str], folder: Path) -> Plan:
    """Return the plan that cuts the power of the build in `folder`."""

    def fill_build(text: str) -> str:
        return text.replace(f"{{{PARAMETER}}}", str(folder))

    raw: dict[str, object] = {"method": "syncs", "command": list(map(fill_build, argv))}
    if power.check is not None:
        raw |= {"method": "command", "check": fill_build(power.check)}
    return powercut_plan.build_plan(power.overrides, raw, power.caller)


def list_looks(most: int) -> list[int]:
    """Return the numbers of blocks after which a candidate is analysed: 8, 16, 32 … and `most`."""
    found = [FIRST_LOOK]
    while found[-1] * 2 < most:
        found.append(found[-1] * 2)
    if found[-1] < most:
        found.append(most)
    return found


@dataclass(frozen=True, slots=True)
class BisectionRequest:
    """A request to measure builds: the command, its options, the gates that decide, and how a build is made.

    `build` is a command for a shell; empty if nothing has to be built. `by` names the metrics that may decide, the
    preferred one first; if it is empty, each gate's own metric decides. `power` is set for a gate about power cuts, for
    which no good build is measured beside it. Without `wait` the machines must be free.
    """

    argv: Sequence[str]
    options: ExecOptions
    gates: Sequence[str]
    build: str
    most_blocks: int
    wait: bool = True
    by: tuple[str, ...] = ()
    power: PowerCutOptions | None = None


@dataclass(frozen=True, slots=True)
class PowerCutOptions:
    """Options of a run of `guestmark powercut`.

    `check` is a command that judges each crash state; without it the command's own syncs are judged.
    """

    overrides: Overrides
    caller: Caller
    check: str | None = None


@dataclass(frozen=True, slots=True)
class BisectionStep:
    """The result for one candidate: the gate that decided, or how its build failed."""

    commit: Commit
    judged: JudgedGate | None
    failed: str = ""

    @property
    def outcome(self) -> Outcome:
        """The gate's outcome; a candidate that cannot be built is undecided."""
        return Outcome.UNDECIDED if self.judged is None else self.judged.outcome


class SearchEnd(Enum):
    """The possible ends of a search."""

    FOUND = auto()
    # The bad commit is no slower than the good one.
    NOT_SLOWER = auto()
    # The bad commit could not be judged.
    UNJUDGED = auto()
    # Only commits that could not be judged are left.
    ONLY_SKIPPED = auto()


# Commands of `git bisect`.
_GIT_WORDS = {Outcome.KEPT: "good", Outcome.BROKEN: "bad", Outcome.UNDECIDED: "skip"}


class BisectionSearch:
    """A search in a bisection's worktrees; `looking` is called with the number of blocks before each analysis."""

    def __init__(
        self,
        bisection: Bisection,
        wanted: BisectionRequest,
        ledger: Ledger,
        audience: Audience,
        looking: Callable[[Commit, int], None],
    ) -> None:
        self._bisection, self._wanted = bisection, wanted
        self._ledger, self._audience, self._looking = ledger, audience, looking
        self._looks = list_looks(wanted.most_blocks) if wanted.power is None else [1]
        self._by = wanted.by or ("",)
        self.end = SearchEnd.ONLY_SKIPPED
        self.found: Commit | None = None
        # The metric by which the bad commit was found slower, if the preferred one could not tell.
        self.fell_back = ""
        self._last_fallback = ""  # the same of the candidate judged last

    @property
    def cuts_power(self) -> bool:
        """Whether each candidate is judged by power cuts, without the good build."""
        return self._wanted.power is not None

    def judge_candidates(self) -> Iterator[BisectionStep]:
        """Yield the step of the bad commit, then of candidates until the first bad one; set `end` and `found`."""
        at_bad = self._build_and_judge(self._bisection.bad)
        yield at_bad
        if at_bad.outcome is not Outcome.BROKEN:
            self.end = SearchEnd.NOT_SLOWER if at_bad.outcome is Outcome.KEPT else SearchEnd.UNJUDGED
            return
        if at_bad.judged is not None:
            self._by = (at_bad.judged.gate.metric,)
            self.fell_back = self._last_fallback
        next_: Commit | str | None = self._bisection.start_bisect() or self._bisection.bad.hash
        while isinstance(next_, Commit):
            step = self._build_and_judge(next_)
            yield step
            next_ = self._bisection.mark_candidate(_GIT_WORDS[step.outcome])
        if next_ is not None:
            self.end, self.found = SearchEnd.FOUND, self._bisection.find_commit(next_)

    def _build_and_judge(self, commit: Commit) -> BisectionStep:
        """Build a candidate and measure it beside the good build.

        Raises `GuestmarkError` if it was built but could not be measured.
        """
        if failed := self._bisection.run_build(self._bisection.candidate_build, self._wanted.build):
            return BisectionStep(commit, None, failed)
        return self._judge_build(commit, self._bisection.candidate_build)

    def _judge_build(self, commit: Commit, folder: Path) -> BisectionStep:
        judged = self._measure_candidate(commit, folder)
        outcome = combine_outcomes(judged)
        worst = next(one for one in judged if one.outcome is outcome)
        if worst.outcome not in _GIT_WORDS:
            raise GuestmarkError(
                f"{commit.description}: {worst.reason}",
                hint="fix this, or exclude the commit with another --good",
            )
        return BisectionStep(commit, worst)

    def check_good(self) -> BisectionStep:
        """Return the step of the good build alone, which only a gate about power cuts can judge."""
        return self._judge_build(self._bisection.good, self._bisection.good_build)

    def _make_plan(self, commit: Commit, folder: Path) -> Plan:
        if self._wanted.power is not None:
            return add_gates(
                _make_power_cut_plan(self._wanted.power, self._wanted.argv, folder), self._wanted.gates
            )
        levels = (
            Labelled("good", str(self._bisection.good_build)),
            Labelled(commit.short_hash, str(folder)),
        )
        options = replace(self._wanted.options, blocks=self._looks[0], parameters={PARAMETER: levels})
        return add_gates(build_plan(options, self._wanted.argv), self._wanted.gates)

    def _measure_candidate(self, commit: Commit, folder: Path) -> tuple[JudgedGate, ...]:
        plan = self._make_plan(commit, folder)
        labels = {
            "bisect": f"{self._bisection.good.short_hash}..{self._bisection.bad.short_hash}",
            "commit": commit.hash,
        }
        with hold_machines(plan, self._audience.tell, wait=self._wanted.wait):
            run = prepare_run(plan, self._ledger, self._audience, RunOptions(said=Annotations(labels=labels)))
            for blocks in self._looks:
                self._looking(commit, blocks)
                run = run.limit_blocks(blocks)
                if run.measure() is RunState.INTERRUPTED:
                    raise KeyboardInterrupt
                judged = self._judge_gates(read_plan_gates(run.plan), run.judge().analysis)
                if not _has_outcome(judged, Outcome.UNDECIDED):
                    break
        return judged

    def _judge_gates(self, gates: Sequence[Gate], analysis: Analysis) -> tuple[JudgedGate, ...]:
        """Return the gates, judged by the first metric that decides them.

        A build that is no slower by another metric may still be slower by the preferred one, so the others can only
        break a gate. Each look and each metric has an equal share of the error rate (Bonferroni).
        """
        if self._wanted.power is not None:
            return judge_gates(gates, analysis)
        # Where a gate names its metric, no other one may decide.
        by = self._by
        if "" in by and any(gate.metric for gate in gates):
            by = ("",)
        alpha = ALPHA / len(self._looks) / len(by)
        preferred = analysis.plan.metrics[0].name
        by_metric = []
        for name in by:
            renamed = [replace(gate, metric=name or gate.metric or preferred) for gate in gates]
            by_metric.append(judge_gates(renamed, analysis, alpha))
        self._last_fallback = ""
        first, *others = by_metric
        if _has_outcome(first, Outcome.UNDECIDED):
            for name, judged in zip(by[1:], others, strict=True):
                if _has_outcome(judged, Outcome.BROKEN):
                    self._last_fallback = name
                    return judged
        return first


def _has_outcome(judged: Iterable[JudgedGate], outcome: Outcome) -> bool:
    return any(one.outcome is outcome for one in judged)
