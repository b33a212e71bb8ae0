"""Shares one ledger in a lab: copies runs, signs them, and sets up a server's role."""

from __future__ import annotations

from guestmark.cli.commands.ledger import ACTIONS, Options
from guestmark.core.errors import ExitStatus, UsageError, make_unknown_name_error
from guestmark.core.units import format_count
from guestmark.engine.stored_run import show_actions
from guestmark.ledger import open_ledger
from guestmark.ledger.model import StoredRun
from guestmark.ledger.postgres import make_setup_script
from guestmark.ledger.signing_key import read_public_key
from guestmark.page.say import say, tell

# The least and the most arguments of each action; None for any number.
_ARGUMENT_COUNTS: dict[str, tuple[int, int | None]] = {
    "copy": (2, 2),
    "role": (1, 1),
    "sign": (0, None),
    "key": (0, 0),
}


def run(given: Options) -> int:
    """Copies or signs runs, or prints the user's key or the SQL that creates a role."""
    action, arguments = given.action, given.arguments or []
    if action not in ACTIONS:
        raise make_unknown_name_error("action", action, ACTIONS)
    least, most = _ARGUMENT_COUNTS[action]
    if len(arguments) < least or (most is not None and len(arguments) > most):
        usage = ACTIONS[action]
        raise UsageError(
            f"ledger {action} takes {usage or 'no arguments'}",
            hint=f"guestmark ledger {action} {usage}".strip(),
        )
    if action == "role":
        tell(make_setup_script(arguments[0]).rstrip())
    elif action == "key":
        tell(read_public_key())
    elif action == "sign":
        _sign_runs(arguments, given.ledger, trust=given.trust)
    else:
        _copy_runs(*arguments, trust=given.trust)
    return ExitStatus.ALL_MEASURED


def _sign_runs(names: list[str], where: str | None, *, trust: bool) -> None:
    """Shows the runs that are not the user's own, and with `trust` signs them."""
    with open_ledger(where) as ledger:
        # On a server, roles decide who may write, so a signature would add nothing.
        if not ledger.is_file:
            raise UsageError(
                f"the ledger {ledger.where} is on a server, whose roles decide who may write",
                hint="sign the runs in a file; guestmark ledger copy copies runs into one",
            )
        ids = list(dict.fromkeys(map(ledger.resolve_run, names))) or [
            stored.id for stored in ledger.list_runs()
        ]
        foreign = [stored for stored in map(ledger.load_run, ids) if _is_from_others(stored)]
        for stored in foreign:
            if stored.origin is not None:
                show_actions(stored.id, stored.plan, stored.origin, say)
        if not foreign:
            own = "these runs are your own already" if names else f"every run in {ledger.where} is your own"
            say(own)
            return
        if not trust:
            raise UsageError(
                f"{format_count(len(foreign), 'run')} would be signed as yours and could execute what is shown above",
                hint=" ".join(["add --trust: guestmark ledger sign --trust", *names]),
            )
        for stored in foreign:
            ledger.sign_as_own(stored.id)
        say(f"{format_count(len(foreign), 'run')} signed as yours")


def _is_from_others(stored: StoredRun) -> bool:
    return stored.origin is not None and not stored.origin.trusted


def _copy_runs(source: str, target: str, *, trust: bool) -> None:
    with open_ledger(source, writable=False) as old, open_ledger(target) as new:
        if old.where == new.where:
            raise UsageError(f"{source} and {target} are the same ledger", hint="name two different ones")
        copied = old.copy_to(new, trust=trust)
    known = f"; {copied.there} were there already" if copied.there else ""
    say(f"{format_count(copied.runs, 'run')} with {copied.trials} trials copied to {new.where}{known}")
