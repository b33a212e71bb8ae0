"""The short report of a run, shortened to the height of a screen; the details show the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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

    def make(extent: Extent) -> Page:
        return make_short_report(run, analysis, width=width, latest=latest, extent=extent)

    page = make(WHOLE)
    for extents in _list_shortenings(bool(run.plan.questions)):
        if count_lines(page) <= lines:
            break
        page = _find_longest(extents, make, lambda page: count_lines(page) <= lines)
    return page


def _find_longest(
    extents: Sequence[Extent], make: Callable[[Extent], Page], fits: Callable[[Page], bool]
) -> Page:
    """Return the page of the first of these ever shorter extents that fits; of the last one if none does."""
    found = make(extents[-1])
    if not fits(found):
        return found
    too_long, fitting = -1, len(extents) - 1
    while fitting - too_long > 1:
        middle = (too_long + fitting) // 2
        page = make(extents[middle])
        if fits(page):
            found, fitting = page, middle
        else:
            too_long = middle
    return found


def _list_shortenings(asked: bool) -> list[list[Extent]]:
    """Return the ways to shorten, in order, each as ever shorter extents.

    Where something was `asked`, the answers outlast the tables.
    """
    shortenings = [
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
