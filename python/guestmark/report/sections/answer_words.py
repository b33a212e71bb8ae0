"""Words and figures that sentences of several kinds of answers share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from guestmark.core.model import CellStatus
from guestmark.core.units import format_count
from guestmark.page import figures
from guestmark.stats.analysis import CellResult
from guestmark.stats.compare import Comparison
from guestmark.stats.durability import describe_row_durability
from guestmark.stats.questions import Finding, QuestionAnswer

_AnyFinding = TypeVar("_AnyFinding", bound=Finding)
_MOST_IN_LIST = 3  # of cells that were left out


def select_findings(answer: QuestionAnswer, kind: type[_AnyFinding]) -> list[_AnyFinding]:
    """Return the answer's findings of one kind."""
    return [finding for finding in answer.findings if isinstance(finding, kind)]


def list_cell_ids(results: Iterable[CellResult]) -> list[str]:
    """Return the ids of the results' cells."""
    return [result.cell.id for result in results]


def list_few(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    shown = list(names[:_MOST_IN_LIST])
    more = len(names) - _MOST_IN_LIST
    if more > 0:
        shown.append(f"{more} more")
    return ", ".join(shown)


def shorten_reason(result: CellResult) -> str:
    """Return why a cell has no values, without the program's own words, which the report quotes elsewhere."""
    parts = result.reason.split(": ")
    if result.status in {CellStatus.FAILED, CellStatus.PARTIAL}:
        return ": ".join(parts[:2])
    return parts[0]


def describe_forecast(blocks: int | None) -> str:
    """Return how many more blocks would tell, after a semicolon; empty if none would, or if that is unknown."""
    return f"; about {format_count(blocks, 'more block')} would tell" if blocks else ""


def format_ratio(comparison: Comparison) -> str:
    """Return a comparison's ratio with its interval."""
    return figures.format_ratio(comparison.ratio or 1.0, comparison.ci)


def name_row_durability(result: CellResult) -> str:
    """Return the word that tables use for a row's durability; `unknown` without evidence."""
    return describe_row_durability(result) or "unknown"
