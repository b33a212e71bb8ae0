"""Lists what the ledger holds, or checks it."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime

from rich.cells import cell_len
from rich.table import Table

from guestmark.cli.commands.runs import Options
from guestmark.cli.console import Console, make_inert_text
from guestmark.cli.outputs import write_document
from guestmark.core.errors import ExitStatus
from guestmark.core.units import format_count
from guestmark.ledger import find_default_ledger, open_ledger
from guestmark.ledger.model import RunOverview, SignatureStatus
from guestmark.ledger.run_lookup import parse_filter
from guestmark.page.say import say, tell, tell_json
from guestmark.report import runs_overview
from guestmark.report.render import html

# Characters between two columns of the table.
_GAP = 2
# The least width of a text that is cut.
_NARROWEST_TEXT = 14
# Width of the table if a program reads it: nothing is cut.
_UNLIMITED = 1000
# Columns that a narrow terminal omits, in this order.
_DISPENSABLE = ("trials", "cells", "begun", "failed", "blocks")
_NUMBERS = {"cells", "blocks", "trials", "failed"}
# Characters shown of a label's value, such as a commit hash.
_SHORT_VALUE = 12


def run(given: Options) -> int:
    """Lists the runs, as a table, JSON or a page, or checks every row."""
    matches = None if given.only is None else parse_filter(given.only)
    if given.check:
        return _check_ledger(given.ledger)
    # Looking must not create a ledger.
    ratios = []
    if given.ledger is None and not find_default_ledger().exists():
        runs, where = [], str(find_default_ledger())
    else:
        with open_ledger(given.ledger, writable=False) as ledger:
            runs, where = ledger.list_runs(removed=given.removed), ledger.where
            if given.html is not None:
                ratios = ledger.read_all_ratios()
    total = len(runs)
    if matches is not None:
        runs = [overview for overview in runs if matches(overview)]
    if given.json:
        tell_json(json.dumps([asdict(overview) for overview in runs], indent=2))
    elif given.html is not None:
        write_document(html.render(runs_overview.make_page(runs, ratios)).encode(), given.html)
    elif not runs:
        say(_explain_empty_list(where, total, removed=given.removed))
    else:
        _show_runs(runs)
        sys.stdout.flush()
        # Not on standard output, where programs read the table.
        say(f"the ledger is {where}")
    return ExitStatus.ALL_MEASURED


def _show_runs(runs: Sequence[RunOverview]) -> None:
    """Prints the table. Ids are never cut, because they name runs; on a terminal, other texts are."""
    console = Console()
    columns = _list_columns(runs)
    labels = [_describe_labels(overview) for overview in runs]
    text_count = 2 if any(labels) else 1
    if not console.is_terminal:
        console.width = _UNLIMITED
    else:
        for name in _DISPENSABLE:
            if _measure_width(columns) + text_count * (_GAP + _NARROWEST_TEXT) <= console.width:
                break
            del columns[name]
    room = console.width - _measure_width(columns)
    share = max(_NARROWEST_TEXT, room // text_count - _GAP)
    if text_count == 1:
        labels_width, measured_width = 0, share
    else:
        # Labels leave the room that they do not need to what was measured.
        labels_width = min(share, max(map(cell_len, labels)))
        measured_width = 2 * share - labels_width
    console.print(_build_runs_table(runs, columns, labels, labels_width, measured_width))


def _list_columns(runs: Sequence[RunOverview]) -> dict[str, list[str]]:
    """Returns the columns that are never cut, by heading."""
    begun = [datetime.fromtimestamp(overview.created_at).astimezone() for overview in runs]
    return {
        "run": [overview.id for overview in runs],
        "begun": [moment.strftime("%Y-%m-%d %H:%M") for moment in begun],
        "state": [overview.state.describe_state(overview.trials) for overview in runs],
        "cells": [str(overview.cells) for overview in runs],
        "blocks": [str(overview.blocks) for overview in runs],
        "trials": [str(overview.trials) for overview in runs],
        "failed": [str(overview.failed) for overview in runs],
    }


def _measure_width(columns: Mapping[str, Sequence[str]]) -> int:
    return sum(max(map(len, (name, *texts))) + _GAP for name, texts in columns.items())


def _build_runs_table(
    runs: Sequence[RunOverview],
    columns: Mapping[str, Sequence[str]],
    labels: Sequence[str],
    labels_width: int,
    measured_width: int,
) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name, texts in columns.items():
        width = max(map(len, (name, *texts)))
        if name in _NUMBERS:
            table.add_column(name, justify="right", no_wrap=True, min_width=width)
        else:
            table.add_column(name, no_wrap=True, min_width=width)
    if labels_width:
        table.add_column("labels", no_wrap=True)
    table.add_column("measured", no_wrap=True)
    for number, overview in enumerate(runs):
        cells = [make_inert_text(texts[number]) for texts in columns.values()]
        for text, width in ((labels[number], labels_width), (overview.measured, measured_width)):
            if width:
                cell = make_inert_text(text)
                cell.truncate(width, overflow="ellipsis")
                cells.append(cell)
        table.add_row(*cells)
    return table


def _describe_labels(overview: RunOverview) -> str:
    """Renders `before-upgrade commit=1a2b3c #release`, and each note's text in brackets."""
    words = []
    if overview.imported:
        words.append("imported")
    if overview.standing is not SignatureStatus.OWN:
        words.append(overview.standing.value)
    if overview.given_name:
        words.append(overview.given_name)
    words += [f"{name}={value[:_SHORT_VALUE]}" for name, value in overview.labels.items()]
    words += [f"#{tag}" for tag in overview.tags]
    words += [f"({note})" for note in overview.notes]
    return " ".join(words)


def _explain_empty_list(where: str, total: int, *, removed: bool) -> str:
    if total:
        return f"none of the {total} runs in {where} matches; guestmark runs lists all"
    return f"the ledger {where} holds no {'removed runs' if removed else 'runs yet'}"


def _check_ledger(path: str | None) -> int:
    """Checks every row of the ledger for damage, and prints what is wrong."""
    with open_ledger(path, writable=False) as ledger:
        result, where = ledger.check_all(), ledger.where
    for problem in result.problems:
        tell(problem)
    head = f"{format_count(result.runs, 'run')} in {where}: "
    if result.problems:
        say(f"{head}{format_count(len(result.problems), 'problem')}")
        return ExitStatus.SOME_FAILED
    if not result.checked:
        say(f"{head}the database is intact; rows get their checksums when a run is added")
        return ExitStatus.ALL_MEASURED
    remarks = ""
    if result.without_checksum:
        remarks += f"; {result.without_checksum} rows of an older version have no checksum"
    if result.not_own:
        remarks += f"; {format_count(result.not_own, 'run')} not signed by your key"
    say(f"{head}every row is as it was stored{remarks}")
    return ExitStatus.ALL_MEASURED
