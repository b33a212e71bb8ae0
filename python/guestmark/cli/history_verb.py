"""`guestmark history`: a ratio over runs, and where it changed."""

from __future__ import annotations

from typing import Annotated

import typer

from guestmark.cli import options
from guestmark.core.home import LATEST


def command(
    run: Annotated[
        str,
        typer.Argument(
            metavar="[RUN]",
            help="The run whose cells are followed: an id, its beginning or end, a name, or `last`.",
            autocompletion=options.complete_run,
        ),
    ] = LATEST,
    *,
    cell: Annotated[str | None, typer.Option("--cell", metavar="CELL", help="Only this cell.")] = None,
    by: Annotated[
        str,
        typer.Option(
            "--by", metavar="LABEL", help="Call runs by this label (--label commit=…) where they have it."
        ),
    ] = "commit",
    max_p: Annotated[
        float,
        typer.Option("--max-p", min=1e-9, max=0.5, help="The p value at which Otava reports a change point."),
    ] = 0.0005,
    csv: Annotated[
        str | None,
        typer.Option(
            "--csv", metavar="FILE", help="Write the series as Apache Otava's own command reads them."
        ),
    ] = None,
    json: options.Json = None,
    markdown: options.Markdown = None,
    html: options.Html = None,
    ledger: options.Ledger = None,
) -> None:
    """Follow the ratios of a run's cells over all runs of this host that asked the same, and find where they changed.

    Apache Otava finds the change points, on log ratios to the baseline of each run. A checkout installs it on first
    use. A change point is a suspicion: each comes with the commands that show what differs around it and measure both
    sides side by side.
    """
    from guestmark.cli.documents import write_all
    from guestmark.cli.session import write
    from guestmark.ledger import open_ledger
    from guestmark.report import ratio_history

    with open_ledger(ledger, writable=False) as opened:
        stored = opened.load_run(run)
        found = ratio_history.only(ratio_history.histories(opened, stored, by, max_p), cell)
        labels = {each.id: each.labels for each in opened.runs()}
    if csv is not None:
        write(ratio_history.otava_csv(found, labels).encode(), csv)
    paths = {"json": json, "markdown": markdown, "html": html}
    write_all(ratio_history.page(stored, found), lambda: ratio_history.document(found), paths, csv)
