"""`guestmark gate`: the limits that a run must keep, held against what it found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from guestmark.cli import options
from guestmark.core.home import LATEST

if TYPE_CHECKING:
    from guestmark.cli.session import Outputs


def command(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN...]",
            help="A run's id, its beginning or end, or `last`. Several are sessions of one question.",
            autocompletion=options.complete_run,
        ),
    ] = None,
    *,
    fail_if: options.FailIf = None,
    junit: options.Junit = None,
    json: options.Json = None,
    markdown: options.Markdown = None,
    html: options.Html = None,
    ledger: options.Ledger = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Nothing but the exit status.")] = False,
) -> None:
    """Say whether a run keeps its limits, and exit as build servers and `git bisect run` expect.

    Several runs, from other times or machines, are judged together. The run is then the unit, because a machine or an
    hour shifts all blocks of its run alike.

    Without --fail-if, the run's own gates are used. If GITHUB_STEP_SUMMARY names a file, a table is appended to it.

    Exit status: 0 all limits are kept, 1 one is broken, 125 undecided (it says how many more blocks are needed),
    128 or more it could not be judged.
    """
    from dataclasses import replace

    from guestmark.cli import gates
    from guestmark.cli.session import Outputs, show
    from guestmark.core.errors import ExitStatus, UsageError
    from guestmark.core.gate import with_gates
    from guestmark.ledger import open_ledger, run_history
    from guestmark.page.nodes import Page, Part, Section
    from guestmark.report.sections import gate_outcomes

    outputs = Outputs(json=json, markdown=markdown, html=html, junit=junit, quiet=quiet)
    outputs.check()
    if runs and len(runs) > 1:
        _judge_sessions(runs, fail_if, outputs, ledger)
    with open_ledger(ledger, writable=False) as opened:
        stored = opened.load_run(runs[0] if runs else LATEST)
        if fail_if:
            plan = replace(stored.plan, context=replace(stored.plan.context, gates=()))
            stored = replace(stored, plan=with_gates(plan, fail_if))
        if not stored.plan.context.gates:
            raise UsageError(
                f"run {stored.id} has no gate", hint="give one, e.g. --fail-if 'tcg wall_s > +5%'"
            )
        analysis = run_history.judged(opened, stored)
    status = gates.judge(stored, analysis, outputs.save_junit)
    if not quiet or outputs.files():
        nodes = gate_outcomes.make_nodes(gate_outcomes.judge_own_gates(analysis), analysis, stored)
        part = Section(Part.CONCLUSION, "Gates", tuple(nodes), titled=False)
        page = Page(stored.plan.title or stored.plan.name, stored.id, (part,))
        show(stored, replace(outputs, page=lambda _run: page), analysis)
    raise typer.Exit(ExitStatus.ALL_MEASURED if status is None else status)


def _judge_sessions(
    names: Sequence[str], limits: Sequence[str] | None, outputs: Outputs, ledger: str | None
) -> NoReturn:
    """Judges several runs together, with the run as the unit."""
    from guestmark.cli.documents import write_all
    from guestmark.cli.gates import status_of
    from guestmark.core.errors import UsageError
    from guestmark.ledger import open_ledger, run_history
    from guestmark.report import ci_reports, limits_between_runs

    with open_ledger(ledger, writable=False) as opened:
        ids = [opened.resolve(name) for name in names]
        if len(set(ids)) < len(ids):
            twice = next(run for run in ids if ids.count(run) > 1)
            raise UsageError(f"run {twice} is given twice", hint="guestmark runs lists others")
        stored = [opened.load_run(run_id) for run_id in ids]
        found = limits_between_runs.judge_sessions(
            [(run, run_history.judged(opened, run)) for run in stored], limits
        )
    if not found:
        raise UsageError(f"run {ids[0]} has no gate", hint="give one, e.g. --fail-if 'tcg wall_s > +5%'")
    save = outputs.save_junit
    if save is not None:
        save(ci_reports.junit(found, *stored))
    ci_reports.append_summary(found, *stored)
    if not outputs.quiet or outputs.files():
        paths = {"json": outputs.json, "markdown": outputs.markdown, "html": outputs.html}
        page = limits_between_runs.make_sessions_page(stored, found)
        write_all(
            page, lambda: limits_between_runs.make_sessions_document(stored, found), paths, outputs.junit
        )
    raise typer.Exit(status_of(found))
