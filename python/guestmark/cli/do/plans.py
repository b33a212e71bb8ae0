"""Lists the built-in plans, or prints one of them as TOML to edit."""

from __future__ import annotations

import sys

from guestmark.cli.commands.plans import Options
from guestmark.cli.plan_list import list_plans
from guestmark.cli.stored_runs import open_ledger_if_any
from guestmark.core.errors import ExitStatus, UsageError
from guestmark.plan import library


def run(given: Options) -> int:
    """Prints the list, or the plan after `show`."""
    words = given.words or []
    if not words:
        # Printing a plan is quick, and does not need the modules that estimate its time.
        with open_ledger_if_any(given.ledger) as ledger:
            list_plans(ledger)
        return ExitStatus.ALL_MEASURED
    if words == ["show"]:
        raise UsageError("no plan is named", hint=f"name one of: {', '.join(library.list_plan_names())}")
    if words[0] != "show" or len(words) != 2:
        _refuse_words(words)
    # `tell` could change the text, which must stay as it is in the file.
    sys.stdout.write(library.read_builtin(words[1]))
    return ExitStatus.ALL_MEASURED


def _refuse_words(words: list[str]) -> None:
    suggestion = ""
    if words[0] in library.list_plan_names():
        suggestion = f"did you mean guestmark plans show {words[0]}? "
    # After `show` and a name, the third word is the wrong one.
    wrong = words[2] if words[0] == "show" else words[0]
    raise UsageError(
        f"plans does not take the argument {wrong!r}",
        hint=f"{suggestion}guestmark plans lists them, guestmark plans show NAME prints one",
    )
