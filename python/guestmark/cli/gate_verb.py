"""`guestmark gate`: the limits that a run must keep, held against what it found."""

from __future__ import annotations

from typing import Annotated

import typer

from guestmark.cli import options
from guestmark.core.home import LATEST


def command(
    run: Annotated[
        str,
        typer.Argument(
            metavar="[RUN]",
            help="A run's id, its beginning or end, or `last`.",
            autocompletion=options.complete_run,
        ),
    ] = LATEST,
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

    Without --fail-if the gates are those that the run was made with. Where GITHUB_STEP_SUMMARY is set, a table is
    appended to the file that it names.

    Exit status: 0 all limits are kept, 1 one is broken, 125 the run cannot tell (it says how many more blocks would),
    128 or more it could not be judged.
    """
    from dataclasses import replace

    from guestmark.cli import gates
    from guestmark.cli.session import Outputs, show
    from guestmark.core.errors import ExitStatus, UsageError
    from guestmark.core.gate import with_gates
    from guestmark.ledger import open_ledger, past
    from guestmark.page.nodes import Page, Part, Section
    from guestmark.report.sections import gates as section

    outputs = Outputs(json=json, markdown=markdown, html=html, junit=junit, quiet=quiet)
    outputs.check()
    with open_ledger(ledger, writable=False) as opened:
        stored = opened.load_run(run)
        if fail_if:
            plan = replace(stored.plan, context=replace(stored.plan.context, gates=()))
            stored = replace(stored, plan=with_gates(plan, fail_if))
        if not stored.plan.context.gates:
            raise UsageError(
                f"run {stored.id} has no gate", hint="give one, e.g. --fail-if 'tcg wall_s > +5%'"
            )
        analysis = past.judged(opened, stored)
    status = gates.judge(stored, analysis, outputs.save_junit)
    if not quiet or outputs.files():
        nodes = section.nodes(section.judged(analysis), analysis, stored)
        part = Section(Part.CONCLUSION, "Gates", tuple(nodes), titled=False)
        page = Page(stored.plan.title or stored.plan.name, stored.id, (part,))
        show(stored, replace(outputs, page=lambda _run: page), analysis)
    raise typer.Exit(ExitStatus.ALL_MEASURED if status is None else status)
