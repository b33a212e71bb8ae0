"""The answer of a run as it fits on a screen. What has no room there stands in the details."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from guestmark.ledger.model import StoredRun
from guestmark.page.nodes import Page
from guestmark.report.short_report import Extent, make_short_report
from guestmark.stats.analysis import Analysis

# A terminal of 80 columns has 24 lines.
LINES = 24
# The most that a screen could hold of anything, if each took one line.
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
    """Return the most that `lines` lines of `width` columns hold, as `count_lines` counts them.

    What goes first are long tables' last rows, explanations of figures, the last one before the others, then words of
    answers, more rows, and tables. At the end there may be answers alone, and only some of them.
    """
    page = make_short_report(run, analysis, width=width, latest=latest)
    for extent in _shorter_extents(bool(run.plan.questions)):
        if count_lines(page) <= lines:
            break
        page = make_short_report(run, analysis, width=width, latest=latest, extent=extent)
    return page


def _shorter_extents(asked: bool) -> Iterator[Extent]:
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
