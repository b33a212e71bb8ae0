"""The short report of a run, shortened to the height of a screen; the details show the rest."""

from __future__ import annotations

import bisect
import functools
from collections.abc import Callable
from dataclasses import replace

from guestmark.ledger.model import StoredRun
from guestmark.page.nodes import Page
from guestmark.report.short_report import WHOLE, Extent, make_short_report
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

    @functools.cache
    def make_page(extent: Extent) -> Page:
        return make_short_report(run, analysis, width=width, latest=latest, extent=extent)

    @functools.cache
    def fits(extent: Extent) -> bool:
        return count_lines(make_page(extent)) <= lines

    shortenings = _list_shortenings(bool(run.plan.questions))
    for extents in shortenings:
        if fits(extents[-1]):
            return make_page(extents[bisect.bisect_left(extents, True, key=fits)])
    return make_page(shortenings[-1][-1])


def _list_shortenings(asked: bool) -> list[list[Extent]]:
    """Return lists of extents in the order in which to try them, each from its longest extent to its shortest.

    Where something was `asked`, the answers outlast the tables.
    """
    shortenings = [
        [WHOLE],
        [Extent(explanations=_MOST, rows=rows) for rows in reversed(range(5, _MOST))],
        [Extent(explanations=explanations) for explanations in reversed(range(_MOST // 2))],
        [Extent(explanations=0, brief=True)],
        [Extent(explanations=0, brief=True, rows=rows) for rows in reversed(range(3, _MOST))],
    ]
    if asked:
        without = Extent(explanations=0, brief=True, rows=3, tables=0)
        shortenings += [
            [without],
            [replace(without, rows=None, answers=answers) for answers in reversed(range(1, _MOST))],
        ]
    few = [
        Extent(explanations=0, brief=True, rows=3, tables=tables) for tables in reversed(range(1, _MOST // 4))
    ]
    return [*shortenings, [*few, Extent(explanations=0, brief=True, rows=1, tables=1)]]
