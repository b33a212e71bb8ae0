"""Tables on a terminal: as wide as there is room for, and nothing that is a figure is ever cut.

Where room is short, bars go first, then the names of rows become numbers, then tables are divided, and at last each row
stands by itself as a list of headings and values.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.cells import cell_len
from rich.text import Text

from guestmark.page import figures
from guestmark.page.tables import Align, Cell, Column, RowName, Table
from guestmark.page.text import Span, Tone, make_inert

STYLES = {
    Tone.PLAIN: "",
    Tone.STRONG: "bold",
    Tone.SOFT: "dim",
    Tone.CODE: "cyan",
    Tone.NAME: "bold magenta",
    Tone.FASTER: "green",
    Tone.SLOWER: "red",
    Tone.SAME: "cyan",
    Tone.UNCLEAR: "yellow",
    Tone.WARNING: "yellow",
    Tone.ERROR: "bold red",
}
SHORTEST_BAR = 5
LONGEST_BAR = 24
_WORDY = 12  # columns that words at the end of a row are given at least
_NARROWEST = 8  # the least columns a name gets when room is short
NOTED = 100  # columns from which there is room for remarks beside cells
_SHORT = 24  # columns a name may take of a narrow terminal
_SAVES = 0.8  # of the room that names take, numbers with short names may take at most this share
_GAP = 2


@dataclass(slots=True)
class Block:
    """Columns of text of the same height, the heading first; aligned texts, not yet padded to a width."""

    columns: list[list[Text]]
    right: list[bool]  # by column: whether it is pushed to the right
    bars: dict[int, int] = field(default_factory=dict)  # width by the column that has bars

    @property
    def widths(self) -> list[int]:
        """How wide each column is."""
        return [
            self.bars.get(position, max(cell_len(text.plain) for text in column))
            for position, column in enumerate(self.columns)
        ]

    @property
    def width(self) -> int:
        """How wide the whole is."""
        return sum(self.widths) + _GAP * (len(self.columns) - 1)

    def lines(self) -> list[Text]:
        """The heading, a rule, the rows."""
        widths = self.widths
        out = []
        for row in zip(*self.columns, strict=True):
            joined = Text(overflow="fold")
            for position, text in enumerate(row):
                room = " " * (widths[position] - cell_len(text.plain))
                last = position == len(row) - 1
                if self.right[position]:
                    joined.append(room)
                    joined.append_text(text)
                else:
                    joined.append_text(text)
                    joined.append("" if last else room)
                joined.append("" if last else " " * _GAP)
            joined.rstrip()
            out.append(joined)
        out[0].stylize("dim")
        out.insert(1, Text("─" * sum([*widths, _GAP * (len(widths) - 1)]), no_wrap=True))
        return out


def shorten_columns(names: Sequence[Sequence[str]], room: int) -> list[list[str]]:
    """The columns, shortened to take at most `room` columns with gaps if possible, the widest first."""
    widths = [max(map(cell_len, column)) for column in names]
    while sum(widths) + _GAP * len(widths) > room and max(widths) > _NARROWEST:
        widths[widths.index(max(widths))] -= 1
    return [
        [text if cell_len(text) <= most else f"{text[: most - 1]}…" for text in column]
        for column, most in zip(names, widths, strict=True)
    ]


def count_columns(columns: Sequence[Sequence[str | Text]]) -> int:
    """Columns of the terminal that these columns of a table take, gaps included."""
    return sum(max(cell_len(str(text)) for text in column) + _GAP for column in columns)


def style_span(span: Span) -> Text:
    """One span, without anything that a terminal obeys."""
    return Text(make_inert(span.text), style=STYLES[span.tone])


def needs_numbers(key: Table | None, lead: Table | None, width: int) -> bool:
    """Whether a section's rows get numbers: their names need more than its first table leaves, or half of the width."""
    if key is None or len(key.rows) < 3:
        return False
    room = width
    if lead is not None:
        room -= _figures_width(lead, noted=False) + SHORTEST_BAR
    full, brief = (count_columns(_name_columns(key, numbered=numbered)) for numbered in (False, True))
    return full > min(room, width // 2) and brief < _SAVES * full


def draw_key(key: Table, width: int) -> list[Text]:
    """What the numbers mean."""
    numbers = _name_columns(key, numbered=True)[:1]
    block = _styled_names([*numbers, *_name_columns(key, numbered=False)], key)
    if block.width <= width:
        return block.lines()
    return [
        Text(
            f"{number}  {make_inert(row.name.id) or name_row(key, row.name)}",
            style="bold" if row.strong else "",
            overflow="fold",
        )
        for number, row in zip(numbers[0][1:], key.rows, strict=True)
    ]


def draw_table(table: Table, width: int, *, numbered: bool = False) -> list[list[Text]]:
    """The table, as several where it is divided: each a list of lines no wider than `width`."""
    names = _name_columns(table, numbered=numbered)
    if table.divisible:
        widest = max(
            (count_columns([_make_column(table, position)]) for position in range(len(table.columns))),
            default=0,
        )
        return _divide(
            table,
            shorten_columns(names, max(width // 2, min(width - widest, _SHORT))),
            width,
            numbered=numbered,
        )
    noted = width >= NOTED
    if noted and _figures_width(table, noted=True) + count_columns(names) > width + _GAP:
        noted = False
    used = _figures_width(table, noted=noted)
    names = shorten_columns(
        names, max(width - used - SHORTEST_BAR, width - used) if numbered else width - used
    )
    bar = 0 if numbered else min(LONGEST_BAR, width - used - count_columns(names))
    block = _make_block(table, names, range(len(table.columns)), bar=bar, noted=noted)
    if block.width > width and not numbered:
        return [_stack_rows(table)]
    drawn = [block.lines()]
    if block.width > width:  # the numbers alone say which row it is
        drawn = _divide(table, names[:1], width, numbered=True)
    if numbered and (plot := _draw_plot(table, width)):
        drawn.append(plot)
    return drawn


# --- columns of text ----------------------------------------------------------------------------------------


def _name_columns(table: Table, *, numbered: bool) -> list[list[str]]:
    if numbered and all(row.name.number for row in table.rows):
        numbers = [str(row.name.number) for row in table.rows]
        room = max(map(len, numbers), default=1)
        return [
            ["#", *(f"{number:>{room}}" for number in numbers)],
            ["cell", *(make_inert(row.name.short) for row in table.rows)],
        ]
    return [
        [make_inert(heading), *(make_inert(row.name.parts[position]) for row in table.rows)]
        for position, heading in enumerate(table.names)
    ]


def _styled_names(names: Sequence[Sequence[str]], table: Table) -> Block:
    styles = ["", *("bold" if row.strong else "dim" if row.soft else "" for row in table.rows)]
    columns = [
        [Text(text, style=style) for text, style in zip(column, styles, strict=True)] for column in names
    ]
    return Block(columns, [False] * len(columns))


def _make_block(
    table: Table, names: Sequence[Sequence[str]], wanted: Sequence[int], *, bar: int = 0, noted: bool = False
) -> Block:
    block = _styled_names(names, table)
    for position in wanted:
        column = table.columns[position]
        if column.bar and bar < SHORTEST_BAR:
            continue
        if column.bar:
            block.bars[len(block.columns)] = bar
        block.columns.append(_make_column(table, position, bar=bar, noted=noted))
        block.right.append(column.pieces == (Align.RIGHT,))
    return block


def _make_column(table: Table, position: int, *, bar: int = 0, noted: bool = False) -> list[Text]:
    column = table.columns[position]
    cells = [row.cells[position] for row in table.rows]
    if column.bar:
        bars = [figures.draw_bar(cell.bar or 0.0, 1.0, bar) for cell in cells]
        return [Text(""), *(Text(drawn, style="blue") for drawn in bars)]
    padded = _pad_pieces(column, cells)
    texts = [Text(make_inert(column.heading))]
    for row, cell, pieces in zip(table.rows, cells, padded, strict=True):
        text = Text(style="bold" if row.strong else "dim" if row.soft else "")
        for number, (span, piece) in enumerate(zip(cell.pieces, pieces, strict=True)):
            text.append(f"{' ' if number else ''}{piece}", style=STYLES[span.tone])
        text.rstrip()
        if noted and cell.note:
            text.append(f" ({make_inert(cell.note)})", style="dim")
        texts.append(text)
    return texts


def _pad_pieces(column: Column, cells: Sequence[Cell]) -> list[list[str]]:
    """The texts of each cell's pieces, padded so that they stand under those of the other cells."""
    texts = [[make_inert(span.text) for span in cell.pieces] for cell in cells]
    for number, align in enumerate(column.pieces):
        there = [row for row, cell in enumerate(cells) if not cell.words and number < len(texts[row])]
        pieces = [texts[row][number] for row in there]
        if align is Align.POINT:
            pieces = figures.align_points(pieces)
        elif len(column.pieces) > 1:
            if number + 1 < len(column.pieces):  # nothing stands under the end of a shorter cell
                there = [row for row in there if number + 1 < len(texts[row])]
                pieces = [texts[row][number] for row in there]
            room = max(map(cell_len, pieces), default=0)
            pieces = [f"{piece:>{room}}" if align is Align.RIGHT else f"{piece:<{room}}" for piece in pieces]
        for row, piece in zip(there, pieces, strict=True):
            texts[row][number] = piece
    return texts


def _figures_width(table: Table, *, noted: bool) -> int:
    """The width of the columns after the names, without bars; words at the end of a row may take less."""
    there = [position for position, column in enumerate(table.columns) if not column.bar]
    columns = [_make_column(table, position, noted=noted) for position in there]
    if len(there) < len(table.columns) and columns:  # a table with bars ends with words
        return count_columns(columns[:-1]) + max(_WORDY, count_columns(columns[-1:]) - _GAP) + _GAP
    return count_columns(columns)


# --- divided, stacked, with bars below ----------------------------------------------------------------------


def _divide(table: Table, names: Sequence[Sequence[str]], width: int, *, numbered: bool) -> list[list[Text]]:
    pending = [position for position, column in enumerate(table.columns) if not column.bar]
    drawn = []
    while pending:
        room = width - count_columns(names)
        chosen: list[int] = []
        while pending and (not chosen or room >= count_columns([_make_column(table, pending[0])])):
            chosen.append(pending.pop(0))
            room -= count_columns([_make_column(table, chosen[-1])])
        block = _make_block(table, names, chosen)
        if block.width > width:
            return [_stack_rows(table, numbered=numbered)]
        drawn.append(block.lines())
    return drawn


def _stack_rows(table: Table, *, numbered: bool = False) -> list[Text]:
    """Each row as a list: its name, then a line for each heading and value; long lines are folded."""
    drawn = []
    for row in table.rows:
        short = f"{row.name.number}  {make_inert(row.name.short)}"
        name = short if numbered and row.name.number else name_row(table, row.name)
        drawn.append(Text(name, style="bold", overflow="fold"))
        for column, cell in zip(table.columns, row.cells, strict=True):
            if column.bar or not cell.text:
                continue
            heading = f"{make_inert(column.heading)}: " if column.heading else ""
            text = Text(f"  {heading}", style="dim", overflow="fold")
            for number, span in enumerate(cell.pieces):
                text.append(
                    f"{' ' if number else ''}{make_inert(span.text)}", style=f"not dim {STYLES[span.tone]}"
                )
            drawn.append(text)
    return drawn


def name_row(table: Table, name: RowName) -> str:
    """A row's name in one line; its parts are labelled if there are several."""
    parts = [make_inert(part) for part in name.parts]
    if len(parts) == 1:
        return parts[0]
    return ", ".join(
        f"{make_inert(heading)} {part}".strip() for heading, part in zip(table.names, parts, strict=True)
    )


def _draw_plot(table: Table, width: int) -> list[Text]:
    """Bars as wide as the terminal, for tables with many rows, which have no room for them."""
    at = next((position for position, column in enumerate(table.columns) if column.bar), None)
    rows = tuple(row for row in table.rows if at is not None and row.cells[at].bar is not None)
    if at is None or len(rows) < 2:
        return []
    values = [Cell(row.cells[0].pieces[:1]) for row in rows]
    lengths = [Cell(bar=row.cells[at].bar) for row in rows]
    from dataclasses import replace

    plotted = replace(
        table,
        columns=(replace(table.columns[0], pieces=table.columns[0].pieces[:1]), Column("", bar=True)),
        rows=tuple(
            replace(row, cells=(value, length))
            for row, value, length in zip(rows, values, lengths, strict=True)
        ),
    )
    names = shorten_columns(_name_columns(plotted, numbered=True), width // 2)
    room = width - count_columns(names) - count_columns([_make_column(plotted, 0)])
    if room < SHORTEST_BAR:
        return []
    return _make_block(plotted, names, (0, 1), bar=room).lines()
