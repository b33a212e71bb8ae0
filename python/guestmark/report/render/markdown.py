"""A page as Markdown (GitHub's flavour), to be pasted into an issue or a README."""

import re
from collections.abc import Iterable, Sequence

from guestmark.page import figures
from guestmark.page.charts import Stack
from guestmark.page.nodes import (
    Bullets,
    Chart,
    Command,
    Definitions,
    Heading,
    Matrix,
    Node,
    Note,
    Page,
    Paragraph,
    Part,
    Section,
)
from guestmark.page.tables import Align, Cell, Table
from guestmark.page.text import Inline, Span, Tone, make_inert

_SPECIAL = re.compile(r"[\\|*`<>&$~]|(?<![^\W_])_|_(?![^\W_])|\](?=[(\[:])|!(?=\[)")
_LINE_START = re.compile(r"^(#{1,6}(?=\s|$)|[-+=](?=[-+=\s]|$)|\d{1,9}[.)](?=\s|$))")
_BAR = 20  # characters of the longest bar
_STACK = 40
_ALIGNED = {Align.LEFT: ":--", Align.RIGHT: "--:", Align.POINT: "--:"}


def render(page: Page) -> str:
    """The page, ending with a line feed."""
    blocks = [block for section in page.sections for block in _section(section)]
    return "\n\n".join(blocks) + "\n"


def escape(text: str) -> str:
    """Text that cannot break out of a table, become markup, or hold anything active."""
    flat = " ".join(make_inert(text).split(" "))
    escaped = _SPECIAL.sub(r"\\\g<0>", flat)
    return _LINE_START.sub(lambda found: re.sub(r"([^\w\s])", r"\\\1", found[0]), escaped)


def code(text: str) -> str:
    """A code span: in tables, too, where a bar would end the cell."""
    return f"`{make_inert(text).replace('`', chr(39)).replace('|', '¦')}`" if text else ""


def _section(section: Section) -> Iterable[str]:
    yield f"### {code(section.title)}" if section.part is Part.WORKLOAD else f"### {escape(section.title)}"
    if section.subtitle:
        yield escape(section.subtitle)
    notes: list[str] = []
    for node in section.nodes:
        if isinstance(node, Note | Command):  # lines that follow each other stay together
            notes.append(f"- {_note(node)}")
            continue
        if notes:
            yield "\n".join(notes)
            notes = []
        if block := _node(node):
            yield block
    if notes:
        yield "\n".join(notes)


def _note(node: Note | Command) -> str:
    return _inline(node.text) if isinstance(node, Note) else f"{escape(node.purpose)}: {code(node.command)}"


def _node(node: Node) -> str:
    made: str
    match node:
        case Heading(text):
            made = f"**{escape(text)}**"
        case Paragraph(text):
            made = _inline(text)
        case Bullets(lead, items):
            head = f"{_inline(lead)}\n\n" if lead else ""
            made = head + "\n".join(f"- {_inline(item).strip()}" for item in items)
        case Definitions(_, rows):
            made = "\n".join(
                [
                    _row(["", ""]),
                    "| :-- | :-- |",
                    *(_row([escape(name), escape(value)]) for name, value in rows),
                ]
            )
        case Table():
            made = _table(node)
        case Matrix():
            made = _matrix(node)
        case Chart(title, caption, _, Stack() as stack):
            made = _stack(title, caption, stack)
        case _:  # its figures are also in a table
            made = ""
    return made


def _inline(text: Inline) -> str:
    return "".join(_span(span) for span in text).strip()


def _span(span: Span) -> str:
    if span.tone is Tone.CODE:
        return code(span.text)
    escaped = escape(span.text)
    if span.tone is Tone.STRONG and escaped.strip():
        inner = escaped.strip()
        return escaped.replace(inner, f"**{inner}**", 1)
    return escaped


def _table(table: Table) -> str:
    heads = [*map(escape, table.names), *(escape(column.heading) for column in table.columns)]
    aligned = [":--"] * len(table.names) + [_ALIGNED[column.pieces[0]] for column in table.columns]
    lines = [_row(heads), f"| {' | '.join(aligned)} |"]
    for row in table.rows:
        cells = [escape(part) for part in row.name.parts]
        cells += [
            figures.draw_bar(cell.bar or 0.0, 1.0, _BAR) if column.bar else _cell(cell)
            for column, cell in zip(table.columns, row.cells, strict=True)
        ]
        lines.append(_row(cells))
    made = "\n".join(lines)
    if table.heading:
        made = f"**{escape(table.heading)}**\n\n{made}"
    small = "  \n".join(_inline(line) for line in table.legend)
    return f"{made}\n\n{small}" if small else made


def _cell(cell: Cell) -> str:
    text = " ".join(_span(span) for span in cell.pieces if span.text)
    return f"{text} ({escape(cell.note)})" if cell.note else text


def _matrix(matrix: Matrix) -> str:
    lines = [
        _row([escape(f"{matrix.row_factor} \\ {matrix.column_factor}"), *map(escape, matrix.column_levels)]),
        "| :-- |" + " --: |" * len(matrix.column_levels),
    ]
    lines += [
        _row([escape(level), *(escape(cell.text) for cell in cells)])
        for level, cells in zip(matrix.row_levels, matrix.cells, strict=True)
    ]
    return f"**{escape(matrix.caption)}**\n\n" + "\n".join(lines)


def _stack(title: str, caption: str, stack: Stack) -> str:
    largest = max(sum(row.parts) for row in stack.rows)
    lines = [_row(["", escape(stack.axis), ""]), "| :-- | --: | :-- |"]
    for row in stack.rows:
        counts = figures.split_bar(row.parts, largest, _STACK)
        bar = "".join(letter * count for letter, count in zip(stack.letters, counts, strict=True))
        lines.append(_row([escape(row.label), escape(row.total), code(bar)]))
    legend = ", ".join(
        f"{letter} {part}"
        for number, (letter, part) in enumerate(zip(stack.letters, stack.parts, strict=True))
        if any(row.parts[number] for row in stack.rows)
    )
    table = "\n".join(lines)
    return f"**{escape(title)}**\n\n{table}\n\n{escape(legend)}. {escape(caption)}"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
