"""Finds the fastest of many configurations within limits."""

from __future__ import annotations

from dataclasses import replace

from guestmark.cli.cell_list import show_cells
from guestmark.cli.commands.tune import Options
from guestmark.cli.measure import measure_plan
from guestmark.cli.options import list_platforms
from guestmark.cli.outputs import collect_outputs
from guestmark.core.context import Caller
from guestmark.core.errors import ExitStatus, UsageError
from guestmark.core.tuning import Settings
from guestmark.plan import library, schema
from guestmark.plan.load import load_outline
from guestmark.plan.matrix import NullCells
from guestmark.plan.outline import Outline, Overrides, assemble_plan, override_outline
from guestmark.plan.tuning import make_race_settings


def run(given: Options) -> int:
    """Races the cells of a plan, and returns the exit status."""
    given.refuse_options("a race", over=True)
    budget_s = given.choose_budget(given.budget_s)
    outline = load_outline(*library.find_plan(given.plan), scale=1.0 if given.scale is None else given.scale)
    # A null copy of the baseline would take part in the race, and could win.
    overrides = {**given.collect_overrides(), "null": NullCells.NONE}
    outline = override_outline(
        outline, Overrides(on=list_platforms(given.on, given.machine) or None, only=given.only, **overrides)
    )
    race = _build_race(outline, given)
    plan = assemble_plan(replace(outline, race=race), Caller.current())
    if given.only_list:
        show_cells(plan, given.ledger)
        return ExitStatus.ALL_MEASURED
    return measure_plan(plan, given.ledger, collect_outputs(given, budget_s=budget_s))


def _build_race(outline: Outline, given: Options) -> Settings:
    """Builds the rules of the race: the plan's, overridden by the options that were given."""
    objective = given.objective or (outline.race.objective if outline.race else "")
    try:
        requested = make_race_settings(
            schema.Tune(objective=objective, durability=given.durability, limits=given.limit or []),
            outline.metrics,
        )
    except ValueError as error:
        raise UsageError(str(error), hint="see guestmark tune --help") from error
    base = outline.race or requested
    return replace(
        base,
        objective=requested.objective,
        better=requested.better,
        durability=requested.durability or base.durability,
        limits=requested.limits or base.limits,
        on_disk=given.on_disk or base.on_disk,
        screen=base.screen and not given.no_screen,
        margin=given.margin or base.margin,
        max_blocks=given.race_blocks or base.max_blocks,
    )
