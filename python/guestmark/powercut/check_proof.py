"""Proves durability by a user's check, which is tried first and has to fail on a disk that ignores flushes."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from guestmark.core.errors import MachineError, WorkloadError
from guestmark.core.findings import Control, Durability, Explanation, Proven, Reason, Untorn
from guestmark.core.temporary import scratch_directory
from guestmark.core.units import format_count
from guestmark.disks import stack
from guestmark.powercut import calls, cuts, evidence, explanation, proof, user_check
from guestmark.powercut.calls import Call, Difference, SyncPoint, UnsyncedCall
from guestmark.powercut.check_answer import Answer, Ending
from guestmark.powercut.cuts import TEARING, ChosenCuts, Survival
from guestmark.powercut.judge import Crash, JudgedStates
from guestmark.powercut.records import Acknowledged
from guestmark.powercut.survey import (
    CrashState,
    Disk,
    FailureGroup,
    Survey,
    SurveyLimits,
    WorkerPool,
    conduct_survey,
    start_worker_pool,
)
from guestmark.powercut.user_check import Check, Limit
from guestmark.powercut.writelog import Entry, WriteLog, count_flushes, count_writes

# Seconds for the first run of a check without its own limit.
_TRIED_S = 60.0
# Limit of its other runs: this many times as long as the first, but at least this many seconds.
_LEAST_LIMIT_S, _TIMES_TRIED = 20.0, 10.0
_CONTROL_STATES, _SCRAMBLED_STATES = 24, 96
_CONTROL_SHARE = 0.2  # share of the time left until the deadline
# A verdict needs this many judged states, unless there are fewer in all.
_FEWEST = 20
_REASONS = 8
_SUSPECTS = 2
_EXPLAINED_S = 60.0
# Added to an acknowledged number, this gives one beyond any that a program may have acknowledged.
_FAR = 1_000_003
_ROOM = Path("/var/tmp")
_CONSISTENCY = "reordered and torn writes"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRequest:
    """A command whose exit status judges a disk.

    `lines` are the acknowledged lines that it gets as input, `limit_s` is the time limit of one run in seconds,
    `limits` apply to all runs together. `tell` is called with progress messages.
    """

    command: str
    lines: Sequence[bytes]
    limit_s: float | None = None
    limits: SurveyLimits
    # True for a further log: the check has been tried before, and is known to be able to fail.
    confirms: bool = False
    tell: Callable[[str], None] = lambda _: None
    # The calls of the program, which is traced to explain a failure.
    calls: Sequence[Call] | None = None
    explain_s: float | None = None  # seconds for that; None stands for the usual time

    @property
    def only_consistency(self) -> bool:
        """True if nothing was acknowledged, so that each state only has to be consistent."""
        return not self.lines


def prove_by_check(request: proof.ProofRequest, asked: CheckRequest) -> tuple[Proven, list[SyncPoint]]:
    """Judge the log by the check, and keep it as evidence.

    Returns the proof, and the calls after which a sync would prevent the loss, by kind and path; these are empty
    unless the program was traced. Raises `WorkloadError` if the check fails even without a cut.
    """
    begin = time.monotonic()
    alone = user_check.explain_no_sandbox()
    check = Check(
        asked.command,
        asked.lines,
        Limit(asked.limit_s or _TRIED_S),
        apart=not alone,
        always=asked.only_consistency,
    )
    part = request.written
    with WriteLog(request.files.log) as log:
        entries = log.entries[: part.settled]
        seen = part.read_acknowledgements(log)
        disk = Disk(
            request.files.base, request.filesystem, request.form, log, entries, seen.find_newest_after
        )
        with start_worker_pool(disk, check, _ROOM) as at:
            blind, controls = False, list[Control]()
            if not asked.confirms:
                asked.tell("running the check without a power cut")
                blind = _try_check(at, check, entries, asked)
                controls.append(_run_control(at, log.entries[: part.end], seen, request, asked))
            chosen = _choose_cuts(log.entries[: part.end], seen, request)
            survey = conduct_survey(
                at,
                chosen,
                asked.limits,
                asked.tell,
                counts=_make_failure_filter(asked),
            )
            explained = None
            if asked.calls is not None and survey.failing_groups and survey.unsteady is None:
                asked.tell("searching for the cause of the failure")
                explained = _explain_failure(disk, check, survey, asked)
        found = _build_check_proof(
            request, asked, log.entries[seen.requests_before_first_record : part.end], survey, controls
        )
        cures: list[SyncPoint] = []
        if explained is not None:
            found.explanation, cures = explained
        found.coverage = chosen.compute_coverage([state.cut for state in survey.states])
    # The check may pass whatever its input is, or run without its own namespaces; the report shows this.
    found.blind, found.alone, found.checks = blind, alone, check.runs
    judged = _summarize_judged_states(survey)
    kept = evidence.keep_evidence(
        request.files, request.filesystem, request.form, request.method, judged,
        evidence.CheckRecord(asked.command, tuple(asked.lines)),
    )  # fmt: skip
    found.kept = str(kept or "")
    found.judge_s = time.monotonic() - begin
    return found, cures


def _explain_failure(
    disk: Disk, check: Check, survey: Survey, asked: CheckRequest
) -> tuple[Explanation, list[SyncPoint]] | None:
    """Return the file differences that cause the most common failure, and where syncs would prevent it.

    None without a trace of the program's calls, or if the differences cannot be determined.
    """
    state = _choose_explained_state(max(survey.failing_groups, key=lambda group: len(group.states)))
    if state is None or asked.calls is None:
        return None
    allowed_s = _EXPLAINED_S
    if asked.explain_s is not None:
        allowed_s = min(asked.explain_s, _EXPLAINED_S)
    until = time.monotonic() + allowed_s
    try:
        differ = _find_differences(disk, check, state, asked.lines[: state.newest + 1], until)
    except (MachineError, OSError, subprocess.CalledProcessError):
        return None
    if not differ:
        return Explanation(said=state.fault, files=[]), []
    files = [str(difference) for difference in differ]
    if state.cut.survival in TEARING:
        torn = f"a write to {differ[0].path} was torn"
        return Explanation(said=state.fault, files=files, calls=[torn]), []
    words: dict[str, None] = {}
    points: dict[SyncPoint, None] = {}
    for found in _list_guilty_calls(asked.calls, len(asked.lines), state.newest, differ):
        words[found.words] = None
        if found.sync_point is not None:
            points[found.sync_point] = None
    return Explanation(said=state.fault, files=files, calls=list(words)), list(points)


def _choose_explained_state(group: FailureGroup) -> CrashState | None:
    """Return the latest of the states that say most about the cause of a failure."""
    # A damaged disk has no answer, and a torn write is blamed on a call only if nothing else failed.
    answered = [state for state in group.states if state.answer is not None]
    whole_writes = [state for state in answered if state.cut.survival not in TEARING]
    # In a state that keeps only flushed data, only a missing sync can be to blame.
    flushed_only = [state for state in whole_writes if state.cut.survival is Survival.NONE]
    for states in (flushed_only, whole_writes, answered):
        if states:
            return states[-1]
    return None


def _list_guilty_calls(
    done: Sequence[Call], lines: int, newest: int, differ: Sequence[Difference]
) -> list[UnsyncedCall]:
    """Return the calls that left these differences unsynced, then those that came after the acknowledgement."""
    before = calls.list_calls_before_record(done, lines, newest)
    later = done[len(before) :]
    guilty, late = list[UnsyncedCall](), list[UnsyncedCall]()
    for difference in differ:
        if (found := calls.find_unsynced_call(before, difference)) is not None:
            guilty.append(found)
        elif (found := calls.find_late_call(later, difference)) is not None:
            late.append(found)
    if not guilty and not late:
        # The missing data were first written to another file, such as a log.
        return calls.list_unsynced_writes(before)[:_SUSPECTS]
    return guilty + late


def _find_differences(
    disk: Disk, check: Check, state: CrashState, acknowledged: Sequence[bytes], until: float
) -> list[Difference]:
    """Return the fewest differences from a disk without a cut that make the check fail as it does in this state.

    The uncut disk of the same moment differs only in what the cut removed. But it lacks what the kernel wrote later, so
    the check may fail on it as well; then later moments are tried.
    """
    next_record = _find_next_record(disk.entries, state.cut.after)
    moments = (state.cut.after, next_record, len(disk.entries))
    with scratch_directory("explained", _ROOM, 0o711) as room:
        failing = room / "failing"
        explanation.copy_files(disk, state.cut, failing)
        for moment in dict.fromkeys(moments):
            whole = room / f"whole-{moment}"
            explanation.copy_files(disk, cuts.make_cut_at(disk.entries, moment, Survival.ALL), whole)
            found = explanation.find_fewest_differences(
                check, acknowledged, state.fault, whole, failing, until
            )
            if found:
                return found
    return []


def _find_next_record(entries: Sequence[Entry], after: int) -> int:
    """Return the number of requests up to the next acknowledgement, that included; all of them if there is none."""
    for position in range(after, len(entries)):
        if entries[position].mark:
            return position + 1
    return len(entries)


def _make_failure_filter(asked: CheckRequest) -> Callable[[CrashState], bool]:
    return lambda state: asked.only_consistency or state.newest >= 0


def _try_check(at: WorkerPool, check: Check, entries: Sequence[Entry], asked: CheckRequest) -> bool:
    """Run the check on the disk as the program left it; return True if it passes even when its input has a forged line.

    Raises `WorkloadError` if it does not pass.
    """
    state = at.judge_alone(cuts.make_cut_at(entries, len(entries), Survival.ALL))
    answer = state.answer
    if answer is None:
        raise WorkloadError(
            f"the disk is damaged even without a power cut: {state.damage}",
            hint="the disk, or the log of its writes, is faulty",
        )
    if answer.ending is not Ending.PASSED:
        raise _make_refusal(answer)
    if asked.limit_s is None:
        check.limit.seconds = max(_LEAST_LIMIT_S, _TIMES_TRIED * answer.took_s)
    if asked.only_consistency:
        return False
    forged = at.judge_with_lines(state.cut, [*asked.lines, make_unacknowledged_line(asked.lines)])
    return forged.answer is not None and forged.answer.ending is Ending.PASSED


def _make_refusal(answer: Answer) -> WorkloadError:
    """Return the error about a check that does not pass on a disk without a cut."""
    quote = " | ".join([*answer.out[-2:], *answer.err[-3:]])
    heard = f": {quote}" if quote else ", and printed nothing"
    match answer.ending:
        case Ending.FAILED | Ending.PASSED:
            said = f"the check fails even without a power cut ({answer.exit}){heard}"
        case Ending.UNSTARTED:
            said = f"the check cannot be started: {answer.summary}"
        case Ending.LATE:
            said = f"the check did not finish within {answer.took_s:g} s even without a power cut{heard}"
        case Ending.KILLED | Ending.OUT_OF_MEMORY | Ending.OUT_OF_ROOM | Ending.TOO_STRICT:
            said = f"the check gives no verdict even without a power cut: {answer.summary}"
    return WorkloadError(
        said,
        hint=answer.remedy
        or "it runs in the disk's root directory, with the acknowledged lines as its input",
    )


def make_unacknowledged_line(lines: Sequence[bytes]) -> bytes:
    """Return a line that resembles the last one but was never printed by the program."""
    last = lines[-1]
    # A number far beyond the last one is certainly missing; a check that passes nevertheless does not search for it.
    numbers = list(re.finditer(rb"\d+", last))
    if not numbers:
        return last + b"-never"
    found = numbers[-1]
    number = str(int(found[0][-18:]) + _FAR).encode()
    return last[: found.start()] + number + last[found.end() :]


def _choose_cuts(entries: Sequence[Entry], seen: Acknowledged, request: proof.ProofRequest) -> ChosenCuts:
    start = max(request.written.start, seen.requests_before_first_record)
    return cuts.choose_cuts(
        entries, seen.acknowledgement_moments, start=start, count=request.states, seed=request.seed
    )


def _run_control(
    at: WorkerPool,
    entries: Sequence[Entry],
    seen: Acknowledged,
    request: proof.ProofRequest,
    asked: CheckRequest,
) -> Control:
    """Judge the log as if a hypervisor had dropped its flushes, until the first state fails."""
    start = max(request.written.start, seen.requests_before_first_record)
    if asked.only_consistency:
        name = _CONSISTENCY
        chosen = cuts.choose_scrambled_cuts(entries, start=start, count=_SCRAMBLED_STATES, seed=request.seed)
    else:
        name = "no-flush"
        chosen = cuts.choose_cuts(
            cuts.drop_flushes(entries, start),
            seen.acknowledgement_moments,
            start=start,
            count=0,
            seed=request.seed,
            most=_CONTROL_STATES,
        )
    now = time.monotonic()
    deadline = asked.limits.deadline
    if deadline is not None:
        deadline = now + _CONTROL_SHARE * max(deadline - now, 0.0)

    def tell(progress: str) -> None:
        asked.tell(f"control: {progress}")

    survey = conduct_survey(at, chosen, SurveyLimits(deadline, 1), tell, counts=_make_failure_filter(asked))
    return Control(name=name, states=len(survey.judged_states), losing=survey.losing_count)


def _build_check_proof(
    request: proof.ProofRequest,
    asked: CheckRequest,
    part: Sequence[Entry],
    survey: Survey,
    controls: list[Control],
) -> Proven:
    layers = stack.list_layers(request.location)
    flushes = count_flushes(part)
    word, why = _decide_check_word(
        survey, controls, layers, proof.describe_flush_counts(request.counts, flushes), asked
    )
    losing = survey.losing_states
    repaired = [state for state in survey.states if state.repairs]
    first_loss = first_repair = ""
    if losing:
        first_loss = _describe_lost_state(min(losing, key=lambda state: state.cut.after))
    if repaired:
        first_repair = f"{'; '.join(repaired[0].repairs)} after cut {repaired[0].cut.after}"
    return Proven(
        word=word, why=why, method=request.method.description, acknowledged=len(asked.lines),
        states=len(survey.judged_states), losing=len(losing), repaired=len(repaired),
        torn_superblocks=sum(state.is_excused for state in survey.states), controls=controls,
        below=[str(layer) for layer in layers], writes=count_writes(part), flushes=flushes,
        run_s=0.0, judge_s=0.0, first_loss=first_loss, first_repair=first_repair,
        counted=request.counts.hypervisor, asked=request.counts.guest, reasons=_list_reasons(survey),
        unjudged=len(survey.unjudged_states), stopped=survey.stopped, untorn=_count_untorn(survey, losing),
    )  # fmt: skip


def _count_untorn(survey: Survey, losing: Sequence[CrashState]) -> Untorn:
    whole = [state for state in losing if state.cut.survival not in TEARING]
    return Untorn(
        sum(state.cut.survival not in TEARING for state in survey.judged_states),
        len(whole),
        sum(state.cut.survival is Survival.NONE for state in whole),
    )


def _describe_lost_state(state: CrashState) -> str:
    return f"{state.fault} after cut {state.cut.after} ({state.cut.survival.as_clause})"


def _decide_check_word(
    survey: Survey, controls: list[Control], layers: list[stack.Layer], flushes: str, asked: CheckRequest
) -> tuple[Durability, str]:
    """Return the proof's verdict and its reason."""
    if survey.unsteady is not None:
        first, _ = survey.unsteady
        return Durability.UNKNOWN, (
            f"the check gives inconsistent results: after cut {first.cut.after} ({first.cut.survival.as_clause}) "
            f"it failed ({first.fault}), then it passed on the same disk with the same input"
        )
    if survey.losing_count:
        word = Durability.BROKEN if asked.only_consistency else Durability.LOST
        return word, flushes
    if volatile := proof.judge_volatile_layer(layers):
        return volatile
    if missing := _explain_missing_states(survey):
        return Durability.UNKNOWN, missing
    unseen = proof.find_unseen_layer(layers)
    decide = _decide_consistency if asked.only_consistency else _decide_durability
    return decide(controls, unseen, flushes)


def _explain_missing_states(survey: Survey) -> str:
    """Return why too few states were judged for a verdict; empty if enough were."""
    if survey.unjudged_states:
        several = format_count(len(survey.unjudged_states), "crash state")
        first = survey.unjudged_states[0]
        remedy = first.answer.remedy if first.answer is not None else ""
        return f"{several} could not be judged: {first.fault}; {remedy}"
    judged = len(survey.judged_states)
    if judged < min(_FEWEST, survey.chosen):
        return f"only {judged} of {survey.chosen:,} crash states were judged: {survey.stopped}"
    return ""


def _decide_consistency(
    controls: list[Control], unseen: stack.Layer | None, flushes: str
) -> tuple[Durability, str]:
    """Return the verdict and its reason for a program that acknowledges nothing, if no state failed."""
    if unseen is not None:
        return Durability.UNKNOWN, proof.explain_unseen_layer(unseen)
    if proof.list_missed_controls(controls):
        return (
            Durability.CONSISTENT,
            f"the cuts never mattered: even {_CONSISTENCY} without flushes break nothing",
        )
    return Durability.CONSISTENT, flushes


def _decide_durability(
    controls: list[Control], unseen: stack.Layer | None, flushes: str
) -> tuple[Durability, str]:
    """Return the verdict and its reason if nothing was lost."""
    if missed := proof.list_missed_controls(controls):
        return Durability.REACHED, f"no proof: the control found no loss with {missed[0]}"
    if unseen is not None:
        return Durability.REACHED, proof.explain_unseen_layer(unseen)
    return Durability.PROVEN, f"no crash state loses an acknowledged record; {flushes}"


def _list_reasons(survey: Survey) -> list[Reason]:
    groups = [(group.states[0], len(group.states), True) for group in survey.failing_groups]
    unjudged = survey.unjudged_states
    if unjudged:
        groups.append((unjudged[0], len(unjudged), False))
    if survey.unsteady is not None:
        groups.append((survey.unsteady[0], 1, False))
    groups.sort(key=lambda each: -each[1])
    return [_build_reason(*group) for group in groups[:_REASONS]]


def _build_reason(state: CrashState, states: int, judged: bool) -> Reason:
    reason = Reason(
        said=state.fault, states=states, after=state.cut.after, survival=state.cut.survival.as_clause, judged=judged
    )  # fmt: skip
    if state.answer is None:
        return reason
    answer = state.answer
    return msgspec.structs.replace(reason, status=answer.status, out=answer.out, err=answer.err)


def _summarize_judged_states(survey: Survey) -> JudgedStates:
    """Return the survey's states in the form that evidence stores."""
    judged = JudgedStates()
    for state in sorted(survey.states, key=lambda state: state.cut.after):
        lost, what = None, ""
        if state.is_failed:
            lost, what = state.newest, state.fault
        repairs = "; ".join(state.repairs)
        judged.add_crash(Crash(state.cut, state.newest, lost, repairs, what, state.answer))
    return judged
