"""Runs a plan of several workloads, platforms and factors."""

from __future__ import annotations

import functools
from dataclasses import replace

from guestmark.cli.cell_list import show_cells
from guestmark.cli.commands.run import Options
from guestmark.cli.measure import create_run, measure_plan
from guestmark.cli.options import list_platforms
from guestmark.cli.outputs import check_published, collect_outputs
from guestmark.cli.stored_runs import open_ledger_if_any
from guestmark.core.context import Caller
from guestmark.core.errors import ExitStatus
from guestmark.core.model import Plan
from guestmark.engine.budget import choose_scale
from guestmark.engine.question_status import find_provable_location
from guestmark.page.say import tell
from guestmark.plan import library
from guestmark.plan.load import load_outline
from guestmark.plan.outline import Outline, Overrides, assemble_plan, override_outline


def run(given: Options) -> int:
    """Lists, prepares or measures the plan's cells, and returns the exit status."""
    text, where = library.find_plan(given.plan)
    overrides = Overrides(
        on=list_platforms(given.on, given.machine) or None, only=given.only, **given.collect_overrides()
    )
    caller = Caller.current()

    @functools.cache
    def read_outline(scale: float) -> Outline:
        return load_outline(text, where, scale=scale, overrides=given.override_ or ())

    def build_plan(scale: float) -> Plan:
        outline = read_outline(scale)
        if not given.prove:
            return assemble_plan(override_outline(outline, overrides), caller)
        # Not every disk can be proven; those that can are moved to a place where a power cut can be simulated.
        moved = find_provable_location(outline, overrides.settings)
        movable = replace(overrides, settings=[*overrides.settings, *moved])
        plan = assemble_plan(override_outline(outline, movable), caller)
        return replace(plan, context=replace(plan.context, prove=True))

    # A prepared run is measured block by block, so a budget for the whole run cannot choose its sizes.
    planned_s = None if given.prepare_only else read_outline(1.0).budget_s
    budget_s = given.choose_budget(given.budget_s, planned_s)
    if given.scale is None and budget_s is not None:
        with open_ledger_if_any(given.ledger) as ledger:
            plan = choose_scale(build_plan, ledger, budget_s)
    else:
        plan = build_plan(1.0 if given.scale is None else given.scale)
    if given.published:
        check_published(plan)
    if given.only_list:
        show_cells(plan, given.ledger, budget_s)
        return ExitStatus.ALL_MEASURED
    outputs = collect_outputs(given, published=given.published, budget_s=budget_s)
    if given.prepare_only:
        given.refuse_options("a run created with --prepare-only", quiet_host=True, over=True)
        tell(create_run(plan, given.ledger, outputs))
        return ExitStatus.ALL_MEASURED
    return measure_plan(plan, given.ledger, outputs)
