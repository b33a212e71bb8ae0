"""A run's life: prepare, measure, judge, remember.

    judgement, state = execute_plan(plan, ledger, audience)

The command line, the library, campaigns, bisections and the workers of a fleet all create their runs here.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

from guestmark.core.errors import LedgerError
from guestmark.core.model import Plan, RunState, select_runnable
from guestmark.engine import budget, forecast, measurement_loop, preflight
from guestmark.engine.audience import Audience, hold_machines, make_prober
from guestmark.engine.clock import RunClock, start_clock
from guestmark.engine.environment import record_run_environment
from guestmark.engine.interrupt import Interruption
from guestmark.engine.judgement import Judgement, judge_run
from guestmark.engine.preflight import Readiness
from guestmark.engine.question_status import keep_answerable_questions
from guestmark.engine.time_estimate import TrialCosts, read_trial_costs
from guestmark.ledger.attempts import TrialAttempts
from guestmark.ledger.run_annotations import NO_ANNOTATIONS, Annotations
from guestmark.ledger.store import Ledger
from guestmark.platforms import exclusive


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options for a new run.

    `prove` cuts the power of its disks, to show what survives. `budget_s` seconds of wall time decide what is
    measured (see `budget.fit_to_budget`). Without `wait` machines must be free, without `partial` most platforms of the
    plan must be usable.
    """

    said: Annotations = NO_ANNOTATIONS
    prove: bool = False
    budget_s: float | None = None
    wait: bool = True
    partial: bool = True


def execute_plan(
    plan: Plan,
    ledger: Ledger,
    audience: Audience,
    options: RunOptions = RunOptions(),
    *,
    clock: RunClock | None = None,
) -> tuple[Judgement, RunState]:
    """Prepare, measure, judge and remember a run of `plan`; return its judgement and its final state.

    Time spent waiting for other runs does not count. Raises as `prepare_run`.
    """
    clock, asked = clock or start_clock(), time.monotonic()
    with hold_machines(plan, audience.tell, wait=options.wait):
        clock = clock.exclude(time.monotonic() - asked)
        run = prepare_run(plan, ledger, audience, options, clock=clock)
        state = run.measure()
    return run.conclude(), state


def present_and_remember(judgement: Judgement, audience: Audience) -> None:
    """Store a run's judgement for later runs, then show it to the audience."""
    _remember(judgement, audience)
    audience.present(judgement)


def _remember(judgement: Judgement, audience: Audience) -> None:
    try:
        judgement.remember()
    except LedgerError as error:
        # Only later comparisons lack it; the result itself is stored, and will be shown.
        audience.tell(f"later runs cannot be compared with this one: {error.message}")


def prepare_run(
    plan: Plan,
    ledger: Ledger,
    audience: Audience,
    options: RunOptions = RunOptions(),
    *,
    clock: RunClock | None = None,
) -> Run:
    """Store a new run of the part of the plan that can be measured here. Its time counts from now, or by `clock`.

    Questions that it cannot answer are dropped. Raises what `preflight.examine` raises, and `PlatformUnusableError`
    as `RunOptions.partial` says.
    """
    clock = clock or start_clock()
    ledger.check_name(options.said.name)
    ledger.patience.notice = audience.tell
    ready, clock = _examine(plan, audience, options, clock)
    plan, notes = keep_answerable_questions(ready.plan, ready.left_out)
    costs = _read_costs(plan, ledger, options)
    able = select_runnable(plan.cells, ready.left_out)
    if options.budget_s is not None:
        plan = replace(plan, context=replace(plan.context, budget_s=options.budget_s))
        plan, left_out = budget.fit_to_budget(plan, able, costs, options.budget_s, clock.elapsed_s)
        notes += left_out
    plan = replace(plan, context=replace(plan.context, notes=(*plan.context.notes, *ready.notes, *notes)))
    environment = record_run_environment(plan)
    plan, expectation = _add_earlier_scatter(plan, ledger, environment)
    run_id = ledger.create_run(
        plan, environment, plan.policy.seed, left_out=ready.left_out, said=options.said
    )
    audience.tell_left_out(ready.left_out)
    audience.tell_notes(plan.context.notes)
    if expectation and options.budget_s is None:
        audience.mention(expectation)
    planned = budget.select_planned_cells(plan, select_runnable(plan.cells, ready.left_out))
    if cost := budget.estimate_run_cost(plan, planned, costs, clock.elapsed_s).sentence:
        audience.mention(cost)
    return Run(run_id, plan, ledger, audience, clock)


def _examine(
    plan: Plan, audience: Audience, options: RunOptions, clock: RunClock
) -> tuple[Readiness, RunClock]:
    """Return what can be measured here, and the clock, which does not count the time of this check in a quick run."""
    begin = time.monotonic()
    ready = preflight.examine(plan, make_prober(audience), audience.progress)
    # The first check of a platform boots a guest. A quick run would be over by then.
    if plan.policy.enough_s is not None:
        clock = clock.exclude(time.monotonic() - begin)
    if not options.partial:
        preflight.require_most_platforms(plan, ready.left_out)
    context = ready.plan.context
    context = replace(context, prove=options.prove or context.prove)
    return replace(ready, plan=replace(ready.plan, context=context)), clock


def _read_costs(plan: Plan, ledger: Ledger, options: RunOptions) -> TrialCosts:
    """Return the costs of trials; earlier runs are read only if the costs decide something, as reading takes time."""
    context = plan.context
    planned = options.budget_s is not None or plan.questions or context.cost or context.prove
    if not planned:
        return read_trial_costs(plan, None)
    return read_trial_costs(plan, ledger)


def _add_earlier_scatter(plan: Plan, ledger: Ledger, environment: Mapping[str, Any]) -> tuple[Plan, str]:
    """Return the plan with the scatter of trials in earlier runs, and a sentence on what to expect, if anything."""
    learnt = forecast.forecast_run(plan, ledger, environment)
    if learnt is None:
        return plan, ""
    return replace(plan, context=replace(plan.context, within=learnt.within or 1.0)), learnt.sentence


@dataclass(frozen=True, slots=True)
class Run:
    """A run in a ledger, with its audience and clock."""

    id: str
    plan: Plan
    ledger: Ledger
    audience: Audience
    clock: RunClock | None = None

    def measure(
        self,
        interruption: Interruption | None = None,
        *,
        attempts: TrialAttempts | None = None,
        most_blocks: int | None = None,
    ) -> RunState:
        """Measure from where the run's trials end until it is complete; return its final state.

        Signals interrupt it, unless the caller has an `interruption` of its own. `attempts` and `most_blocks` are
        explained in `measurement_loop.run`.
        """
        own = Interruption()
        with nullcontext() if interruption is not None else own.handle_signals():
            try:
                with self.audience.observe() as observer, exclusive.announce_waits(observer.note):
                    return measurement_loop.run(
                        self.plan,
                        self.ledger,
                        self.id,
                        observer=observer,
                        interruption=interruption or own,
                        attempts=attempts,
                        most_blocks=most_blocks,
                        clock=self.clock,
                    )
            except LedgerError:
                self.audience.tell(f"the trials so far are stored in run {self.id}")
                raise

    def limit_blocks(self, blocks: int) -> Run:
        """Return the same run with this total number of blocks as its limit."""
        plan = replace(self.plan, policy=replace(self.plan.policy, blocks=blocks))
        self.ledger.set_plan(self.id, plan)
        return replace(self, plan=plan)

    def judge(self) -> Judgement:
        """Judge the run together with earlier runs in the ledger, and store how long it took."""
        return self._store_elapsed(judge_run(self.ledger, self.id))

    def conclude(self) -> Judgement:
        """Judge the run, remember what it found for later ones, and show it.

        Its duration is stored after everything else but the presentation, so that it includes all of that.
        """
        judgement = judge_run(self.ledger, self.id)
        _remember(judgement, self.audience)
        judgement = self._store_elapsed(judgement)
        self.audience.present(judgement)
        return judgement

    def _store_elapsed(self, judgement: Judgement) -> Judgement:
        if self.clock is None:
            return judgement
        plan = judgement.stored.plan
        plan = replace(plan, context=replace(plan.context, elapsed_s=self.clock.elapsed_s))
        with self.ledger.claim_run(self.id):
            self.ledger.set_plan(self.id, plan)
        return replace(judgement, stored=replace(judgement.stored, plan=plan))
