"""Tables: rows with names, and columns of figures whose pieces are aligned."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from guestmark.page.text import Inline, Span, Tone


class Align(StrEnum):
    """Alignment of one piece of a column's cells."""

    LEFT = "left"
    RIGHT = "right"
    POINT = "point"  # decimal points aligned


@dataclass(frozen=True, slots=True)
class Column:
    """A column beside the names: `heading` includes the unit; `pieces` has the alignment of each piece of its cells."""

    heading: str
    pieces: tuple[Align, ...] = (Align.LEFT,)
    bar: bool = False  # its cells are bars without text, omitted first if there is too little room


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell's pieces, e.g. `1.24`, `±`, `0.04`; `words` instead of figures are not aligned with those of other rows.

    `note` is a remark that is shown if there is room. `bar` is a length from 0 to 1.
    """

    pieces: Inline = ()
    words: bool = False
    note: str = ""
    bar: float | None = None

    @property
    def text(self) -> str:
        """All pieces as one text, separated by single spaces."""
        return " ".join(span.text for span in self.pieces if span.text)


@dataclass(frozen=True, slots=True)
class RowName:
    """A row's name in `parts`, one for each of the table's `names`.

    If these leave no room for figures, a row has its `number` in the section and a `short` name, or its cell's `id`.
    """

    parts: tuple[str, ...]
    short: str = ""
    number: int = 0
    id: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """A row; the baseline's is `strong`, a row without figures is `soft`."""

    name: RowName
    cells: tuple[Cell, ...]
    strong: bool = False
    soft: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """A table. `names` are the headings of the parts of its rows' names.

    A `divisible` table may be drawn as several, one below the other, each with some of the columns.
    """

    caption: str  # a description for screen readers
    names: tuple[str, ...]
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    divisible: bool = False
    legend: tuple[Inline, ...] = ()  # what signs and headings mean
    heading: str = ""  # shown above it

    @property
    def figure_positions(self) -> list[int]:
        """Positions of the columns that have text; bars repeat figures of other columns."""
        return [position for position, column in enumerate(self.columns) if not column.bar]

    def list_cells(self, position: int) -> list[Cell]:
        """Return the cells of one column, from top to bottom."""
        return [row.cells[position] for row in self.rows]


def make_word_cell(text: str, tone: Tone = Tone.PLAIN, note: str = "") -> Cell:
    """Return a cell of words."""
    pieces: Inline = ()
    if text:
        pieces = (Span(text, tone),)
    return Cell(pieces, words=True, note=note)


def make_figure_cell(*pieces: str, tone: Tone = Tone.PLAIN, last: Tone | None = None) -> Cell:
    """Return a cell of figures, piece by piece; `last` is the tone of the last one."""
    tones = [tone] * len(pieces)
    if last is not None:
        tones[-1] = last
    return Cell(tuple(map(Span, pieces, tones)))


class TableBuilder:
    """A builder of tables: columns are added one by one, each with a cell for every row."""

    def __init__(self, headings: tuple[str, ...], names: Sequence[RowName]) -> None:
        self._headings = headings
        self._names = names
        self._columns: list[Column] = []
        self._cells: list[list[Cell]] = [[] for _ in names]

    def add(
        self,
        heading: str,
        cells: Iterable[Cell],
        pieces: tuple[Align, ...] = (Align.LEFT,),
        *,
        bar: bool = False,
    ) -> None:
        """Add a column; `cells` are in the order of the rows."""
        self._columns.append(Column(heading, pieces, bar))
        for row, cell in zip(self._cells, cells, strict=True):
            row.append(cell)

    def add_words(self, heading: str, texts: Sequence[str]) -> None:
        """Add a column of words, unless all of them are empty."""
        if any(texts):
            self.add(heading, map(make_word_cell, texts))

    def build(
        self,
        caption: str,
        *,
        heading: str = "",
        legend: tuple[Inline, ...] = (),
        divisible: bool = False,
        strong: Collection[int] = (),
        soft: Collection[int] = (),
    ) -> Table:
        """Return the table; `strong` and `soft` are positions of rows."""
        rows = []
        for position, (name, cells) in enumerate(zip(self._names, self._cells, strict=True)):
            rows.append(Row(name, tuple(cells), strong=position in strong, soft=position in soft))
        columns = tuple(self._columns)
        return Table(caption, self._headings, columns, tuple(rows), divisible, legend, heading)


def make_grid_table(
    caption: str,
    columns: Sequence[str],
    pieces: tuple[Align, ...],
    cells: Mapping[tuple[str, str], Cell],
    legend: tuple[Inline, ...] = (),
) -> Table:
    """Return a table from cells by the names of row and column; rows in the order of their first cell."""
    names = list(dict.fromkeys(name for name, _ in cells))
    table = TableBuilder(("",), [RowName((name,), name) for name in names])
    for column in columns:
        table.add(column, [cells.get((name, column), Cell()) for name in names], pieces)
    return table.build(caption, heading=caption, legend=legend)
