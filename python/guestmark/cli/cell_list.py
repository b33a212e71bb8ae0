"""`--list`: shows the cells that a plan would measure here, without measuring them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

from guestmark.cli.stored_runs import open_ledger_if_any
from guestmark.core.model import Plan
from guestmark.core.units import format_count
from guestmark.engine import preflight
from guestmark.engine.budget import fit_to_budget, select_planned_cells
from guestmark.engine.time_estimate import describe_time, read_trial_costs
from guestmark.page.say import say, tell


def show_cells(plan: Plan, ledger_path: str | None, budget_s: float | None = None) -> None:
    """Prints the cells that can run here on standard output, one per line, and remarks on standard error.

    No machine is started. With a budget, only cells for which there is time are listed. If nothing could be measured,
    this raises the same error as a run.
    """
    ready = preflight.examine_without_starting(plan)
    plan = replace(ready.plan, cells=ready.cells)
    left_out_for_time: Sequence[str] = ()
    if budget_s is not None:
        with open_ledger_if_any(ledger_path) as ledger:
            costs = read_trial_costs(plan, ledger)
        plan, left_out_for_time = fit_to_budget(plan, plan.cells, costs, budget_s, 0.0)
        plan = replace(plan, cells=tuple(select_planned_cells(plan, plan.cells)))
    for cell in plan.cells:
        mark = ""
        if cell.baseline:
            mark = "  # baseline"
        elif cell.null_of:
            mark = f"  # null copy of {cell.null_of}"
        tell(f"{cell.id}{mark}")
    # If both streams go to the same file, remarks must not overtake the list.
    sys.stdout.flush()
    if defaults := _list_omitted_levels(plan):
        say(f"defaults of all cells: {' '.join(defaults)}")
    for note in (*plan.context.notes, *ready.notes, *left_out_for_time):
        say(note)
    names_by_reason: dict[str, list[str]] = {}
    for entry in ready.left_out:
        names_by_reason.setdefault(entry.reason, []).append(entry.cell or entry.name)
    for reason, names in names_by_reason.items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        say(f"{names[0]}{more} cannot be measured here: {reason}")
    with open_ledger_if_any(ledger_path) as ledger:
        say(f"{format_count(len(plan.cells), 'cell')}: {describe_time(plan, ledger, budget_s)}")


def _list_omitted_levels(plan: Plan) -> list[str]:
    """Lists factor levels that cell ids omit because they are defaults, each once."""
    omitted: dict[str, None] = {}
    for cell in plan.cells:
        words_of_id = (cell.null_of or cell.id).split()
        for name, level in cell.factors.items():
            if f"{name}={level}" not in words_of_id:
                omitted[f"{name}={level}"] = None
    return list(omitted)
