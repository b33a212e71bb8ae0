"""Tables on a terminal, fitted to its width; figures are never cut.

Where room is short, bars go first, then the names of rows become numbers, then tables are divided, and finally each row
becomes a list of headings and values.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from guestmark.page import figures
from guestmark.page.tables import Align, Cell, Column, Row, RowName, Table
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
# On terminals of at least this width, remarks are shown beside cells.
_WIDTH_WITH_NOTES = 100
# Words at the end of a row get at least this many columns, and fold within them.
_WORD_COLUMNS = 12
# A name is never shortened below this length, so that it stays recognizable.
_NARROWEST = 8
# A name in a divided table takes at most this many columns, because each part repeats it.
_SHORT_NAME = 24
# Numbers with short names replace names only if they take less than this share of the names' width.
_LARGEST_NUMBERED_SHARE = 0.8
_GAP = 2
_Column = list[Text]  # the heading, then a text for each row


@dataclass(slots=True)
class Block:
    """Columns of texts, each with its heading first and as many rows; not yet padded to a common width."""

    columns: list[_Column]
    right: list[bool]  # by column: whether it is pushed to the right
    bars: dict[int, int] = field(default_factory=dict)  # width by the column that has bars

    def add(self, column: _Column, *, right: bool) -> None:
        """Add a column on the right."""
        self.columns.append(column)
        self.right.append(right)

    @property
    def widths(self) -> list[int]:
        """Width of each column."""
        widths = []
        for position, column in enumerate(self.columns):
            of_texts = max(cell_len(text.plain) for text in column)
            widths.append(self.bars.get(position, of_texts))
        return widths

    @property
    def width(self) -> int:
        """Width of all columns, gaps included."""
        return sum(self.widths) + _GAP * (len(self.columns) - 1)

    def draw_lines(self) -> list[Text]:
        """Return the heading, a rule, and the rows."""
        widths = self.widths
        lines = [self._join(row, widths) for row in zip(*self.columns, strict=True)]
        lines[0].stylize("dim")
        rule = Text("─" * sum([*widths, _GAP * (len(widths) - 1)]), no_wrap=True)
        return [lines[0], rule, *lines[1:]]

    def _join(self, row: Sequence[Text], widths: Sequence[int]) -> Text:
        joined = Text(overflow="fold")
        for position, text in enumerate(row):
            if position:
                joined.append(" " * _GAP)
            padding = " " * (widths[position] - cell_len(text.plain))
            if self.right[position]:
                joined.append(padding)
                joined.append_text(text)
            else:
                joined.append_text(text)
                joined.append(padding)
        joined.rstrip()
        return joined


def shorten_columns(names: Sequence[Sequence[str]], room: int) -> list[list[str]]:
    """Shorten columns of names to take at most `room` columns with gaps if possible, the widest first."""
    widths = [max(map(cell_len, column)) for column in names]
    while sum(widths) + _GAP * len(widths) > room and max(widths) > _NARROWEST:
        widths[widths.index(max(widths))] -= 1
    shortened = []
    for column, most in zip(names, widths, strict=True):
        shortened.append([_shorten_name(text, most) for text in column])
    return shortened


def _shorten_name(text: str, most: int) -> str:
    if cell_len(text) <= most:
        return text
    return f"{set_cell_size(text, most - 1)}…"


def _push_right(text: str, room: int) -> str:
    """Return the text with blanks before it, so that it takes `room` columns of a terminal."""
    return " " * (room - cell_len(text)) + text


def measure_width(columns: Sequence[Sequence[str | Text]]) -> int:
    """Return how many of the terminal's columns these columns of a table take, gaps included."""
    width = 0
    for column in columns:
        width += max(cell_len(str(text)) for text in column) + _GAP
    return width


def style_span(span: Span) -> Text:
    """Return one span as styled text, without control characters."""
    return Text(make_inert(span.text), style=STYLES[span.tone])


def needs_numbers(key: Table | None, lead: Table | None, width: int) -> bool:
    """Return whether a section's rows get numbers for names.

    They do if names need more room than the section's first table leaves, or more than half of the width, and numbers
    are shorter.
    """
    if key is None or len(key.rows) < 3:
        return False
    room = width
    if lead is not None:
        room -= _measure_figures(lead, noted=False) + SHORTEST_BAR
    full = measure_width(_list_name_columns(key, numbered=False))
    brief = measure_width(_list_name_columns(key, numbered=True))
    return full > min(room, width // 2) and brief < _LARGEST_NUMBERED_SHARE * full


def draw_key(key: Table, width: int) -> list[Text]:
    """Return the numbers of rows with the names they stand for."""
    numbers, *_ = _list_name_columns(key, numbered=True)
    block = _style_names([numbers, *_list_name_columns(key, numbered=False)], key)
    if block.width <= width:
        return block.draw_lines()
    lines = []
    for number, row in zip(numbers[1:], key.rows, strict=True):
        name = make_inert(row.name.id) or name_row(key, row.name)
        lines.append(Text(f"{number}  {name}", style="bold" if row.strong else "", overflow="fold"))
    return lines


def draw_table(table: Table, width: int, *, numbered: bool = False) -> list[list[Text]]:
    """Return the table, in parts where it is divided: each a list of lines no wider than `width`."""
    names = _list_name_columns(table, numbered=numbered)
    if table.divisible:
        widths = [measure_width([_make_column(table, position)]) for position in range(len(table.columns))]
        room = max(width // 2, min(width - max(widths, default=0), _SHORT_NAME))
        return _divide_table(table, shorten_columns(names, room), width, numbered=numbered)
    noted = width >= _WIDTH_WITH_NOTES
    if noted and _measure_figures(table, noted=True) + measure_width(names) > width + _GAP:
        noted = False
    room = width - _measure_figures(table, noted=noted)
    names = shorten_columns(names, room)
    bar = 0 if numbered else min(LONGEST_BAR, room - measure_width(names))
    block = _make_block(table, names, range(len(table.columns)), bar=bar, noted=noted)
    if block.width > width and not numbered:
        return [_stack_rows(table)]
    parts = [block.draw_lines()]
    if block.width > width:
        # The numbers alone identify the rows.
        parts = _divide_table(table, names[:1], width, numbered=True)
    if numbered and (plot := _draw_plot(table, width)):
        parts.append(plot)
    return parts


def name_row(table: Table, name: RowName) -> str:
    """Return a row's name in one line; its parts are labelled if there are several."""
    parts = [make_inert(part) for part in name.parts]
    if len(parts) == 1:
        return parts[0]
    labelled = []
    for heading, part in zip(table.names, parts, strict=True):
        labelled.append(f"{make_inert(heading)} {part}".strip())
    return ", ".join(labelled)


# --- columns of text ----------------------------------------------------------------------------------------


def _list_name_columns(table: Table, *, numbered: bool) -> list[list[str]]:
    if numbered and all(row.name.number for row in table.rows):
        return _list_number_columns(table)
    columns = []
    for position, heading in enumerate(table.names):
        parts = [make_inert(row.name.parts[position]) for row in table.rows]
        columns.append([make_inert(heading), *parts])
    return columns


def _list_number_columns(table: Table) -> list[list[str]]:
    """Return the columns of a table whose rows have numbers and short names."""
    numbers, names = ["#"], ["cell"]
    room = max((len(str(row.name.number)) for row in table.rows), default=1)
    for row in table.rows:
        numbers.append(f"{row.name.number:>{room}}")
        names.append(make_inert(row.name.short))
    return [numbers, names]


def _choose_row_style(row: Row) -> str:
    if row.strong:
        return "bold"
    return "dim" if row.soft else ""


def _style_names(names: Sequence[Sequence[str]], table: Table) -> Block:
    styles = ["", *map(_choose_row_style, table.rows)]
    block = Block([], [])
    for column in names:
        texts = [Text(text, style=style) for text, style in zip(column, styles, strict=True)]
        block.add(texts, right=False)
    return block


def _make_block(
    table: Table, names: Sequence[Sequence[str]], wanted: Sequence[int], *, bar: int = 0, noted: bool = False
) -> Block:
    """Return names and the `wanted` columns; bars are `bar` wide, and left out if that is too short."""
    block = _style_names(names, table)
    for position in wanted:
        column = table.columns[position]
        if column.bar and bar < SHORTEST_BAR:
            continue
        if column.bar:
            block.bars[len(block.columns)] = bar
        texts = _make_column(table, position, bar=bar, noted=noted)
        block.add(texts, right=column.pieces == (Align.RIGHT,))
    return block


def _make_column(table: Table, position: int, *, bar: int = 0, noted: bool = False) -> _Column:
    column, cells = table.columns[position], table.list_cells(position)
    if column.bar:
        return [Text(""), *(_draw_bar_cell(cell, bar) for cell in cells)]
    texts = [Text(make_inert(column.heading))]
    for row, cell, pieces in zip(table.rows, cells, _pad_pieces(column, cells), strict=True):
        text = Text(style=_choose_row_style(row))
        for number, (span, piece) in enumerate(zip(cell.pieces, pieces, strict=True)):
            text.append(_separate_piece(piece, number), style=STYLES[span.tone])
        text.rstrip()
        if noted and cell.note:
            text.append(f" ({make_inert(cell.note)})", style="dim")
        texts.append(text)
    return texts


def _draw_bar_cell(cell: Cell, width: int) -> Text:
    return Text(figures.draw_bar(cell.bar or 0.0, 1.0, width), style="blue")


def _separate_piece(piece: str, number: int) -> str:
    """Return a piece with a blank before it, unless it is a cell's first."""
    return f" {piece}" if number else piece


def _pad_pieces(column: Column, cells: Sequence[Cell]) -> list[list[str]]:
    """Return the texts of each cell's pieces, padded so that they line up with those of the other cells."""
    texts, aligned = [], []
    for cell in cells:
        pieces = [make_inert(span.text) for span in cell.pieces]
        texts.append(pieces)
        if not cell.words:
            aligned.append(pieces)
    for number in range(len(column.pieces)):
        _align_piece(aligned, column.pieces, number)
    return texts


def _align_piece(cells: Sequence[list[str]], aligns: Sequence[Align], number: int) -> None:
    """Pad one piece of the cells that have it."""
    align, fewest = aligns[number], number + 1
    if align is not Align.POINT:
        if len(aligns) == 1:
            return
        # The last piece of a shorter cell needs no padding, because nothing is aligned after it.
        fewest = min(fewest + 1, len(aligns))
    having = [pieces for pieces in cells if len(pieces) >= fewest]
    padded = [pieces[number] for pieces in having]
    if align is Align.POINT:
        padded = figures.align_points(padded)
    else:
        room = max(map(cell_len, padded), default=0)
        pad = _push_right if align is Align.RIGHT else set_cell_size
        padded = [pad(piece, room) for piece in padded]
    for pieces, piece in zip(having, padded, strict=True):
        pieces[number] = piece


def _measure_figures(table: Table, *, noted: bool) -> int:
    """Return the width of the columns after the names, without bars; words at the end of a row may take less."""
    columns = [_make_column(table, position, noted=noted) for position in table.figure_positions]
    # A table with bars ends with words.
    if len(columns) < len(table.columns) and columns:
        return measure_width(columns[:-1]) + max(_WORD_COLUMNS, measure_width(columns[-1:]) - _GAP) + _GAP
    return measure_width(columns)


# --- divided, stacked, with bars below ----------------------------------------------------------------------


def _divide_table(
    table: Table, names: Sequence[Sequence[str]], width: int, *, numbered: bool
) -> list[list[Text]]:
    pending = table.figure_positions
    parts = []
    while pending:
        room = width - measure_width(names)
        chosen: list[int] = []
        while pending and (not chosen or room >= measure_width([_make_column(table, pending[0])])):
            chosen.append(pending.pop(0))
            room -= measure_width([_make_column(table, chosen[-1])])
        block = _make_block(table, names, chosen)
        if block.width > width:
            return [_stack_rows(table, numbered=numbered)]
        parts.append(block.draw_lines())
    return parts


def _stack_rows(table: Table, *, numbered: bool = False) -> list[Text]:
    """Return each row as a list: its name, then a line for each heading and value; long lines are folded."""
    lines = []
    for row in table.rows:
        name = name_row(table, row.name)
        if numbered and row.name.number:
            name = f"{row.name.number}  {make_inert(row.name.short)}"
        lines.append(Text(name, style="bold", overflow="fold"))
        for column, cell in zip(table.columns, row.cells, strict=True):
            if not column.bar and cell.text:
                lines.append(_draw_value(column, cell))
    return lines


def _draw_value(column: Column, cell: Cell) -> Text:
    heading = f"{make_inert(column.heading)}: " if column.heading else ""
    text = Text(f"  {heading}", style="dim", overflow="fold")
    for number, span in enumerate(cell.pieces):
        piece = _separate_piece(make_inert(span.text), number)
        text.append(piece, style=f"not dim {STYLES[span.tone]}")
    return text


def _find_bar_column(table: Table) -> int | None:
    for position, column in enumerate(table.columns):
        if column.bar:
            return position
    return None


def _draw_plot(table: Table, width: int) -> list[Text]:
    """Return bars as wide as the terminal, for tables with many rows, which have no room for them."""
    at = _find_bar_column(table)
    if at is None:
        return []
    rows = []
    for row in table.rows:
        if row.cells[at].bar is not None:
            value, length = Cell(row.cells[0].pieces[:1]), Cell(bar=row.cells[at].bar)
            rows.append(replace(row, cells=(value, length)))
    if len(rows) < 2:
        return []
    first = replace(table.columns[0], pieces=table.columns[0].pieces[:1])
    plotted = replace(table, columns=(first, Column("", bar=True)), rows=tuple(rows))
    names = shorten_columns(_list_name_columns(plotted, numbered=True), width // 2)
    room = width - measure_width(names) - measure_width([_make_column(plotted, 0)])
    if room < SHORTEST_BAR:
        return []
    return _make_block(plotted, names, (0, 1), bar=room).draw_lines()
