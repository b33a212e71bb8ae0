"""What `exec` and `resume` share: probe, run, show, write."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from guestmark.cli import gates, options
from guestmark.cli.say import say
from guestmark.core.errors import ExitStatus, GuestmarkError, LedgerError, UsageError
from guestmark.core.model import PROVE, LeftOut, Plan, RunState, TrialStatus
from guestmark.ledger.model import StoredRun
from guestmark.page.text import inert

if TYPE_CHECKING:
    from guestmark.engine.progress import Observer
    from guestmark.foreign.progress import Progress
    from guestmark.ledger.remarks import Remarks
    from guestmark.ledger.store import Ledger
    from guestmark.page.nodes import Page
    from guestmark.platforms.base import Platform, Unusable, Usable
    from guestmark.platforms.probe import Startable
    from guestmark.stats.analysis import Analysis


@dataclass(frozen=True, slots=True)
class Outputs:
    """Where results go: paths, `-` for standard output, None for nowhere."""

    json: str | None = None
    csv: str | None = None
    markdown: str | None = None
    html: str | None = None
    quiet: bool = False
    published: bool = False  # published figures beside the measured ones
    prove: bool = False  # what a power cut would leave of the run's disks
    keep: bool = False  # disk images of trials that fail or are interrupted
    environment: bool = False  # what it was measured on
    details: bool = False  # how the runs of each cell differ, whether or not that says more than the headline
    said: Remarks | None = None  # a name, notes, labels and tags of the run
    gates: tuple[str, ...] = ()  # limits that a run must keep, as typed
    junit: str | None = None  # where to write what became of them
    wait: bool = True  # for machines that another guestmark uses
    page: Callable[[StoredRun], Page] | None = (
        None  # on the terminal instead of the report, in files before it
    )

    def files(self) -> list[tuple[str, str]]:
        """Format and destination of each output that was asked for."""
        asked = (("json", self.json), ("csv", self.csv), ("markdown", self.markdown), ("html", self.html))
        return [(name, path) for name, path in asked if path is not None]

    @property
    def save_junit(self) -> Callable[[bytes], None] | None:
        """Writes what became of gates where it was asked for."""
        path = self.junit
        return None if path is None else lambda data: write(data, path)

    @property
    def stdout_taken(self) -> bool:
        """Whether a document goes to standard output, so that nothing else may."""
        return self.junit == "-" or any(path == "-" for _, path in self.files())

    def check(self) -> None:
        """Raises `UsageError` for outputs that cannot be written, before anything is measured."""
        every = [*self.files(), *([] if self.junit is None else [("junit", self.junit)])]
        if sum(path == "-" for _, path in every) > 1:
            raise UsageError("only one document can go to standard output", hint="write the others to files")
        for name, path in every:
            folder = os.path.dirname(os.path.abspath(path))
            if path == "-":
                continue
            if not path or os.path.isdir(path):
                raise UsageError(f"--{name} {path!r} is not a file name", hint="e.g. result." + name)
            if not os.access(path if os.path.exists(path) else folder, os.W_OK):
                raise UsageError(
                    f"--{name} {path} cannot be written", hint=f"check that {folder} exists and is yours"
                )


def execute(plan: Plan, ledger_path: str | None, outputs: Outputs) -> int:
    """Runs a new plan to its end and returns the exit status."""
    from guestmark.engine import preflight
    from guestmark.ledger import open_ledger

    outputs.check()
    plan = gates.with_gates(plan, outputs.gates)
    preflight.check_requests(plan, plan.cells)  # before there is anything, even a ledger
    with open_ledger(ledger_path) as ledger:
        with exclusively(plan, outputs):
            plan, run_id = prepared(plan, ledger, outputs)
            state = measured(plan, ledger, run_id, outputs)
        return _finish(ledger, run_id, state, outputs)


@contextmanager
def exclusively(plan: Plan, outputs: Outputs) -> Iterator[None]:
    """Inside, no other guestmark measures on the machines that the plan uses, which are waited for if need be."""
    from guestmark.platforms import exclusive

    here = any(cell.platform.uses_this_host for cell in plan.cells)
    policy = exclusive.Policy(plan.name, wait=outputs.wait, tell=lambda text: _say(text, outputs, loud=True))
    with exclusive.measuring(policy, here=here):
        yield


def prepared(plan: Plan, ledger: Ledger, outputs: Outputs) -> tuple[Plan, str]:
    """The plan as far as it can be measured here, stored as a new run, and the run's id."""
    from guestmark.engine import preflight
    from guestmark.engine.environment import record_for
    from guestmark.ledger.remarks import NOTHING

    if outputs.said is not None:
        ledger.check_name(outputs.said.name)
    ledger.patience.notice = lambda text: _say(text, outputs, loud=True)
    ready = preflight.examine(plan, _prober(outputs), _progress(outputs))
    notes = [*plan.context.get("notes", ()), *ready.notes]
    context = {**ready.plan.context, "notes": notes, **({PROVE: True} if outputs.prove else {})}
    plan = replace(ready.plan, context=context)
    run_id = ledger.create_run(
        plan,
        record_for(plan),
        plan.policy.seed,
        left_out=ready.left_out,
        said=outputs.said or NOTHING,
    )
    _tell_left_out(ready.left_out, outputs)
    for note in notes:
        _say(note, outputs, loud=True)
    return plan, run_id


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


def resume(wanted: str, ledger_path: str | None, outputs: Outputs, further: Further) -> int:
    """Continues a stored run, also beyond what it was made for, and returns the exit status."""
    from guestmark.engine import preflight
    from guestmark.engine.environment import record_for
    from guestmark.ledger import open_ledger
    from guestmark.ledger.variables import restored

    outputs.check()
    with open_ledger(ledger_path) as ledger:
        ledger.patience.notice = lambda text: _say(text, outputs, loud=True)
        stored = ledger.load_run(wanted)
        if outputs.published:
            options.check_published(stored.plan)
        if stored.state in {RunState.COMPLETE, RunState.STOPPED} and not further.asked:
            said = f"run {stored.id} is already {stored.state.value}; nothing is left to do"
            _say(f"{said}\n  resume --blocks or --precision takes it further", outputs, loud=True)
            return _finish(ledger, stored.id, stored.state, outputs)
        plan = _extended(stored, further)
        if ledger.is_claimed(stored.id):
            with ledger.claim(stored.id):  # raises, naming the owner
                pass
        plan, gone = restored(plan, os.environ)
        if gone:
            _say(f"not set as they were when the run began: {', '.join(gone)}", outputs, loud=True)
        with exclusively(plan, outputs):
            ready = preflight.examine_again(plan, stored.unusable, _prober(outputs))
            if further.asked:
                with ledger.claim(stored.id):
                    ledger.set_plan(stored.id, plan)
            ledger.add_environment(stored.id, record_for(plan))
            for entry in ready.left_out:
                ledger.record_left_out(stored.id, entry)
            _tell_left_out(ready.left_out, outputs)
            state = measured(plan, ledger, stored.id, outputs)
        return _finish(ledger, stored.id, state, outputs)


def _extended(stored: StoredRun, further: Further) -> Plan:
    """The run's plan for as long as it is to go on now; it keeps what was asked for and when."""
    if not further.asked:
        return stored.plan
    from guestmark.stats.stopping import extended

    done = len({trial.block for trial in stored.trials})
    if further.blocks is not None and further.blocks <= done:
        raise UsageError(
            f"--blocks {further.blocks}: run {stored.id} has {done} blocks already",
            hint=f"it is their number in all, e.g. --blocks {2 * done}",
        )
    policy = extended(
        stored.plan.policy,
        stored.trials,
        blocks=further.blocks,
        precision=further.precision,
        time_limit_s=further.time_limit_s,
    )
    before = stored.plan.context.get("extended", ())
    context = {**stored.plan.context, "extended": [*before, {"after_blocks": done, **further.asked}]}
    return replace(stored.plan, policy=policy, context=context)


def measured(plan: Plan, ledger: Ledger, run_id: str, outputs: Outputs) -> RunState:
    """Runs a stored plan from where its trials end; how it ended."""
    from guestmark.engine import runner
    from guestmark.engine.interrupt import Interruption
    from guestmark.platforms import exclusive

    interruption = Interruption()
    with interruption.handled(), _keeping(outputs):
        try:
            with _observer(outputs) as observer, exclusive.telling(observer.note):
                return runner.run(plan, ledger, run_id, observer=observer, interruption=interruption)
        except LedgerError as error:
            _say(f"what has been measured so far is in run {run_id}", outputs, loud=True)
            raise LedgerError(error.message, hint=error.hint) from error


@contextmanager
def _keeping(outputs: Outputs) -> Iterator[None]:
    """Keeps the images of failed trials if asked to, and says where they are."""
    if not outputs.keep:
        yield
        return
    from guestmark.disks.store import store

    store().keep = True
    try:
        yield
    finally:
        for path in store().left:
            _say(f"kept for you to inspect and remove: {path}", outputs, loud=True)


def _finish(ledger: Ledger, run_id: str, state: RunState, outputs: Outputs) -> int:
    from guestmark.ledger import past

    stored = ledger.load_run(run_id)
    analysis = past.judged(ledger, stored)
    show(stored, outputs, analysis)
    try:
        past.remember(ledger, stored, analysis)
    except (
        LedgerError
    ) as error:  # the result is shown and stored: later runs are not held against it, no more
        _say(f"later runs cannot be held against this one: {error.message}", outputs, loud=True)
    status = _status(stored, state)
    judged = gates.judge(stored, analysis, outputs.save_junit)
    if judged is None:
        return int(status)
    usable = status in {ExitStatus.ALL_MEASURED, ExitStatus.SOME_FAILED}
    return int(judged) if usable else gates.failed(status)


def show(stored: StoredRun, outputs: Outputs, analysis: Analysis) -> None:
    """Prints the report and writes the requested documents."""
    from guestmark.report.render.terminal import print_page, print_report

    page = None if outputs.page is None else outputs.page(stored)
    first = () if page is None else page.sections
    for name, path in outputs.files():
        from guestmark.report import export_format, formats

        write(formats.render(stored, export_format.Format(name), analysis, first=first), path)
    if not outputs.stdout_taken:
        from guestmark.cli.console import Console

        console = Console()
        with writing_to_stdout():
            if page is not None:
                print_page(page, console)
                return
            print_report(
                stored,
                console,
                analysis=analysis,
                published=outputs.published,
                environment=outputs.environment,
                details=outputs.details,
            )


@contextmanager
def writing_to_stdout() -> Iterator[None]:
    """Reports a failed write in one line. A closed pipe is not an error; see `faults`."""
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        if error.errno in {errno.EPIPE, errno.EIO}:
            raise
        # What is left in the buffer would fail once more when the interpreter ends.
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, sys.stdout.fileno())
        os.close(sink)
        raise GuestmarkError(
            f"standard output cannot be written: {error.strerror or error}",
            hint="the run is in the ledger all the same: guestmark show last prints it again",
        ) from error


def write(data: bytes, path: str) -> None:
    """Writes a document to a file, or for `-` to standard output. Raises `GuestmarkError` when it cannot."""
    if path == "-":
        with writing_to_stdout():
            sys.stdout.flush()
            # Documents hold text as it is; only a terminal would take some of it for orders.
            shown = inert(data.decode(errors="replace"), lines=True).encode() if sys.stdout.isatty() else data
            sys.stdout.buffer.write(shown)
            sys.stdout.buffer.flush()
        return
    from pathlib import Path

    from guestmark.report import formats

    formats.write(Path(path), data)


def _status(stored: StoredRun, state: RunState) -> ExitStatus:
    if state is RunState.INTERRUPTED:
        return ExitStatus.INTERRUPTED
    good = sum(trial.status is TrialStatus.OK for trial in stored.trials)
    if good == 0:
        return ExitStatus.NOTHING_MEASURED
    # A requested platform that was left out was not measured, and a script must be able to notice.
    everything = good == len(stored.trials) and not stored.unusable
    return ExitStatus.ALL_MEASURED if everything else ExitStatus.SOME_FAILED


def _tell_left_out(left_out: Iterable[LeftOut], outputs: Outputs) -> None:
    for entry in left_out:
        hint = f"\n  {entry.hint}" if entry.hint else ""
        _say(f"{entry.name} cannot be used here and is left out: {entry.reason}{hint}", outputs, loud=True)


def _progress(outputs: Outputs) -> Progress:
    """How the making of something that takes minutes is told."""
    from guestmark.foreign import progress

    return progress.Progress() if outputs.quiet else progress.Lines(say)


def _prober(outputs: Outputs) -> Callable[[list[Platform]], Mapping[str, Usable | Unusable]]:
    from threading import Timer

    from guestmark.platforms.probe import probe_all

    def check(platforms: list[Platform]) -> Mapping[str, Usable | Unusable]:
        # Of files that cells ask for, the name has their state, too, by which findings are remembered.
        names = ", ".join(dict.fromkeys(platform.name.partition(" ")[0] for platform in platforms))
        slow = Timer(0.5, _say, (f"checking whether {names} can be used here …", outputs))
        slow.daemon = True
        slow.start()
        try:
            return probe_all(cast("list[Startable]", platforms))
        finally:
            slow.cancel()

    return check


def _observer(outputs: Outputs) -> AbstractContextManager[Observer]:
    if outputs.quiet:
        from guestmark.engine.progress import Silent

        return nullcontext(Silent())
    if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        from guestmark.cli.live import Live

        return Live()
    from guestmark.cli.lines import Lines

    return nullcontext(Lines())


def _say(text: str, outputs: Outputs, *, loud: bool = False) -> None:
    """Writes a line to standard error; without `loud`, only when progress is shown."""
    if loud or not outputs.quiet:
        say(text)
