"""Measures one block of a run. Programs that spread work over machines call this verb."""

from __future__ import annotations

import socket

from guestmark.cli.commands.block import Options
from guestmark.cli.measure import build_audience
from guestmark.cli.outputs import Outputs
from guestmark.core.errors import BlockStatus, LedgerError, TakenError
from guestmark.engine.stored_run import measure_next_block
from guestmark.ledger import open_ledger
from guestmark.ledger.postgres import is_transient
from guestmark.page.say import say

_MESSAGES = {
    0: "a block of run {run} is done",
    1: "a block of run {run} is done; some of its trials failed",
    4: "nothing is left to measure in run {run}; guestmark show {run} shows its result",
    69: "this machine cannot measure run {run}",
    130: "stopped; the unfinished trial is recorded as lost, and another block of run {run} replaces it",
    75: "other processes are measuring the remaining blocks of run {run}; try again later",
}


def run(given: Options) -> int:
    """Measures the next free block and stores it; the exit status tells a script what to do next."""
    audience = build_audience(Outputs(quiet=given.quiet))
    machine = given.machine or socket.gethostname()
    try:
        with open_ledger(given.ledger) as ledger:
            head = ledger.load_head(given.run)
            status = measure_next_block(head, ledger, audience, machine, wait=given.wait, trust=given.trust)
    except LedgerError as error:
        # An unreachable server may come back, and a block that is taken may be lost, so trying again makes sense.
        if not isinstance(error, TakenError) and not is_transient(error.__cause__ or error):
            raise
        say(f"{error.message}\n  {error.hint}")
        return BlockStatus.LOST
    if not given.quiet:
        say(_MESSAGES[status].format(run=head.id))
    return int(status)
