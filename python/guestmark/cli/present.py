"""Shows the result of a run, and writes the requested documents."""

from __future__ import annotations

import io
from functools import partial

from guestmark.cli.console import Console, show_in_pager
from guestmark.cli.outputs import Outputs, report_failed_writes, write_document
from guestmark.cli.style import Style
from guestmark.ledger.model import StoredRun
from guestmark.page import figures
from guestmark.page.nodes import Page
from guestmark.report.render import terminal
from guestmark.report.row_order import order_cells
from guestmark.report.screen_report import LINES, make_screen_report
from guestmark.report.short_report import make_then_and_now
from guestmark.stats.analysis import Analysis


def show_result(
    stored: StoredRun,
    outputs: Outputs,
    analysis: Analysis,
    *,
    is_latest: bool = True,
    may_page: bool = False,
) -> None:
    """Prints the answer, or with `details` the report, and writes the requested documents.

    `is_latest`: the run is the newest of its ledger, which `guestmark show` shows without its name. `may_page`: the
    user asked to read the run, so a pager may open. After a measurement none does, because whatever follows on the
    command line would wait for it.
    """
    own_page = None if outputs.page is None else outputs.page(stored)
    analysis = order_cells(analysis, outputs.sort)
    with figures.show_times_in(outputs.unit):
        _write_files(stored, outputs, analysis, own_page)
        if outputs.takes_stdout or outputs.style is Style.NONE:
            return
        console = Console(style=outputs.style)
        page = own_page or _build_page(stored, outputs, analysis, console, is_latest=is_latest)
        with report_failed_writes():
            text = terminal.draw_page(page, console)
            if may_page and not outputs.quiet:
                show_in_pager(text, console)
            else:
                console.file.write(text)


def _write_files(stored: StoredRun, outputs: Outputs, analysis: Analysis, own_page: Page | None) -> None:
    if not outputs.list_files():
        return
    # Most runs are only shown, and the formats of files take longer to import than the answer.
    from guestmark.report import formats

    first = () if own_page is None else own_page.sections
    for _, form, path in outputs.list_files():
        document = formats.export_run(stored, form, analysis, first=first, referenced=outputs.has_reference)
        write_document(document, path)


def _build_page(
    stored: StoredRun, outputs: Outputs, analysis: Analysis, console: Console, *, is_latest: bool
) -> Page:
    if outputs.details or outputs.environment:
        # The sections of the whole report take long to import, too.
        from guestmark.report.full_report import make_page

        return make_page(
            stored,
            analysis,
            with_published=outputs.published,
            with_environment=outputs.environment,
            details=outputs.details,
        )
    if outputs.published:
        return make_then_and_now(stored, analysis, width=console.width, latest=is_latest)
    return make_screen_report(
        stored,
        analysis,
        width=console.width,
        latest=is_latest,
        # The shell's prompt needs one line of the terminal.
        lines=max(LINES, console.height - 1),
        count_lines=partial(_count_lines, width=console.width),
    )


def _count_lines(page: Page, width: int) -> int:
    """Counts the lines of a page without touching standard output, which may be closed or full."""
    return terminal.draw_page(page, Console(file=io.StringIO(), width=width)).count("\n")
