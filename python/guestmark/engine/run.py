"""One run, from a plan to what later runs know of it: prepare, measure, judge, remember.

    run, _ = make(plan, ledger, audience)
    run.judge().remember()

The command line, the library, campaigns, bisections and the workers of a fleet all make their runs here.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from guestmark.core.actions import actions
from guestmark.core.beside import told
from guestmark.core.context import Extension
from guestmark.core.errors import BlockStatus, Interrupted, LedgerError, PlatformUnusableError, UsageError
from guestmark.core.model import LeftOut, Plan, RunState, runnable
from guestmark.core.reminder import Reminder
from guestmark.core.units import format_duration
from guestmark.engine import budget, forecast, preflight
from guestmark.engine.clock import Clock, started
from guestmark.engine.environment import record_for
from guestmark.engine.interrupt import Interruption
from guestmark.engine.progress import Observer, Silent
from guestmark.engine.question_status import with_askable
from guestmark.engine.time_estimate import read_trial_costs
from guestmark.foreign.parts import SILENT
from guestmark.foreign.progress import Progress
from guestmark.ledger.environment_variables import restored
from guestmark.ledger.run_annotations import NOTHING, Remarks
from guestmark.platforms import exclusive
from guestmark.platforms.probe import probe_all

if TYPE_CHECKING:
    from guestmark.ledger.attempts import Attempts
    from guestmark.ledger.model import Origin, RunHead, StoredRun
    from guestmark.ledger.store import Ledger
    from guestmark.platforms.base import Platform, Unusable, Usable
    from guestmark.platforms.probe import Startable
    from guestmark.stats.analysis import Analysis

_REMINDED_S = 30.0
_PATIENCE_S = 0.5  # a check of platforms that takes longer is mentioned


def _nothing(_text: str) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Audience:
    """How somebody who follows a run hears of it. By default nobody does."""

    tell: Callable[[str], None] = _nothing  # what has to be known, such as what is left out
    mention: Callable[[str], None] = _nothing  # what only explains a wait
    progress: Progress = SILENT  # while parts are made that take minutes
    observed: Callable[[], AbstractContextManager[Observer]] = lambda: nullcontext(Silent())  # while it runs
    remarks: bool = True  # whether `tell` gets those that the run keeps: notes, and what is left out


@contextmanager
def exclusively(
    plan: Plan, tell: Callable[[str], None], *, wait: bool = True, name: str = ""
) -> Iterator[None]:
    """Inside, no other guestmark measures on the machines that the plan uses, which are waited for if need be.

    Others are told `name`, or the plan's.
    """
    here = any(cell.platform.uses_this_host for cell in plan.cells)
    with exclusive.measuring(exclusive.Policy(name or plan.name, wait=wait, tell=tell), here=here):
        yield


def prepare(
    plan: Plan,
    ledger: Ledger,
    audience: Audience,
    *,
    said: Remarks = NOTHING,
    prove: bool = False,
    budget_s: float | None = None,
    clock: Clock | None = None,
    partial: bool = True,
) -> Run:
    """Stores a new run of as much of the plan as can be measured here. Its time counts from now on, or by `clock`.

    With `prove` power cuts will show what its disks keep. With `budget_s`, of the same clock, it has what fits into
    that; see `budget.spend`. Questions that it cannot answer are not asked. Raises what `preflight.examine` raises, and
    unless a `partial` plan is wanted `PlatformUnusableError` when most of its platforms cannot be used.
    """
    clock = clock or started()
    ledger.check_name(said.name)
    ledger.patience.notice = audience.tell
    examined = time.monotonic()
    ready = preflight.examine(plan, prober(audience), audience.progress)
    if plan.policy.enough_s is not None:  # of a quick run the first check of what works here is no part
        clock = clock.without(time.monotonic() - examined)
    if not partial:
        preflight.require_most(plan, ready.left_out)
    context = replace(ready.plan.context, prove=prove or ready.plan.context.prove)
    plan, notes = with_askable(replace(ready.plan, context=context), ready.left_out)
    # A command alone is quicker run than looked up.
    planned = budget_s is not None or plan.questions or plan.context.cost or plan.context.prove
    known = read_trial_costs(plan, ledger if planned else None)
    if budget_s is not None:
        able = runnable(plan.cells, ready.left_out)
        plan = replace(plan, context=replace(plan.context, budget_s=budget_s))
        plan, left = budget.fit_to_budget(plan, able, known, budget_s, clock.elapsed_s)
        notes += left
    plan = replace(plan, context=replace(plan.context, notes=(*plan.context.notes, *ready.notes, *notes)))
    environment = record_for(plan)
    if (known_before := forecast.learnt(plan, ledger, environment)) is not None:
        plan = replace(plan, context=replace(plan.context, within=known_before.within or 1.0))
        if known_before.sentence and budget_s is None:
            audience.mention(known_before.sentence)
    run_id = ledger.create_run(plan, environment, plan.policy.seed, left_out=ready.left_out, said=said)
    _tell_left_out(ready.left_out, audience)
    if audience.remarks:
        for note in plan.context.notes:
            audience.tell(note)
    measured = budget.select_planned_cells(plan, runnable(plan.cells, ready.left_out))
    if said_before := budget.estimate_run_cost(plan, measured, known, clock.elapsed_s).sentence:
        audience.mention(said_before)
    return Run(run_id, plan, ledger, audience, clock)


def make(
    plan: Plan,
    ledger: Ledger,
    audience: Audience,
    *,
    said: Remarks = NOTHING,
    prove: bool = False,
    budget_s: float | None = None,
    clock: Clock | None = None,
    wait: bool = True,
    partial: bool = True,
) -> tuple[Run, RunState]:
    """Prepares a new run and measures it, with nobody else on its machines; the run, and how it ended.

    Time that others are waited for does not count. See `prepare`.
    """
    clock, asked = clock or started(), time.monotonic()
    with exclusively(plan, audience.tell, wait=wait):
        clock = clock.without(time.monotonic() - asked)
        run = prepare(
            plan, ledger, audience, said=said, prove=prove, budget_s=budget_s, clock=clock, partial=partial
        )
        return run, run.measure()


@dataclass(frozen=True, slots=True)
class Further:
    """How much further a run is to go than it was made for; None: as it was."""

    blocks: int | None = None
    precision: float | None = None
    time_limit_s: float | None = None

    @property
    def asked(self) -> dict[str, float]:
        """Those that were given."""
        given = {"blocks": self.blocks, "precision": self.precision, "time_limit_s": self.time_limit_s}
        return {name: value for name, value in given.items() if value is not None}


def extended(stored: StoredRun, further: Further) -> Plan:
    """The run's plan for as long as it is to go on now; it keeps what was asked for and when.

    Raises `UsageError` for fewer blocks than the run has.
    """
    if not further.asked:
        return stored.plan
    from guestmark.stats import stopping

    done = len({trial.block for trial in stored.trials})
    if further.blocks is not None and further.blocks <= done:
        raise UsageError(
            f"--blocks {further.blocks}: run {stored.id} has {done} blocks already",
            hint=f"N counts all blocks, e.g. --blocks {2 * done}",
        )
    policy = stopping.extend_policy(
        stored.plan.policy,
        stored.trials,
        blocks=further.blocks,
        precision=further.precision,
        time_limit_s=further.time_limit_s,
        used_s=spent_s(stored),
    )
    more = Extension(done, further.blocks, further.precision, further.time_limit_s)
    context = stored.plan.context
    context = replace(context, extended=(*context.extended, more), iterations=_iterations(stored))
    return replace(stored.plan, policy=policy, context=context)


def _iterations(stored: StoredRun) -> Mapping[str, int]:
    """How many iterations the next trials of each cell hold: as before, whatever the run is to reach now.

    Trials of another length would be left out of its answers. Nothing before the first block has shown them.
    """
    last = max((trial.block for trial in stored.trials), default=-1)
    if stored.plan.policy.iterations is not None or last < 0:
        return stored.plan.context.iterations
    from guestmark.engine.trial_schedule import count_iterations  # with what every trial needs

    return {
        cell.id: count_iterations(stored.plan, cell, last + 1, stored.trials) for cell in stored.plan.cells
    }


def spent_s(stored: StoredRun) -> float:
    """Seconds of wall time that the run has taken; of runs of version 0.2, what its trials took."""
    return float(stored.plan.context.elapsed_s or sum(trial.duration_s for trial in stored.trials))


def require_trust(stored: StoredRun | RunHead, tell: Callable[[str], None], *, trust: bool) -> None:
    """Shows what a run of somebody else's would run here. Raises `UsageError` for one that is not trusted."""
    if stored.origin is None:
        return
    show_actions(stored.id, stored.plan, stored.origin, tell)
    if not trust and not stored.origin.trusted:
        raise UsageError(
            f"run {stored.id} {stored.origin.describe()}",
            hint="its commands, shown above, are run with --trust alone",
        )


def show_actions(run_id: str, plan: Plan, origin: Origin, tell: Callable[[str], None]) -> None:
    """All that a run of somebody else's would run, exactly and whole."""
    tell(f"run {run_id} {origin.describe()}, and this is what it runs:")
    for name, value in actions(plan):
        tell(f"  {name}: {value}")


def resume(
    stored: StoredRun,
    ledger: Ledger,
    audience: Audience,
    further: Further,
    *,
    wait: bool = True,
    clock: Clock | None = None,
    trust: bool = False,
) -> tuple[Run, RunState]:
    """Takes a stored run on from where it stopped, or further than it was made for; the run, and how it ended.

    One that comes from elsewhere only with `trust`, after all that it would run has been shown.
    Raises `LedgerError` when another process executes it, and what `preflight.examine_again` raises.
    """
    require_trust(stored, audience.tell, trust=trust)
    ledger.patience.notice = audience.tell
    clock = (clock or started()).after(spent_s(stored))
    asked = time.monotonic()
    plan = extended(stored, further)
    if ledger.is_claimed(stored.id):
        with ledger.claim(stored.id):  # raises, naming the owner
            pass
    plan, gone = restored(plan, os.environ)
    if gone:
        audience.tell(f"changed since the run began: {', '.join(gone)}")
    with exclusively(plan, audience.tell, wait=wait):
        clock = clock.without(time.monotonic() - asked)
        ready = preflight.examine_again(plan, stored.unusable, prober(audience))
        if further.asked:
            with ledger.claim(stored.id):
                ledger.set_plan(stored.id, plan)
        ledger.add_environment(stored.id, record_for(plan))
        for entry in ready.left_out:
            ledger.record_left_out(stored.id, entry)
        _tell_left_out(ready.left_out, audience)
        run = Run(stored.id, plan, ledger, audience, clock)
        return run, run.measure()


def block(
    head: RunHead,
    ledger: Ledger,
    audience: Audience,
    machine: str,
    *,
    interruption: Interruption | None = None,
    wait: bool = True,
    trust: bool = False,
    examined: bool = False,
) -> BlockStatus:
    """Measures one block of a stored run that no other process has, as the machine of that name, and stores it.

    Any number of processes may do so at once, on any machines that reach the ledger. Where a platform of the run cannot
    be used here nothing is begun; with `examined` that is known already. Raises `TakenError` as
    `blocks.measure`.
    """
    from guestmark.engine import block_worker

    require_trust(head, audience.tell, trust=trust)
    ledger.patience.notice = audience.tell
    plan, _ = restored(head.plan, os.environ)
    mine = Interruption()
    with exclusively(plan, audience.tell, wait=wait):
        if not examined:
            try:
                missing = preflight.examine_again(plan, head.unusable, prober(audience)).left_out
            except PlatformUnusableError as error:
                audience.tell(f"{error.message}\n  {error.hint}")
                return BlockStatus.NOT_POSSIBLE
            for entry in missing:
                audience.tell(f"{entry.name} cannot be used on this machine: {entry.reason}\n  {entry.hint}")
            if missing:
                return BlockStatus.NOT_POSSIBLE
            _add_environment(ledger, head.id, plan)
        with (
            nullcontext() if interruption is not None else mine.handled(),
            audience.observed() as observer,
            exclusive.telling(observer.note),
        ):
            try:
                return block_worker.measure_block(
                    plan, ledger, head, machine=machine, observer=observer, interruption=interruption or mine
                )
            except Interrupted:
                return BlockStatus.INTERRUPTED


def _add_environment(ledger: Ledger, run_id: str, plan: Plan) -> None:
    """Records this machine's, unless the run has one that is the same in all that matters."""
    from guestmark.stats.conditions.surroundings import compare_environments, digest_environment

    here = record_for(plan)
    ledger.add_environment_of(
        run_id, here, digest_environment(here), lambda known: compare_environments(known, here) == ({}, {})
    )


@dataclass(frozen=True, slots=True)
class Run:
    """A run in a ledger, and whoever follows it."""

    id: str
    plan: Plan
    ledger: Ledger
    audience: Audience = Audience()
    clock: Clock | None = None

    def measure(
        self,
        interruption: Interruption | None = None,
        *,
        attempts: Attempts | None = None,
        most_blocks: int | None = None,
    ) -> RunState:
        """Goes on from where its trials end until it is complete, and says how it ended.

        Signals interrupt it, unless the caller has an `interruption` of its own. `attempts` and `most_blocks` are
        explained in `runner.run`.
        """
        from guestmark.engine import measurement_loop

        mine = Interruption()
        with nullcontext() if interruption is not None else mine.handled():
            try:
                with self.audience.observed() as observer, exclusive.telling(observer.note):
                    return measurement_loop.run(
                        self.plan,
                        self.ledger,
                        self.id,
                        observer=observer,
                        interruption=interruption or mine,
                        attempts=attempts,
                        most_blocks=most_blocks,
                        clock=self.clock,
                    )
            except LedgerError:
                self.audience.tell(f"what has been measured so far is in run {self.id}")
                raise

    def limited_to(self, blocks: int) -> Run:
        """The same run, which is complete with this many blocks in all."""
        plan = replace(self.plan, policy=replace(self.plan.policy, blocks=blocks))
        self.ledger.set_plan(self.id, plan)
        return replace(self, plan=plan)

    def judge(self) -> Judgement:
        """What its trials show, beside what the ledger knows of earlier runs; keeps how long all of it took."""
        found = judge(self.ledger, self.id)
        if self.clock is None:
            return found
        plan = found.stored.plan
        plan = replace(plan, context=replace(plan.context, elapsed_s=self.clock.elapsed_s))
        with self.ledger.claim(self.id):
            self.ledger.set_plan(self.id, plan)
        return replace(found, stored=replace(found.stored, plan=plan))


@dataclass(frozen=True, slots=True)
class Judgement:
    """A stored run and its analysis."""

    stored: StoredRun
    analysis: Analysis
    ledger: Ledger

    def remember(self) -> None:
        """Keeps what the run found for those that come later. Raises `LedgerError` when that cannot be stored."""
        from guestmark.ledger import run_history

        run_history.remember(self.ledger, self.stored, self.analysis)


def judge(ledger: Ledger, run: str) -> Judgement:
    """What a stored run shows by now, beside earlier ones. `run` is an id, the beginning or end of it, or a name."""
    from guestmark.ledger import run_history

    stored = ledger.load_run(run)
    return Judgement(stored, run_history.judged(ledger, stored), ledger)


def _tell_left_out(left_out: Sequence[LeftOut], audience: Audience) -> None:
    for entry in left_out if audience.remarks else ():
        hint = f"\n  {entry.hint}" if entry.hint else ""
        audience.tell(f"{entry.name} cannot be used here and is left out: {entry.reason}{hint}")


def prober(
    audience: Audience, deadline_s: float | None = None
) -> Callable[[list[Platform]], Mapping[str, Usable | Unusable]]:
    """What finds out which platforms can be used, and mentions it when that takes a while; as `probe_all`."""

    def check(platforms: list[Platform]) -> Mapping[str, Usable | Unusable]:
        # Of files that cells ask for, the name has their state, too, by which findings are remembered.
        names = ", ".join(dict.fromkeys(platform.name.partition(" ")[0] for platform in platforms))

        def mention(elapsed_s: float) -> None:
            sofar = "" if elapsed_s < _REMINDED_S else f" {format_duration(elapsed_s)} so far"
            audience.mention(f"checking whether {names} can be used here …{sofar}")

        with Reminder(mention, first_s=_PATIENCE_S, every_s=_REMINDED_S), told(audience.tell):
            return probe_all(cast("list[Startable]", platforms), deadline_s=deadline_s)

    return check
