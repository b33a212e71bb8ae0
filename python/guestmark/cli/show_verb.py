"""`guestmark show`: the result of a run, as it was when it ended."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from guestmark.cli import options


def command(
    run: options.Run,
    console_of: Annotated[
        str | None,
        typer.Option(
            "--console",
            metavar="CELL",
            help="Show what this cell's machine printed in its last failed trial.",
        ),
    ] = None,
    then: options.Then = False,
    ledger: options.Ledger = None,
) -> None:
    """Show the result of a run."""
    import gc

    gc.disable()  # it reads, prints and ends: looking for garbage while modules are loaded takes a tenth of the time
    from guestmark.cli.session import Outputs, show
    from guestmark.ledger import open_ledger

    with open_ledger(ledger, writable=False) as opened:
        stored = opened.load_run(run)
    if console_of is None:
        if then:
            options.check_published(stored.plan)
        show(stored, Outputs(then=then, environment=True))
        return
    from guestmark.plan.model import TrialStatus
    from guestmark.plan.nearest import unknown

    ids = [cell.id for cell in stored.plan.cells]
    if console_of not in ids:
        raise unknown("cell", console_of, ids)
    mine = [trial for trial in stored.trials if trial.cell_id == console_of]
    failed = [trial for trial in mine if trial.status is TrialStatus.FAILED]
    for trial in (failed or mine)[-1:]:
        sys.stdout.write(trial.console if trial.console.endswith("\n") else f"{trial.console}\n")
