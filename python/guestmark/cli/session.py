"""What every verb that measures shares: the run is made by the engine, here it is shown and written."""

from __future__ import annotations

import errno
import functools
import gc
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from guestmark.cli import gates
from guestmark.cli.style import Style
from guestmark.core.errors import ExitStatus, GuestmarkError, UsageError
from guestmark.core.findings import FailedRuns
from guestmark.core.model import Plan, RunState, TrialStatus
from guestmark.ledger.model import StoredRun
from guestmark.page import figures
from guestmark.page.figures import TimeUnit
from guestmark.page.say import say
from guestmark.page.text import inert
from guestmark.report.export_format import Format
from guestmark.report.row_order import Sort, ordered

if TYPE_CHECKING:
    from guestmark.engine.audience import Audience
    from guestmark.engine.judgement import Judgement
    from guestmark.engine.progress import Observer
    from guestmark.engine.run import RunOptions
    from guestmark.engine.stored_run import ExtensionRequest
    from guestmark.ledger.run_annotations import Remarks
    from guestmark.page.nodes import Page
    from guestmark.stats.analysis import Analysis


_EXPORTS = {  # format: the option of hyperfine that names its file
    Format.HYPERFINE: "--export-json",
    Format.HYPERFINE_CSV: "--export-csv",
    Format.HYPERFINE_MARKDOWN: "--export-markdown",
    Format.HYPERFINE_ASCIIDOC: "--export-asciidoc",
    Format.HYPERFINE_ORGMODE: "--export-orgmode",
}


@dataclass(frozen=True, slots=True)
class Outputs:
    """Where results go: paths, `-` for standard output, None for nowhere."""

    json: str | None = None
    csv: str | None = None
    markdown: str | None = None
    html: str | None = None
    exports: Mapping[Format, str] = field(default_factory=dict)  # in hyperfine's formats
    style: Style = Style.AUTO
    unit: TimeUnit | None = None  # of times, instead of one that fits
    sort: Sort = Sort.AUTO
    referenced: bool = False  # somebody chose what the others are relative to
    quiet: bool = False
    show_output: bool = False  # what commands print, after each trial
    published: bool = False  # published figures beside the measured ones
    prove: bool = False  # what a power cut would leave of the run's disks
    budget_s: float | None = None  # wall time of the whole command, which decides what is measured
    keep: bool = False  # disk images of trials that fail or are interrupted
    environment: bool = False  # what it was measured on
    details: bool = False  # the whole report instead of the answer
    said: Remarks | None = None  # a name, notes, labels and tags of the run
    gates: tuple[str, ...] = ()  # limits that a run must keep, as typed
    junit: str | None = None  # where to write what became of them
    wait: bool = True  # for machines that another guestmark uses
    quiet_host: bool = False  # while the run lasts
    partial: bool = True  # whether to measure although most platforms cannot be used
    page: Callable[[StoredRun], Page] | None = (
        None  # on the terminal instead of the report, in files before it
    )

    def files(self) -> list[tuple[str, Format, str]]:
        """Option, format and destination of each output that was asked for."""
        asked = (
            ("--json", Format.JSON, self.json), ("--csv", Format.CSV, self.csv),
            ("--markdown", Format.MARKDOWN, self.markdown), ("--html", Format.HTML, self.html),
            *((_EXPORTS[form], form, path) for form, path in self.exports.items()),
        )  # fmt: skip
        return [(option, form, path) for option, form, path in asked if path is not None]

    @property
    def save_junit(self) -> Callable[[bytes], None] | None:
        """Writes what became of gates where it was asked for."""
        path = self.junit
        return None if path is None else lambda data: write(data, path)

    @property
    def run_options(self) -> RunOptions:
        """How a new run is made."""
        from guestmark.engine.run import RunOptions
        from guestmark.ledger.run_annotations import NOTHING

        return RunOptions(self.said or NOTHING, self.prove, self.budget_s, self.wait, self.partial)

    @property
    def stdout_taken(self) -> bool:
        """Whether a document goes to standard output, so that nothing else may."""
        return self.junit == "-" or any(path == "-" for *_, path in self.files())

    def check(self) -> None:
        """Raises `UsageError` for outputs that cannot be written, before anything is measured."""
        every = [(option, path) for option, _, path in self.files()]
        every += [] if self.junit is None else [("--junit", self.junit)]
        if sum(path == "-" for _, path in every) > 1:
            raise UsageError("only one document can go to standard output", hint="write the others to files")
        for option, path in every:
            folder = os.path.dirname(os.path.abspath(path))
            if path == "-":
                continue
            if not path or os.path.isdir(path):
                raise UsageError(f"{option} {path!r} is not a file name", hint=f"e.g. {option} result")
            if not os.access(path if os.path.exists(path) else folder, os.W_OK):
                raise UsageError(
                    f"{option} {path} cannot be written", hint=f"check that {folder} exists and is yours"
                )


def execute(plan: Plan, ledger_path: str | None, outputs: Outputs) -> int:
    """Runs a new plan to its end, shows and writes what came of it, and returns the exit status."""
    from guestmark.core.gate import check_proofs, with_gates
    from guestmark.engine import preflight
    from guestmark.engine.clock import start_process_clock
    from guestmark.engine.run import execute_plan
    from guestmark.ledger import open_ledger

    gc.disable()  # looking for garbage while modules are loaded takes a tenth of the time
    outputs.check()
    plan = with_gates(plan, outputs.gates)
    check_proofs(plan, proving=outputs.prove)
    preflight.check_requests(plan, plan.cells)  # before there is anything, even a ledger
    audience = audience_of(outputs)
    with _quieted(outputs), open_ledger(ledger_path) as ledger:
        judgement, state = execute_plan(
            plan, ledger, audience, outputs.run_options, clock=start_process_clock()
        )
        return _finish(judgement, state, outputs)


@contextmanager
def _quieted(outputs: Outputs) -> Iterator[None]:
    """The host is quiet for the run, if that was asked for, and each change is said."""
    if not outputs.quiet_host:
        yield
        return
    from guestmark.engine.quiet_host import find_lost_changes, quiet_host, summarise_changes

    with quiet_host() as outcome:
        for line in summarise_changes(outcome.changed):
            say(f"quiet host: {line}")
        for line in summarise_changes(outcome.refused):
            say(f"quiet host: refused: {line}")
        yield
        for line in summarise_changes(find_lost_changes()):
            say(f"quiet host: another program has undone {line}")


def prepare(plan: Plan, ledger_path: str | None, outputs: Outputs) -> str:
    """Stores a new run of what can be measured here, and returns its id."""
    from guestmark.core.gate import with_gates
    from guestmark.engine import preflight
    from guestmark.engine.run import prepare_run
    from guestmark.ledger import open_ledger

    plan = with_gates(plan, outputs.gates)
    preflight.check_requests(plan, plan.cells)
    with open_ledger(ledger_path) as ledger:
        return prepare_run(plan, ledger, audience_of(outputs), outputs.run_options).id


def resume(
    wanted: str, ledger_path: str | None, outputs: Outputs, further: ExtensionRequest, *, trust: bool = False
) -> int:
    """Continues a stored run, also beyond what it was made for, and returns the exit status."""
    from guestmark.engine.clock import start_process_clock
    from guestmark.engine.judgement import judge_run
    from guestmark.engine.run import present_and_remember
    from guestmark.engine.stored_run import resume_run
    from guestmark.ledger import open_ledger

    outputs.check()
    with open_ledger(ledger_path) as ledger:
        stored = ledger.load_run(wanted)
        if outputs.published:
            from guestmark.cli import options

            options.check_published(stored.plan)
        state, audience = stored.state, audience_of(outputs)
        if state in {RunState.COMPLETE, RunState.STOPPED} and not further.asked:
            say(f"run {stored.id} is already {state.value}; nothing is left to do")
            say("resume --blocks or --precision takes it further", prefix="  ")
            judgement = judge_run(ledger, stored.id)
            present_and_remember(judgement, audience)
            return _finish(judgement, state, outputs)
        with _quieted(outputs):
            judgement, state = resume_run(
                stored, ledger, audience, further, wait=outputs.wait, clock=start_process_clock(), trust=trust
            )
        return _finish(judgement, state, outputs)


def audience_of(outputs: Outputs) -> Audience:
    """The person at the terminal, who hears of progress unless they asked for quiet."""
    from guestmark.engine.audience import Audience
    from guestmark.foreign.progress import LineProgress

    def present(judgement: Judgement) -> None:
        show(judgement.stored, outputs, judgement.analysis)

    observed = functools.partial(_observed, outputs)
    if outputs.quiet:
        return Audience(say, observe=observed, present=present)
    return Audience(say, mention=say, progress=LineProgress(say), observe=observed, present=present)


@contextmanager
def _observed(outputs: Outputs) -> Iterator[Observer]:
    """While it is measured: progress is shown, and images of failed trials are kept if that was asked for."""
    from guestmark.disks.store import scratch_store
    from guestmark.engine.progress import SilentObserver

    gc.freeze()  # what was loaded stays
    gc.enable()
    scratch_store().keep = outputs.keep
    try:
        with nullcontext(SilentObserver()) if outputs.quiet else _observer(outputs) as observer:
            yield observer
    finally:
        gc.disable()
        for path in scratch_store().left if outputs.keep else ():
            say(f"kept for you to inspect and remove: {path}")


def _finish(judgement: Judgement, state: RunState, outputs: Outputs) -> int:
    ended = _status(judgement.stored, state)
    judged = gates.judge(judgement.stored, judgement.analysis, outputs.save_junit)
    status = int(ended)
    if judged is not None:
        usable = ended in {ExitStatus.ALL_MEASURED, ExitStatus.SOME_FAILED}
        status = int(judged) if usable else gates.failed(ended)
    left_out = dict.fromkeys(entry.name for entry in judgement.stored.unusable)
    # Somebody named them, and a script may read this line alone.
    if left_out and judgement.stored.plan.context.typed:
        say(f"not measured, as it cannot be used here: {', '.join(left_out)} (exit status {status})")
    return status


def show(
    stored: StoredRun, outputs: Outputs, analysis: Analysis, *, latest: bool = True, read: bool = False
) -> None:
    """Prints the answer, or with `details` the report, and writes the requested documents.

    `latest`: the run is the newest of its ledger, which `guestmark show` shows without its name. `read`: somebody
    asked to read it, so a pager may open; after a measurement none does, as whatever is to follow would wait for it.
    """
    page = None if outputs.page is None else outputs.page(stored)
    analysis = ordered(analysis, outputs.sort)
    with figures.times_in(outputs.unit):
        _show(stored, outputs, analysis, page, latest=latest, read=read)


def _show(
    stored: StoredRun, outputs: Outputs, analysis: Analysis, page: Page | None, *, latest: bool, read: bool
) -> None:
    first = () if page is None else page.sections
    for _, form, path in outputs.files():
        from guestmark.report import formats

        document = formats.render(stored, form, analysis, first=first, referenced=outputs.referenced)
        write(document, path)
    if outputs.stdout_taken or outputs.style is Style.NONE:
        return
    from guestmark.cli.console import Console, paged
    from guestmark.report.render import terminal

    console = Console(style=outputs.style)
    if page is None:
        if outputs.published and not (outputs.details or outputs.environment):
            from guestmark.report.short_report import make_then_and_now

            page = make_then_and_now(stored, analysis, width=console.width, latest=latest)
        elif outputs.details or outputs.environment:
            from guestmark.report.full_report import make_page

            page = make_page(
                stored,
                analysis,
                with_published=outputs.published,
                with_environment=outputs.environment,
                details=outputs.details,
            )
        else:
            from guestmark.report.short_report import make_short_report

            page = make_short_report(stored, analysis, width=console.width, latest=latest)
    with writing_to_stdout():
        text = terminal.drawn(page, console)
        if read and not outputs.quiet:
            paged(text, console)
        else:
            console.file.write(text)


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
    whole = not any(trial.facts.of(FailedRuns) for trial in stored.trials)
    everything = good == len(stored.trials) and not stored.unusable and whole
    return ExitStatus.ALL_MEASURED if everything else ExitStatus.SOME_FAILED


def _observer(outputs: Outputs) -> AbstractContextManager[Observer]:
    if outputs.style.live(usual=sys.stderr.isatty() and os.environ.get("TERM") != "dumb"):
        from guestmark.cli.console import Console
        from guestmark.cli.live import Live

        console = Console(stderr=True, style=outputs.style)
        return Live(console, show_output=outputs.show_output, planning=outputs.details)
    from guestmark.cli.lines import Lines

    width = os.get_terminal_size(sys.stderr.fileno()).columns if sys.stderr.isatty() else None
    return Lines(show_output=outputs.show_output, width=width or None, planning=outputs.details)
