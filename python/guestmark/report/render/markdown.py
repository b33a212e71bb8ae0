"""A page as Markdown (GitHub's flavour), to be pasted into an issue or a README."""

import re
from collections.abc import Iterator, Sequence
from itertools import chain, groupby

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
    """Return the page, ending with a line feed."""
    blocks = chain.from_iterable(map(_render_section, page.sections))
    return "\n\n".join(blocks) + "\n"


def escape_text(text: str) -> str:
    """Return text that cannot break out of a table, become markup, or hold anything active."""
    flat = " ".join(make_inert(text).split(" "))
    escaped = _SPECIAL.sub(r"\\\g<0>", flat)
    return _LINE_START.sub(lambda found: re.sub(r"([^\w\s])", r"\\\1", found[0]), escaped)


def format_code_span(text: str, *, in_table: bool = False) -> str:
    """Return a code span of exactly this text; in a table a vertical bar would end the cell and is escaped."""
    if not text:
        return ""
    quoted = make_inert(text)
    if in_table:
        quoted = quoted.replace("|", "\\|")
    fence = "`" * (max((len(run) for run in re.findall("`+", quoted)), default=0) + 1)
    # A blank at both ends is removed again by whoever reads this.
    is_blank_at_both_ends = quoted[0] == quoted[-1] == " " and quoted.strip(" ")
    pad = " " if is_blank_at_both_ends or "`" in quoted[0] + quoted[-1] else ""
    return f"{fence}{pad}{quoted}{pad}{fence}"


def _render_section(section: Section) -> Iterator[str]:
    title = escape_text(section.title)
    # Titles of workloads are commands.
    if section.part is Part.WORKLOAD:
        title = format_code_span(section.title)
    yield f"### {title}"
    if section.subtitle:
        yield escape_text(section.subtitle)
    # Notes and commands that follow each other are one list.
    for is_note, nodes in groupby(section.nodes, key=lambda node: isinstance(node, Note | Command)):
        blocks = [_render_node(node) for node in nodes]
        if is_note:
            yield "\n".join(f"- {block}" for block in blocks)
        else:
            yield from filter(None, blocks)


def _render_node(node: Node) -> str:
    text = ""
    match node:
        case Note():
            text = _render_inline(node.text)
        case Command():
            text = f"{escape_text(node.purpose)}: {format_code_span(node.command)}"
        case Heading(heading):
            text = f"**{escape_text(heading)}**"
        case Paragraph(inline):
            text = _render_inline(inline)
        case Bullets(lead, items):
            text = "\n".join(f"- {_render_inline(item).strip()}" for item in items)
            if lead:
                text = f"{_render_inline(lead)}\n\n{text}"
        case Definitions(_, rows):
            lines = [_format_table_row(["", ""]), "| :-- | :-- |"]
            for name, value in rows:
                lines.append(_format_table_row([escape_text(name), escape_text(value)]))
            text = "\n".join(lines)
        case Table():
            text = _render_table(node)
        case Matrix():
            text = _render_matrix(node)
        case Chart(title, caption, _, Stack() as stack):
            text = _render_stack(title, caption, stack)
        case _:
            # The figures of other charts are also in a table.
            pass
    return text


def _render_inline(text: Inline) -> str:
    return "".join(_render_span(span) for span in text).strip()


def _render_span(span: Span, *, in_table: bool = False) -> str:
    if span.tone is Tone.CODE:
        return format_code_span(span.text, in_table=in_table)
    escaped = escape_text(span.text)
    # Markdown does not treat asterisks as markup if a blank follows the first or precedes the last.
    if span.tone is Tone.STRONG and escaped.strip():
        inner = escaped.strip()
        return escaped.replace(inner, f"**{inner}**", 1)
    return escaped


def _render_table(table: Table) -> str:
    headings = [*table.names, *(column.heading for column in table.columns)]
    aligned = [":--"] * len(table.names) + [_ALIGNED[column.pieces[0]] for column in table.columns]
    lines = [_format_table_row([*map(escape_text, headings)]), f"| {' | '.join(aligned)} |"]
    for row in table.rows:
        cells = [escape_text(part) for part in row.name.parts]
        for column, cell in zip(table.columns, row.cells, strict=True):
            if column.bar:
                cells.append(figures.draw_bar(cell.bar or 0.0, 1.0, _BAR))
            else:
                cells.append(_render_cell(cell))
        lines.append(_format_table_row(cells))
    blocks = []
    if table.heading:
        blocks.append(f"**{escape_text(table.heading)}**")
    blocks.append("\n".join(lines))
    if table.legend:
        blocks.append("  \n".join(map(_render_inline, table.legend)))
    return "\n\n".join(blocks)


def _render_cell(cell: Cell) -> str:
    text = " ".join(_render_span(span, in_table=True) for span in cell.pieces if span.text)
    if cell.note:
        text += f" ({escape_text(cell.note)})"
    return text


def _render_matrix(matrix: Matrix) -> str:
    corner = f"{matrix.row_factor} \\ {matrix.column_factor}"
    lines = [
        _format_table_row([*map(escape_text, (corner, *matrix.column_levels))]),
        "| :-- |" + " --: |" * len(matrix.column_levels),
    ]
    for level, cells in zip(matrix.row_levels, matrix.cells, strict=True):
        texts = [escape_text(cell.text) for cell in cells]
        lines.append(_format_table_row([escape_text(level), *texts]))
    return f"**{escape_text(matrix.caption)}**\n\n" + "\n".join(lines)


def _render_stack(title: str, caption: str, stack: Stack) -> str:
    lines = [_format_table_row(["", escape_text(stack.axis), ""]), "| :-- | --: | :-- |"]
    for row in stack.rows:
        counts = figures.split_bar(row.parts, stack.longest, _STACK)
        bar = "".join(letter * count for letter, count in zip(stack.letters, counts, strict=True))
        cells = [escape_text(row.label), escape_text(row.total), format_code_span(bar, in_table=True)]
        lines.append(_format_table_row(cells))
    legend = ", ".join(f"{letter} {name}" for _, letter, name in stack.used_parts)
    table = "\n".join(lines)
    return f"**{escape_text(title)}**\n\n{table}\n\n{escape_text(legend)}. {escape_text(caption)}"


def _format_table_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
