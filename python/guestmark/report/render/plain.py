"""A page as plain values, for JSON: the same sections, tables and sentences, and the data of charts."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from guestmark.page.charts import Picture
from guestmark.page.nodes import Bullets, Chart, Matrix, Node, Note, Page, Paragraph, Section
from guestmark.page.tables import Cell, Table
from guestmark.page.text import join_plain_text


def make_document(page: Page) -> dict[str, Any]:
    """Return the page: `title` and `sections`, each with its `part`, `title`, `subtitle` and `nodes`."""
    return {"title": page.title, "sections": [_make_section_document(section) for section in page.sections]}


def _make_section_document(section: Section) -> dict[str, Any]:
    return {
        "part": section.part.value,
        "title": section.title,
        "subtitle": section.subtitle,
        "nodes": [{"kind": _name_type(node), **_make_node_content(node)} for node in section.nodes],
    }


def _name_type(value: object) -> str:
    return type(value).__name__.lower()


def _make_node_content(node: Node) -> Mapping[str, Any]:
    content: Mapping[str, Any]
    match node:
        case Paragraph(text):
            content = {"text": join_plain_text(text)}
        case Note(text, about):
            content = {"note": about.value, "text": join_plain_text(text)}
        case Bullets(lead, items):
            content = {"lead": join_plain_text(lead), "items": [join_plain_text(item) for item in items]}
        case Table():
            content = _make_table_content(node)
        case Matrix():
            content = _make_matrix_content(node)
        case Chart():
            content = _make_chart_content(node)
        case _:
            content = _convert_to_plain(node)
    return content


def _make_matrix_content(matrix: Matrix) -> dict[str, Any]:
    rows = []
    for level, cells in zip(matrix.row_levels, matrix.cells, strict=True):
        rows.append([level, *(cell.text for cell in cells)])
    return {
        "caption": matrix.caption,
        "row_factor": matrix.row_factor,
        "columns": [f"{matrix.column_factor} {level}" for level in matrix.column_levels],
        "rows": rows,
    }


def _make_chart_content(chart: Chart) -> dict[str, Any]:
    content = {"title": chart.title, "caption": chart.caption, "alternative": chart.alternative}
    # A picture has no data of its own: it is drawn from tables that the document holds elsewhere.
    if isinstance(chart.drawing, Picture):
        return {**content, "picture": chart.drawing.name}
    return {**content, "drawing": {"kind": _name_type(chart.drawing), **_convert_to_plain(chart.drawing)}}


def _make_table_content(table: Table) -> dict[str, Any]:
    # Bars repeat figures of other columns.
    shown = table.figure_positions
    rows = []
    for row in table.rows:
        texts = [_format_cell_text(row.cells[position]) for position in shown]
        rows.append([*row.name.parts, *texts])
    return {
        "heading": table.heading,
        "caption": table.caption,
        "columns": [*table.names, *(table.columns[position].heading for position in shown)],
        "rows": rows,
        "legend": [join_plain_text(line) for line in table.legend],
    }


def _format_cell_text(cell: Cell) -> str:
    if not cell.note:
        return cell.text
    return f"{cell.text} ({cell.note})"


def _convert_to_plain(value: Any) -> Any:
    if is_dataclass(value):
        return {field.name: _convert_to_plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple):
        return [_convert_to_plain(item) for item in value]
    return value
