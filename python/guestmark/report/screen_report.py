"""The short report of a run, shortened to the height of a screen; the details show the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from guestmark.ledger.model import StoredRun
from guestmark.page.nodes import Page
from guestmark.report.short_report import Extent, make_short_report
from guestmark.stats.analysis import Analysis

# A terminal of 80 columns has 24 lines.
LINES = 24
# No more items than this fit on a screen, even if each takes one line.
_MOST = LINES


def make_screen_report(
    run: StoredRun,
    analysis: Analysis,
    *,
    width: int,
    latest: bool,
    lines: int,
    count_lines: Callable[[Page], int],
) -> Page:
    """Return the longest report that fits into `lines` lines of `width` columns, as `count_lines` counts them.

    It is shortened in this order: last rows of long tables, explanations of figures (the last one first), words of
    answers, more rows, and tables. In the end only answers may be left, or a part of them.
    """
    page = make_short_report(run, analysis, width=width, latest=latest)
    for extent in _yield_shorter_extents(bool(run.plan.questions)):
        if count_lines(page) <= lines:
            break
        page = make_short_report(run, analysis, width=width, latest=latest, extent=extent)
    return page


def _yield_shorter_extents(asked: bool) -> Iterator[Extent]:
    """Yield ever shorter extents. Where something was `asked`, the answers outlast the tables."""
    for rows in reversed(range(5, _MOST)):
        yield Extent(explanations=_MOST, rows=rows)
    for explanations in reversed(range(_MOST // 2)):
        yield Extent(explanations=explanations)
    yield Extent(explanations=0, brief=True)
    for rows in reversed(range(3, _MOST)):
        yield Extent(explanations=0, brief=True, rows=rows)
    if asked:
        yield Extent(explanations=0, brief=True, rows=3, tables=0)
        for answers in reversed(range(1, _MOST)):
            yield Extent(explanations=0, brief=True, tables=0, answers=answers)
    for tables in reversed(range(1, _MOST // 4)):
        yield Extent(explanations=0, brief=True, rows=3, tables=tables)
    yield Extent(explanations=0, brief=True, rows=1, tables=1)
