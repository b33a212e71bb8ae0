"""The loop: block after block, cell after cell, each trial in the ledger as soon as it has ended."""

import contextlib
import functools
import random
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from guestmark.core.context import Context
from guestmark.core.errors import BlockStatus, Interrupted, WorkloadError
from guestmark.core.findings import MeasuredOn, Proof, Proven, machine_of, with_fact
from guestmark.core.model import Cell, Plan, RunState, Trial, TrialStatus, boots, runnable
from guestmark.core.tuning import Settings
from guestmark.core.units import counted
from guestmark.disks.location import in_memory
from guestmark.engine import budget
from guestmark.engine.clock import Clock
from guestmark.engine.hooks import RUN, HostAgent
from guestmark.engine.interrupt import Interruption
from guestmark.engine.progress import Estimate, Observer
from guestmark.engine.question_status import asked_pairs
from guestmark.engine.trial import Slot, run_trial
from guestmark.ledger.attempts import Attempts
from guestmark.platforms import registry
from guestmark.powercut import evidence
from guestmark.setting.disk import Disks
from guestmark.setting.machine import START, Start
from guestmark.stats import stopping
from guestmark.stats.stopping import GIVE_UP_AFTER, is_given_up, is_hopeless
from guestmark.workloads import base as workloads

if TYPE_CHECKING:
    from guestmark.ledger.store import Ledger

_ESTIMATE_SHARE = 50.0  # a look at the results waits this many times what the last one took
_CLOSING_S = 0.5  # of wall time that a report takes after the last trial


def run(
    plan: Plan,
    ledger: "Ledger",
    run_id: str,
    *,
    observer: Observer,
    interruption: Interruption,
    attempts: "Attempts | None" = None,
    most_blocks: int | None = None,
    clock: Clock | None = None,
) -> RunState:
    """Executes the run from where its stored trials end, in the order its seed gives, and returns how it ended.

    Its time limit is for the time of `clock`, without one for that of its trials. With `attempts` each trial is begun
    there. After `most_blocks` blocks the run is interrupted. Platforms and cells that the ledger has as unusable for
    this run are left out. Raises `LedgerError` when another process executes the run or a trial cannot be stored.
    """
    ledger.patience.is_interrupted = lambda: interruption.received is not None
    with ledger.claim(run_id):
        stored = ledger.load_run(run_id)
        cells = runnable(plan.cells, stored.unusable)
        ledger.set_run_state(run_id, RunState.RUNNING)
        loop = Loop(
            plan=plan,
            cells=cells,
            ledger=ledger,
            run_id=run_id,
            trials=list(stored.trials),
            observer=observer,
            interruption=interruption,
            attempts=attempts,
            most_blocks=most_blocks,
            clock=clock,
        )
        file = Path(ledger.where) if ledger.is_file else None
        try:
            with evidence.beside(file), loop.commands_around():
                loop.prove()
                state = loop.blocks()
        except Interrupted:
            state = RunState.INTERRUPTED
        except BaseException:
            ledger.set_run_state(run_id, RunState.INTERRUPTED)
            raise
        finally:
            loop.without_what_was_not_measured()
        ledger.set_run_state(run_id, state)
    return state


@contextmanager
def outer_guests(cells: Iterable[Cell]) -> Iterator[None]:
    """What cells of one block share, until it ends: outer guests, and templates of restored ones."""
    started = [cell for cell in map(workloads.started_for, cells) if not cell.platform.is_elsewhere]
    nested = [cell for cell in started if cell.platform.nested]
    with contextlib.ExitStack() as stack:
        if any(cell.levels.get(START) is Start.RESTORED for cell in started):
            from guestmark.platforms.qemu.restored import TEMPLATES

            stack.enter_context(TEMPLATES.block(started))
        if nested:
            from guestmark.platforms.qemu.nested.outer import OUTERS

            stack.enter_context(OUTERS.block(nested))
        yield


_WORTH_SAYING_S = 2.0  # a shorter wait between two blocks is not announced


class Loop:
    """The state of a running experiment; all its decisions follow from the plan and the trials."""

    def __init__(
        self,
        *,
        plan: Plan,
        cells: Sequence[Cell],
        ledger: "Ledger",
        run_id: str,
        trials: list[Trial],
        observer: Observer,
        interruption: Interruption,
        attempts: "Attempts | None" = None,
        most_blocks: int | None = None,
        clock: Clock | None = None,
        machine: str = "",
        warm: Collection[str] = (),  # cells that this machine has measured in trials besides these
    ) -> None:
        self._clock = clock
        self._machine = machine
        self._warm = warm
        self._attempts = attempts
        self._most_blocks = most_blocks
        self._plan = plan
        self._able = cells  # all that can be measured here
        self._cells = budget.still_measured(plan, cells)
        self._ledger = ledger
        self._run_id = run_id
        self._trials = trials
        self._done = {(trial.block, trial.cell_id): trial for trial in trials}
        self._observer = observer
        self._interruption = interruption
        self._next_estimate = 0.0
        self._proofs: Mapping[str, Proof] = {}
        self._known_prices: budget.Prices | None = None
        self._resting: set[str] = set()  # ids of cells whose questions are answered

    @contextmanager
    def commands_around(self) -> Iterator[None]:
        """Runs the user's commands around the run, and keeps how long they took."""
        commands = HostAgent(self._plan)
        if not commands.has(RUN):
            yield
            return
        try:
            with self._interruption.armed():
                self._timed("setup", commands.call(RUN, "setup"))
            yield
        finally:
            try:
                self._timed("cleanup", commands.call(RUN, "cleanup"))
            except WorkloadError as error:
                self._observer.note(error.message)

    def _timed(self, name: str, seconds: float) -> None:
        context = self._plan.context
        self._keep(replace(context, around_s={**context.around_s, name: seconds}))

    def _keep(self, context: Context) -> None:
        self._plan = replace(self._plan, context=context)
        self._ledger.set_plan(self._run_id, self._plan)

    def prove(self) -> None:
        """Finds out what a power cut would leave of the run's disks, if that was asked for."""
        if self._plan.context.prove:
            from guestmark.engine import proofs

            known = proofs.kept(self._plan)
            # Each is kept as soon as it is there: all together take minutes.
            begun = time.monotonic()
            for found in proofs.prove(self._plan, self._cells, known, self._observer, self._interruption):
                self._proofs = found
                if found != proofs.kept(self._plan):
                    took = (*self._plan.context.proofs_took_s, time.monotonic() - begun)
                    begun = time.monotonic()
                    self._plan = proofs.keeping(self._plan, found)
                    self._keep(replace(self._plan.context, proofs_took_s=took))
                if budget.proofs_end(self._plan, self._used_s()) and self._rivals_proven():
                    self._without_proofs()
                    return

    def _rivals_proven(self) -> bool:
        """Whether a race has at least two cells that may take part; True for other runs."""
        settings = self._plan.context.tune
        proven = [proof.proven.word for proof in self._proofs.values()]
        return settings is None or sum(word in settings.durability for word in proven) > 1

    def _without_proofs(self) -> None:
        """Says which cells there was no time to prove; those do not take part in a race for what is proven."""
        from guestmark.engine import proofs

        unproven = [cell for cell in self._cells if cell.id not in self._proofs and proofs.kind_of(cell)]
        if not unproven:
            return
        self._observer.note(f"no time to prove {', '.join(cell.id for cell in unproven)}")
        if self._plan.context.tune is not None and len(unproven) < len(self._cells):
            self._cells = self._able = [cell for cell in self._cells if cell not in unproven]
            self._plan = budget.leaving_out(self._plan, unproven)
            self._ledger.set_plan(self._run_id, self._plan)

    def without_what_was_not_measured(self) -> None:
        """Takes cells for which there was no time at all out of the run, and questions that nothing answers."""
        short = budget.measured_alone(self._plan, self._trials)
        if short != self._plan:
            self._plan = short
            self._ledger.set_plan(self._run_id, self._plan)

    def blocks(self) -> RunState:
        """Runs blocks until the policy says stop."""
        if (settings := self._plan.context.tune) is not None:
            return self._race(settings)
        block = self._first_incomplete()
        first, before = block, len(self._trials)
        self._observer.started(replace(self._plan, cells=tuple(self._cells)), block)
        while True:
            decision = self._decide(block)
            if decision.state is not None and not (decision.state is RunState.STOPPED and self._owed(block)):
                return self._final(decision.state)
            if self._most_blocks is not None and block - first >= self._most_blocks:
                return RunState.INTERRUPTED
            if all(self._given_up(cell) for cell in self._cells):
                return RunState.FAILED
            if is_hopeless([cell.id for cell in self._cells], mine := self._trials[before:]):
                self._observer.note(
                    f"all {len(mine)} trials failed, and nothing else is tried: {mine[-1].reason}"
                )
                return self._final(RunState.FAILED)
            self._await_turn(block)
            if self._measure_missing(block):
                return self._final(RunState.STOPPED)
            block += 1
            self._keep_to_budget()

    def open_blocks(self) -> tuple[RunState | None, Sequence[int]]:
        """How the run has ended by what is stored; None with the blocks that may be measured, those begun first."""
        complete = [
            block for block in sorted({trial.block for trial in self._trials}) if self.is_complete(block)
        ]
        decision = self._decide(len(complete), complete)
        if decision.state is not None:
            return self._final(decision.state), ()
        if all(self._given_up(cell) for cell in self._cells):
            return RunState.FAILED, ()
        most = self._plan.policy.max_blocks if self._plan.policy.blocks is None else decision.goal or 0
        done = set(complete)
        return None, [block for block in range(most) if block not in done]

    def is_complete(self, block: int) -> bool:
        """Whether every cell that is still tried has its trial in the block."""
        return all((block, cell.id) in self._done for cell in self._cells if not self._given_up(cell))

    def block(self, block: int) -> BlockStatus | None:
        """Measures what is missing of one block; None where it lacks a trial that was lost."""
        self._observer.started(self._plan, block)
        self._measure_missing(block)
        mine = [trial for trial in self._trials if trial.block == block]
        if any(trial.status is TrialStatus.LOST for trial in mine):
            return None
        self._agree(block)
        good = all(trial.status is TrialStatus.OK for trial in mine)
        return BlockStatus.DONE if good else BlockStatus.SOME_FAILED

    def _agree(self, block: int) -> None:
        """Keeps the iterations of all further blocks: those measured at once must not choose for themselves."""
        if self._plan.policy.iterations is not None or self._plan.context.iterations:
            return
        mine = [trial for trial in self._trials if trial.block == block]
        chosen = {cell.id: iterations_of(self._plan, cell, block + 1, mine) for cell in self._cells}

        def agreed(plan: Plan) -> Plan:
            if plan.context.iterations:  # somebody was faster
                return plan
            return replace(plan, context=replace(plan.context, iterations=chosen))

        self._ledger.change_plan(self._run_id, agreed)

    def _await_turn(self, block: int) -> None:
        """Waits for the block's time, if the blocks are spread; a resumed run keeps to its first schedule."""
        policy = self._plan.policy
        if not (policy.over_s and policy.blocks and policy.blocks > 1 and self._trials):
            return
        begun = min(trial.started_at for trial in self._trials)
        at = begun + policy.over_s * block / (policy.blocks - 1)
        if (left := at - time.time()) > _WORTH_SAYING_S:
            clock = time.strftime("%H:%M:%S", time.localtime(at))
            self._observer.note(f"block {block + 1} of {policy.blocks} begins at {clock}")
        with self._interruption.armed():
            while (left := at - time.time()) > 0:
                time.sleep(min(left, 1.0))

    def _measure_missing(self, block: int) -> bool:
        """Measures what a block lacks; whether the time was up before its end."""
        due = [cell for cell in self._cells if cell.id not in self._resting and not self._given_up(cell)]
        with outer_guests(due):
            divided = bool(self._machine) or any(machine_of(trial.facts) for trial in self._trials)
            for order, cell in missing_trials(
                self._plan.policy.seed, block, self._plan.cells, self._done, chained=not divided
            ):
                if cell in due and not self._given_up(cell):
                    if self._time_is_up() and not self._owed(block):
                        return True
                    self._trial(cell, block, order)
        return False

    def _keep_to_budget(self) -> None:
        """Leaves out cells for which there is no time, by what the blocks took so far, and takes back others."""
        if self._plan.context.budget_s is None:
            return
        alive = [cell for cell in self._able if not self._given_up(cell)]
        kept = budget.refit(self._plan, alive, self._trials, self._used_s(), self._resting, self._prices)
        gone = [cell for cell in self._cells if cell in alive and cell not in kept]
        back = [cell for cell in kept if cell not in self._cells]
        if not gone and not back:
            return
        self._cells = [
            cell for cell in self._able if cell in kept or (cell in self._cells and cell not in gone)
        ]
        self._plan = budget.leaving_out(self._plan, (cell for cell in alive if cell not in kept))
        self._ledger.set_plan(self._run_id, self._plan)
        if told := [cell.id for cell in gone if cell.null_of is None]:
            self._observer.note(f"no time for {', '.join(told)}: not measured any further")
        if told := [cell.id for cell in back if cell.null_of is None]:
            self._observer.note(f"there is time for {', '.join(told)} after all")

    def _prices(self) -> budget.Prices:
        """What was known of the trials' time before this run."""
        if self._known_prices is None:
            self._known_prices = budget.prices(self._plan, self._ledger)
        return self._known_prices

    def _of_these(self) -> list[Trial]:
        """The trials of the cells that are still measured: what the next block costs."""
        alive = {cell.id for cell in self._cells} - self._resting
        return [trial for trial in self._trials if trial.cell_id in alive]

    def _race(self, settings: Settings) -> RunState:
        """Runs blocks of those that may still be the best, until it is known which are."""
        from guestmark.stats.tuning.race import replay_race

        why = dict(self._plan.context.barred or barred(settings, self._cells, self._proofs))
        if self._plan.context.barred != why or not self._trials:
            took = sum(trial.duration_s for trial in self._trials)
            for_trials = max(self._plan.policy.time_limit_s - (self._used_s() - took), 0.0)
            self._keep(replace(self._plan.context, barred=why, race_limit_s=for_trials))
        told = 0
        begun = False
        while True:
            race = replay_race(settings, self._cells, why, self._trials, self._plan.race_limit_s)
            if not begun:
                self._observer.started(self._plan, race.block)
                begun = True
            for entry in race.dropped[told:]:
                after = (
                    f"after {counted(entry.blocks, 'block')}" if entry.blocks else "before the first block"
                )
                self._observer.note(f"{entry.id} is out {after}: {entry.why}")
            told = len(race.dropped)
            if not race.due:
                return self._final(RunState.COMPLETE)
            if self._used_s() > self._plan.policy.time_limit_s:
                return self._final(RunState.STOPPED)
            due = [cell for cell in self._cells if cell.id in race.due]
            with outer_guests(due):
                for order, cell in missing_trials(
                    self._plan.policy.seed, race.block, self._plan.cells, self._done
                ):
                    if cell in due:
                        self._trial(cell, race.block, order)

    def _first_incomplete(self) -> int:
        alive = [cell for cell in self._cells if not self._given_up(cell)]
        last = max((trial.block for trial in self._trials), default=-1)
        # Within a budget cells rest, so only the last block may lack any.
        first = 0 if self._plan.context.budget_s is None else max(last, 0)
        for block in range(first, last + 1):
            if any((block, cell.id) not in self._done for cell in alive):
                return block
        return last + 1

    def _decide(self, blocks: int, these: Collection[int] | None = None) -> stopping.Decision:
        """Whether the run is done with so many blocks: `these`, or the first ones."""
        if not self._trials:  # keeps the import of the analysis out of the first trial
            return stopping.Decision(None, self._plan.policy.blocks, None)
        if self._plan.policy.blocks is not None and not self._estimate_due():
            goal = self._plan.policy.blocks + stopping.blocks_with_losses(self._trials)
            return stopping.Decision(RunState.COMPLETE if blocks >= goal else None, goal, None)
        policy = self._plan.policy
        used_s = self._used_s()
        if policy.blocks is None and not self._estimate_due(blocks):
            if policy.enough_s is not None:
                return stopping.decide_timed_run(policy, self._of_these(), blocks, used_s)
            over = blocks >= policy.max_blocks or stopping.out_of_time(policy, self._of_these(), used_s)
            over = over or budget.over(self._plan, blocks, self._of_these(), used_s)
            return stopping.Decision(RunState.STOPPED if over else None, None, None)
        if policy.enough_s is not None and not self._observer.wants_estimates:
            return stopping.decide_timed_run(policy, self._of_these(), blocks, used_s)
        from guestmark.stats.analysis import analyse_run

        begin = time.monotonic()
        counted_blocks = range(blocks) if these is None else these
        stored = [trial for trial in self._trials if trial.block in counted_blocks]
        asking = self._plan.metrics if self._plan.questions else self._plan.metrics[:1]
        analysis = analyse_run(self._plan, stored, metrics={metric.name for metric in asking})
        alive = [cell for cell in self._cells if not self._given_up(cell)]
        pairs = asked_pairs(self._plan, analysis, [cell.id for cell in alive])
        asked = None if pairs is None else [pair.comparison for pair in pairs]
        decision = stopping.decide(self._plan, self._of_these(), blocks, analysis, used_s, asked)
        self._rest(alive, budget.open_cells(self._plan, pairs, alive))
        if decision.state is None and budget.over(self._plan, blocks, self._of_these(), used_s):
            decision = stopping.Decision(RunState.STOPPED, blocks, 0.0)
        ahead = None
        if self._observer.wants_estimates:
            ahead = stopping.foresee_end(self._plan, self._of_these(), blocks, analysis, decision)
        self._observer.block_ended(Estimate(blocks, decision.goal, decision.left_s, analysis, ahead))
        now = time.monotonic()
        self._next_estimate = now + _ESTIMATE_SHARE * (now - begin)
        return decision

    def _rest(self, alive: Sequence[Cell], wanted: Collection[str]) -> None:
        """Measures cells no longer whose questions are answered, and says so; all of them again once none is open."""
        resting = {cell.id for cell in alive if cell.id not in wanted} if wanted else set()
        fresh = [cell.id for cell in alive if cell.id in resting - self._resting and cell.null_of is None]
        self._resting = resting
        if fresh:
            self._observer.note(f"answered: {', '.join(fresh)}; the time goes to the others")

    def _estimate_due(self, blocks: int = 0) -> bool:
        """Whether to look at what there is: for the display or from the first look on, if it takes no notable time."""
        wanted = self._observer.wants_estimates or blocks >= self._plan.policy.min_blocks
        return wanted and time.monotonic() >= self._next_estimate

    def _owed(self, block: int) -> bool:
        """Whether the block is the first since the run was taken further: no time limit is too short for it."""
        extended = self._plan.context.extended
        return bool(extended) and extended[-1].after_blocks == block

    def _used_s(self) -> float:
        if self._machine:  # of the machine that has measured longest, as they measure at once
            used: dict[str, float] = {}
            for trial in self._trials:
                name = machine_of(trial.facts)
                used[name] = used.get(name, 0.0) + trial.duration_s
            return max(used.values(), default=0.0)
        if self._clock is None:
            return sum(trial.duration_s for trial in self._trials)
        return self._clock.elapsed_s + _CLOSING_S

    def _time_is_up(self) -> bool:
        """Whether no further trial is begun: the limit is over in the middle of a block."""
        return self._plan.policy.blocks is None and self._used_s() > self._plan.policy.time_limit_s

    def _trial(self, cell: Cell, block: int, order: int) -> None:
        with self._interruption.armed():
            pass  # a signal that came between two trials ends the run here
        self._observer.trial_started(cell, block)
        token = None if self._attempts is None else self._attempts.begin(cell.id, block, order)
        wanted = iterations_of(self._plan, cell, block, self._trials)
        slot = Slot(cell, block, order, wanted, warmups_of(self._plan, cell, self._here(), self._warm))
        platform = registry.get(workloads.started_for(cell).platform)
        trial = run_trial(self._plan, slot, platform, self._interruption, self._observer)
        if proof := self._proofs.get(cell.id):
            trial = replace(trial, facts=with_fact(trial.facts, proof))
        if self._machine:
            trial = replace(trial, facts=with_fact(trial.facts, MeasuredOn(machine=self._machine)))
        if self._attempts is not None and token is not None:
            self._attempts.append(trial, token)
        else:
            self._ledger.append(self._run_id, trial)
        self._trials.append(trial)
        self._done[block, cell.id] = trial
        self._observer.trial_ended(cell, trial)
        with self._interruption.armed():
            pass  # a trial that reports what it had by the signal ends the run as well
        if self._given_up(cell):
            self._observer.note(
                f"{cell.id} has failed {GIVE_UP_AFTER} times and never succeeded; it is not tried again: {trial.reason}"
            )

    def _here(self) -> list[Trial]:
        """Those of this machine."""
        if not self._machine:
            return self._trials
        return [trial for trial in self._trials if machine_of(trial.facts) == self._machine]

    def _of(self, cell: Cell) -> list[Trial]:
        return [trial for trial in self._trials if trial.cell_id == cell.id]

    def _given_up(self, cell: Cell) -> bool:
        return is_given_up(self._of(cell))

    def _final(self, state: RunState) -> RunState:
        good = not self._trials or any(trial.status is TrialStatus.OK for trial in self._trials)
        return state if good else RunState.FAILED


def barred(settings: Settings, cells: Iterable[Cell], proofs: Mapping[str, Proof]) -> dict[str, str]:
    """Why cells may not take part, by what is proven of their disks. Nothing is barred for what nobody asked."""
    wanted = " or ".join(settings.durability)
    found = {}
    for cell in cells:
        if settings.on_disk and (there := _in_memory(cell)):
            found[cell.id] = f"its disk is in memory: {there}"
            continue
        if not settings.durability:
            continue
        proof = proofs.get(cell.id)
        if proof is None:
            found[cell.id] = f"its disk is not {wanted}: nothing could be proven"
        elif proof.proven.word not in settings.durability:
            found[cell.id] = f"its disk is not {wanted}: {_said(proof.proven)}"
    return found


def _in_memory(cell: Cell) -> str:
    """The first location of the cell's disks that is memory; empty when there is none."""
    return next((disk.location for disk in cell.view(Disks) if in_memory(disk.location)), "")


def _said(proven: Proven) -> str:
    return f"{proven.word} ({proven.first_loss or proven.why})"


_CHAIN = 16  # blocks


def order_of(seed: int, block: int, cells: Sequence[Cell], *, chained: bool = True) -> list[Cell]:
    """The cells in the random order of `block`, which begins with the cell that ended the block before it.

    So a cell runs as often after itself as after each other one, and what a cell leaves behind cancels in comparisons
    (serially balanced sequences: Finney and Outhwaite, J. R. Stat. Soc. B 18, 1956). Two cells run as A B B A; a new
    random start every `_CHAIN` blocks. Where blocks of a run are measured at once none comes after another, and turns
    would fall together with machines: there each is in an order of its own, not `chained`. Depends only on the
    arguments, so a resumed run continues in the original order.
    """
    first = block - block % _CHAIN if chained else block
    return [cells[number] for number in _chain(seed, first, len(cells))[block - first]]


@functools.lru_cache(maxsize=64)
def _chain(seed: int, first: int, count: int) -> tuple[tuple[int, ...], ...]:
    """The orders of `_CHAIN` blocks from `first` on, as numbers of `count` cells."""
    orders: list[tuple[int, ...]] = []
    order: list[int] = []
    for block in range(first, first + _CHAIN):
        others = [number for number in range(count) if not order or number != order[-1]]
        random.Random(f"{seed}:{block}").shuffle(others)
        order = order[-1:] + others
        orders.append(tuple(order))
    return tuple(orders)


def missing_trials(
    seed: int,
    block: int,
    cells: Sequence[Cell],
    done: Mapping[tuple[int, str], Trial],
    *,
    chained: bool = True,
) -> Iterator[tuple[int, Cell]]:
    """Position and cell of each trial of `block` that has not ended yet, in order; see `order_of`."""
    for position, cell in enumerate(order_of(seed, block, cells, chained=chained)):
        if (block, cell.id) not in done:
            yield position, cell


PILOT = 1  # iterations of a trial from which the number is chosen


def iterations_of(plan: Plan, cell: Cell, block: int, trials: Sequence[Trial]) -> int:
    """How many iterations the trial of `cell` in `block` holds, given the trials so far."""
    if plan.policy.iterations is not None:
        return plan.policy.iterations
    if (agreed := plan.context.iterations.get(cell.id)) is not None:
        return agreed
    others = {other.id for other in plan.cells if other.compares_with(cell)}
    earlier = [
        trial
        for trial in trials
        if trial.block < block and trial.cell_id in others and trial.status is TrialStatus.OK
    ]
    if not earlier:
        return PILOT
    if any(not trial.run_s for trial in earlier):
        return _as_before(cell, earlier)
    first = min(trial.block for trial in earlier)
    pilots = [trial for trial in earlier if trial.block == first]
    enough = plan.policy.enough_s
    boot = boots(other for other in plan.cells if other.id in others)
    if plan.policy.find is not None:
        return _for_finding(plan, pilots, boot=boot)
    within = plan.context.within
    chosen = _chosen(pilots, plan.policy.warmup, within, boot=boot, timed=enough is not None)
    return chosen if enough is None else min(chosen, _in_time(pilots, enough, plan.policy.min_blocks))


def _for_finding(plan: Plan, pilots: Sequence[Trial], *, boot: bool) -> int:
    """How many iterations of a trial find the slow runs soonest that are asked for, in blocks of a minute at most."""
    from guestmark.stats.finding import cheapest_iterations
    from guestmark.stats.repetition import MAX_ITERATIONS

    rare = plan.policy.find
    assert rare is not None
    each_s = max(sum(trial.run_s[-1] for trial in pilots), 1e-6)
    start_s = sum(max(trial.duration_s - sum(trial.run_s), 0.0) for trial in pilots)
    start_s += plan.policy.warmup * each_s if boot else 0.0
    most = max(1, min(MAX_ITERATIONS, int((_LONGEST_BLOCK_S - start_s) / each_s)))
    return cheapest_iterations(
        rare, stopping.count_compared_cells(plan), most, lambda number: start_s + number * each_s
    )


_LONGEST_BLOCK_S = 60.0


def _in_time(pilots: Sequence[Trial], enough_s: float, blocks: int) -> int:
    """How many iterations let the fewest blocks end within the time that is enough; at least one."""
    block_s = sum(trial.run_s[-1] for trial in pilots)
    return max(1, int(enough_s / (blocks * max(block_s, 1e-6))))


def warmups_of(plan: Plan, cell: Cell, trials: Sequence[Trial], warm: Collection[str] = ()) -> int:
    """How many unmeasured runs the next trial of `cell` begins with, given the trials so far.

    A fresh machine is cold each time. Where nothing boots a cell is warmed up once, before its first measured run;
    those that are `warm` have been.
    """
    if boots(other for other in plan.cells if other.compares_with(cell)):
        return plan.policy.warmup
    is_warm = cell.id in warm or any(
        trial.cell_id == cell.id and trial.status is TrialStatus.OK for trial in trials
    )
    return 0 if is_warm else plan.policy.warmup


def _chosen(pilots: Sequence[Trial], warmup: int, within: float, *, boot: bool, timed: bool) -> int:
    from guestmark.stats.repetition import (
        MEASURING,
        MEASURING_TIMED,
        Pilot,
        choose_iterations,
        iterations_without_boot,
    )

    found = {
        trial.cell_id: Pilot(max(trial.duration_s - sum(trial.run_s), 0.0), trial.run_s[-1])
        for trial in pilots
    }
    if boot:
        return choose_iterations(found, warmup, within=within)
    return iterations_without_boot(found.values(), measuring=MEASURING_TIMED if timed else MEASURING)


def _as_before(cell: Cell, earlier: Sequence[Trial]) -> int:
    """In runs that version 0.1 began every cell has chosen for itself; they are completed as they were begun."""
    counts = [
        len(trial.measurements[0].iterations)
        for trial in earlier
        if trial.cell_id == cell.id and trial.measurements
    ]
    return counts[0] if counts else PILOT
