"""`guestmark runs`: what the ledger holds."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from guestmark.cli import options
from guestmark.cli.say import say, tell, tell_json


def command(
    json: Annotated[bool, typer.Option("--json", help="As JSON, for programs.")] = False,
    check: Annotated[
        bool,
        typer.Option("--check", help="Look for damage in every row instead; exits with 1 if there is any."),
    ] = False,
    ledger: options.Ledger = None,
) -> None:
    """List the runs in the ledger, oldest first, and say where the ledger is."""
    from guestmark.ledger import default_path, open_ledger

    if check:
        _check(ledger)
        return

    if ledger is None and not default_path().exists():
        runs, where = [], str(default_path())
    else:
        with open_ledger(ledger, writable=False) as opened:
            runs, where = opened.runs(), opened.where
    if json:
        from dataclasses import asdict
        from json import dumps

        tell_json(dumps([asdict(run) for run in runs], indent=2))
        return
    if not runs:
        say(f"the ledger {where} holds no runs yet")
        return
    from datetime import datetime

    from rich.table import Table

    from guestmark.cli.console import Console, shown

    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("run", "begun", "state"):
        table.add_column(heading, no_wrap=True)
    for heading in ("cells", "blocks", "trials", "failed"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("workload", no_wrap=True, overflow="ellipsis")
    for run in runs:
        begun = datetime.fromtimestamp(run.created_at).astimezone().strftime("%Y-%m-%d %H:%M")
        numbers = (run.cells, run.blocks, run.trials, run.failed)
        table.add_row(shown(run.id), begun, run.state.value, *map(str, numbers), shown(run.label))
    console = Console()
    if not console.is_terminal:
        console.width = 1000  # a program reads it: nothing is cut off
    console.print(table)
    sys.stdout.flush()
    say(f"the ledger is {where}")  # beside the table, which programs may read


def _check(ledger: str | None) -> None:
    from guestmark.core.errors import ExitStatus
    from guestmark.ledger import open_ledger

    with open_ledger(ledger, writable=False) as opened:
        found, where = opened.check(), opened.where
    for problem in found.problems:
        tell(problem)
    said = f"{found.runs} run{'s' if found.runs != 1 else ''} in {where}: "
    if found.problems:
        say(f"{said}{len(found.problems)} problem{'s' if len(found.problems) != 1 else ''}")
        raise typer.Exit(ExitStatus.SOME_FAILED)
    if not found.checked:
        say(f"{said}the database is sound; rows have no checksums until a run is added")
        return
    rest = (
        f"; {found.without_checksum} rows of an older version have no checksum"
        if found.without_checksum
        else ""
    )
    say(f"{said}every row is as it was stored{rest}")
