"""The measurement loop over blocks and cells; each trial is in the ledger as soon as it has ended."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from guestmark.core.context import Context
from guestmark.core.errors import BlockStatus, Interrupted, WorkloadError
from guestmark.core.findings import MeasuredOn, Proof, add_fact, find_machine
from guestmark.core.model import Cell, Plan, RunState, Trial, TrialStatus, select_runnable
from guestmark.core.tuning import Settings
from guestmark.core.units import format_count, format_duration, list_first_names
from guestmark.engine import budget, proofs
from guestmark.engine.cell_selection import CellSelection
from guestmark.engine.clock import RunClock
from guestmark.engine.hooks import RUN, HookRunner
from guestmark.engine.interrupt import Interruption
from guestmark.engine.progress import Observer, ProgressEstimate
from guestmark.engine.question_status import compare_asked_pairs, list_original_ids
from guestmark.engine.shared_machine import BlockMachines, group_cells
from guestmark.engine.time_estimate import TrialCosts, read_trial_costs
from guestmark.engine.trial import TrialSlot, run_trial
from guestmark.engine.trial_schedule import (
    count_iterations,
    count_iterations_by_cell,
    count_warmups,
    find_last_block,
    find_missing_trials,
    list_block_trials,
    sum_durations,
)
from guestmark.ledger.attempts import TrialAttempts, record_lost_attempts
from guestmark.ledger.store import Ledger
from guestmark.platforms import registry
from guestmark.powercut.evidence_directory import keep_beside
from guestmark.setting.machine import START, Start
from guestmark.stats import stopping
from guestmark.stats.analysis import analyse_run
from guestmark.stats.stopping import MOST_FAILURES, is_hopeless
from guestmark.stats.tuning.race import replay_race
from guestmark.workloads import base as workloads

# The next analysis waits this many times as long as the last one took, so that analyses take at most 2 % of the time.
_ESTIMATE_SHARE = 50.0
# Seconds that a report takes after the last trial.
_CLOSING_S = 0.5
# A shorter wait between two blocks is not announced.
_ANNOUNCED_S = 2.0


def run(
    plan: Plan,
    ledger: Ledger,
    run_id: str,
    *,
    observer: Observer,
    interruption: Interruption,
    attempts: TrialAttempts | None = None,
    most_blocks: int | None = None,
    clock: RunClock | None = None,
) -> RunState:
    """Execute the run from where its stored trials end, in the order of its seed, and return its final state.

    The time limit applies to the time of `clock`, or without one to the time that trials took. With `attempts` each
    trial is registered there first. After `most_blocks` blocks the run is interrupted. Platforms and cells that the
    ledger lists as unusable for this run are left out. Raises `LedgerError` if another process executes the run or a
    trial cannot be stored.
    """
    ledger.patience.is_interrupted = lambda: interruption.received is not None
    with ledger.claim_run(run_id):
        if attempts is None:
            # No worker measures blocks of a run that is claimed: whatever it began has no end any more.
            record_lost_attempts(ledger, run_id, "its worker ended in the middle of the trial")
        stored = ledger.load_run(run_id)
        cells = select_runnable(plan.cells, stored.unusable)
        ledger.set_run_state(run_id, RunState.RUNNING)
        loop = MeasurementLoop(
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
            with keep_beside(file), loop.run_hooks():
                loop.prove_durability()
                state = loop.run_blocks()
        except Interrupted:
            state = RunState.INTERRUPTED
        except BaseException:
            ledger.set_run_state(run_id, RunState.INTERRUPTED)
            raise
        finally:
            loop.drop_unmeasured_cells()
        ledger.set_run_state(run_id, state)
    return state


@contextmanager
def share_machines(cells: Iterable[Cell]) -> Iterator[None]:
    """Keep outer guests and templates of restored ones, which cells of one block share, until the block ends."""
    started = [workloads.choose_started_cell(cell) for cell in cells]
    restored = [cell for cell in started if cell.levels.get(START) is Start.RESTORED]
    nested = [cell for cell in started if cell.platform.is_nested and not cell.platform.is_elsewhere]
    with contextlib.ExitStack() as stack:
        # Each platform is imported only by the runs that use it: together they are 47 modules.
        if any(cell.platform.is_guest for cell in restored):
            from guestmark.platforms.qemu.restored import TEMPLATES

            stack.enter_context(TEMPLATES.share_in_block(restored))
        if not all(cell.platform.is_guest for cell in restored):
            from guestmark.platforms.own.snapshots import SNAPSHOTS

            stack.enter_context(SNAPSHOTS.share_in_block())
        if nested:
            from guestmark.platforms.qemu.nested.outer import OUTERS

            stack.enter_context(OUTERS.share_in_block(nested))
        yield


class MeasurementLoop:
    """A run in progress; all its decisions depend only on the plan and the trials."""

    def __init__(
        self,
        *,
        plan: Plan,
        cells: Sequence[Cell],
        ledger: Ledger,
        run_id: str,
        trials: list[Trial],
        observer: Observer,
        interruption: Interruption,
        attempts: TrialAttempts | None = None,
        most_blocks: int | None = None,
        clock: RunClock | None = None,
        machine: str = "",
        warm: Collection[str] = (),
    ) -> None:
        """Measure `cells`, those of the plan that can be measured here, after the `trials` so far.

        `machine` is this machine's name if several measure blocks of the run; `warm` are the ids of cells that it
        has measured in trials besides these.
        """
        self._clock = clock
        self._machine = machine
        self._warm = warm
        self._attempts = attempts
        self._most_blocks = most_blocks
        self._plan = plan
        self._cells = CellSelection(plan, cells, trials)
        self._ledger = ledger
        self._run_id = run_id
        self._trials = trials
        self._done = {(trial.block, trial.cell_id): trial for trial in trials}
        self._observer = observer
        self._interruption = interruption
        self._next_estimate = 0.0
        # Seconds of preparation before the first trial.
        self._before_s = 0.0
        self._proofs: Mapping[str, Proof] = {}
        self._costs: TrialCosts | None = None
        # Cells that take more than their share of the time.
        self._slow: list[Cell] = []

    @contextmanager
    def run_hooks(self) -> Iterator[None]:
        """Run the user's commands around the run, and record how long they took."""
        hooks = HookRunner(self._plan)
        if not hooks.has_hooks(RUN):
            yield
            return
        try:
            with self._interruption.interruptible():
                self._record_hook_time("setup", hooks.run_hook(RUN, "setup"))
            yield
        finally:
            try:
                self._record_hook_time("cleanup", hooks.run_hook(RUN, "cleanup"))
            except WorkloadError as error:
                self._observer.note(error.message)

    def _record_hook_time(self, name: str, seconds: float) -> None:
        context = self._plan.context
        self._store_context(replace(context, around_s={**context.around_s, name: seconds}))

    def _store_context(self, context: Context) -> None:
        self._store_plan(replace(self._plan, context=context))

    def _store_plan(self, plan: Plan) -> None:
        self._plan = plan
        self._ledger.set_plan(self._run_id, plan)

    # --- durability ------------------------------------------------------------------------------------------

    def prove_durability(self) -> None:
        """Find out what a power cut would leave of the run's disks, if the plan asks for proofs."""
        if not self._plan.context.prove:
            return
        known = proofs.read_proofs(self._plan)
        begun = time.monotonic()
        for found in proofs.prove_cells(
            self._plan,
            self._cells.planned,
            known,
            self._observer,
            self._interruption,
            find_left_s=self._find_left_s,
        ):
            self._proofs = found
            # Each proof is stored at once: all of them take minutes, and a run may be interrupted.
            if found != proofs.read_proofs(self._plan):
                took = (*self._plan.context.proofs_took_s, time.monotonic() - begun)
                begun = time.monotonic()
                self._plan = proofs.attach_proofs(self._plan, found)
                self._store_context(replace(self._plan.context, proofs_took_s=took))
            if budget.is_proving_over(self._plan, self._compute_elapsed_s()) and self._has_proven_racers():
                self._exclude_unproven_cells()
                return

    def _has_proven_racers(self) -> bool:
        """Return whether a race has at least two cells that may take part; True for other runs."""
        settings = self._plan.context.tune
        if settings is None:
            return True
        return sum(proof.proven.word in settings.durability for proof in self._proofs.values()) > 1

    def _exclude_unproven_cells(self) -> None:
        """Report the cells that there was no time to prove, and exclude them from a race."""
        planned = self._cells.planned
        unproven = [cell for cell in planned if cell.id not in self._proofs and proofs.find_proof_kind(cell)]
        if not unproven:
            return
        self._observer.note(f"no time to prove {', '.join(cell.id for cell in unproven)}")
        if self._plan.context.tune is not None and len(unproven) < len(planned):
            self._cells.exclude(unproven)
            self._store_plan(budget.leave_out_cells(self._plan, unproven))

    # --- blocks ----------------------------------------------------------------------------------------------

    def drop_unmeasured_cells(self) -> None:
        """Remove cells from the run that were never measured for lack of time, and questions about them."""
        # A question about a cell that was tried in vain stays, without an answer.
        tried = {*(trial.cell_id for trial in self._trials), *(cell.id for cell in self._slow)}
        measured = budget.drop_unmeasured_cells(self._plan, tried)
        if measured != self._plan:
            self._store_plan(measured)

    def run_blocks(self) -> RunState:
        """Run blocks until the policy ends the run."""
        if (settings := self._plan.context.tune) is not None:
            return self._run_race(settings)
        block = self._find_first_incomplete_block()
        first, before = block, len(self._trials)
        if not self._trials:
            self._before_s = self._compute_elapsed_s()
        self._observer.started(replace(self._plan, cells=tuple(self._cells.planned)), block)
        while True:
            decision = self._decide_whether_to_stop(block)
            if decision.state is not None and not (
                decision.state is RunState.STOPPED and self._is_guaranteed_block(block)
            ):
                return self._choose_final_state(decision.state)
            if self._most_blocks is not None and block - first >= self._most_blocks:
                return RunState.INTERRUPTED
            if not self._cells.alive:
                return RunState.FAILED
            new = self._trials[before:]
            if is_hopeless([cell.id for cell in self._cells.planned], new):
                self._observer.note(f"all {len(new)} trials failed, so nothing else is tried")
                return self._choose_final_state(RunState.FAILED)
            self._wait_for_start(block)
            if self._measure_missing_trials(block):
                self._note_unreached_cells()
                return self._choose_final_state(RunState.STOPPED)
            came_back = self._fit_cells_to_budget()
            # In a run of one block there is no other block for them.
            if not (came_back and self._plan.policy.blocks == 1):
                block += 1

    def _note_unreached_cells(self) -> None:
        """Name the cells that still have no trial when the time is up."""
        tried = {trial.cell_id for trial in self._trials}
        unreached = [cell for cell in self._cells.planned if cell.id not in tried]
        if names := list_original_ids(unreached):
            self._observer.note(f"no time for {list_first_names(names, 'cell')}, not measured at all")

    def find_open_blocks(self) -> tuple[RunState | None, Sequence[int]]:
        """Return the run's final state, or None with the blocks that may be measured.

        Blocks that were begun come first.
        """
        begun = sorted({trial.block for trial in self._trials})
        complete = [block for block in begun if self.is_complete(block)]
        decision = self._decide_whether_to_stop(len(complete), complete)
        if decision.state is not None:
            return self._choose_final_state(decision.state), ()
        if not self._cells.alive:
            return RunState.FAILED, ()
        most = self._plan.policy.max_blocks if self._plan.policy.blocks is None else decision.goal or 0
        done = set(complete)
        return None, [block for block in range(most) if block not in done]

    def is_complete(self, block: int) -> bool:
        """Return whether every cell that is still tried has its trial in the block."""
        return all((block, cell.id) in self._done for cell in self._cells.alive)

    def measure_block(self, block: int) -> BlockStatus | None:
        """Measure the missing trials of one block; return None if one of its trials was lost."""
        self._observer.started(self._plan, block)
        self._measure_missing_trials(block)
        statuses = {trial.status for trial in list_block_trials(self._trials, block)}
        if TrialStatus.LOST in statuses:
            return None
        self._store_common_iterations(block)
        if statuses <= {TrialStatus.OK}:
            return BlockStatus.DONE
        return BlockStatus.SOME_FAILED

    def _store_common_iterations(self, block: int) -> None:
        """Store how many iterations all further trials hold, unless this is fixed already.

        Blocks measured at the same time must not choose independently, since their trials could not be compared.
        """
        if self._plan.policy.iterations is not None or self._plan.context.iterations:
            return
        pilots = list_block_trials(self._trials, block)
        chosen = count_iterations_by_cell(self._plan, self._cells.planned, block + 1, pilots)

        def add_iterations(plan: Plan) -> Plan:
            if plan.context.iterations:  # another process was faster
                return plan
            return replace(plan, context=replace(plan.context, iterations=chosen))

        self._ledger.change_plan(self._run_id, add_iterations)

    def _wait_for_start(self, block: int) -> None:
        """Wait until the block is due, if blocks are spread over time; a resumed run keeps its first schedule."""
        policy = self._plan.policy
        if not (policy.over_s and policy.blocks and policy.blocks > 1 and self._trials):
            return
        begun = min(trial.started_at for trial in self._trials)
        at = begun + policy.over_s * block / (policy.blocks - 1)
        if at - time.time() > _ANNOUNCED_S:
            clock = time.strftime("%H:%M:%S", time.localtime(at))
            self._observer.note(f"block {block + 1} of {policy.blocks} begins at {clock}")
        with self._interruption.interruptible():
            # In steps, as the wall clock may be set meanwhile.
            while (left := at - time.time()) > 0:
                time.sleep(min(left, 1.0))

    def _measure_missing_trials(self, block: int) -> bool:
        """Measure the missing trials of a block; return whether the time was up before its end."""
        due = self._cells.due
        missing = self._list_missing_trials(block, due)
        machines = BlockMachines.make_for_block(self._groups, {cell.id for _, cell in missing})
        with share_machines([*due, *machines.list_carriers()]):
            try:
                for order, cell in missing:
                    if self._is_time_up() and not self._is_guaranteed_block(block):
                        return True
                    # A slow cell is left out with the copies of it.
                    if cell in self._cells.planned:
                        self._measure_trial(cell, block, order, machines)
            finally:
                machines.end()
        return False

    def _list_missing_trials(self, block: int, due: Collection[Cell]) -> list[tuple[int, Cell]]:
        """Return position and cell of each missing trial of a block, for the cells that are `due`."""
        # Several machines measure blocks at the same time, so there no block comes after another.
        divided = bool(self._machine) or any(find_machine(trial.facts) for trial in self._trials)
        missing = find_missing_trials(
            self._plan.policy.seed,
            block,
            self._plan.cells,
            self._done,
            chained=not divided,
            groups=self._groups,
        )
        return [(order, cell) for order, cell in missing if cell in due]

    @functools.cached_property
    def _groups(self) -> list[tuple[Cell, ...]]:
        """The cells of the plan in groups that share a machine; they and their order are the same in all blocks."""
        return group_cells(self._plan, self._plan.cells)

    def _fit_cells_to_budget(self) -> bool:
        """Leave out cells for which there is no time, judging by how long blocks took so far, and take back others.

        Returns whether any came back.
        """
        if self._plan.context.budget_s is None:
            return False
        wanted = self._cells.not_given_up
        kept = budget.refit_cells(
            self._plan, wanted, self._trials, self._compute_elapsed_s(), self._cells.resting, self._read_costs
        )
        gone, back = self._cells.fit(kept)
        if not gone and not back:
            return False
        left_out = [*self._slow, *(cell for cell in wanted if cell not in kept)]
        self._store_plan(budget.leave_out_cells(self._plan, left_out))
        # Null copies are not reported, as the user did not ask for them.
        if names := list_original_ids(gone):
            self._observer.note(f"no time for {list_first_names(names, 'cell')}, not measured any further")
        if names := list_original_ids(back):
            self._observer.note(f"there is time after all for {list_first_names(names, 'cell')}")
        return bool(back)

    def _read_costs(self) -> TrialCosts:
        """Return the costs of trials as known before this run; they are read once, when first needed."""
        if self._costs is None:
            self._costs = read_trial_costs(self._plan, self._ledger, own_run=self._run_id)
        return self._costs

    def _run_race(self, settings: Settings) -> RunState:
        """Run blocks of the cells that may still be the best, until the race is decided."""
        planned = self._cells.planned
        why = dict(self._plan.context.barred or proofs.explain_barred_cells(settings, planned, self._proofs))
        if self._plan.context.barred != why or not self._trials:
            took = sum_durations(self._trials)
            for_trials = max(self._plan.policy.time_limit_s - (self._compute_elapsed_s() - took), 0.0)
            # The race is replayed from its trials when the run is resumed, so its limit must not move.
            self._store_context(replace(self._plan.context, barred=why, race_limit_s=for_trials))
        announced = 0
        begun = False
        while True:
            race = replay_race(settings, planned, why, self._trials, self._plan.race_limit_s)
            if not begun:
                self._observer.started(self._plan, race.block)
                begun = True
            for entry in race.dropped[announced:]:
                when = "before the first block"
                if entry.blocks:
                    when = f"after {format_count(entry.blocks, 'block')}"
                self._observer.note(f"{entry.id} dropped out {when}: {entry.why}")
            announced = len(race.dropped)
            if not race.due:
                return self._choose_final_state(RunState.COMPLETE)
            if self._compute_elapsed_s() > self._plan.policy.time_limit_s:
                return self._choose_final_state(RunState.STOPPED)
            due = [cell for cell in planned if cell.id in race.due]
            with share_machines(due):
                for order, cell in find_missing_trials(
                    self._plan.policy.seed, race.block, self._plan.cells, self._done
                ):
                    if cell in due:
                        self._measure_trial(cell, race.block, order)

    def _find_first_incomplete_block(self) -> int:
        last = find_last_block(self._trials)
        # Within a budget cells rest, so only the last block may lack any.
        first = 0 if self._plan.context.budget_s is None else max(last, 0)
        for block in range(first, last + 1):
            if not self.is_complete(block):
                return block
        return last + 1

    # --- decisions -------------------------------------------------------------------------------------------

    def _decide_whether_to_stop(
        self, blocks: int, counted_blocks: Collection[int] | None = None
    ) -> stopping.Decision:
        """Return the decision after `blocks` complete blocks: `counted_blocks`, or the first ones."""
        policy = self._plan.policy
        if not self._trials:  # there is nothing to analyse
            return stopping.Decision(None, policy.blocks, None)
        if policy.blocks is not None and not self._is_estimate_due():
            goal = policy.blocks + stopping.count_blocks_with_losses(self._trials)
            return stopping.Decision(RunState.COMPLETE if blocks >= goal else None, goal, None)
        measured, used_s = self._cells.measured_trials, self._compute_elapsed_s()
        if policy.blocks is None and not self._is_estimate_due(blocks):
            if policy.enough_s is not None:
                return stopping.decide_timed_run(policy, measured, blocks, used_s, self._before_s)
            over = (
                blocks >= policy.max_blocks
                or stopping.is_out_of_time(policy, measured, used_s)
                or budget.is_used_up(self._plan, blocks, measured, used_s)
            )
            return stopping.Decision(RunState.STOPPED if over else None, None, None)
        if policy.enough_s is not None and not self._observer.wants_estimates:
            return stopping.decide_timed_run(policy, measured, blocks, used_s, self._before_s)
        if counted_blocks is None:
            counted_blocks = range(blocks)
        return self._decide_by_analysis(blocks, counted_blocks)

    def _decide_by_analysis(self, blocks: int, counted_blocks: Collection[int]) -> stopping.Decision:
        """Return the decision by an analysis of these blocks; report it, and rest cells with answered questions."""
        begin = time.monotonic()
        used_s = self._compute_elapsed_s()
        stored = [trial for trial in self._trials if trial.block in counted_blocks]
        # Without questions the primary metric alone decides, and one metric is quicker to analyse.
        metrics = self._plan.metrics if self._plan.questions else self._plan.metrics[:1]
        analysis = analyse_run(self._plan, stored, metrics={metric.name for metric in metrics})
        alive = self._cells.alive
        pairs = compare_asked_pairs(self._plan, analysis, [cell.id for cell in alive])
        published = budget.compare_published_cells(self._plan, alive, analysis)
        asked = None
        if pairs is not None:
            pairs += budget.compare_unasked_cells(self._plan, alive, analysis)
            asked = [pair.comparison for pair in (*pairs, *published)]
        answered = self._cells.rest(budget.find_open_cells(self._plan, pairs, published, alive, analysis))
        # Resting cells cost the next block nothing, so their trials are no longer among these.
        measured = self._cells.measured_trials
        decision = stopping.decide(
            self._plan, measured, blocks, analysis, used_s, asked, before_s=self._before_s
        )
        if (
            decision.state is RunState.COMPLETE
            and self._plan.context.budget_s is not None
            and budget.find_undecided_gates(self._plan, analysis)
        ):
            decision = stopping.Decision(None, None, None)
        names = list_original_ids(answered)
        if names and decision.state is None:
            self._observer.note(f"answered: {', '.join(names)}; the time goes to the others")
        if decision.state is None and budget.is_used_up(self._plan, blocks, measured, used_s):
            decision = stopping.Decision(RunState.STOPPED, blocks, stopping.NO_TIME_LEFT)
        forecast = None
        if self._observer.wants_estimates:
            forecast = stopping.forecast_end(self._plan, measured, blocks, analysis, decision)
        self._observer.block_ended(
            ProgressEstimate(blocks, decision.goal, decision.left, analysis, forecast, self._cells.resting)
        )
        now = time.monotonic()
        self._next_estimate = now + _ESTIMATE_SHARE * (now - begin)
        return decision

    def _is_estimate_due(self, blocks: int = 0) -> bool:
        """Return whether to analyse the trials: for the display or as the run may end, unless that just took long."""
        wanted = self._observer.wants_estimates or blocks >= self._plan.policy.min_blocks
        return wanted and time.monotonic() >= self._next_estimate

    def _is_guaranteed_block(self, block: int) -> bool:
        """Return whether the block is the first since the run was extended, which no time limit prevents."""
        extended = self._plan.context.extended
        return bool(extended) and extended[-1].after_blocks == block

    def _compute_elapsed_s(self) -> float:
        """Return the seconds that count against the time limit."""
        if self._machine:
            # Machines measure at the same time, so the one that has measured longest counts.
            used: dict[str, float] = {}
            for trial in self._trials:
                name = find_machine(trial.facts)
                used[name] = used.get(name, 0.0) + trial.duration_s
            return max(used.values(), default=0.0)
        if self._clock is None:
            return sum_durations(self._trials)
        return self._clock.elapsed_s + _CLOSING_S

    def _find_left_s(self) -> float | None:
        """Return the seconds left of the budget; None for a run without one."""
        budget_s = self._plan.context.budget_s
        return None if budget_s is None else budget_s - self._compute_elapsed_s()

    def _is_time_up(self) -> bool:
        """Return whether the limit has passed in the middle of a block, so that no further trial is begun."""
        plan = self._plan
        is_limited = plan.policy.blocks is None or plan.context.budget_s is not None
        return is_limited and self._compute_elapsed_s() > plan.policy.time_limit_s

    def _choose_final_state(self, state: RunState) -> RunState:
        """Return `state`, or that the run has failed if no trial succeeded."""
        if self._trials and all(trial.status is not TrialStatus.OK for trial in self._trials):
            return RunState.FAILED
        return state

    # --- trials ----------------------------------------------------------------------------------------------

    def _measure_trial(
        self, cell: Cell, block: int, order: int, machines: BlockMachines | None = None
    ) -> None:
        """Run one trial and store it."""
        with self._interruption.interruptible():
            # A signal that arrived between two trials ends the run here.
            pass
        self._observer.trial_started(cell, block)
        token = None if self._attempts is None else self._attempts.begin_trial(cell.id, block, order)
        iterations = count_iterations(self._plan, cell, block, self._trials)
        warmups = count_warmups(self._plan, cell, self._list_own_trials(), self._warm)
        slot = TrialSlot(cell, block, order, iterations, warmups, self._find_left_s())
        platform = registry.get_platform(workloads.choose_started_cell(cell).platform)
        trial = run_trial(self._plan, slot, platform, self._interruption, self._observer, machines=machines)
        if proof := self._proofs.get(cell.id):
            trial = replace(trial, facts=add_fact(trial.facts, proof))
        if self._machine:
            trial = replace(trial, facts=add_fact(trial.facts, MeasuredOn(machine=self._machine)))
        if self._attempts is not None and token is not None:
            self._attempts.store_trial(trial, token)
        elif budget.is_out_of_share(self._plan, cell, trial, self._trials) and len(self._cells.planned) > 1:
            self._leave_out_slow_cell(cell, trial)
            return
        else:
            self._ledger.store_trial(self._run_id, trial)
        self._trials.append(trial)
        self._done[block, cell.id] = trial
        self._observer.trial_ended(cell, trial)
        with self._interruption.interruptible():
            # A signal that cut a trial short ends the run as well, even if the trial reported what it had.
            pass
        if self._cells.is_given_up(cell):
            self._observer.note(
                f"{cell.id} has failed {MOST_FAILURES} times and never succeeded; it is not tried again"
            )

    def _leave_out_slow_cell(self, cell: Cell, trial: Trial) -> None:
        """Leave out a cell whose first trial took more than its share of the budget: nothing is known to be wrong."""
        self._slow.append(cell)
        self._cells.drop_slow_cell(cell)
        limit = format_duration(self._plan.policy.trial_limit_s)
        why = f"no time for {cell.id}: its first trial was stopped after {limit}, its share of the time"
        self._observer.note(why)
        ids = {*self._plan.context.no_time, *(slow.id for slow in self._slow)}
        left_out = [other for other in self._plan.cells if other.id in ids]
        plan = budget.leave_out_cells(self._plan, left_out)
        self._store_plan(replace(plan, context=replace(plan.context, notes=(*plan.context.notes, why))))

    def _list_own_trials(self) -> list[Trial]:
        if not self._machine:
            return self._trials
        return [trial for trial in self._trials if find_machine(trial.facts) == self._machine]
