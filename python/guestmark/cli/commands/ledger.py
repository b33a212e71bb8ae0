"""Declares `guestmark ledger`."""

from dataclasses import dataclass
from typing import Annotated

from guestmark.cli import options
from guestmark.core.option import Argument, Candidates, Option

# What each action takes.
ACTIONS = {"copy": "FROM TO", "role": "NAME", "sign": "[RUN...]", "key": ""}


@dataclass(frozen=True, kw_only=True)
class Options:
    """Copy runs between ledgers, sign runs as yours, or print SQL that sets up a server's role.

    copy FROM TO: adds every run of FROM (a file or a URL) that TO does not have; repeat it at any time. Runs that your
    key has not signed are marked as imported.

    sign RUN...: shows what these runs would execute; without RUN, what all runs of others would. With --trust, your
    key signs them, and they count as your own.

    key: prints your public key, which signs runs and bundles.

    role NAME: prints SQL for the owner of a PostgreSQL database. It creates the tables and a role that can measure
    and read, but neither change nor remove trials.
    """

    action: Annotated[
        str, Argument("ACTION", "copy, role, sign or key.", candidates=Candidates.LEDGER_ACTIONS)
    ]
    arguments: Annotated[
        list[str] | None, Argument("ARGUMENT...", "copy: FROM TO; role: NAME; sign: RUN...")
    ] = None
    trust: Annotated[
        bool, Option("--trust", "copy, sign: treat the runs as your own, so that they may be resumed.")
    ] = False
    ledger: options.Ledger = None
