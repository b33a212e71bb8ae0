"""`guestmark ledger`: one ledger for a lab."""

from __future__ import annotations

from typing import Annotated

import typer

from guestmark.cli import options
from guestmark.core.units import counted
from guestmark.page.say import say, tell

_ACTIONS = {"copy": "FROM TO", "role": "NAME", "sign": "[RUN...]", "key": ""}
_TAKES = {
    "copy": (2, 2),
    "role": (1, 1),
    "sign": (0, None),
    "key": (0, 0),
}  # at least and at most so many arguments


def command(
    action: Annotated[
        str,
        typer.Argument(
            metavar="ACTION", help="copy, role, sign or key.", autocompletion=lambda: list(_ACTIONS)
        ),
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="ARGUMENT...", help="copy: FROM TO; role: NAME; sign: RUN..."),
    ] = None,
    *,
    trust: Annotated[
        bool,
        typer.Option("--trust", help="copy, sign: the runs are yours, and may be resumed."),
    ] = False,
    ledger: options.Ledger = None,
) -> None:
    """Copy runs between ledgers, sign runs as yours, or print the set-up of a server's role.

    copy FROM TO: adds every run of FROM (a file or a URL) that TO does not have; repeat it at any time. Runs that your
    key has not signed are marked as imported.

    sign RUN...: shows what these runs would run, without RUN all that are not yours; with --trust they are signed with
    your key, and are yours.

    key: prints your public key, which signs runs and bundles.

    role NAME: prints SQL for the owner of a PostgreSQL database. It makes the tables and a role that can measure and
    read, but neither change nor remove trials.
    """
    from guestmark.core.errors import UsageError, unknown

    given = arguments or []
    if action not in _ACTIONS:
        raise unknown("action", action, _ACTIONS)
    least, most = _TAKES[action]
    if not (least <= len(given) and (most is None or len(given) <= most)):
        usage = _ACTIONS[action]
        raise UsageError(
            f"ledger {action} takes {usage or 'no arguments'}",
            hint=f"guestmark ledger {action} {usage}".strip(),
        )
    if action == "role":
        from guestmark.ledger.postgres import setup_script

        tell(setup_script(given[0]).rstrip())
    elif action == "key":
        from guestmark.ledger.signing_key import public_key

        tell(public_key())
    elif action == "sign":
        _sign(given, ledger, trust=trust)
    else:
        _copy(*given, trust=trust)


def _sign(wanted: list[str], where: str | None, *, trust: bool) -> None:
    """Shows the runs that are not the user's own, and with `trust` signs them."""
    from guestmark.core.errors import UsageError
    from guestmark.engine.stored_run import show_actions
    from guestmark.ledger import open_ledger

    with open_ledger(where) as opened:
        if not opened.is_file:
            raise UsageError(
                f"the ledger {opened.where} is a server's: its roles say who may write there",
                hint="sign runs of a file; guestmark ledger copy takes runs into one",
            )
        ids = list(dict.fromkeys(map(opened.resolve, wanted))) or [run.id for run in opened.runs()]
        found = [
            run for run in map(opened.load_run, ids) if run.origin is not None and not run.origin.trusted
        ]
        for run in found:
            if run.origin is not None:
                show_actions(run.id, run.plan, run.origin, say)
        if not found:
            say("each of these runs is yours already" if wanted else f"every run in {opened.where} is yours")
            return
        if not trust:
            raise UsageError(
                f"{counted(len(found), 'run')} would be signed as yours, with what is shown above",
                hint=" ".join(["add --trust: guestmark ledger sign --trust", *wanted]),
            )
        for run in found:
            opened.take_as_own(run.id)
        say(f"{counted(len(found), 'run')} signed as yours")


def _copy(source: str, target: str, *, trust: bool) -> None:
    from guestmark.core.errors import UsageError
    from guestmark.ledger import open_ledger

    with open_ledger(source, writable=False) as old, open_ledger(target) as new:
        if old.where == new.where:
            raise UsageError(f"{source} and {target} are the same ledger", hint="name two")
        found = old.copy_to(new, trust=trust)
    said = f"{counted(found.runs, 'run')} with {found.trials} trials copied to {new.where}"
    say(said + (f"; {found.there} were there already" if found.there else ""))
