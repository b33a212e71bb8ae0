"""`guestmark run`: a plan of several workloads, platforms and factors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from guestmark.cli import options
from guestmark.cli.measuring import LIST, Measuring, budgeted, measuring, show_cells
from guestmark.page.say import tell

if TYPE_CHECKING:
    from guestmark.core.model import Plan


@measuring
def command(
    plan: Annotated[
        str,
        typer.Argument(
            metavar="PLAN|FILE",
            help="A built-in plan (guestmark plans lists them) or a TOML file.",
            autocompletion=options.complete_plan,
        ),
    ],
    *,
    on: Annotated[
        list[str] | None,
        options.on("Where to run it, instead of the platforms in the plan."),
    ] = None,
    scale: options.Scale = None,
    only: options.Only = None,
    list_: Annotated[bool, typer.Option("--list", help=LIST)] = False,
    prepare_only: Annotated[
        bool,
        typer.Option(
            "--prepare-only", help="Make the run, print its id, measure nothing: see guestmark block."
        ),
    ] = False,
    override_: Annotated[
        list[str] | None,
        typer.Option(
            "--override",
            metavar="KEY=VALUE",
            help="Replace a value of the plan, e.g. workloads.gzip.params.values.events=100. Repeatable.",
        ),
    ] = None,
    published: options.Published = False,
    for_: options.For = None,
    given: Measuring,
) -> None:
    """Run a plan: workloads, platforms and factors from a TOML file.

    Options take precedence over the plan. Every block measures each cell once on a fresh machine, in random order.

    Exit status: 0 all measured, 1 some trials failed or a platform was left out, 2 the command line or the plan is
    wrong, 3 nothing could be measured, 130 interrupted (guestmark resume continues).
    """
    from dataclasses import replace

    from guestmark.cli import session
    from guestmark.core.context import Caller
    from guestmark.engine.budget import choose_scale
    from guestmark.engine.question_status import find_provable_location
    from guestmark.plan import library
    from guestmark.plan.load import load_outline
    from guestmark.plan.outline import Overrides, assemble_plan, override_outline
    from guestmark.plan.scale import parse_scale

    wanted = Overrides(on=on or None, only=only, **given.overrides())
    factor = options.value("--scale", parse_scale, scale)
    budget_s = budgeted(for_, given)
    text, where = library.find_plan(plan)
    caller = Caller.current()

    def at(size: float) -> Plan:
        outline = load_outline(text, where, scale=size, overrides=override_ or ())
        moved = find_provable_location(outline, wanted.settings) if given.prove else []
        made = assemble_plan(
            override_outline(outline, replace(wanted, settings=[*wanted.settings, *moved])), caller
        )
        return replace(made, context=replace(made.context, prove=True)) if given.prove else made

    if factor is None and budget_s is not None:
        with options.ledger_to_read(given.ledger) as known:
            made = choose_scale(at, known, budget_s)
    else:
        made = at(1.0 if factor is None else factor)
    if published:
        options.check_published(made)
    if list_:
        show_cells(made, given.ledger)
        return
    outputs = replace(given.outputs(published=published), budget_s=budget_s)
    if prepare_only:
        given.refuse("a run that others measure", quiet_host=True, over=True)
        tell(session.prepare(made, given.ledger, outputs))
        return
    raise typer.Exit(session.execute(made, given.ledger, outputs))
