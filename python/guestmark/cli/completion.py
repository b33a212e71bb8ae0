"""Finds candidates when a shell completes a command line."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from click.shell_completion import ShellComplete, split_arg_string

from guestmark.cli.app import app
from guestmark.cli.commands.fleet import ACTIONS as FLEET_ACTIONS
from guestmark.cli.commands.fleet import OFFERED_ACTIONS
from guestmark.cli.commands.ledger import ACTIONS as LEDGER_ACTIONS
from guestmark.cli.commands.machine import ACTIONS as MACHINE_ACTIONS
from guestmark.cli.stored_runs import open_ledger_if_any
from guestmark.core import registry
from guestmark.core.architectures import ARCHITECTURES
from guestmark.core.errors import GuestmarkError
from guestmark.core.home import LATEST
from guestmark.core.option import Candidates
from guestmark.page.say import tell
from guestmark.plan import library

if TYPE_CHECKING:
    from guestmark.ledger.store import Ledger

REQUEST = "_GUESTMARK_COMPLETE"
_LINE = "_GUESTMARK_COMPLETE_LINE"
# Set by completion scripts of version 0.3 that are still installed.
_EARLIER_LINE = "_TYPER_COMPLETE_ARGS"

# The word, perhaps with a description.
Candidate = str | tuple[str, str]


def answer_shell() -> None:
    """Prints one line for each candidate, with a description after a tab.

    The variable `_GUESTMARK_COMPLETE_LINE` holds the line up to the cursor. Without it, Bash's own variables
    `COMP_WORDS` and `COMP_CWORD` are read, and no descriptions are printed.
    """
    line = os.environ.get(_LINE, os.environ.get(_EARLIER_LINE))
    if line is None:
        words, place = split_arg_string(os.environ.get("COMP_WORDS", "")), int(os.environ["COMP_CWORD"])
        complete, incomplete = words[1:place], "".join(words[place : place + 1])
    else:
        words = split_arg_string(line)[1:]
        unfinished = bool(words) and not line[-1:].isspace()
        complete, incomplete = words, ""
        if unfinished:
            complete, incomplete = words[:-1], words[-1]
    items = ShellComplete(app, {}, "guestmark", REQUEST).get_completions(complete, incomplete)
    for item in items:
        # A shell completes files by itself; Click only marks that there could be some.
        if item.type != "plain":
            continue
        description = ""
        if line is not None and item.help:
            # A second line of the description would be read as another candidate.
            description = "\t" + " ".join(item.help.split())
        tell(f"{item.value}{description}")


def find_candidates(kind: Candidates, parameters: Mapping[str, Any], incomplete: str) -> Sequence[Candidate]:
    """Finds what could complete `incomplete`; `parameters` are those that were parsed before it."""
    finders: Mapping[Candidates, Callable[[], Sequence[Candidate]]] = {
        Candidates.CAMPAIGNS: _list_campaigns,
        Candidates.FLEET_ACTIONS: lambda: OFFERED_ACTIONS,
        Candidates.FLEET_ARGUMENTS: lambda: _list_fleet_arguments(parameters, incomplete),
        Candidates.LEDGER_ACTIONS: lambda: list(LEDGER_ACTIONS),
        Candidates.MACHINE_ACTIONS: lambda: list(MACHINE_ACTIONS),
        Candidates.MACHINES: _list_machines,
        Candidates.PLANS: lambda: _list_plans(incomplete),
        Candidates.PLANS_WORDS: lambda: ["show", *_list_plans(incomplete)],
        Candidates.PLATFORMS: lambda: _list_platforms(incomplete),
        Candidates.POWERCUT_WORDS: lambda: ["replay"],
        Candidates.RUNS: lambda: _list_from_ledger(parameters, "the newest run", _list_runs),
        Candidates.SETTINGS: lambda: _list_settings(incomplete),
    }
    return finders[kind]()


def _list_machines() -> list[str]:
    """Lists the user's own machines by name; nothing if one of their files is wrong."""
    from guestmark.platforms.own.store import load_definitions

    try:
        return sorted(load_definitions())
    except GuestmarkError:
        return []


def _list_platforms(incomplete: str) -> list[str]:
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in _list_platform_words(last)]


def _list_platform_words(begun: str) -> list[str]:
    """Lists names that the typed beginning of a platform's name may stand for."""
    if begun.startswith("own:"):
        return [f"own:{name}" for name in _list_machines()]
    if "@" in begun:
        machine = begun.partition("@")[0]
        return [f"{machine}@{name}" for name in ARCHITECTURES]
    names = list(registry.list_platform_names())
    for name, kind in registry.index_platform_kinds().items():
        if kind.takes_destination:
            names.append(f"{name}:")
    return names


def _list_settings(incomplete: str) -> list[str]:
    """Lists `FACTOR=`, and after it the usual levels."""
    factors = registry.factors()
    name, equals, levels = incomplete.partition("=")
    if not equals:
        return [f"{factor}=" for factor in factors]
    if name not in factors:
        return []
    before, comma, _ = levels.rpartition(",")
    return [f"{name}={before}{comma}{level}" for level in factors[name].levels]


def _list_plans(incomplete: str) -> list[str]:
    """Lists built-in plans, and TOML files in the directory that is being typed."""
    files = glob.glob(f"{glob.escape(incomplete)}*.toml")
    return [*library.list_plan_names(), *sorted(files)]


def _list_campaigns() -> list[str]:
    # Importing the engine takes longer than finding all other candidates.
    from guestmark.engine.campaign import list_campaigns

    return list(list_campaigns())


def _list_fleet_arguments(parameters: Mapping[str, Any], incomplete: str) -> Sequence[Candidate]:
    """Lists plans for `run`, and fleets in the ledger for `resume` and `show`."""
    wanted = FLEET_ACTIONS.get(parameters.get("action") or "")
    if wanted == "PLAN":
        return _list_plans(incomplete)
    if wanted != "FLEET":
        return []
    # Fleets take long to import, too, because they read plans.
    from guestmark.fleet.order import list_fleets

    return _list_from_ledger(
        parameters, "the newest fleet", lambda ledger: [(name, "") for name in reversed(list_fleets(ledger))]
    )


def _list_from_ledger(
    parameters: Mapping[str, Any], newest: str, find: Callable[[Ledger], list[tuple[str, str]]]
) -> list[tuple[str, str]]:
    """Lists `last`, described by `newest`, and what `find` returns from the ledger in use, if there is one."""
    try:
        with open_ledger_if_any(parameters.get("ledger")) as ledger:
            return [] if ledger is None else [(LATEST, newest), *find(ledger)]
    except GuestmarkError:
        # The Tab key is not the place to explain why a ledger cannot be opened.
        return []


def _list_runs(ledger: Ledger) -> list[tuple[str, str]]:
    """Lists the ids of the runs in the ledger, newest first, with what they measured."""
    return [(run.id, f"{run.measured} ({run.state.value})") for run in reversed(ledger.list_runs())]
