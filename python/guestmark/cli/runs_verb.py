"""`guestmark runs`: what the ledger holds."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from guestmark.cli import options
from guestmark.core.units import counted
from guestmark.ledger.model import Standing
from guestmark.page.say import say, tell, tell_json

if TYPE_CHECKING:
    from rich.console import RenderableType

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
    from guestmark.ledger.run_lookup import parse_filter

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
        from guestmark.report import runs_overview
        from guestmark.report.render import html as renderer

        write(renderer.render(runs_overview.page(runs, ratios)).encode(), html)
        return
    if not runs:
        say(_none(where, every, removed=removed))
        return
    _show(runs)
    sys.stdout.flush()
    say(f"the ledger is {where}")  # beside the table, which programs may read


_GAP = 2  # columns between columns
_LEAST = 14  # columns of a text that is cut


def _show(runs: Sequence[RunOverview]) -> None:
    """Prints the table. Ids, by which runs are called, are whole at every width; on a terminal texts lose their ends.

    Where it is narrow, what can be done without gives way first.
    """
    from rich.cells import cell_len

    from guestmark.cli.console import Console

    console = Console()
    columns = _columns(runs)
    texts = ["what", "said"] if any(_said(run) for run in runs) else ["what"]
    if not console.is_terminal:
        console.width = 1000  # a program reads it: nothing is cut off
    else:
        for name in ("trials", "cells", "begun", "failed", "blocks"):
            if _taken(columns) + len(texts) * (_GAP + _LEAST) <= console.width:
                break
            del columns[name]
    room = console.width - _taken(columns)
    half = max(_LEAST, room // len(texts) - _GAP)
    widths = {"what": half}
    if len(texts) > 1:  # labels give way what they do not need
        widths["said"] = min(half, max(cell_len(_said(run)) for run in runs))
        widths["what"] += half - widths["said"]
    console.print(_table(runs, columns, widths))


def _columns(runs: Sequence[RunOverview]) -> dict[str, list[str]]:
    """What is never cut, by heading."""
    begun = [datetime.fromtimestamp(run.created_at).astimezone() for run in runs]
    return {
        "run": [run.id for run in runs],
        "begun": [moment.strftime("%Y-%m-%d %H:%M") for moment in begun],
        "state": [run.state.describe_state(run.trials) for run in runs],
        "cells": [str(run.cells) for run in runs],
        "blocks": [str(run.blocks) for run in runs],
        "trials": [str(run.trials) for run in runs],
        "failed": [str(run.failed) for run in runs],
    }


def _taken(columns: Mapping[str, Sequence[str]]) -> int:
    return sum(max(map(len, (name, *texts))) + _GAP for name, texts in columns.items())


def _table(
    runs: Sequence[RunOverview], columns: Mapping[str, Sequence[str]], widths: Mapping[str, int]
) -> RenderableType:
    from rich.table import Table

    from guestmark.cli.console import shown

    table = Table(box=None, pad_edge=False, header_style="dim")
    for name, texts in columns.items():
        right = name in {"cells", "blocks", "trials", "failed"}
        width = max(map(len, (name, *texts)))
        table.add_column(name, justify="right" if right else "left", no_wrap=True, min_width=width)
    if "said" in widths:
        table.add_column("labels", no_wrap=True)
    table.add_column("measured", no_wrap=True)
    for number, run in enumerate(runs):
        cells = [shown(texts[number]) for texts in columns.values()]
        for name, text in (("said", _said(run)), ("what", run.measured)):
            if name in widths:
                cell = shown(text)
                cell.truncate(widths[name], overflow="ellipsis")
                cells.append(cell)
        table.add_row(*cells)
    return table


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
