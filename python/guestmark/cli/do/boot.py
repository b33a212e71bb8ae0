"""Measures where the time of a guest's start goes."""

from __future__ import annotations

from guestmark.cli.commands.boot import Options
from guestmark.cli.measure import measure_plan
from guestmark.cli.outputs import collect_outputs
from guestmark.core.context import Caller
from guestmark.plan.outline import Overrides
from guestmark.workloads.boot.plan import build_plan


def run(given: Options) -> int:
    """Measures the phases of each platform's start, and returns the exit status."""
    overrides = Overrides(on=given.on or ("tcg", "uml"), **given.collect_overrides())
    plan = build_plan(
        overrides,
        given.argv or (),
        initcalls=given.initcalls,
        guestfish=given.guestfish,
        caller=Caller.current(),
    )
    return measure_plan(plan, given.ledger, collect_outputs(given))
