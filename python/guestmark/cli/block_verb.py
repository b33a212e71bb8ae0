"""`guestmark block`: one block of a run, for whatever spreads work over machines."""

from __future__ import annotations

import socket
from typing import Annotated

import typer

from guestmark.cli import options


def command(
    run: options.Run,
    *,
    machine: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="What this machine is called (default: its host name)."),
    ] = None,
    trust: options.Trust = False,
    wait: options.Wait = True,
    ledger: options.Ledger = None,
    quiet: options.Quiet = False,
) -> None:
    """Measure the next free block of a run, and store it.

    Any number of calls may work at once, on every machine that reaches the ledger: a job array, a CI matrix, a loop
    over ssh. `guestmark run PLAN --prepare-only` makes the run. The unfinished trial of a killed call is recorded as
    lost, and the next call replaces it.

    Exit status: 0 a block is done, 1 it is done but some of its trials failed, 2 the command line is wrong, 3 it could
    not be measured, 4 nothing is left to do, 69 not possible on this machine, 75 try again later (another process has
    the block or the last ones, or the ledger's server is away), 130 interrupted.
    """
    from guestmark.cli import session
    from guestmark.core.errors import BlockStatus, LedgerError, TakenError
    from guestmark.engine.stored_run import measure_next_block
    from guestmark.ledger import open_ledger
    from guestmark.ledger.postgres import is_transient
    from guestmark.page.say import say

    audience = session.audience_of(session.Outputs(quiet=quiet))
    try:
        with open_ledger(ledger) as opened:
            head = opened.head(run)
            run = head.id
            status = measure_next_block(
                head, opened, audience, machine or socket.gethostname(), wait=wait, trust=trust
            )
    except LedgerError as error:
        if not isinstance(error, TakenError) and not is_transient(error.__cause__ or error):
            raise
        say(f"{error.message}\n  {error.hint}")
        raise typer.Exit(int(BlockStatus.LOST)) from error
    if not quiet:
        say(_SAID[status].format(run=run))
    raise typer.Exit(int(status))


_SAID = {
    0: "a block of run {run} is done",
    1: "a block of run {run} is done; some of its trials failed",
    4: "nothing is left to measure in run {run}: guestmark show {run}",
    69: "nothing of run {run} was measured on this machine",
    130: "stopped; the unfinished trial is recorded as lost, and another block of run {run} replaces it",
    75: "others have the blocks that are left of run {run}; try again later",
}
