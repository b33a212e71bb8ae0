"""The list of the built-in plans, each with the time that it takes here."""

from __future__ import annotations

from rich.padding import Padding
from rich.text import Text

from guestmark.cli.console import Console
from guestmark.cli.plain_progress import describe_forecast_time
from guestmark.core.context import Caller
from guestmark.core.errors import GuestmarkError
from guestmark.core.model import Plan
from guestmark.core.units import format_count, format_duration
from guestmark.engine.progress import TimeLeft
from guestmark.engine.time_estimate import estimate_time
from guestmark.ledger.store import Ledger
from guestmark.plan import library
from guestmark.plan.load import load_outline
from guestmark.plan.outline import assemble_plan

# Columns if a program reads the list, whose lines must not be folded.
_UNLIMITED = 1000


def list_plans(ledger: Ledger | None) -> None:
    """Prints each plan with its question, its cells and its time, estimated from earlier runs if there are any."""
    console = Console()
    if not console.is_terminal:
        console.width = _UNLIMITED
    for name in library.list_plan_names():
        head = Text(name, style="bold")
        try:
            outline = load_outline(*library.find_plan(name))
            plan = assemble_plan(outline, Caller())
        except GuestmarkError as error:
            # A plan may need what this host does not have; the others are listed all the same.
            head.append(f"  {error.message}: {error.hint}", style="red")
            console.print(head)
            continue
        head.append(f"  {plan.title}", style="not bold")
        console.print(head)
        facts = Text(_describe_plan(plan, ledger, outline.budget_s), style="dim")
        console.print(Padding(facts, (0, 0, 0, 2), expand=False))
    console.print(
        Text(
            "guestmark run NAME runs a plan (--for 5m: what fits; --list: only its cells); "
            "guestmark plans show NAME prints it",
            style="dim",
        )
    )


def _describe_plan(plan: Plan, ledger: Ledger | None, budget_s: float | None) -> str:
    platforms = ", ".join(dict.fromkeys(str(cell.platform) for cell in plan.cells))
    return f"{format_count(len(plan.cells), 'cell')} on {platforms}; {_describe_time(plan, ledger, budget_s)}"


def _describe_time(plan: Plan, ledger: Ledger | None, budget_s: float | None) -> str:
    """Describes how long a plan takes here, without saying how that is known: `run PLAN --list` does."""
    if budget_s is not None:
        return f"at most {format_duration(budget_s)}"
    estimate = estimate_time(plan, ledger)
    if not estimate.block_s:
        return f"at most {format_duration(estimate.time_limit_s)}"
    return describe_forecast_time(TimeLeft(estimate.seconds, estimate.block_s * estimate.blocks_in_time))
