"""A page as HTML that needs nothing else: no font, no address, and one script of its own that may be missing.

The markup is in `templates`, where Jinja2 escapes every value; what is active in text is spelled out before that.
"""

import functools
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

from guestmark.page.charts import Picture, Stack
from guestmark.page.nodes import Chart, Node, Page, Part, Section
from guestmark.page.tables import Align, Cell, Column, Table
from guestmark.page.templates import make_environment
from guestmark.page.text import make_inert
from guestmark.report.render.charts import raw_points, render_svg

if TYPE_CHECKING:
    from jinja2 import Environment

_ORDER = (Part.CONCLUSION, Part.VALIDITY, Part.WORKLOAD, Part.PUBLISHED, Part.ENVIRONMENT)
_LEAD = 3  # nodes of a result without a picture that are not folded


@dataclass(frozen=True, slots=True)
class _Block:
    """A section as the page has it: what is seen at once, and what is folded away."""

    section: Section
    seen: Section
    folded: Section


def render(page: Page) -> str:
    """The whole page: what it comes to with one table and one picture, then the results, folded where they are long."""
    ordered = sorted(
        (section for section in page.sections if section.part is not Part.FOOTER),
        key=lambda section: _ORDER.index(section.part),
    )
    conclusion = next((section for section in ordered if section.part is Part.CONCLUSION), None)
    if conclusion is None:  # no answer that other sections explain: they are all there is to see
        table = picture = None
        blocks = [
            _Block(section, section, replace(section, nodes=()))
            if section.titled
            else _make_block(section, ())
            for section in ordered
        ]
    else:
        table, picture = _choose_headline(ordered)
        taken = {id(table), id(picture)}
        blocks = [_make_block(section, taken) for section in ordered if section is not conclusion]
    footers = [section for section in page.sections if section.part is Part.FOOTER]
    template = _make_environment().get_template("page.html.j2")
    made = template.render(
        page=page, conclusion=conclusion, table=table, picture=picture, blocks=blocks, footers=footers
    )
    return made + "\n"


def _choose_headline(sections: Sequence[Section]) -> tuple[Table | None, Chart | None]:
    """The results and the picture of the only workload. Several have theirs below what they come to together."""
    results = [section for section in sections if section.part is Part.WORKLOAD and section.titled]
    if len(results) != 1:
        return None, None
    tables = [node for node in results[0].nodes if isinstance(node, Table)]
    charts = [node for node in results[0].nodes if isinstance(node, Chart)]
    return next(iter(tables), None), next(iter(charts), None)


def _make_block(section: Section, taken: Collection[int]) -> _Block:
    """The section without what is in the headline. Results show a table and the picture that follows it."""
    nodes = [node for node in section.nodes if id(node) not in taken]
    moved = len(nodes) < len(section.nodes)
    cut = len(nodes)
    if section.part is Part.WORKLOAD and not section.titled:
        cut = min(cut, 1)  # that it is another's run; what it runs is folded
    elif moved:  # what explains the headline follows it: phases, packets
        why = [
            node for node in nodes if isinstance(node, Chart) and isinstance(node.drawing, Stack | Picture)
        ]
        nodes = [*why, *(node for node in nodes if not any(node is each for each in why))]
        cut = len(why)
    elif section.part is Part.WORKLOAD:
        charts = [number for number, node in enumerate(nodes) if isinstance(node, Chart)]
        cut = charts[0] + 1 if charts else min(cut, _LEAD)
    seen, folded = (replace(section, nodes=tuple(part)) for part in (nodes[:cut], nodes[cut:]))
    return _Block(section, seen, folded)


@functools.cache
def _make_environment() -> "Environment":
    made = make_environment("guestmark.report.render")
    made.globals.update(
        runs=_group_nodes,
        kind=_node_kind,
        svg=render_svg,
        raw=lambda chart: escape(raw_points(chart.drawing)),
        unbroken=_keep_words_whole,
        options=_keep_options_whole,
        padding=_decimal_padding,
        is_figure=_is_figure,
        stacked=_stack_legend,
    )
    return made


def _keep_words_whole(command: str) -> Markup:
    """A command whose lines break between its words only, as long as a word fits into a line."""
    return Markup(" ").join(map(_whole_word, command.split(" ")))


def _keep_options_whole(text: str) -> Markup:
    """A text in which no line ends within an option, as browsers break behind its hyphens."""
    if " -" not in text:
        return escape(make_inert(text))
    return Markup(" ").join(
        _whole_word(word) if word[:1] == "-" and word.lstrip("-")[:1].isalpha() else escape(make_inert(word))
        for word in text.split(" ")
    )


def _whole_word(text: str) -> Markup:
    return Markup('<span class="word">{}</span>').format(make_inert(text))


def _node_kind(node: Node) -> str:
    return type(node).__name__.lower()


def _group_nodes(section: Section) -> list[tuple[str, list[Node]]]:
    """The nodes in groups of neighbours that are laid out together: charts, small tables, notes with commands."""
    groups: list[tuple[str, list[Node]]] = []
    for node in section.nodes:
        kind = _node_kind(node)
        kind = "tables" if _is_small_table(node) else {"command": "note"}.get(kind, kind)
        if groups and groups[-1][0] == kind and kind in {"note", "chart", "tables"}:
            groups[-1][1].append(node)
        else:
            groups.append((kind, [node]))
    return groups


def _is_small_table(node: Node) -> bool:
    """Whether a table is so narrow that others have room beside it."""
    return isinstance(node, Table) and bool(node.heading) and len(node.names) + len(node.columns) <= 2


def _is_figure(column: Column) -> bool:
    return column.pieces[0] is not Align.LEFT


def _decimal_padding(table: Table, position: int, cell: Cell, number: int) -> int:
    """Half digits to leave free behind a piece, so that decimal points stand under each other."""
    column = table.columns[position]
    if cell.words or number >= len(column.pieces) or column.pieces[number] is not Align.POINT:
        return 0
    fractions = [
        _fraction_width(row.cells[position].pieces[number].text)
        for row in table.rows
        if not row.cells[position].words and number < len(row.cells[position].pieces)
    ]
    return min(max(fractions) - _fraction_width(cell.pieces[number].text), 19)


def _fraction_width(text: str) -> int:
    """How wide what stands behind the whole digits is, in half digits; a point is half as wide as a digit."""
    _, point, digits = text.partition(".")
    return 2 * len(digits) + len(point)


def _stack_legend(chart: Chart) -> list[tuple[int, str, str]]:
    """Number, letter and name of the parts that bars of this chart have; none for other charts."""
    drawing = chart.drawing
    if not isinstance(drawing, Stack):
        return []
    return [
        (number, drawing.letters[number], name)
        for number, name in enumerate(drawing.parts)
        if any(row.parts[number] for row in drawing.rows)
    ]
