"""`guestmark compare`: runs that have been made, beside each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from guestmark.cli import options

if TYPE_CHECKING:
    from guestmark.report.compared import Comparison


def command(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN RUN...",
            help="Runs by id, beginning, end, name, or `last`; all are held against the first.",
            autocompletion=options.complete_run,
        ),
    ],
    *,
    fail_above: Annotated[
        str | None,
        typer.Option(
            "--fail-above",
            metavar="PERCENT",
            help="Exit with 1 when a cell is shown to have grown by more, 125 when it cannot be told.",
        ),
    ] = None,
    json: options.Json = None,
    markdown: options.Markdown = None,
    html: options.Html = None,
    ledger: options.Ledger = None,
) -> None:
    """Hold runs against each other, cell by cell, and say first what differs in their surroundings.

    Compared are ratios to each run's own baseline. Their intervals allow for how far runs differ here without any
    change, which is learned from earlier runs of the same cells in the ledger. To know what a change does,
    `guestmark ab` is the better way: it measures both sides at the same time.

    Exit status: 0; with --fail-above also 1 a growth beyond it is shown, 125 it cannot be told.
    """
    from guestmark.core.errors import GateStatus, UsageError
    from guestmark.core.units import parse_fraction
    from guestmark.ledger import open_ledger
    from guestmark.report import compared

    if len(runs) < 2:
        raise UsageError("one run alone cannot be compared", hint="guestmark runs lists others")
    limit = options.value("--fail-above", parse_fraction, fail_above)
    with open_ledger(ledger, writable=False) as opened:
        ids = [opened.resolve(run) for run in runs]
        if len(set(ids)) < len(ids):
            raise UsageError(f"run {ids[0]} is given twice", hint="guestmark runs lists others")
        first, *others = [opened.load_run(run_id) for run_id in ids]
        found = [compared.compare(opened, first, other) for other in others]
    _write(found, {"json": json, "markdown": markdown, "html": html})
    if limit is not None:
        broken, kept = compared.worst(found, 1 + limit)
        raise typer.Exit(GateStatus.BROKEN if broken else GateStatus.KEPT if kept else GateStatus.UNDECIDED)


def _write(found: Sequence[Comparison], paths: Mapping[str, str | None]) -> None:
    import json

    from guestmark.cli.console import Console
    from guestmark.cli.session import write, writing_to_stdout
    from guestmark.page.text import escaped_in_json
    from guestmark.report import compared
    from guestmark.report.render import html, markdown
    from guestmark.report.render.terminal import print_page

    page = compared.page(found)
    for name, path in paths.items():
        if path is None:
            continue
        if name == "json":
            text = json.dumps(compared.document(found), indent=2, ensure_ascii=False, allow_nan=False)
            write((escaped_in_json(text) + "\n").encode(), path)
        else:
            write((html if name == "html" else markdown).render(page).encode(), path)
    if "-" not in paths.values():
        with writing_to_stdout():
            print_page(page, Console())
