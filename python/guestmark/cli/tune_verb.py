"""`guestmark tune`: the fastest of many configurations within limits."""

from __future__ import annotations

from typing import Annotated

import typer

from guestmark.cli import options
from guestmark.cli.measuring import LIST, Measuring, budgeted, measuring, show_cells
from guestmark.core.errors import UsageError


@measuring
def command(
    plan: Annotated[
        str,
        typer.Argument(
            metavar="PLAN|FILE",
            help="A built-in plan, such as fastest-safe, or a TOML file. Its cells are the candidates.",
            autocompletion=options.complete_plan,
        ),
    ],
    *,
    objective: Annotated[
        str | None,
        typer.Option(metavar="METRIC", help="The metric to optimise. Default: the plan's primary metric."),
    ] = None,
    durability: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WORD",
            help="Only configurations of this durability, e.g. proven. Repeatable: any of them.",
        ),
    ] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option(metavar="LIMIT", help="A limit for another metric, e.g. 'guest_cpu_s < 5'."),
    ] = None,
    on_disk: Annotated[bool, typer.Option("--on-disk", help="Leave out disks in memory.")] = False,
    no_screen: Annotated[
        bool, typer.Option("--no-screen", help="Measure every candidate from the start.")
    ] = False,
    max_blocks: Annotated[
        int | None, typer.Option(metavar="N", min=2, help="The most blocks of the race (default 10).")
    ] = None,
    on: Annotated[
        list[str] | None, options.on("Where to run it, instead of the platforms in the plan.")
    ] = None,
    scale: options.Scale = None,
    only: options.Only = None,
    list_: Annotated[bool, typer.Option("--list", help=LIST)] = False,
    for_: options.For = None,
    given: Measuring,
) -> None:
    """Race configurations within your limits, and find the fastest.

    guestmark tune fastest-safe --only 'platform=tcg and bus=virtio-blk' --for 5m

    With many cells, a fraction is measured first, to drop those that cannot win. The others race: after each block, a
    cell shown to be worse than the leader by more than the margin is out. The finalists are measured again in fresh
    blocks. With --durability proven the power is cut first, and configurations that lose data are out.

    Exit status: 0 all measured, 1 some trials failed or a platform was left out, 2 the command line or the plan is
    wrong, 3 nothing could be measured, 130 interrupted (guestmark resume continues).
    """
    from dataclasses import replace

    from guestmark.cli import session
    from guestmark.core.context import Caller
    from guestmark.plan import library, schema
    from guestmark.plan.load import load_outline
    from guestmark.plan.matrix import NullCells
    from guestmark.plan.outline import Overrides, assemble_plan, override_outline
    from guestmark.plan.scale import parse_scale
    from guestmark.plan.tuning import make_race_settings, parse_limit

    given.refuse("a race", over=True)
    overrides = {**given.overrides(), "null": NullCells.NONE}
    factor = options.value("--scale", parse_scale, scale)
    outline = load_outline(*library.find_plan(plan), scale=1.0 if factor is None else factor)
    outline = override_outline(outline, Overrides(on=on or None, only=only, **overrides))
    asked = schema.Tune(
        objective=objective or (outline.race.objective if outline.race else ""),
        durability=durability,
    )
    try:
        made = make_race_settings(asked, outline.metrics)
        limits = tuple(parse_limit(text) for text in limit or ())
    except ValueError as error:
        raise UsageError(str(error), hint="see guestmark tune --help") from error
    base = outline.race or made
    settings = replace(
        base,
        objective=made.objective,
        better=made.better,
        durability=made.durability or base.durability,
        limits=limits or base.limits,
        on_disk=on_disk or base.on_disk,
        screen=base.screen and not no_screen,
        margin=overrides["margin"] or base.margin,
        max_blocks=max_blocks or base.max_blocks,
    )
    tuned = assemble_plan(replace(outline, race=settings), Caller.current())
    if list_:
        show_cells(tuned, given.ledger)
        return
    outputs = replace(given.outputs(), budget_s=budgeted(for_, given))
    raise typer.Exit(session.execute(tuned, given.ledger, outputs))
