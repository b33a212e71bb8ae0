"""A page as self-contained HTML: no external fonts or addresses, and one inline script that is optional.

The markup is in `templates`, where Jinja2 escapes every value; control characters in text are made visible before that.
"""

import functools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

from guestmark.page.charts import Picture, Stack
from guestmark.page.nodes import Chart, Node, Page, Part, Section
from guestmark.page.tables import Align, Cell, Column, Table
from guestmark.page.templates import make_environment
from guestmark.page.text import make_inert
from guestmark.report.render.charts import format_raw_points, render_svg

if TYPE_CHECKING:
    from jinja2 import Environment

_ORDER = (Part.CONCLUSION, Part.VALIDITY, Part.WORKLOAD, Part.PUBLISHED, Part.ENVIRONMENT)
# Number of nodes that are not folded in a result without a picture.
_LEADING = 3
# The widest padding in half digits; the style sheet has a class for each width up to it.
_MOST_PADDING = 19
_LAID_OUT_TOGETHER = {"note", "chart", "tables"}


@dataclass(frozen=True, slots=True)
class _Block:
    """A section of the page, divided into a visible and a folded part."""

    section: Section
    seen: Section
    folded: Section


def render(page: Page) -> str:
    """Return the page: the conclusion with one table and one picture, then the results, folded where they are long."""
    sections: list[Section] = []
    footers: list[Section] = []
    for section in page.sections:
        if section.part is Part.FOOTER:
            footers.append(section)
        else:
            sections.append(section)
    sections.sort(key=lambda section: _ORDER.index(section.part))
    conclusion = _find_conclusion(sections)
    table: Table | None = None
    picture: Chart | None = None
    if conclusion is None:
        blocks = [_make_result_block(section) for section in sections]
    else:
        table, picture = _choose_headline(sections)
        shown = {id(table), id(picture)}
        blocks = [_make_block(section, shown) for section in sections if section is not conclusion]
    template = _make_environment().get_template("page.html.j2")
    text = template.render(
        page=page, conclusion=conclusion, table=table, picture=picture, blocks=blocks, footers=footers
    )
    return text + "\n"


def _find_conclusion(sections: Sequence[Section]) -> Section | None:
    for section in sections:
        if section.part is Part.CONCLUSION:
            return section
    return None


def _choose_headline(sections: Sequence[Section]) -> tuple[Table | None, Chart | None]:
    """Return table and picture of the only workload; None if there are several, whose blocks show theirs."""
    results = [section for section in sections if section.part is Part.WORKLOAD and section.titled]
    if len(results) != 1:
        return None, None
    return results[0].find_first(Table), results[0].find_first(Chart)


def _make_result_block(section: Section) -> _Block:
    """Return a section of a page without a conclusion: such sections are the result, so nothing in them is folded."""
    if section.titled:
        return _fold_section(section, section.nodes, len(section.nodes))
    return _make_block(section, ())


def _make_block(section: Section, headline: Collection[int]) -> _Block:
    """Return the section without the nodes of the headline, by their identity, and fold what is long."""
    nodes = [node for node in section.nodes if id(node) not in headline]
    if section.part is Part.WORKLOAD and not section.titled:
        # The notice that a run is imported stays visible; its commands are folded.
        return _fold_section(section, nodes, 1)
    if len(nodes) < len(section.nodes):
        # Charts that explain the headline (phases, packets) follow it.
        explaining = [node for node in nodes if _is_explanation(node)]
        others = [node for node in nodes if not _is_explanation(node)]
        return _fold_section(section, [*explaining, *others], len(explaining))
    if section.part is not Part.WORKLOAD:
        return _fold_section(section, nodes, len(nodes))
    return _fold_section(section, nodes, _count_leading_nodes(nodes))


def _count_leading_nodes(nodes: Sequence[Node]) -> int:
    """Return how many nodes of a result are not folded: all up to its first chart."""
    for number, node in enumerate(nodes, start=1):
        if isinstance(node, Chart):
            return number
    return _LEADING


def _is_explanation(node: Node) -> bool:
    return isinstance(node, Chart) and isinstance(node.drawing, Stack | Picture)


def _fold_section(section: Section, nodes: Sequence[Node], seen: int) -> _Block:
    first = replace(section, nodes=tuple(nodes[:seen]))
    rest = replace(section, nodes=tuple(nodes[seen:]))
    return _Block(section, first, rest)


@functools.cache
def _make_environment() -> "Environment":
    environment = make_environment("guestmark.report.render")
    environment.globals.update(
        groups=_group_nodes,
        kind=_name_node_kind,
        svg=render_svg,
        raw=lambda chart: escape(format_raw_points(chart.drawing)),
        unbroken=_keep_words_whole,
        options=_keep_options_whole,
        padding=_compute_decimal_padding,
        is_figure=_is_figure,
        stacked=_list_stack_parts,
    )
    return environment


def _keep_words_whole(command: str) -> Markup:
    """Return a command whose lines break only between its words, as long as a word fits into a line."""
    return Markup(" ").join(map(_mark_whole_word, command.split(" ")))


def _keep_options_whole(text: str) -> Markup:
    """Return text in which no line ends within an option: browsers break lines after hyphens."""
    if " -" not in text:
        return escape(make_inert(text))
    return Markup(" ").join(_mark_words(text.split(" ")))


def _mark_words(words: Iterable[str]) -> Iterable[Markup]:
    for word in words:
        is_option = word[:1] == "-" and word.lstrip("-")[:1].isalpha()
        yield _mark_whole_word(word) if is_option else escape(make_inert(word))


def _mark_whole_word(text: str) -> Markup:
    return Markup('<span class="word">{}</span>').format(make_inert(text))


def _name_node_kind(node: Node) -> str:
    return type(node).__name__.lower()


def _group_nodes(section: Section) -> list[tuple[str, list[Node]]]:
    """Return the nodes in groups of neighbours that are laid out together: charts, small tables, notes and commands."""
    groups: list[tuple[str, list[Node]]] = []
    for node in section.nodes:
        kind = _name_node_kind(node)
        if kind == "command":
            kind = "note"
        elif _is_small_table(node):
            kind = "tables"
        if groups and groups[-1][0] == kind and kind in _LAID_OUT_TOGETHER:
            groups[-1][1].append(node)
        else:
            groups.append((kind, [node]))
    return groups


def _is_small_table(node: Node) -> bool:
    """Return whether a table is narrow enough to have others beside it."""
    return isinstance(node, Table) and bool(node.heading) and len(node.names) + len(node.columns) <= 2


def _is_figure(column: Column) -> bool:
    return column.pieces[0] is not Align.LEFT


def _compute_decimal_padding(table: Table, position: int, cell: Cell, number: int) -> int:
    """Return the padding after a piece, in half digits, that aligns the decimal points of its column."""
    column = table.columns[position]
    if cell.words or number >= len(column.pieces) or column.pieces[number] is not Align.POINT:
        return 0
    widths = []
    for each in table.list_cells(position):
        if not each.words and number < len(each.pieces):
            widths.append(_measure_fraction(each.pieces[number].text))
    return min(max(widths) - _measure_fraction(cell.pieces[number].text), _MOST_PADDING)


def _measure_fraction(text: str) -> int:
    """Return the width of a number's fraction in half digits; a point is half as wide as a digit."""
    _, point, digits = text.partition(".")
    return 2 * len(digits) + len(point)


def _list_stack_parts(chart: Chart) -> list[tuple[int, str, str]]:
    """Return number, letter and name of the parts that bars of this chart have; none for other charts."""
    return chart.drawing.used_parts if isinstance(chart.drawing, Stack) else []
