"""Stored runs: extending, resuming, or measuring them block by block in several processes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace

from guestmark.core.actions import list_actions
from guestmark.core.context import Extension
from guestmark.core.errors import BlockStatus, Interrupted, PlatformUnusableError, UsageError
from guestmark.core.model import Plan, RunState
from guestmark.engine import block_worker, budget, preflight
from guestmark.engine.audience import Audience, hold_machines, make_prober
from guestmark.engine.clock import RunClock, start_clock
from guestmark.engine.environment import record_run_environment
from guestmark.engine.interrupt import Interruption
from guestmark.engine.judgement import Judgement
from guestmark.engine.run import Run
from guestmark.engine.trial_schedule import count_iterations_by_cell, find_last_block, sum_durations
from guestmark.ledger.environment_variables import restore_values
from guestmark.ledger.model import RunHead, RunOrigin, StoredRun
from guestmark.ledger.store import Ledger
from guestmark.plan.policy_options import select_given_values
from guestmark.platforms import exclusive
from guestmark.stats import stopping
from guestmark.stats.conditions.surroundings import compare_environments, digest_environment


@dataclass(frozen=True, slots=True)
class ExtensionRequest:
    """New limits for a run that is extended; None keeps a limit."""

    blocks: int | None = None
    precision: float | None = None
    time_limit_s: float | None = None

    @property
    def asked(self) -> dict[str, float]:
        """The limits that were given."""
        given = {"blocks": self.blocks, "precision": self.precision, "time_limit_s": self.time_limit_s}
        return select_given_values(given)


def make_extended_plan(stored: StoredRun, request: ExtensionRequest) -> Plan:
    """Return the run's plan with its new limits; it records each extension.

    Raises `UsageError` for fewer blocks than the run has.
    """
    if not request.asked:
        return stored.plan
    done = stored.blocks
    if request.blocks is not None and request.blocks <= done:
        raise UsageError(
            f"--blocks {request.blocks}: run {stored.id} has {done} blocks already",
            hint=f"N counts all blocks, e.g. --blocks {2 * done}",
        )
    used_s = find_spent_s(stored)
    policy = stopping.extend_policy(
        stored.plan.policy,
        stored.trials,
        blocks=request.blocks,
        precision=request.precision,
        time_limit_s=request.time_limit_s,
        used_s=used_s,
    )
    extension = Extension(done, request.blocks, request.precision, request.time_limit_s)
    context = stored.plan.context
    context = replace(context, extended=(*context.extended, extension), iterations=_keep_iterations(stored))
    # A used-up budget would leave out all cells, and cells that it left out may fit into the new one.
    if context.budget_s is not None:
        added_s = request.time_limit_s or context.budget_s
        context = replace(context, budget_s=used_s + added_s, no_time=())
        if context.budget_limits_trials:
            policy = replace(policy, trial_limit_s=max(policy.trial_limit_s, budget.limit_trial(added_s)))
    return replace(stored.plan, policy=policy, context=context)


def _keep_iterations(stored: StoredRun) -> Mapping[str, int]:
    """Return how many iterations the next trials of each cell hold: as many as before, whatever the new limits.

    The run's answers would leave out trials of another length.
    """
    last = find_last_block(stored.trials)
    # Before the first block nothing has been chosen yet.
    if stored.plan.policy.iterations is not None or last < 0:
        return stored.plan.context.iterations
    return count_iterations_by_cell(stored.plan, stored.plan.cells, last + 1, stored.trials)


def find_spent_s(stored: StoredRun) -> float:
    """Return the seconds of wall time that the run has taken; for runs of version 0.2, the sum over its trials."""
    return float(stored.plan.context.elapsed_s or sum_durations(stored.trials))


def require_trust(stored: StoredRun | RunHead, tell: Callable[[str], None], *, trust: bool) -> None:
    """Show what another user's run would execute here. Raises `UsageError` for one that is not trusted."""
    if stored.origin is None:
        return
    show_actions(stored.id, stored.plan, stored.origin, tell)
    if not trust and not stored.origin.trusted:
        raise UsageError(
            f"run {stored.id} {stored.origin.describe()}",
            hint="to run its commands, which are shown above, add --trust",
        )


def show_actions(run_id: str, plan: Plan, origin: RunOrigin, tell: Callable[[str], None]) -> None:
    """Show everything that another user's run would execute, exactly and in full."""
    tell(f"run {run_id} {origin.describe()}, and this is what it runs:")
    for name, value in list_actions(plan):
        tell(f"  {name}: {value}")


def resume_run(
    stored: StoredRun,
    ledger: Ledger,
    audience: Audience,
    request: ExtensionRequest = ExtensionRequest(),
    *,
    wait: bool = True,
    clock: RunClock | None = None,
    trust: bool = False,
) -> tuple[Judgement, RunState]:
    """Measure a stored run from where it stopped, or beyond its original limits; judge and remember it.

    A run from elsewhere is measured only with `trust`, after everything that it would execute has been shown.
    Raises `LedgerError` if another process executes it, and what `preflight.examine_again` raises.
    """
    require_trust(stored, audience.tell, trust=trust)
    ledger.patience.notice = audience.tell
    clock = (clock or start_clock()).add_earlier_time(find_spent_s(stored))
    asked = time.monotonic()
    plan = make_extended_plan(stored, request)
    # Raise now rather than after waiting for the machine.
    if ledger.is_claimed(stored.id):
        with ledger.claim_run(stored.id):  # raises, naming the owner
            pass
    plan, missing = restore_values(plan, os.environ)
    if missing:
        audience.tell(f"environment variables of this run that are no longer set: {', '.join(missing)}")
    with hold_machines(plan, audience.tell, wait=wait):
        clock = clock.exclude(time.monotonic() - asked)
        ready = preflight.examine_again(plan, stored.unusable, make_prober(audience))
        if request.asked:
            with ledger.claim_run(stored.id):
                ledger.set_plan(stored.id, plan)
        # The kernel or the load may have changed since.
        ledger.add_environment(stored.id, record_run_environment(plan))
        for entry in ready.left_out:
            ledger.record_left_out(stored.id, entry)
        audience.tell_left_out(ready.left_out)
        run = Run(stored.id, plan, ledger, audience, clock)
        state = run.measure()
    return run.conclude(), state


def measure_next_block(
    head: RunHead,
    ledger: Ledger,
    audience: Audience,
    machine: str,
    *,
    interruption: Interruption | None = None,
    wait: bool = True,
    trust: bool = False,
    examined: bool = False,
    alone: bool = False,
) -> BlockStatus:
    """Measure and store one block of a stored run that no other process has claimed, as the machine named `machine`.

    Any number of processes may do so at the same time, on any machines that reach the ledger. If a platform of the
    run cannot be used here, nothing is begun, unless the machine measures the run `alone`; `examined` says that this
    was checked, and the environment stored, before. Raises `TakenError` as `block_worker.measure_block`.
    """
    require_trust(head, audience.tell, trust=trust)
    ledger.patience.notice = audience.tell
    plan, _ = restore_values(head.plan, os.environ)
    own = Interruption()
    with hold_machines(plan, audience.tell, wait=wait):
        if not examined:
            if not alone and not _can_measure_all(plan, head, audience):
                return BlockStatus.NOT_POSSIBLE
            _add_environment(ledger, head.id, plan)
        with (
            nullcontext() if interruption is not None else own.handle_signals(),
            audience.observe() as observer,
            exclusive.announce_waits(observer.note),
        ):
            try:
                return block_worker.measure_block(
                    plan, ledger, head, machine=machine, observer=observer, interruption=interruption or own
                )
            except Interrupted:
                return BlockStatus.INTERRUPTED


def _can_measure_all(plan: Plan, head: RunHead, audience: Audience) -> bool:
    """Return whether all platforms of the run can be used here; report why not."""
    try:
        missing = preflight.examine_again(plan, head.unusable, make_prober(audience)).left_out
    except PlatformUnusableError as error:
        audience.tell(f"{error.message}\n  {error.hint}")
        return False
    for entry in missing:
        audience.tell(f"{entry.name} cannot be used on this machine: {entry.reason}\n  {entry.hint}")
    return not missing


def _add_environment(ledger: Ledger, run_id: str, plan: Plan) -> None:
    """Record this machine's environment, unless the run has one that is equal in all facts that matter."""
    here = record_run_environment(plan)
    ledger.add_environment_of(
        run_id, here, digest_environment(here), lambda known: compare_environments(known, here) == ({}, {})
    )
