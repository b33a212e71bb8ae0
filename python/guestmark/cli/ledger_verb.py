"""`guestmark ledger`: one ledger for a lab."""

from __future__ import annotations

from typing import Annotated

import typer

from guestmark.core.units import counted
from guestmark.page.say import say, tell

_ACTIONS = {"copy": "FROM TO", "role": "NAME"}


def command(
    action: Annotated[
        str, typer.Argument(metavar="ACTION", help="copy or role.", autocompletion=lambda: list(_ACTIONS))
    ],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="ARGUMENT...", help="copy: FROM TO; role: NAME.")
    ] = None,
    *,
    trust: Annotated[
        bool, typer.Option("--trust", help="copy: the runs of FROM are yours, and may be resumed.")
    ] = False,
) -> None:
    """Copy runs between ledgers, or print the set-up of a server's role.

    copy FROM TO: adds every run of FROM (a file or a URL) that TO does not have; repeat it at any time. Runs that this
    user did not make are marked as imported.

    role NAME: prints SQL for the owner of a PostgreSQL database. It makes the tables and a role that can measure and
    read, but neither change nor remove trials.
    """
    from guestmark.core.errors import UsageError, unknown

    given = arguments or []
    if action not in _ACTIONS:
        raise unknown("action", action, _ACTIONS)
    if len(given) != len(_ACTIONS[action].split()):
        usage = _ACTIONS[action]
        raise UsageError(f"ledger {action} takes {usage}", hint=f"guestmark ledger {action} {usage}")
    if action == "role":
        from guestmark.ledger.server import setup_script

        tell(setup_script(given[0]).rstrip())
        return
    _copy(*given, trust=trust)


def _copy(source: str, target: str, *, trust: bool) -> None:
    from guestmark.core.errors import UsageError
    from guestmark.ledger import open_ledger

    with open_ledger(source, writable=False) as old, open_ledger(target) as new:
        if old.where == new.where:
            raise UsageError(f"{source} and {target} are the same ledger", hint="name two")
        found = old.copy_to(new, trust=trust)
    said = f"{counted(found.runs, 'run')} with {found.trials} trials copied to {new.where}"
    say(said + (f"; {found.there} were there already" if found.there else ""))
