"""A page as plain values, for JSON: the same sections, tables and sentences, and the data of charts."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from guestmark.page.charts import Picture
from guestmark.page.nodes import Bullets, Chart, Matrix, Node, Note, Page, Paragraph, Section
from guestmark.page.tables import Cell, Table
from guestmark.page.text import plain_text


def make_document(page: Page) -> dict[str, Any]:
    """The page: `title` and `sections`, each with its `part`, `title`, `subtitle` and `nodes`."""
    return {"title": page.title, "sections": [_section_document(section) for section in page.sections]}


def _section_document(section: Section) -> dict[str, Any]:
    return {
        "part": section.part.value,
        "title": section.title,
        "subtitle": section.subtitle,
        "nodes": [_node_document(node) for node in section.nodes],
    }


def _node_document(node: Node) -> dict[str, Any]:
    return {"kind": type(node).__name__.lower(), **_node_content(node)}


def _node_content(node: Node) -> Mapping[str, Any]:
    made: Mapping[str, Any]
    match node:
        case Paragraph(text):
            made = {"text": plain_text(text)}
        case Note(text, about):
            made = {"note": about.value, "text": plain_text(text)}
        case Bullets(lead, items):
            made = {"lead": plain_text(lead), "items": [plain_text(item) for item in items]}
        case Table():
            made = _table_content(node)
        case Matrix():
            made = {
                "caption": node.caption,
                "row_factor": node.row_factor,
                "columns": [f"{node.column_factor} {level}" for level in node.column_levels],
                "rows": [
                    [level, *(cell.text for cell in cells)]
                    for level, cells in zip(node.row_levels, node.cells, strict=True)
                ],
            }
        case Chart(drawing=Picture(name)):
            made = {
                "title": node.title,
                "caption": node.caption,
                "alternative": node.alternative,
                "picture": name,
            }
        case Chart(drawing=drawing):
            kind = type(drawing).__name__.lower()
            shown = {"title": node.title, "caption": node.caption, "alternative": node.alternative}
            made = {**shown, "drawing": {"kind": kind, **_plain_values(drawing)}}
        case _:
            made = _plain_values(node)
    return made


def _table_content(table: Table) -> dict[str, Any]:
    wanted = [position for position, column in enumerate(table.columns) if not column.bar]
    return {
        "heading": table.heading,
        "caption": table.caption,
        "columns": [*table.names, *(table.columns[position].heading for position in wanted)],
        "rows": [
            [*row.name.parts, *(_cell_text(row.cells[position]) for position in wanted)] for row in table.rows
        ],
        "legend": [plain_text(line) for line in table.legend],
    }


def _cell_text(cell: Cell) -> str:
    return f"{cell.text} ({cell.note})" if cell.note else cell.text


def _plain_values(value: Any) -> Any:
    if is_dataclass(value):
        return {field.name: _plain_values(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple):
        return [_plain_values(item) for item in value]
    return value
