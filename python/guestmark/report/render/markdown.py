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
    blocks = [block for section in page.sections for block in _render_section(section)]
    return "\n\n".join(blocks) + "\n"


def escape_text(text: str) -> str:
    """Text that cannot break out of a table, become markup, or hold anything active."""
    flat = " ".join(make_inert(text).split(" "))
    escaped = _SPECIAL.sub(r"\\\g<0>", flat)
    return _LINE_START.sub(lambda found: re.sub(r"([^\w\s])", r"\\\1", found[0]), escaped)


def code_span(text: str) -> str:
    """A code span: in tables, too, where a bar would end the cell."""
    return f"`{make_inert(text).replace('`', chr(39)).replace('|', '¦')}`" if text else ""


def _render_section(section: Section) -> Iterable[str]:
    yield (
        f"### {code_span(section.title)}"
        if section.part is Part.WORKLOAD
        else f"### {escape_text(section.title)}"
    )
    if section.subtitle:
        yield escape_text(section.subtitle)
    notes: list[str] = []
    for node in section.nodes:
        if isinstance(node, Note | Command):  # lines that follow each other stay together
            notes.append(f"- {_render_note(node)}")
            continue
        if notes:
            yield "\n".join(notes)
            notes = []
        if block := _render_node(node):
            yield block
    if notes:
        yield "\n".join(notes)


def _render_note(node: Note | Command) -> str:
    return (
        _render_inline(node.text)
        if isinstance(node, Note)
        else f"{escape_text(node.purpose)}: {code_span(node.command)}"
    )


def _render_node(node: Node) -> str:
    made: str
    match node:
        case Heading(text):
            made = f"**{escape_text(text)}**"
        case Paragraph(text):
            made = _render_inline(text)
        case Bullets(lead, items):
            head = f"{_render_inline(lead)}\n\n" if lead else ""
            made = head + "\n".join(f"- {_render_inline(item).strip()}" for item in items)
        case Definitions(_, rows):
            made = "\n".join(
                [
                    _table_row(["", ""]),
                    "| :-- | :-- |",
                    *(_table_row([escape_text(name), escape_text(value)]) for name, value in rows),
                ]
            )
        case Table():
            made = _render_table(node)
        case Matrix():
            made = _render_matrix(node)
        case Chart(title, caption, _, Stack() as stack):
            made = _render_stack(title, caption, stack)
        case _:  # its figures are also in a table
            made = ""
    return made


def _render_inline(text: Inline) -> str:
    return "".join(_render_span(span) for span in text).strip()


def _render_span(span: Span) -> str:
    if span.tone is Tone.CODE:
        return code_span(span.text)
    escaped = escape_text(span.text)
    if span.tone is Tone.STRONG and escaped.strip():
        inner = escaped.strip()
        return escaped.replace(inner, f"**{inner}**", 1)
    return escaped


def _render_table(table: Table) -> str:
    heads = [*map(escape_text, table.names), *(escape_text(column.heading) for column in table.columns)]
    aligned = [":--"] * len(table.names) + [_ALIGNED[column.pieces[0]] for column in table.columns]
    lines = [_table_row(heads), f"| {' | '.join(aligned)} |"]
    for row in table.rows:
        cells = [escape_text(part) for part in row.name.parts]
        cells += [
            figures.draw_bar(cell.bar or 0.0, 1.0, _BAR) if column.bar else _render_cell(cell)
            for column, cell in zip(table.columns, row.cells, strict=True)
        ]
        lines.append(_table_row(cells))
    made = "\n".join(lines)
    if table.heading:
        made = f"**{escape_text(table.heading)}**\n\n{made}"
    small = "  \n".join(_render_inline(line) for line in table.legend)
    return f"{made}\n\n{small}" if small else made


def _render_cell(cell: Cell) -> str:
    text = " ".join(_render_span(span) for span in cell.pieces if span.text)
    return f"{text} ({escape_text(cell.note)})" if cell.note else text


def _render_matrix(matrix: Matrix) -> str:
    lines = [
        _table_row(
            [
                escape_text(f"{matrix.row_factor} \\ {matrix.column_factor}"),
                *map(escape_text, matrix.column_levels),
            ]
        ),
        "| :-- |" + " --: |" * len(matrix.column_levels),
    ]
    lines += [
        _table_row([escape_text(level), *(escape_text(cell.text) for cell in cells)])
        for level, cells in zip(matrix.row_levels, matrix.cells, strict=True)
    ]
    return f"**{escape_text(matrix.caption)}**\n\n" + "\n".join(lines)


def _render_stack(title: str, caption: str, stack: Stack) -> str:
    largest = max(sum(row.parts) for row in stack.rows)
    lines = [_table_row(["", escape_text(stack.axis), ""]), "| :-- | --: | :-- |"]
    for row in stack.rows:
        counts = figures.split_bar(row.parts, largest, _STACK)
        bar = "".join(letter * count for letter, count in zip(stack.letters, counts, strict=True))
        lines.append(_table_row([escape_text(row.label), escape_text(row.total), code_span(bar)]))
    legend = ", ".join(
        f"{letter} {part}"
        for number, (letter, part) in enumerate(zip(stack.letters, stack.parts, strict=True))
        if any(row.parts[number] for row in stack.rows)
    )
    table = "\n".join(lines)
    return f"**{escape_text(title)}**\n\n{table}\n\n{escape_text(legend)}. {escape_text(caption)}"


def _table_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
