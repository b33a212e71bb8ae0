"""Lists the built-in plans, or prints one of them as TOML to edit."""

from __future__ import annotations

import sys

from rich.padding import Padding
from rich.text import Text

from guestmark.cli.commands.plans import Options
from guestmark.cli.console import Console
from guestmark.cli.stored_runs import open_ledger_if_any
from guestmark.core.context import Caller
from guestmark.core.errors import ExitStatus, GuestmarkError, UsageError
from guestmark.core.model import Plan
from guestmark.core.units import counted
from guestmark.engine.time_estimate import estimate_time
from guestmark.ledger.store import Ledger
from guestmark.plan import library
from guestmark.plan.load import load_outline
from guestmark.plan.outline import assemble_plan

_UNLIMITED = 1000  # columns, for a program that reads the list


def run(given: Options) -> int:
    """Prints the list, or the plan after `show`."""
    words = given.words or []
    if not words:
        with open_ledger_if_any(given.ledger) as ledger:
            _list_plans(ledger)
        return ExitStatus.ALL_MEASURED
    if words == ["show"]:
        raise UsageError("no plan is named", hint=f"known: {', '.join(library.list_plan_names())}")
    if words[0] != "show" or len(words) != 2:
        _refuse_words(words)
    # The text as it is: a TOML file to edit must not be changed on its way.
    sys.stdout.write(library.read_builtin(words[1]))
    return ExitStatus.ALL_MEASURED


def _refuse_words(words: list[str]) -> None:
    suggestion = ""
    if words[0] in library.list_plan_names():
        suggestion = f"did you mean guestmark plans show {words[0]}? "
    wrong = words[0] if words[0] != "show" else words[2]
    raise UsageError(
        f"plans takes no word {wrong!r}",
        hint=f"{suggestion}guestmark plans lists them, guestmark plans show NAME prints one",
    )


def _list_plans(ledger: Ledger | None) -> None:
    console = Console()
    if not console.is_terminal:
        console.width = _UNLIMITED
    for name in library.list_plan_names():
        head = Text(name, style="bold")
        try:
            plan = assemble_plan(load_outline(*library.find_plan(name)), Caller())
        except GuestmarkError as error:
            head.append(f"  {error.message}: {error.hint}", style="red")
            console.print(head)
            continue
        head.append(f"  {plan.title}", style="not bold")
        console.print(head)
        facts = Text(_describe_plan(plan, ledger), style="dim")
        console.print(Padding(facts, (0, 0, 0, 2), expand=False))
    console.print(
        Text(
            "guestmark run NAME runs one, --for 5m what fits; guestmark plans show NAME explains it",
            style="dim",
        )
    )


def _describe_plan(plan: Plan, ledger: Ledger | None) -> str:
    found = estimate_time(plan, ledger)
    platforms = ", ".join(dict.fromkeys(str(cell.platform) for cell in plan.cells))
    origin = f" ({found.origin})" if found.origin else ""
    published = "; --published shows published figures" if plan.published else ""
    return f"{counted(len(plan.cells), 'cell')} on {platforms}; {found.expectation}{origin}{published}"
