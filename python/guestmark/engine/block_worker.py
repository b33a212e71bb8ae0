"""One block of a run, by any of many processes that measure it at once.

Nobody coordinates them. The ledger says which blocks lack trials, a block is claimed there before it is begun, and what
somebody began and never ended is recorded as lost by whoever comes next.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from guestmark.core.errors import BlockStatus, Interrupted
from guestmark.core.model import Cell, LeftOut, Plan, RunState, Trial, boots, runnable
from guestmark.engine.interrupt import Interruption
from guestmark.engine.measurement_loop import Loop, run
from guestmark.engine.progress import Observer, Silent
from guestmark.ledger import trial_counts
from guestmark.ledger.attempts import Attempts, lose
from guestmark.ledger.model import RunHead
from guestmark.stats.stopping import GIVE_UP_AFTER

if TYPE_CHECKING:
    from guestmark.ledger.store import Ledger

_ENDED = frozenset({RunState.COMPLETE, RunState.STOPPED, RunState.FAILED})
_INTERRUPTED = "it was interrupted in the middle of the trial"
_WORKER_GONE = "its worker ended in the middle of the trial"


def is_divisible(plan: Plan) -> bool:
    """Whether blocks of the plan may be measured at once: none decides what is measured in the next."""
    context = plan.context
    return context.tune is None and context.budget_s is None and not context.prove and not context.around.run


def measure(
    plan: Plan,
    ledger: Ledger,
    head: RunHead,
    *,
    machine: str,
    observer: Observer,
    interruption: Interruption,
) -> BlockStatus:
    """Measures one block of the run that nobody else has, on the `machine` of that name, and stores it.

    What somebody began in a block and never ended is recorded as lost, and the rest of that block is measured first. A
    plan that is not divisible is measured as a whole by one process at a time, a race to its end. Raises `TakenError`
    when another process executes the run as a whole or has taken over the block, `Interrupted` by a signal.
    """
    ledger.patience.is_interrupted = lambda: interruption.received is not None
    process = _Process(plan, ledger, head.id, Attempts(ledger, head.id, machine), machine, interruption)
    if not is_divisible(plan):
        return _in_turn(process, observer)
    known: _Known = _All(process) if plan.policy.blocks is None else _Counted(process, plan.policy.blocks)
    while True:
        now = known.now()
        if now.state in _ENDED:
            return BlockStatus.NOTHING_LEFT
        state, candidates = known.open_blocks()
        if state is not None:
            ledger.set_run_state(head.id, state)
            return BlockStatus.NOTHING_LEFT
        with ledger.claim_block(head.id, candidates) as block:
            if block is None:
                if known.widen():
                    continue
                return BlockStatus.LOST
            lose(ledger, head.id, _WORKER_GONE, block=block)
            here = known.loop(block, observer)
            if here.is_complete(block):  # somebody has just ended it
                continue
            try:
                done = here.block(block)
            except Interrupted:
                lose(ledger, head.id, _INTERRUPTED, block=block)
                ledger.set_run_state(head.id, RunState.INTERRUPTED)
                raise
        state = known.ended() or RunState.INTERRUPTED
        if state is not now.state:
            ledger.set_run_state(head.id, state)
        if done is not None:
            return done


def _in_turn(process: _Process, observer: Observer) -> BlockStatus:
    ledger, run_id = process.ledger, process.run_id
    if ledger.head(run_id).state in _ENDED:
        return BlockStatus.NOTHING_LEFT
    with ledger.claim(run_id):  # so whoever began what has not ended is gone
        lose(ledger, run_id, _WORKER_GONE)
    before = trial_counts.counts(ledger, run_id)
    ended = run(
        process.plan,
        ledger,
        run_id,
        observer=observer,
        interruption=process.interruption,
        attempts=process.attempts,
        most_blocks=1,
    )
    if process.interruption.received is not None and ended is RunState.INTERRUPTED:
        raise Interrupted
    after = trial_counts.counts(ledger, run_id)
    if after.trials == before.trials:
        return BlockStatus.NOTHING_LEFT
    return BlockStatus.SOME_FAILED if after.failed > before.failed else BlockStatus.DONE


@dataclass(frozen=True, slots=True)
class _Process:
    """This process among those that measure the run."""

    plan: Plan
    ledger: Ledger
    run_id: str
    attempts: Attempts
    machine: str
    interruption: Interruption

    def loop(
        self,
        now: RunHead,
        cells: Sequence[Cell],
        trials: list[Trial],
        observer: Observer,
        warm: Collection[str] = (),
    ) -> Loop:
        """The loop over these cells, which knows these trials."""
        # Those measured at once must not choose for themselves.
        agreed = replace(self.plan.context, iterations=now.plan.context.iterations)
        return Loop(
            plan=replace(self.plan, context=agreed), cells=cells, ledger=self.ledger, run_id=self.run_id,
            trials=trials, observer=observer, interruption=self.interruption, attempts=self.attempts,
            machine=self.machine, warm=warm,
        )  # fmt: skip


class _Known(Protocol):
    """What this process knows of how far the run is."""

    def now(self) -> RunHead:
        """The run as it is now; what else is asked goes by it."""

    def open_blocks(self) -> tuple[RunState | None, Sequence[int]]:
        """How the run has ended; None with the blocks that may be measured, those begun first."""

    def widen(self) -> bool:
        """Whether there may be open blocks that were not told, as others have all of those that were."""

    def loop(self, block: int, observer: Observer) -> Loop:
        """The loop that measures the block."""

    def ended(self) -> RunState | None:
        """How the run has ended by now; None while it has not."""


class _All:
    """All trials are read: results decide when the run ends."""

    def __init__(self, process: _Process) -> None:
        self._process = process
        self._stored = process.ledger.load_run(process.run_id)
        self._known = _whole_at_first(
            self._stored.trials, runnable(process.plan.cells, self._stored.unusable)
        )

    def now(self) -> RunHead:
        self._stored = self._process.ledger.refreshed(self._stored, self._known)
        return self._stored.head

    def open_blocks(self) -> tuple[RunState | None, Sequence[int]]:
        state, candidates = self._loop(Silent()).open_blocks()
        self._known = min(candidates, default=self._known)
        return state, candidates

    def widen(self) -> bool:
        return False

    def loop(self, block: int, observer: Observer) -> Loop:
        self.now()
        return self._loop(observer)

    def ended(self) -> RunState | None:
        self.now()
        return self._loop(Silent()).open_blocks()[0]

    def _loop(self, observer: Observer) -> Loop:
        found = self._stored
        cells = runnable(self._process.plan.cells, found.unusable)
        return self._process.loop(found.head, cells, list(found.trials), observer)


class _Counted:
    """Trials are counted by the ledger, and only those of the block are read: the number of blocks is fixed.

    What it costs to claim a block does not grow with what the trials hold.
    """

    def __init__(self, process: _Process, blocks: int) -> None:
        self._process = process
        self._blocks = blocks
        self._lost: int | None = None  # blocks that are made up for; not asked for before it matters
        self._unusable: tuple[LeftOut, ...] = ()
        self._failing: Mapping[str, int] = {}

    def now(self) -> RunHead:
        found = self._process.ledger.head(self._process.run_id)
        self._unusable = found.unusable
        return found

    def open_blocks(self) -> tuple[RunState | None, Sequence[int]]:
        ledger, run_id = self._process.ledger, self._process.run_id
        cells = self._cells()
        if not cells:
            return RunState.FAILED, ()
        found = trial_counts.tally(ledger, run_id, [cell.id for cell in cells])
        if self._lost is None and found.blocks < self._blocks and (first := found.lacking(self._blocks)):
            return None, first
        self._lost = trial_counts.blocks_with_losses(ledger, run_id)
        goal = self._blocks + self._lost
        if found.blocks < goal:
            return None, found.lacking(goal)
        return RunState.COMPLETE if trial_counts.has_good(ledger, run_id) else RunState.FAILED, ()

    def widen(self) -> bool:
        if self._lost is not None:
            return False
        self._lost = 0
        return True

    def loop(self, block: int, observer: Observer) -> Loop:
        ledger, run_id, now = self._process.ledger, self._process.run_id, self.now()
        policy, cells = self._process.plan.policy, self._cells()
        if policy.iterations is None and not now.plan.context.iterations:
            trials = list(ledger.load_run(run_id).trials)  # by which it is chosen: there are only few yet
            return self._process.loop(now, cells, trials, observer)
        trials = trial_counts.trials_of(ledger, run_id, block, self._failing)
        asked = policy.warmup and not boots(cells)
        warm = trial_counts.good_on(ledger, run_id, self._process.machine) if asked else ()
        return self._process.loop(now, cells, trials, observer, warm)

    def ended(self) -> RunState | None:
        near = trial_counts.reaches(self._process.ledger, self._process.run_id, self._blocks - 1)
        return self.open_blocks()[0] if near or not self._cells() else None

    def _cells(self) -> list[Cell]:
        """Those that are still tried."""
        able = runnable(self._process.plan.cells, self._unusable)
        ids = [cell.id for cell in able]
        self._failing = trial_counts.failing(self._process.ledger, self._process.run_id, ids)
        return [cell for cell in able if self._failing.get(cell.id, 0) < GIVE_UP_AFTER]


def _whole_at_first(trials: Sequence[Trial], cells: Sequence[Cell]) -> int:
    """How many blocks from the first on have a trial of every cell."""
    there = {(trial.block, trial.cell_id) for trial in trials}
    last = max((block for block, _ in there), default=-1)
    blocks = range(last + 1)
    return next((each for each in blocks if any((each, cell.id) not in there for cell in cells)), last + 1)
