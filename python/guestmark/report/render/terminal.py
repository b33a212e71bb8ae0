"""A page on the terminal: what hyperfine would show, with blocks, intervals and verdicts."""

import functools
import itertools
import re
from collections.abc import Iterable, Sequence

from rich.cells import cell_len
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
from guestmark.page.tables import Align, Column, Row, RowName, Table, word_cell
from guestmark.page.text import Inline, Tone, make_inert
from guestmark.report.full_report import make_live_section
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
_UNIT = re.compile(
    r"(?<=\d) (?=(?:%|[mµn]?s|[kMG]?B(?:/s)?|min|h)(?:\W|$))"
)  # a figure and its unit stay together
_NO_BREAK = "\N{NO-BREAK SPACE}"
_BOUND = {" ": "\ufdd0", _NO_BREAK: "\ufdd1"}  # Rich would break lines at them; texts hold no noncharacters
_UNBOUND = str.maketrans({sign: space for space, sign in _BOUND.items()})
_SHORTEST_STACK = 16
_NARROW = 50  # columns below which names are above their values instead of beside them


def print_page(page: Page, console: Console | None = None) -> None:
    """Prints it, without colour when the console is not a terminal."""
    out = console or Console(highlight=False)
    out.file.write(draw_page(page, out))
    out.file.flush()


def draw_page(page: Page, console: Console) -> str:
    """What to write to the console's file.

    Terminals that do not speak UTF-8 get ASCII for the signs they lack, never an error.
    """
    with console.capture() as capture:
        console.print(draw_sections(page.sections, console.width), highlight=False)
    text = capture.get()
    if not console.encoding.lower().startswith("utf"):
        text = text.translate(_ASCII)
    # Other signs than those may be missing in the terminal's encoding.
    return text.encode(console.encoding, "replace").decode(console.encoding)


def draw_results(analysis: Analysis, width: int) -> RenderableType:
    """The results so far, for the screen of a run that is going on."""
    return draw_sections([make_live_section(workload) for workload in analysis.workloads], width)


def draw_sections(sections: Iterable[Section], width: int = 80) -> RenderableType:
    """The sections for this many columns, a blank line between two of them."""
    drawn: list[Text] = []
    for section in sections:
        drawn += [Text()] if drawn else []
        drawn += _draw_section(section, width)
    return Group(*(part for line in drawn for part in _fold_line(line, width)))


def _fold_line(line: Text, width: int) -> list[Text]:
    """The line, between words in as many as it needs; the others are indented like the first."""
    if cell_len(line.plain) <= width:
        return [line]
    indent = len(line.plain) - len(line.plain.lstrip(" "))
    indent = indent if indent < width // 2 else 0
    bound = line[indent:]
    bound.plain = _UNIT.sub(_BOUND[" "], bound.plain).replace(_NO_BREAK, _BOUND[_NO_BREAK])
    folded = list(bound.wrap(_wrapping_console(), width - indent, overflow="fold"))
    for part in folded:
        part.plain = part.plain.translate(_UNBOUND)
        part.rstrip()
    return [Text(" " * indent).append_text(part) for part in folded]


@functools.cache
def _wrapping_console() -> Console:
    return Console(width=80)  # Rich asks one for its defaults


def _draw_section(section: Section, width: int) -> list[Text]:
    drawn: list[Text] = []
    if section.titled:
        drawn.append(Text(make_inert(section.title), style="bold", overflow="fold"))
    if section.subtitle:
        drawn.append(Text(make_inert(section.subtitle), style="dim", overflow="fold"))
    lead = next((node for node in section.nodes if isinstance(node, Table)), None)
    numbered = needs_numbers(section.key, lead, width)
    if numbered and section.key is not None and lead is not None:
        drawn += [*draw_key(section.key, width), Text()]
    before: Node | None = None
    for nodes in _group_commands(section.nodes):
        made = (
            _draw_commands(nodes)
            if isinstance(nodes[0], Command)
            else _draw_node(nodes[0], width, numbered=numbered)
        )
        if not made:
            continue
        if before is not None and _needs_blank_line(before, nodes[0]):
            drawn.append(Text())
        drawn += made
        before = nodes[-1]
    return drawn


def _group_commands(nodes: Sequence[Node]) -> Iterable[list[Node]]:
    """Groups consecutive commands; any other node stays alone."""
    for is_command, group in itertools.groupby(nodes, key=lambda node: isinstance(node, Command)):
        members = list(group)
        yield from [members] if is_command else [[member] for member in members]


def _needs_blank_line(before: Node, node: Node) -> bool:
    """Whether a blank line stands between the two: around everything that has several lines."""
    if isinstance(node, Note) and node.kind is NoteKind.SMALL and isinstance(before, Table | Chart):
        return False  # small print of what is above it
    blocks = (Table, Chart, Matrix, Definitions)
    if isinstance(before, blocks) or isinstance(node, blocks):
        return True
    heads = isinstance(node, Heading) or (isinstance(node, Paragraph) and _is_all_strong(node.text))
    return heads or (isinstance(node, Bullets) and _is_all_strong(node.lead))


def _is_all_strong(text: Inline) -> bool:
    return bool(text) and all(span.tone is Tone.STRONG for span in text)


def _draw_node(node: Node, width: int, *, numbered: bool) -> list[Text]:
    made: list[Text]
    match node:
        case Heading(text):
            made = [Text(make_inert(text), style="bold", overflow="fold")]
        case Paragraph(text):
            made = [_draw_inline(text)]
        case Note(text, kind):
            made = [_draw_inline(text, "dim" if kind is NoteKind.SMALL else "")]
        case Bullets(lead, items):
            indent = "  " if lead else ""
            made = [_draw_inline(lead)] if lead else []
            made += [Text(indent, overflow="fold").append_text(_draw_inline(item)) for item in items]
        case Definitions(_, rows):
            made = _draw_definitions(rows, width)
        case Table():
            made = _draw_table(node, width, numbered=numbered)
        case Matrix():
            made = _draw_table(_matrix_as_table(node), width, numbered=False)
        case Chart(title, caption, _, Stack() as stack):
            made = _draw_stack(title, caption, stack, width)
        case _:  # its figures are also in a table
            made = []
    return made


def _draw_inline(text: Inline, style: str = "") -> Text:
    line = Text(style=style, overflow="fold")
    for span in text:
        line.append_text(style_span(span))
    return line


def _draw_table(table: Table, width: int, *, numbered: bool) -> list[Text]:
    drawn = [Text(make_inert(table.heading), style="bold", overflow="fold")] if table.heading else []
    for number, part in enumerate(draw_table(table, width, numbered=numbered)):
        drawn += [Text(), *part] if number else part
    return drawn + [_draw_inline(line, "dim") for line in table.legend]


def _matrix_as_table(matrix: Matrix) -> Table:
    columns = tuple(
        Column(f"{matrix.column_factor} {level}" if not number else level, (Align.POINT,))
        for number, level in enumerate(matrix.column_levels)
    )
    rows = tuple(
        Row(RowName((level,)), tuple(word_cell(cell.text, cell.tone) for cell in cells))
        for level, cells in zip(matrix.row_levels, matrix.cells, strict=True)
    )
    return Table(matrix.caption, (matrix.row_factor,), columns, rows, divisible=True, heading=matrix.caption)


def _draw_definitions(rows: Sequence[tuple[str, str]], width: int) -> list[Text]:
    room = max((cell_len(make_inert(name)) for name, _ in rows), default=0)
    drawn = []
    for name, value in rows:
        if width < _NARROW or room > width // 2:
            drawn += [
                Text(make_inert(name), style="dim", overflow="fold"),
                Text(f"  {make_inert(value)}", overflow="fold"),
            ]
            continue
        for number, part in enumerate(_fold_line(Text(make_inert(value)), width - room - 2)):
            head = make_inert(name) if number == 0 else ""
            line = Text(f"{head:<{room}}  ", style="dim")
            drawn.append(line.append_text(Text.assemble((part.plain, "not dim"))))
    return drawn


def _draw_commands(nodes: Sequence[Node]) -> list[Text]:
    commands = [node for node in nodes if isinstance(node, Command)]
    if len(commands) == 1:
        text = Text(f"{commands[0].purpose}: ", style="dim", overflow="fold")
        return [text.append(make_inert(commands[0].command))]
    room = max(cell_len(command.purpose) for command in commands)
    return [
        Text(f"{command.purpose:<{room}}  ", overflow="fold").append(
            make_inert(command.command), style="cyan"
        )
        for command in commands
    ]


def _draw_stack(title: str, caption: str, stack: Stack, width: int) -> list[Text]:
    labels = ["", *(make_inert(row.label) for row in stack.rows)]
    totals = figures.align_points([row.total for row in stack.rows])
    (labels,) = shorten_columns([labels], width // 2)
    taken = max(map(cell_len, labels)) + max(map(cell_len, totals)) + 4
    room = max(_SHORTEST_STACK, width - taken)
    largest = max(sum(row.parts) for row in stack.rows)
    drawn = [Text(title, style="bold", overflow="fold")]
    for row, label, total in zip(stack.rows, labels[1:], totals, strict=True):
        line = Text(overflow="fold")
        if taken + room > width:  # no room beside it: the bar goes below
            drawn.append(Text(f"{label}  {total.strip()}", overflow="fold"))
        else:
            line.append(f"{label:<{max(map(cell_len, labels))}}  {total}  ")
        counts = figures.split_bar(row.parts, largest, min(room, width))
        for letter, colour, count in zip(stack.letters, _COLOURS[: len(counts)], counts, strict=True):
            line.append(letter * count, style=f"black on {colour}")
        drawn.append(line)
    legend = Text(style="dim", overflow="fold")
    for number, (letter, part) in enumerate(zip(stack.letters, stack.parts, strict=True)):
        if any(row.parts[number] for row in stack.rows):
            legend.append(f"{letter}\N{NO-BREAK SPACE}{part}  ")
    legend.rstrip()
    return [*drawn, legend, Text(make_inert(caption), style="dim", overflow="fold")]
