"""Follows ratios over runs, and finds where they changed."""

from __future__ import annotations

from guestmark.cli.commands.history import Options
from guestmark.cli.outputs import write_document
from guestmark.cli.page_output import write_page
from guestmark.core.errors import ExitStatus
from guestmark.ledger import open_ledger
from guestmark.report import ratio_history


def run(given: Options) -> int:
    """Shows the series of each cell, and writes the requested documents."""
    with open_ledger(given.ledger, writable=False) as ledger:
        stored = ledger.load_run(given.run)
        histories = ratio_history.follow_ratios(ledger, stored, given.by, given.max_p)
        found = ratio_history.select_series(histories, given.cell)
        labels = {overview.id: overview.labels for overview in ledger.list_runs()}
    if given.csv is not None:
        write_document(ratio_history.make_otava_csv(found, labels).encode(), given.csv)
    paths = {"json": given.json, "markdown": given.markdown, "html": given.html}
    write_page(
        ratio_history.make_page(stored, found), lambda: ratio_history.make_document(found), paths, given.csv
    )
    return ExitStatus.ALL_MEASURED
