"""Declares `guestmark block`."""

from dataclasses import dataclass
from typing import Annotated

from guestmark.cli import options
from guestmark.core.option import Option


@dataclass(frozen=True, kw_only=True)
class Options:
    """Measure the next free block of a run, and store it.

    Any number of calls may run at once, on every machine that reaches the ledger: a job array, a CI matrix, a loop
    over ssh. `guestmark run PLAN --prepare-only` creates the run. The unfinished trial of a killed call is recorded as
    lost, and the next call replaces it.

    Exit status: 0 a block is done, 1 it is done but some of its trials failed, 2 the command line is wrong, 3 it could
    not be measured, 4 nothing is left to do, 69 not possible on this machine, 75 try again later (other processes have
    the remaining blocks, or the ledger's server is unreachable), 130 interrupted.
    """

    run: options.Run
    machine: Annotated[
        str | None, Option("--machine", "This machine's name (default: its host name).", metavar="NAME")
    ] = None
    trust: options.Trust = False
    wait: options.Wait = True
    ledger: options.Ledger = None
    quiet: options.Quiet = False
