"""`guestmark runs`: what the ledger holds."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from guestmark.cli import options
from guestmark.core.units import counted
from guestmark.ledger.model import Standing
from guestmark.page.say import say, tell, tell_json

if TYPE_CHECKING:
    from guestmark.ledger.model import RunOverview


def command(
    *,
    json: Annotated[bool, typer.Option("--json", help="As JSON, for programs.")] = False,
    check: Annotated[
        bool,
        typer.Option("--check", help="Look for damage in every row instead; exits with 1 if there is any."),
    ] = False,
    only: Annotated[
        str | None,
        typer.Option(
            "--filter",
            metavar="EXPR",
            help="Only these runs, e.g. 'state=complete and platform=tcg', 'tag=release', 'commit=1a2b3c', "
            "'workload~sysbench', 'since=2d'.",
        ),
    ] = None,
    removed: Annotated[
        bool, typer.Option("--removed", help="The runs that were removed and can be brought back.")
    ] = False,
    html: Annotated[
        str | None,
        typer.Option(
            "--html", metavar="FILE", help="Write a page of these runs, with the trends of their ratios."
        ),
    ] = None,
    ledger: options.Ledger = None,
) -> None:
    """List the runs in the ledger, oldest first, and say where the ledger is."""
    from guestmark.ledger import default_path, open_ledger
    from guestmark.ledger.overviews import parse_filter

    wanted = None if only is None else parse_filter(only)
    if check:
        _check(ledger)
        return

    if ledger is None and not default_path().exists():
        runs, ratios, where = [], [], str(default_path())
    else:
        with open_ledger(ledger, writable=False) as opened:
            runs, where = opened.runs(removed=removed), opened.where
            ratios = [] if html is None else opened.every_ratio()
    every = len(runs)
    runs = [run for run in runs if wanted is None or wanted(run)]
    if json:
        from dataclasses import asdict
        from json import dumps

        tell_json(dumps([asdict(run) for run in runs], indent=2))
        return
    if html is not None:
        from guestmark.cli.session import write
        from guestmark.report import all_runs
        from guestmark.report.render import html as renderer

        write(renderer.render(all_runs.page(runs, ratios)).encode(), html)
        return
    if not runs:
        say(_none(where, every, removed=removed))
        return
    from datetime import datetime

    from rich.table import Table

    from guestmark.cli.console import Console, shown

    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("run", "begun", "state"):
        table.add_column(heading, no_wrap=True)
    for heading in ("cells", "blocks", "trials", "failed"):
        table.add_column(heading, justify="right", no_wrap=True)
    annotated = any(_said(run) for run in runs)
    if annotated:
        table.add_column("name, labels, tags", no_wrap=True, overflow="ellipsis")
    table.add_column("workload", no_wrap=True, overflow="ellipsis")
    for run in runs:
        begun = datetime.fromtimestamp(run.created_at).astimezone().strftime("%Y-%m-%d %H:%M")
        numbers = (run.cells, run.blocks, run.trials, run.failed)
        said = (shown(_said(run)),) if annotated else ()
        table.add_row(
            shown(run.id), begun, run.state.said(run.trials), *map(str, numbers), *said, shown(run.label)
        )
    console = Console()
    if not console.is_terminal:
        console.width = 1000  # a program reads it: nothing is cut off
    console.print(table)
    sys.stdout.flush()
    say(f"the ledger is {where}")  # beside the table, which programs may read


def _said(run: RunOverview) -> str:
    """`before-upgrade commit=1a2b3c #release`, and of each note its text."""
    words = ["imported"] if run.imported else []
    words += [run.standing.value] if run.standing is not Standing.OWN else []
    words += [run.given_name] if run.given_name else []
    words += [f"{name}={value[:12]}" for name, value in run.labels.items()]
    words += [f"#{tag}" for tag in run.tags]
    return " ".join([*words, *(f"({note})" for note in run.notes)])


def _none(where: str, every: int, *, removed: bool) -> str:
    if every:
        return f"none of the {every} runs in {where} matches; guestmark runs lists all"
    return f"the ledger {where} holds no {'removed runs' if removed else 'runs yet'}"


def _check(ledger: str | None) -> None:
    from guestmark.core.errors import ExitStatus
    from guestmark.ledger import open_ledger

    with open_ledger(ledger, writable=False) as opened:
        found, where = opened.check(), opened.where
    for problem in found.problems:
        tell(problem)
    said = f"{counted(found.runs, 'run')} in {where}: "
    if found.problems:
        say(f"{said}{counted(len(found.problems), 'problem')}")
        raise typer.Exit(ExitStatus.SOME_FAILED)
    if not found.checked:
        say(f"{said}the database is sound; rows have no checksums until a run is added")
        return
    rest = (
        f"; {found.without_checksum} rows of an older version have no checksum"
        if found.without_checksum
        else ""
    )
    signed = f"; {counted(found.not_own, 'run')} not signed by your key" if found.not_own else ""
    say(f"{said}every row is as it was stored{rest}{signed}")
