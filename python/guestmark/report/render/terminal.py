"""A page on a terminal: as compact as hyperfine, with blocks, intervals and verdicts."""

import functools
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby

from rich.cells import cell_len, set_cell_size
from rich.console import Console, Group, RenderableType
from rich.text import Text

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
    NoteKind,
    Page,
    Paragraph,
    Section,
)
from guestmark.page.tables import Align, RowName, Table, TableBuilder, make_word_cell
from guestmark.page.text import Inline, Tone, make_inert
from guestmark.report.render.terminal_table import (
    draw_key,
    draw_table,
    needs_numbers,
    shorten_columns,
    style_span,
)
from guestmark.stats.analysis import Analysis

_ASCII = str.maketrans(
    {"×": "x", "±": "+-", "–": "-", "−": "-", "µ": "u", "…": "...", "→": "->", "·": ".", "’": "'", "─": "-"}
    | dict.fromkeys("▉▊▋▌▍▎▏█", "#")
    | dict(zip("▁▂▃▄▅▆▇", "_.-=+*%", strict=True))
)
_COLOURS = (
    "blue",
    "cyan",
    "magenta",
    "green",
    "yellow",
    "red",
    "bright_blue",
    "white",
    "bright_magenta",
    "bright_black",
)
# A figure and its unit stay on one line.
_UNIT = re.compile(r"(?<=\d) (?=(?:%|[mµn]?s|[kMG]?B(?:/s)?|min|h)(?:\W|$))")
_NO_BREAK = "\N{NO-BREAK SPACE}"
# Rich would break lines at these spaces, so noncharacters, which no text contains, replace them while it wraps.
_BOUND = {" ": "\ufdd0", _NO_BREAK: "\ufdd1"}
_UNBOUND = str.maketrans({sign: space for space, sign in _BOUND.items()})
_SHORTEST_STACK = 16
# Below this width names stand above their values instead of beside them.
_NARROW = 50


def print_page(page: Page, console: Console | None = None) -> None:
    """Print a page, without colour when the console is not a terminal."""
    out = console or Console(highlight=False)
    out.file.write(draw_page(page, out))
    out.file.flush()


def draw_page(page: Page, console: Console) -> str:
    """Return what to write to the console's file.

    On terminals without UTF-8, characters that they lack are replaced by ASCII; that never fails.
    """
    with console.capture() as capture:
        console.print(draw_sections(page.sections, console.width), highlight=False)
    text = capture.get()
    if not console.encoding.lower().startswith("utf"):
        text = text.translate(_ASCII)
    # Signs without a translation may be missing in the terminal's encoding, too.
    return text.encode(console.encoding, "replace").decode(console.encoding)


def draw_results(analysis: Analysis, width: int) -> RenderableType:
    """Return the results so far, for the screen of a run in progress."""
    # Importing the sections of a full report takes longer than drawing a short answer.
    from guestmark.report.full_report import make_live_section

    return draw_sections([make_live_section(workload) for workload in analysis.workloads], width)


def draw_sections(sections: Iterable[Section], width: int = 80) -> RenderableType:
    """Return the sections for this many columns, a blank line between two of them."""
    lines: list[Text] = []
    for section in sections:
        if lines:
            lines.append(Text())
        lines += _draw_section(section, width)
    return Group(*chain.from_iterable(_fold_line(line, width) for line in lines))


def _fold_line(line: Text, width: int) -> list[Text]:
    """Break a line between words into as many as it needs; all are indented like the first."""
    if cell_len(line.plain) <= width:
        return [line]
    indent = len(line.plain) - len(line.plain.lstrip(" "))
    if indent >= width // 2:
        indent = 0
    bound = line[indent:]
    bound.plain = _UNIT.sub(_BOUND[" "], bound.plain).replace(_NO_BREAK, _BOUND[_NO_BREAK])
    folded = list(bound.wrap(_make_wrapping_console(), width - indent, overflow="fold"))
    for part in folded:
        part.plain = part.plain.translate(_UNBOUND)
        part.rstrip()
    return [Text(" " * indent).append_text(part) for part in folded]


@functools.cache
def _make_wrapping_console() -> Console:
    # Rich needs a console to wrap text, if only for its defaults.
    return Console(width=80)


def _make_bold_line(text: str) -> Text:
    return Text(make_inert(text), style="bold", overflow="fold")


def _make_dim_line(text: str) -> Text:
    return Text(make_inert(text), style="dim", overflow="fold")


def _draw_section(section: Section, width: int) -> list[Text]:
    lines: list[Text] = []
    if section.titled:
        lines.append(_make_bold_line(section.title))
    if section.subtitle:
        lines.append(_make_dim_line(section.subtitle))
    lead = section.find_first(Table)
    numbered = needs_numbers(section.key, lead, width)
    if numbered and section.key is not None and lead is not None:
        lines += [*draw_key(section.key, width), Text()]
    before: Node | None = None
    for nodes in _group_commands(section.nodes):
        if isinstance(nodes[0], Command):
            drawn = _draw_commands(nodes)
        else:
            drawn = _draw_node(nodes[0], width, numbered=numbered)
        if not drawn:
            continue
        if before is not None and _needs_blank_line(before, nodes[0]):
            lines.append(Text())
        lines += drawn
        before = nodes[-1]
    return lines


def _group_commands(nodes: Sequence[Node]) -> Iterator[list[Node]]:
    """Group consecutive commands; any other node stays alone."""
    for is_command, group in groupby(nodes, key=lambda node: isinstance(node, Command)):
        if is_command:
            yield list(group)
            continue
        for node in group:
            yield [node]


def _needs_blank_line(before: Node, node: Node) -> bool:
    """Return whether a blank line separates two nodes: around everything that has several lines."""
    # Small print belongs to what stands above it.
    if isinstance(node, Note) and node.kind is NoteKind.SMALL and isinstance(before, Table | Chart):
        return False
    blocks = (Table, Chart, Matrix, Definitions)
    if isinstance(before, blocks) or isinstance(node, blocks):
        return True
    if isinstance(node, Paragraph):
        return _is_all_strong(node.text)
    return isinstance(node, Heading) or (isinstance(node, Bullets) and _is_all_strong(node.lead))


def _is_all_strong(text: Inline) -> bool:
    return bool(text) and all(span.tone is Tone.STRONG for span in text)


def _draw_node(node: Node, width: int, *, numbered: bool) -> list[Text]:
    lines: list[Text] = []
    match node:
        case Heading(text):
            lines = [_make_bold_line(text)]
        case Paragraph(text):
            lines = [_draw_inline(text)]
        case Note(text, kind):
            lines = [_draw_inline(text, "dim" if kind is NoteKind.SMALL else "")]
        case Bullets(lead, items):
            lines = _draw_bullets(lead, items)
        case Definitions(_, rows):
            lines = _draw_definitions(rows, width)
        case Table():
            lines = _draw_table(node, width, numbered=numbered)
        case Matrix():
            lines = _draw_table(_convert_matrix_to_table(node), width, numbered=False)
        case Chart(title, caption, _, Stack() as stack):
            lines = _draw_stack(title, caption, stack, width)
        case _:
            # The figures of other charts are also in a table.
            pass
    return lines


def _draw_bullets(lead: Inline, items: Sequence[Inline]) -> list[Text]:
    """Return the items, indented below the lead if there is one."""
    lines, indent = [], ""
    if lead:
        lines.append(_draw_inline(lead))
        indent = "  "
    for item in items:
        lines.append(Text(indent, overflow="fold").append_text(_draw_inline(item)))
    return lines


def _draw_inline(text: Inline, style: str = "") -> Text:
    line = Text(style=style, overflow="fold")
    for span in text:
        line.append_text(style_span(span))
    return line


def _draw_table(table: Table, width: int, *, numbered: bool) -> list[Text]:
    lines = []
    if table.heading:
        lines.append(_make_bold_line(table.heading))
    for number, part in enumerate(draw_table(table, width, numbered=numbered)):
        if number:
            lines.append(Text())
        lines += part
    return lines + [_draw_inline(line, "dim") for line in table.legend]


def _convert_matrix_to_table(matrix: Matrix) -> Table:
    table = TableBuilder((matrix.row_factor,), [RowName((level,)) for level in matrix.row_levels])
    for number, level in enumerate(matrix.column_levels):
        cells = [make_word_cell(row[number].text, row[number].tone) for row in matrix.cells]
        table.add(level if number else f"{matrix.column_factor} {level}", cells, (Align.POINT,))
    return table.build(matrix.caption, heading=matrix.caption, divisible=True)


def _draw_definitions(rows: Sequence[tuple[str, str]], width: int) -> list[Text]:
    room = max((cell_len(make_inert(name)) for name, _ in rows), default=0)
    lines = []
    for name, value in rows:
        if width < _NARROW or room > width // 2:
            lines += [_make_dim_line(name), Text(f"  {make_inert(value)}", overflow="fold")]
            continue
        head = make_inert(name)
        for part in _fold_line(Text(make_inert(value)), width - room - 2):
            line = Text(f"{set_cell_size(head, room)}  ", style="dim")
            lines.append(line.append_text(Text.assemble((part.plain, "not dim"))))
            head = ""
    return lines


def _draw_commands(nodes: Sequence[Node]) -> list[Text]:
    commands = [node for node in nodes if isinstance(node, Command)]
    if len(commands) == 1:
        text = Text(f"{commands[0].purpose}: ", style="dim", overflow="fold")
        return [text.append(make_inert(commands[0].command))]
    room = max(cell_len(command.purpose) for command in commands)
    lines = []
    for command in commands:
        text = Text(f"{set_cell_size(command.purpose, room)}  ", overflow="fold")
        lines.append(text.append(make_inert(command.command), style="cyan"))
    return lines


def _draw_stack(title: str, caption: str, stack: Stack, width: int) -> list[Text]:
    (labels,) = shorten_columns([["", *(make_inert(row.label) for row in stack.rows)]], width // 2)
    totals = figures.align_points([row.total for row in stack.rows])
    label_width = max(map(cell_len, labels))
    taken = label_width + max(map(cell_len, totals)) + 4
    room = max(_SHORTEST_STACK, width - taken)
    lines = [Text(title, style="bold", overflow="fold")]
    for row, label, total in zip(stack.rows, labels[1:], totals, strict=True):
        line = Text(overflow="fold")
        if taken + room > width:
            # Without room beside the label, the bar goes below it.
            lines.append(Text(f"{label}  {total.strip()}", overflow="fold"))
        else:
            line.append(f"{set_cell_size(label, label_width)}  {total}  ")
        counts = figures.split_bar(row.parts, stack.longest, min(room, width))
        for letter, colour, count in zip(stack.letters, _COLOURS[: len(counts)], counts, strict=True):
            line.append(letter * count, style=f"black on {colour}")
        lines.append(line)
    legend = "  ".join(f"{letter}{_NO_BREAK}{name}" for _, letter, name in stack.used_parts)
    return [*lines, Text(legend, style="dim", overflow="fold"), _make_dim_line(caption)]
