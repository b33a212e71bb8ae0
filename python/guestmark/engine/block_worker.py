"""Measurement of one block of a run, by one of any number of processes that do so at the same time.

Nothing coordinates them. The ledger knows which blocks lack trials, a block is claimed there before it is begun, and a
trial that was begun and never ended is recorded as lost by the next process.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from guestmark.core.errors import BlockStatus, Interrupted
from guestmark.core.model import Cell, LeftOut, Plan, RunState, Trial, boots_any_machine, select_runnable
from guestmark.engine.interrupt import Interruption
from guestmark.engine.measurement_loop import MeasurementLoop, run
from guestmark.engine.progress import Observer, SilentObserver
from guestmark.ledger import trial_counts
from guestmark.ledger.attempts import TrialAttempts, record_lost_attempts
from guestmark.ledger.model import RunHead
from guestmark.ledger.store import Ledger
from guestmark.stats.stopping import MOST_FAILURES

_ENDED = frozenset({RunState.COMPLETE, RunState.STOPPED, RunState.FAILED})
_INTERRUPTED = "it was interrupted in the middle of the trial"
_WORKER_GONE = "its worker ended in the middle of the trial"


def is_divisible(plan: Plan) -> bool:
    """Return whether blocks of the plan may be measured at the same time: if none decides what a later one does."""
    context = plan.context
    return context.tune is None and context.budget_s is None and not context.prove and not context.around.run


def measure_block(
    plan: Plan,
    ledger: Ledger,
    head: RunHead,
    *,
    machine: str,
    observer: Observer,
    interruption: Interruption,
) -> BlockStatus:
    """Measure and store one block of the run that no other process has claimed, as the machine named `machine`.

    Trials that were begun in a block and never ended are recorded as lost, and the rest of that block is measured
    first. A plan that is not divisible is measured as a whole by one process at a time, a race to its end.

    Raises `TakenError` if another process executes the run as a whole or has taken over the block, `Interrupted` by a
    signal.
    """
    ledger.patience.is_interrupted = lambda: interruption.received is not None
    attempts = TrialAttempts(ledger, head.id, machine)
    worker = _Worker(plan, ledger, head.id, attempts, machine, interruption)
    if not is_divisible(plan):
        return _measure_in_turn(worker, observer)
    progress = _choose_block_finder(worker)
    while True:
        before = progress.refresh()
        if before.state in _ENDED:
            return BlockStatus.NO_TIME_LEFT
        state, candidates = progress.find_open_blocks()
        if state is not None:
            ledger.set_run_state(head.id, state)
            return BlockStatus.NO_TIME_LEFT
        with ledger.claim_block(head.id, candidates) as block:
            if block is None:
                if progress.admit_lost_blocks():
                    continue
                return BlockStatus.LOST
            record_lost_attempts(ledger, head.id, _WORKER_GONE, block=block)
            loop = progress.make_loop(block, observer)
            # Another process may have completed the block before it was claimed here.
            if loop.is_complete(block):
                continue
            try:
                status = loop.measure_block(block)
            except Interrupted:
                record_lost_attempts(ledger, head.id, _INTERRUPTED, block=block)
                ledger.set_run_state(head.id, RunState.INTERRUPTED)
                raise
        state = progress.find_end() or RunState.INTERRUPTED
        if state is not before.state:
            ledger.set_run_state(head.id, state)
        if status is not None:
            return status


def _measure_in_turn(worker: _Worker, observer: Observer) -> BlockStatus:
    """Measure the next block of a run that only one process at a time may measure."""
    ledger, run_id = worker.ledger, worker.run_id
    if ledger.load_head(run_id).state in _ENDED:
        return BlockStatus.NO_TIME_LEFT
    # While this process holds the claim, the processes of all unfinished attempts must be gone.
    with ledger.claim_run(run_id):
        record_lost_attempts(ledger, run_id, _WORKER_GONE)
    before = trial_counts.count_trials(ledger, run_id)
    state = run(
        worker.plan,
        ledger,
        run_id,
        observer=observer,
        interruption=worker.interruption,
        attempts=worker.attempts,
        most_blocks=1,
    )
    if worker.interruption.received is not None and state is RunState.INTERRUPTED:
        raise Interrupted
    after = trial_counts.count_trials(ledger, run_id)
    if after.trials == before.trials:
        return BlockStatus.NO_TIME_LEFT
    if after.failed > before.failed:
        return BlockStatus.SOME_FAILED
    return BlockStatus.DONE


@dataclass(frozen=True, slots=True)
class _Worker:
    """This process, one of those that measure the run."""

    plan: Plan
    ledger: Ledger
    run_id: str
    attempts: TrialAttempts
    machine: str
    interruption: Interruption

    def make_loop(
        self,
        head: RunHead,
        cells: Sequence[Cell],
        trials: list[Trial],
        observer: Observer,
        warm: Collection[str] = (),
    ) -> MeasurementLoop:
        """Return a measurement loop over these cells, after these trials."""
        # Blocks measured at the same time must not choose their iterations independently.
        agreed = replace(self.plan.context, iterations=head.plan.context.iterations)
        return MeasurementLoop(
            plan=replace(self.plan, context=agreed), cells=cells, ledger=self.ledger, run_id=self.run_id,
            trials=trials, observer=observer, interruption=self.interruption, attempts=self.attempts,
            machine=self.machine, warm=warm,
        )  # fmt: skip


class _BlockFinder(Protocol):
    """Finds the open blocks of a run and its end, by what this process knows of it."""

    def refresh(self) -> RunHead:
        """Read the run anew; the other methods rely on this state."""

    def find_open_blocks(self) -> tuple[RunState | None, Sequence[int]]:
        """Return the run's final state, or None with the blocks that may be measured; begun ones come first."""

    def admit_lost_blocks(self) -> bool:
        """Count blocks with lost trials from now on; return True the first time, as there may be more open blocks."""

    def make_loop(self, block: int, observer: Observer) -> MeasurementLoop:
        """Return the loop that measures the block."""

    def find_end(self) -> RunState | None:
        """Return the run's final state; None while it has not ended."""


class _ReadingBlockFinder:
    """Finds blocks by reading all trials, as their results decide when the run ends."""

    def __init__(self, worker: _Worker) -> None:
        self._worker = worker
        self._stored = worker.ledger.load_run(worker.run_id)
        # Trials before this block never change, so they need not be read again.
        self._known = _count_leading_complete_blocks(
            self._stored.trials, select_runnable(worker.plan.cells, self._stored.unusable)
        )

    def refresh(self) -> RunHead:
        self._stored = self._worker.ledger.reload_run(self._stored, self._known)
        return self._stored.head

    def find_open_blocks(self) -> tuple[RunState | None, Sequence[int]]:
        state, candidates = self._make_loop(SilentObserver()).find_open_blocks()
        self._known = min(candidates, default=self._known)
        return state, candidates

    def admit_lost_blocks(self) -> bool:
        return False

    def make_loop(self, block: int, observer: Observer) -> MeasurementLoop:
        self.refresh()
        return self._make_loop(observer)

    def find_end(self) -> RunState | None:
        self.refresh()
        return self._make_loop(SilentObserver()).find_open_blocks()[0]

    def _make_loop(self, observer: Observer) -> MeasurementLoop:
        stored = self._stored
        cells = select_runnable(self._worker.plan.cells, stored.unusable)
        return self._worker.make_loop(stored.head, cells, list(stored.trials), observer)


class _CountingBlockFinder:
    """Finds blocks by counts of trials in the ledger, as their number is fixed, and reads only trials of its own block.

    So the cost of claiming a block does not grow with the number of trials.
    """

    def __init__(self, worker: _Worker, blocks: int) -> None:
        self._worker = worker
        self._blocks = blocks
        # The number of blocks with a lost trial, each replaced by one more. None until it matters, as the query is
        # costly.
        self._lost: int | None = None
        self._unusable: tuple[LeftOut, ...] = ()
        self._failing: Mapping[str, int] = {}

    def refresh(self) -> RunHead:
        head = self._worker.ledger.load_head(self._worker.run_id)
        self._unusable = head.unusable
        return head

    def find_open_blocks(self) -> tuple[RunState | None, Sequence[int]]:
        ledger, run_id = self._worker.ledger, self._worker.run_id
        cells = self._list_tried_cells()
        if not cells:
            return RunState.FAILED, ()
        found = trial_counts.find_complete_blocks(ledger, run_id, [cell.id for cell in cells])
        if (
            self._lost is None
            and found.blocks < self._blocks
            and (first := found.find_incomplete(self._blocks))
        ):
            return None, first
        self._lost = trial_counts.count_blocks_with_losses(ledger, run_id)
        goal = self._blocks + self._lost
        if found.blocks < goal:
            return None, found.find_incomplete(goal)
        if not trial_counts.has_good_trial(ledger, run_id):
            return RunState.FAILED, ()
        return RunState.COMPLETE, ()

    def admit_lost_blocks(self) -> bool:
        if self._lost is not None:
            return False
        self._lost = 0
        return True

    def make_loop(self, block: int, observer: Observer) -> MeasurementLoop:
        ledger, run_id, head = self._worker.ledger, self._worker.run_id, self.refresh()
        policy, cells = self._worker.plan.policy, self._list_tried_cells()
        if policy.iterations is None and not head.plan.context.iterations:
            # The iterations are chosen from all trials so far, which are few.
            trials = list(ledger.load_run(run_id).trials)
            return self._worker.make_loop(head, cells, trials, observer)
        trials = trial_counts.read_block_trials(ledger, run_id, block, self._failing)
        warm: Collection[str] = ()
        if policy.warmup and not boots_any_machine(cells):
            warm = trial_counts.find_cells_measured_on(ledger, run_id, self._worker.machine)
        return self._worker.make_loop(head, cells, trials, observer, warm)

    def find_end(self) -> RunState | None:
        # The last block is checked first, as that reads one row, while open blocks need a count.
        near = trial_counts.has_reached_block(self._worker.ledger, self._worker.run_id, self._blocks - 1)
        if not near and self._list_tried_cells():
            return None
        return self.find_open_blocks()[0]

    def _list_tried_cells(self) -> list[Cell]:
        """Return the cells that are not given up."""
        able = select_runnable(self._worker.plan.cells, self._unusable)
        ids = [cell.id for cell in able]
        self._failing = trial_counts.find_failing_cells(self._worker.ledger, self._worker.run_id, ids)
        return [cell for cell in able if self._failing.get(cell.id, 0) < MOST_FAILURES]


def _choose_block_finder(worker: _Worker) -> _BlockFinder:
    blocks = worker.plan.policy.blocks
    if blocks is None:
        return _ReadingBlockFinder(worker)
    return _CountingBlockFinder(worker, blocks)


def _count_leading_complete_blocks(trials: Sequence[Trial], cells: Sequence[Cell]) -> int:
    """Return how many blocks, counted from the first without a gap, have a trial of every cell."""
    done = {(trial.block, trial.cell_id) for trial in trials}
    last = max((block for block, _ in done), default=-1)
    for block in range(last + 1):
        if any((block, cell.id) not in done for cell in cells):
            return block
    return last + 1
