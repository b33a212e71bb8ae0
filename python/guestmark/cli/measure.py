"""Measures a run, shows its progress and its result, and returns the exit status."""

from __future__ import annotations

import functools
import gc
import itertools
import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from guestmark.cli.console import Console
from guestmark.cli.exit_status import derive_unjudged_status
from guestmark.cli.gate_status import report_gates
from guestmark.cli.outputs import Outputs, check_published
from guestmark.cli.plain_progress import PlainProgress
from guestmark.cli.present import show_result
from guestmark.core.errors import ExitStatus
from guestmark.core.findings import FailedRuns
from guestmark.core.gate import add_gates, check_power_is_cut
from guestmark.core.model import LeftOut, Plan, RunState, TrialStatus
from guestmark.disks.scratch import get_scratch_store
from guestmark.engine import preflight, quiet_host, run
from guestmark.engine.audience import Audience
from guestmark.engine.clock import start_process_clock
from guestmark.engine.judgement import Judgement, judge_run
from guestmark.engine.progress import Observer, SilentObserver
from guestmark.engine.stored_run import ExtensionRequest, resume_run
from guestmark.foreign.progress import LineProgress
from guestmark.ledger import open_ledger
from guestmark.ledger.model import StoredRun
from guestmark.page.say import say


def measure_plan(plan: Plan, ledger_path: str | None, outputs: Outputs) -> int:
    """Runs a new plan to its end, shows and writes the result, and returns the exit status."""
    # Garbage collection would take a tenth of the time in which modules are loaded and plans are read.
    gc.disable()
    outputs.check()
    plan = add_gates(plan, outputs.gates)
    check_power_is_cut(plan, proving=outputs.prove)
    # A request that cannot be met must not leave anything behind, not even a ledger.
    preflight.check_requests(plan, plan.cells)
    with _keep_host_quiet(outputs), open_ledger(ledger_path) as ledger:
        judgement, state = run.execute_plan(
            plan, ledger, build_audience(outputs), _make_run_options(outputs), clock=start_process_clock()
        )
        return _finish_run(judgement, state, outputs)


def create_run(plan: Plan, ledger_path: str | None, outputs: Outputs) -> str:
    """Stores a new run of what can be measured here, without measuring it, and returns its id."""
    plan = add_gates(plan, outputs.gates)
    preflight.check_requests(plan, plan.cells)
    with open_ledger(ledger_path) as ledger:
        return run.prepare_run(plan, ledger, build_audience(outputs), _make_run_options(outputs)).id


def continue_run(
    wanted: str, ledger_path: str | None, outputs: Outputs, further: ExtensionRequest, *, trust: bool = False
) -> int:
    """Continues a stored run, even beyond its planned end, and returns the exit status."""
    outputs.check()
    with open_ledger(ledger_path) as ledger:
        stored = ledger.load_run(wanted)
        if outputs.published:
            check_published(stored.plan)
        state, audience = stored.state, build_audience(outputs)
        if state in {RunState.COMPLETE, RunState.STOPPED} and not further.asked:
            say(f"run {stored.id} is already {state.value}; nothing is left to do")
            say(f"to extend it: guestmark resume {stored.id} --blocks N, or --precision PERCENT", prefix="  ")
            judgement = judge_run(ledger, stored.id)
            run.present_and_remember(judgement, audience)
            return _finish_run(judgement, state, outputs)
        with _keep_host_quiet(outputs):
            judgement, state = resume_run(
                stored, ledger, audience, further, wait=outputs.wait, clock=start_process_clock(), trust=trust
            )
        return _finish_run(judgement, state, outputs)


def _make_run_options(outputs: Outputs) -> run.RunOptions:
    return run.RunOptions(outputs.remarks, outputs.prove, outputs.budget_s, outputs.wait, outputs.partial)


@contextmanager
def _keep_host_quiet(outputs: Outputs) -> Iterator[None]:
    """Keeps the host quiet for the run if this was requested, and reports each change."""
    if not outputs.quiet_host:
        yield
        return
    with quiet_host.quiet_host() as outcome:
        for line in quiet_host.summarize_changes(outcome.changed):
            say(f"quiet host: {line}")
        for line in quiet_host.summarize_changes(outcome.refused):
            say(f"quiet host: refused: {line}")
        yield
        for line in quiet_host.summarize_changes(quiet_host.find_undone_changes()):
            say(f"quiet host: another program has undone {line}")


def build_audience(outputs: Outputs) -> Audience:
    """Builds the audience of a run: the person at the terminal, who sees progress unless they asked for quiet."""

    def present(judgement: Judgement) -> None:
        show_result(judgement.stored, outputs, judgement.analysis)

    observe = functools.partial(_observe_measuring, outputs)
    if outputs.quiet:
        return Audience(say, observe=observe, present=present)
    return Audience(say, mention=say, progress=LineProgress(say), observe=observe, present=present)


@contextmanager
def _observe_measuring(outputs: Outputs) -> Iterator[Observer]:
    """Shows progress while the engine measures, and keeps images of failed trials if this was requested."""
    # What was loaded until now stays for good, so collections need not look at it.
    gc.freeze()
    gc.enable()
    get_scratch_store().keep = outputs.keep
    try:
        with nullcontext(SilentObserver()) if outputs.quiet else _choose_observer(outputs) as observer:
            yield observer
    finally:
        gc.disable()
        for path in get_scratch_store().left if outputs.keep else ():
            say(f"kept for you to inspect and remove: {path}")


def _choose_observer(outputs: Outputs) -> AbstractContextManager[Observer]:
    is_terminal = sys.stderr.isatty()
    if outputs.style.is_redrawn(by_default=is_terminal and os.environ.get("TERM") != "dumb"):
        # Plain lines need none of the code that redraws a terminal, which takes long to import.
        from guestmark.cli.live_progress import LiveProgress

        console = Console(stderr=True, style=outputs.style)
        return LiveProgress(console, show_output=outputs.show_output, show_forecast=outputs.details)
    width = os.get_terminal_size(sys.stderr.fileno()).columns if is_terminal else None
    # A terminal that does not know its size reports 0 columns.
    return PlainProgress(show_output=outputs.show_output, width=width or None, show_forecast=outputs.details)


def _finish_run(judgement: Judgement, state: RunState, outputs: Outputs) -> int:
    """Judges the gates, and returns the exit status."""
    stored = judgement.stored
    ended = derive_exit_status(stored, state)
    status = int(ended)
    if stored.plan.context.gates:
        status = _judge_gates(judgement, ended, outputs)
    left_out = dict.fromkeys(entry.name for entry in stored.unusable)
    # The user named these platforms, and a script may read this line alone.
    if left_out and stored.plan.context.typed:
        say(f"not measured, because it cannot be used here: {', '.join(left_out)} (exit status {status})")
    return status


def _judge_gates(judgement: Judgement, ended: ExitStatus, outputs: Outputs) -> int:
    # Few runs have gates, and their files and sentences take long to import.
    status = report_gates(judgement.stored, judgement.analysis, outputs.save_junit)
    if status is None:
        return int(ended)
    usable = ended in {ExitStatus.ALL_MEASURED, ExitStatus.SOME_FAILED}
    return int(status) if usable else derive_unjudged_status(ended)


def derive_exit_status(stored: StoredRun, state: RunState) -> ExitStatus:
    """Returns the exit status of a run that has ended in this state."""
    if state is RunState.INTERRUPTED:
        return ExitStatus.INTERRUPTED
    succeeded = sum(trial.status is TrialStatus.OK for trial in stored.trials)
    if succeeded == 0:
        return ExitStatus.NOTHING_MEASURED
    # A script must be able to notice that a requested platform was left out. What a plan of questions would measure on
    # other hosts was not requested by name: its questions are about what this host has.
    all_measured = (
        succeeded == len(stored.trials)
        and not any(_is_requested(stored.plan, entry) for entry in stored.unusable)
        and not any(trial.facts.find_fact(FailedRuns) for trial in stored.trials)
    )
    return ExitStatus.ALL_MEASURED if all_measured else ExitStatus.SOME_FAILED


def _is_requested(plan: Plan, left_out: LeftOut) -> bool:
    """Returns whether what was left out was named by the user, or belongs to a plan without questions."""
    if not plan.questions and not plan.context.asks:
        return True
    named = set(itertools.chain.from_iterable(plan.context.named))
    return any(left_out.covers(cell) and cell.id in named for cell in plan.cells)
