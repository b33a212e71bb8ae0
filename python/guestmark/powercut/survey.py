"""Judges crash states by the user's check until all are judged or time is up; a survey may end at any state.

Several workers recover states in parallel, in the order of `ChosenCuts.choose_sampling_order`. A check that fails is
run again, alone and on a fresh copy of the state: only a state that fails twice counts as lost. A state that was not
judged never does.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from guestmark.core.errors import Interrupted, MachineError
from guestmark.core.keeper import keeper
from guestmark.core.units import format_duration
from guestmark.powercut import recovery
from guestmark.powercut.check_answer import Answer, Ending, mask_numbers
from guestmark.powercut.cuts import ChosenCuts, Cut
from guestmark.powercut.judge import Replay, choose_image_parent
from guestmark.powercut.recovery import ReadStates, Recovery
from guestmark.powercut.user_check import Check
from guestmark.powercut.writelog import Entry, WriteLog

_LESS_WAITING = 2
# Seconds of judging between two looks at the time and at Ctrl-C.
_BATCH_S = 4.0
_LARGEST_BATCH = 400
_FORECAST_AFTER = 5  # states
# This many states that fail in the same way are judged again, the first of them several times: a check that fails by
# chance does not fail that often in a row.
_USUAL_FINALISTS, _FIRST_TIMES = 8, 3
INTERRUPTED = "it was interrupted"
# This many states that ran out of time beside others are judged again alone.
_LATE_AGAIN = 3


@dataclass(frozen=True, slots=True)
class CrashState:
    """One judged crash state: the newest record acknowledged by then, and the answer of the check.

    `damage` tells why the disk could not be mounted, in which case there is no answer; `repairs` lists the repairs that
    were needed. With `torn_superblock` the program is not at fault for what is missing.
    """

    cut: Cut
    newest: int
    answer: Answer | None
    damage: str = ""
    repairs: tuple[str, ...] = ()
    torn_superblock: bool = False

    @property
    def is_failed(self) -> bool:
        """True if something is lost or broken, and the filesystem's own superblock is intact."""
        return self._is_bad and not self.torn_superblock

    @property
    def is_excused(self) -> bool:
        """True if something is lost or broken together with the filesystem's own superblock."""
        return self._is_bad and self.torn_superblock

    @property
    def _is_bad(self) -> bool:
        return bool(self.damage) or (self.answer is not None and self.answer.ending is Ending.FAILED)

    @property
    def is_judged(self) -> bool:
        """True if the check gave a verdict, or the disk cannot be mounted."""
        return bool(self.damage) or (self.answer is not None and self.answer.is_conclusive)

    @property
    def fault(self) -> str:
        """A description of what is wrong with the state."""
        if self.damage:
            return self.damage
        return "" if self.answer is None else self.answer.summary


class WorkerPool:
    """Recovers and judges states of one log with parallel workers, each with its own image and agent."""

    def __init__(
        self, workers: Sequence[_Worker], lone: _Worker, lone_check: Check, acknowledged: Callable[[int], int]
    ) -> None:
        self._workers, self._lone, self._lone_check = workers, lone, lone_check
        self._acknowledged = acknowledged
        self._pool = ThreadPoolExecutor(len(workers))
        self._stopped = threading.Event()

    @property
    def worker_count(self) -> int:
        """The number of states that are judged in parallel."""
        return len(self._workers)

    def judge_cuts(self, cuts: Sequence[Cut]) -> list[CrashState]:
        """Judge these states in parallel, and return them in no particular order."""
        # In this order each worker's image only advances.
        in_order = sorted(cuts, key=lambda cut: (cut.kept, cut.after))
        share = -(-len(in_order) // len(self._workers)) or 1
        parts = []
        for number, worker in enumerate(self._workers):
            parts.append(
                self._pool.submit(self._judge_some, worker, in_order[number * share : (number + 1) * share])
            )
        states: list[CrashState] = []
        try:
            for part in parts:
                states += part.result()
        except BaseException:
            # Workers look at this between two states, so that Ctrl-C need not wait for a whole batch.
            self._stopped.set()
            raise
        return states

    def judge_alone(self, cut: Cut) -> CrashState:
        """Judge a state while no other one is judged, with a check that does not reuse results."""
        return self._lone.judge_cut(cut, self._acknowledged(cut.after))

    def judge_with_lines(self, cut: Cut, lines: Sequence[bytes]) -> CrashState:
        """Judge a state as `judge_alone` does, with these lines as input of the check."""
        check, before = self._lone_check, self._lone_check.lines
        check.lines = lines
        try:
            return self._lone.judge_cut(cut, len(lines) - 1)
        finally:
            check.lines = before

    def judge_with_next_line(self, state: CrashState) -> CrashState | None:
        """Judge a state as `judge_alone` does, with the next line added to the check's input; None if there is none."""
        if not 0 <= state.newest < len(self._lone_check.lines) - 1:
            return None
        return self._lone.judge_cut(state.cut, state.newest + 1)

    def close(self) -> None:
        """Stop the workers after the states that they are judging."""
        self._stopped.set()
        self._pool.shutdown()

    def _judge_some(self, worker: _Worker, cuts: Sequence[Cut]) -> list[CrashState]:
        found = []
        for cut in cuts:
            if self._stopped.is_set():
                break
            found.append(worker.judge_cut(cut, self._acknowledged(cut.after)))
        return found


@dataclass(frozen=True, slots=True)
class _Worker:
    replay: Replay
    recovers: Recovery

    def judge_cut(self, cut: Cut, newest: int) -> CrashState:
        image = self.replay.make_image(cut)
        try:
            left = self.recovers.recover(image, (), newest, exact=False)
        finally:
            image.unlink(missing_ok=True)
        return CrashState(
            cut, newest, left.answer, left.damage, left.repairs[:2], torn_superblock=left.torn_superblock
        )


@dataclass(frozen=True, slots=True)
class Disk:
    """The disk whose log is judged: the image before the first write, and how to recover it.

    `entries` are the requests that may have reached it, `acknowledged` maps a number of them to the newest record.
    """

    base: Path
    filesystem: str
    form: str
    log: WriteLog
    entries: Sequence[Entry]
    acknowledged: Callable[[int], int]


@contextlib.contextmanager
def start_worker_pool(disk: Disk, check: Check, parent: Path) -> Iterator[WorkerPool]:
    """Yield workers that judge states of the disk, with images below `parent`. Raises `MachineError`."""
    directory = keeper().directory("cut", parent, mode=0o711)
    count = recovery.count_workers(disk.filesystem, mounted=True) if check.apart else 1
    # Mounts stay below `parent`, because a check's sandbox has its own /dev/shm.
    images = directory
    # With images in memory, workers do not wait for a disk, so fewer of them suffice.
    fewer = max(count // _LESS_WAITING, 1)
    where = choose_image_parent(disk.base, disk.log.path, disk.form, parent, fewer + 1)
    if where != parent:
        images, count = keeper().directory("cut", where), fewer
    try:
        with contextlib.ExitStack() as stack:

            def make_worker(number: int, reader: Check, known: ReadStates | None) -> _Worker:
                own = directory / str(number)
                own.mkdir()
                made_in = images / f"images-{number}"
                made_in.mkdir()
                replay = Replay(disk.base, disk.log, disk.entries, made_in)
                stack.callback(replay.close)
                recovers = recovery.start_recovery(disk.filesystem, disk.form, own, reader, known)
                return _Worker(replay, stack.enter_context(recovers))

            known = ReadStates() if check.remembers else None
            workers = [make_worker(number, check, known) for number in range(count)]
            # A check that reuses results would only confirm its own answer.
            lone_check = check.copy_without_memory()
            made = WorkerPool(workers, make_worker(count, lone_check, None), lone_check, disk.acknowledged)
            stack.callback(made.close)
            yield made
    except OSError as error:
        raise MachineError(
            f"crash states cannot be created in {parent}: {error.strerror or error}",
            hint="free some space there: the states need little more than the written data",
        ) from error
    finally:
        keeper().remove(directory)
        keeper().remove(images)


@dataclass(slots=True)
class FailureGroup:
    """States that fail in the same way, by what the check printed."""

    first: CrashState
    states: list[CrashState] = field(default_factory=list)
    confirmed: int = 0
    # True once the check was found to fail because of data that is newer than it expects.
    too_strict: bool = False


@dataclass(slots=True)
class Survey:
    """The judged states, out of `chosen` states in all."""

    chosen: int
    states: list[CrashState] = field(default_factory=list)
    groups: dict[str, FailureGroup] = field(default_factory=dict)
    # Two different answers about the same disk with the same input.
    unsteady: tuple[CrashState, CrashState] | None = None
    stopped: str = ""  # why not all were judged

    @property
    def losing_states(self) -> list[CrashState]:
        """The states in which something is lost or broken."""
        losing = []
        for group in self.groups.values():
            losing += group.states
        return losing

    @property
    def losing_count(self) -> int:
        """The number of states in which something is lost or broken."""
        return len(self.losing_states)

    @property
    def failing_groups(self) -> list[FailureGroup]:
        """The groups of states in which something is lost or broken."""
        return [group for group in self.groups.values() if group.states]

    @property
    def judged_states(self) -> list[CrashState]:
        """The states with a verdict."""
        return [state for state in self.states if state.is_judged]

    @property
    def unjudged_states(self) -> list[CrashState]:
        """The states in which the check did not start or did not end."""
        return [state for state in self.states if not state.is_judged]


@dataclass(frozen=True, slots=True)
class SurveyLimits:
    """When a survey ends early: at `deadline` (monotonic clock), or after `enough` failing states; None means never.

    Once a state has failed, `failed_deadline` applies instead of `deadline`, which leaves time to confirm and explain
    the loss.
    """

    deadline: float | None = None
    enough: int | None = None
    failed_deadline: float | None = None

    def find_deadline(self, survey: Survey) -> float | None:
        """Return the deadline that applies to the survey in its present state."""
        if self.failed_deadline is not None and survey.losing_count:
            return self.failed_deadline
        return self.deadline

    def explain_early_end(self, survey: Survey) -> str:
        """Return why the survey has to end; empty if it continues."""
        if survey.unsteady is not None:
            return "the check gave inconsistent results"
        if self.enough is not None and survey.losing_count >= self.enough:
            return "enough failures were found"
        if (deadline := self.find_deadline(survey)) is not None and time.monotonic() >= deadline:
            return "time ran out"
        return ""


def conduct_survey(
    bench: WorkerPool,
    chosen: ChosenCuts,
    limits: SurveyLimits,
    tell: Callable[[str], None],
    *,
    counts: Callable[[CrashState], bool],
) -> Survey:
    """Judge the chosen states; a state counts as failing only if `counts` returns True for it.

    `tell` is called with progress messages. If the user interrupts, the states judged so far are returned; see
    `Interrupted`.
    """
    order = chosen.choose_sampling_order()
    survey = Survey(len(order))
    done, size, began = 0, _FORECAST_AFTER, time.monotonic()
    try:
        while done < len(order) and not (why := limits.explain_early_end(survey)):
            tell(_describe_progress(done, len(order), time.monotonic() - began, limits.find_deadline(survey)))
            batch, at = order[done : done + size], time.monotonic()
            _record_states(bench, survey, bench.judge_cuts(batch), counts)
            done += len(batch)
            rate = len(batch) / max(time.monotonic() - at, 1e-3)
            # One quick batch may not be typical, so the next is at most four times as large.
            size = int(min(max(rate * _BATCH_S, bench.worker_count), 4 * size, _LARGEST_BATCH))
        survey.stopped = why if done < len(order) else ""
    except Interrupted:
        survey.stopped = INTERRUPTED
    return survey


def _describe_progress(done: int, total: int, took_s: float, deadline: float | None) -> str:
    progress = f"judging crash states: {done:,} of {total:,}"
    if done < _FORECAST_AFTER:
        return progress
    left = took_s / done * (total - done)
    if deadline is not None and left > (rest := max(deadline - time.monotonic(), 0.0)):
        return (
            f"{progress}; time is up in {format_duration(rest)}, the rest would take {format_duration(left)}"
        )
    return f"{progress}, about {format_duration(left)} left"


def _record_states(
    bench: WorkerPool, survey: Survey, states: Sequence[CrashState], counts: Callable[[CrashState], bool]
) -> None:
    for state in states:
        if not state.is_judged:
            state = _judge_late_again(bench, survey, state)  # noqa: PLW2901 (what it is in the end)
        if state.is_failed and counts(state):
            group = survey.groups.setdefault(mask_numbers(state.fault), FailureGroup(state))
            examined = group.too_strict or group.confirmed < _USUAL_FINALISTS
            confirmed = _confirm_failure(bench, survey, group, state)
            if confirmed is None:
                survey.states.append(state)
                return
            if not confirmed.is_judged:
                survey.states.append(confirmed)
                continue
            if examined and _accepts_newer(bench, state):
                group.too_strict = True
                assert state.answer is not None
                state = replace(state, answer=replace(state.answer, ending=Ending.TOO_STRICT))  # noqa: PLW2901
            else:
                group.states.append(state)
        survey.states.append(state)


def _accepts_newer(bench: WorkerPool, state: CrashState) -> bool:
    """Return True if the check fails only because of newer data, which the program was writing at the cut.

    A check that looks only for the newest line may also miss a lost record when the next one is present, so such a
    state is inconclusive.
    """
    if state.answer is None:
        return False
    further = bench.judge_with_next_line(state)
    return further is not None and further.answer is not None and further.answer.ending is Ending.PASSED


def _judge_late_again(bench: WorkerPool, survey: Survey, state: CrashState) -> CrashState:
    """Judge a state again, alone, if it may have run out of time because of the other states."""
    if len(survey.unjudged_states) >= _LATE_AGAIN:
        return state
    return bench.judge_alone(state.cut)


def _confirm_failure(
    bench: WorkerPool, survey: Survey, group: FailureGroup, state: CrashState
) -> CrashState | None:
    """Return the state if it fails again, or need not be tried again; else the repetition without a verdict.

    None if the repetition passes, which is recorded as `survey.unsteady`.
    """
    if group.confirmed >= _USUAL_FINALISTS:
        return state
    for _ in range(1 if group.confirmed else _FIRST_TIMES):
        again = bench.judge_alone(state.cut)
        if not again.is_judged:
            return again
        if not again.is_failed:
            survey.unsteady = (state, again)
            return None
    group.confirmed += 1
    return state
