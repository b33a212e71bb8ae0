"""What rows of tables are called: a column for all that varies, or numbers where that would leave no room."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from guestmark.core.model import Cell
from guestmark.report.document import clean
from guestmark.stats.analysis import CellResult, WorkloadResult

_NARROWEST = 8  # columns a name keeps when room is short


def plain_table() -> Table:
    """A table as all of guestmark's look."""
    # One column of padding and the box's invisible divider: two columns between columns.
    return Table(
        box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim", show_edge=False
    )


def fitted(names: Sequence[Sequence[str]], room: int) -> list[list[str]]:
    """The columns cut so that they take at most `room` columns, gaps included, if they can: the widest first."""
    widths = [max(map(len, column)) for column in names]
    while sum(widths) + 2 * len(widths) > room and max(widths) > _NARROWEST:
        widths[widths.index(max(widths))] -= 1
    return [
        [text if len(text) <= most else f"{text[: most - 1]}…" for text in column]
        for column, most in zip(names, widths, strict=True)
    ]


def taken(columns: Sequence[Sequence[Any]]) -> int:
    """Columns of the terminal that these columns of a table take, gaps included."""
    return sum(max(map(len, column)) + 2 for column in columns)


def cell_columns(results: Sequence[CellResult]) -> list[list[str]]:
    """Columns that tell the cells apart, each with its heading first: workload, platform and factors, those
    that vary; the platform when nothing does.
    """
    columns = [
        [name, *(result.cell.factors.get(name, "–") for result in results)] for name in _varying(results)
    ]
    labels = [_label(result) for result in results]
    platforms = [_platform(result) for result in results]
    grouped = all(result.cell.group for result in results)  # a plan's table may be that of one platform
    if len(set(platforms)) > 1 or not (grouped and (columns or len(set(labels)) > 1)):
        columns.insert(0, ["platform", *platforms])
    if len(set(labels)) > 1:
        columns.insert(0, ["workload", *labels])
    return columns


def everywhere(workload: WorkloadResult) -> str:
    """The factors that a plan's table has no column for: `everywhere: smp=1 format=raw`."""
    cells = [result.cell for result in workload.shown]
    if len(cells) < 2 or not all(cell.group for cell in cells):
        return ""
    common = set.intersection(*(set(cell.factors.items()) for cell in cells))
    named = [f"{name}={level}" for name, level in cells[0].factors.items() if (name, level) in common]
    return f"everywhere: {' '.join(named)}" if named else ""


@dataclass(frozen=True, slots=True)
class Names:
    """How the rows of all tables of one workload are called; `room` columns are left of the numbers in the first.

    When the names need more than that, or more than half of the width, the tables have numbers and short names, and
    `key` is the table that explains them.
    """

    workload: WorkloadResult
    width: int
    room: int

    @property
    def numbered(self) -> bool:
        """Whether the rows are numbered."""
        needed = taken(cell_columns(self.workload.shown))
        return len(self.workload.shown) > 2 and needed > min(self.room, self.width // 2)

    def columns(self, results: Sequence[CellResult], room: int) -> list[list[str]]:
        """The columns for these rows, heading first, in at most `room` columns if that can be."""
        if not self.numbered:
            return fitted(cell_columns(results), room)
        order = {result.cell.id: str(number + 1) for number, result in enumerate(self.workload.cells)}
        width = max(map(len, order.values()))
        numbers = ["#", *(f"{order[result.cell.id]:>{width}}" for result in results)]
        short = ["cell", *(self._short(result) for result in results)]
        return [numbers, *fitted([short], room - taken([numbers]))]

    def key(self) -> Table | None:
        """The table of what the numbers mean; None when there are none."""
        if not self.numbered:
            return None
        shown = self.workload.shown
        numbers, _ = self.columns(shown, self.width)
        columns = [numbers, *fitted(cell_columns(shown), self.width - taken([numbers]))]
        table = plain_table()
        for column in columns:
            table.add_column(column[0], no_wrap=True, overflow="ellipsis")
        for row, result in enumerate(shown, start=1):
            style = "bold" if result.cell.baseline else ""
            table.add_row(*(Text(column[row], style=style) for column in columns))
        return table

    def _short(self, result: CellResult) -> str:
        """The workload and the levels in which a cell departs from the baseline: `dd full sync`."""
        shown = self.workload.shown
        usual = (self.workload.baseline or shown[0]).cell
        words = []
        if len({one.cell.workload.key for one in shown}) > 1:
            words.append(result.cell.workload.key or result.cell.workload.name)
        if len({one.cell.platform for one in shown}) > 1:
            words.append(_platform(result))
        words += [
            level
            for name in _varying(shown)
            if (level := result.cell.factors.get(name, "")) and level != _usual(name, level, usual, shown)
        ]
        return " ".join(words) or result.cell.id


def _usual(name: str, level: str, usual: Cell, shown: Sequence[CellResult]) -> str:
    """The level that needs no saying: the usual cell's, and where it has no such factor the only one there is."""
    if name in usual.factors:
        return usual.factors[name]
    levels = {result.cell.factors[name] for result in shown if name in result.cell.factors}
    return level if len(levels) == 1 else ""


def _varying(results: Sequence[CellResult]) -> list[str]:
    factors = dict.fromkeys(name for result in results for name in result.cell.factors)
    return [name for name in factors if len({result.cell.factors.get(name) for result in results}) > 1]


def _label(result: CellResult) -> str:
    return str(clean(result.cell.workload.label or result.cell.workload.name))


def _platform(result: CellResult) -> str:
    return result.cell.platform if result.cell.null_of is None else f"{result.cell.platform} (again)"
