"""Every format says the same: sentences node by node, and no figure that the others do not have."""

import functools
import io
import json
import pkgutil
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

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
)
from guestmark.page.tables import Table
from guestmark.page.text import join_plain_text
from guestmark.report import render
from guestmark.report.export_format import Format
from guestmark.report.formats import export_run
from guestmark.report.full_report import make_page
from guestmark.report.render.terminal import print_page
from tests.framework.run_kinds import RUNS, analysed, run_of

NUMBER = re.compile(r"\d+(?:[.,:]\d+)*")
CHARTED = re.compile(r"\d+\.\d+")  # in the words of a chart


def flat(text: str) -> str:
    return " ".join(text.replace("\N{NO-BREAK SPACE}", " ").split())


@functools.cache
def made(name: str) -> Page:
    return make_page(run_of(name), analysed(name))


def terminal(name: str, width: int = 260) -> str:
    out = io.StringIO()
    print_page(made(name), Console(file=out, width=width, highlight=False))
    return out.getvalue()


class Reader(HTMLParser):
    """What stands on a page outside of style, script, raw points and the parts that only navigate; of drawings
    their alternatives."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self._inside: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.texts += [value or "" for name, value in attrs if tag == "svg" and name == "aria-label"]
        if tag in {"style", "script", "svg", "pre", "head", "nav", "header"}:
            self._inside.append(tag)
        self.texts.append(" ")

    def handle_endtag(self, tag: str) -> None:
        if self._inside and self._inside[-1] == tag:
            self._inside.pop()

    def handle_data(self, data: str) -> None:
        if not self._inside:
            self.texts.append(data)


def html(name: str) -> str:
    reader = Reader()
    reader.feed(export_run(run_of(name), Format.HTML, analysed(name)).decode())
    return "".join(reader.texts)


def markdown(name: str) -> str:
    text = export_run(run_of(name), Format.MARKDOWN, analysed(name)).decode()
    plain = re.sub(r"(?<!\\)(\*\*|`|\|)|^#+ |^- ", " ", text, flags=re.MULTILINE)
    return re.sub(r"\\(\W|_)", r"\1", plain)


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from strings(item)
    elif isinstance(value, dict):
        for name, item in value.items():
            if name not in {"drawing", "picture", "part", "kind", "note"}:
                yield from strings(item)


def document(name: str) -> str:
    report = json.loads(export_run(run_of(name), Format.JSON, analysed(name)))["report"]
    report.pop("title")
    return " ".join(strings(report))


FORMATS = {"terminal": terminal, "markdown": markdown, "html": html, "json": document}


def test_every_format_with_a_renderer_is_compared() -> None:
    renderers = {module.name for module in pkgutil.iter_modules(render.__path__)}
    # Parts of others, and the plain values that JSON is made of.
    assert renderers - {"charts", "terminal_table", "plain"} | {"json"} == set(FORMATS)


@functools.cache
def written(name: str, format_: str) -> str:
    return FORMATS[format_](name)


def said(node: Node) -> list[str]:
    """What a node says, in the order in which it is to be read."""
    texts: list[str]
    match node:
        case Heading(text):
            texts = [text]
        case Paragraph(text) | Note(text):
            texts = [join_plain_text(text)]
        case Bullets(lead, items):
            texts = [join_plain_text(line).strip() for line in (lead, *items)]
        case Command(purpose, command):
            texts = [purpose, command]
        case Definitions(_, rows):
            texts = [text for row in rows for text in row]
        case Matrix():
            texts = [node.caption, node.row_factor]
            for level, cells in zip(node.row_levels, node.cells, strict=True):
                texts += [level, *(cell.text for cell in cells)]
        case Table():
            texts = [node.heading, *node.names, *(column.heading for column in node.columns)]
            for row in node.rows:
                texts += row.name.parts
                for cell in row.cells:
                    texts += [*(span.text for span in cell.pieces), cell.note]
            texts += [join_plain_text(line) for line in node.legend]
        case Chart(drawing=Stack() as stack):
            texts = [node.title, *(text for row in stack.rows for text in (row.label, row.total))]
        case Chart():
            texts = []
    return [flat(text) for text in texts if flat(text)]


def nodes(name: str) -> Iterator[Node]:
    for section in made(name).sections:
        yield from section.nodes


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("name", RUNS)
def test_every_node_is_said_in_every_format(name: str, format_: str) -> None:
    text = flat(written(name, format_))
    count = 0
    for node in nodes(name):
        wanted = said(node)
        starts = [match.start() for match in re.finditer(re.escape(wanted[0]), text)] if wanted else [0]
        assert any(in_order(wanted, text, start) for start in starts), (node, text)
        count += len(wanted)
    assert count > (5 if name == "nothing" else 40)
    for section in made(name).sections:
        assert not section.subtitle or flat(section.subtitle) in text


def in_order(wanted: list[str], text: str, at: int) -> bool:
    for part in wanted:
        at = text.find(part, at)
        if at < 0:
            return False
        at += len(part)
    return True


@pytest.mark.parametrize("name", RUNS)
def test_no_format_has_a_figure_that_another_has_not(name: str) -> None:
    figures = {format_: set(NUMBER.findall(written(name, format_))) for format_ in FORMATS}
    for format_, shown in figures.items():
        assert shown == figures["json"], (format_, shown ^ figures["json"])
    assert len(figures["json"]) > (5 if name == "nothing" else 20)


@pytest.mark.parametrize("name", RUNS)
def test_figures_of_charts_are_in_the_text_of_every_format(name: str) -> None:
    charts = [node for node in nodes(name) if isinstance(node, Chart)]
    assert charts or name == "nothing"
    texts = [written(name, format_) for format_ in FORMATS]
    for chart in charts:
        assert chart.alternative
        figures = CHARTED.findall(chart.alternative)
        for text in texts:
            assert set(figures) <= set(CHARTED.findall(text)), chart.alternative


def test_each_kind_of_node_and_drawing_was_among_them() -> None:
    found = [node for name in RUNS for node in nodes(name)]
    kinds = {type(node).__name__ for node in found}
    drawings = {type(node.drawing).__name__ for node in found if isinstance(node, Chart)}
    assert kinds >= {"Paragraph", "Note", "Bullets", "Command", "Definitions", "Matrix", "Chart", "Table"}
    assert drawings == {"Ratios", "Spread", "Series", "Stack", "Picture"}


@pytest.mark.parametrize("width", [20, 32, 40, 55, 80])
@pytest.mark.parametrize("name", RUNS)
def test_narrow_terminals_cut_no_figure(name: str, width: int) -> None:
    printed = terminal(name, width)
    assert all(cell_len(line) <= width for line in printed.splitlines())
    text = flat(printed)
    for node in nodes(name):
        if isinstance(node, Table):
            for row in node.rows:
                for cell in row.cells:
                    for span in cell.pieces:
                        if NUMBER.search(span.text) and cell_len(span.text) <= width - 2:
                            assert re.search(rf"(?<![\d.]){re.escape(flat(span.text))}(?![\d.]|…)", text)
        if isinstance(node, Command):
            assert flat(node.command) in text or width < len(run_of(name).id)


def test_a_command_to_copy_is_whole_at_forty_columns() -> None:
    lines = terminal("plain", 40).splitlines()
    assert lines[-1].strip() == "20261121-213000-k3f"
    assert lines[-2].strip() == "Show again: guestmark show"


def test_figures_keep_their_units_where_lines_fold() -> None:
    for width in range(30, 100):
        for line in terminal("starts", width).splitlines():
            assert not re.match(r" *(%|s|ms|MB)(\W|$)", line), (width, line)


def test_bars_go_first() -> None:
    wide, narrow = terminal("plain", 80), terminal("plain", 62)
    assert "██" in wide.partition("Trials")[0]
    assert "██" not in narrow.partition("Trials")[0]
    assert "×24.03  [23.79, 24.24]" in narrow


def test_where_nothing_else_helps_each_row_is_a_list() -> None:
    lines = [line.rstrip() for line in terminal("plain", 36).splitlines()]
    start = lines.index("tcg")
    assert lines[start + 1 : start + 4] == [
        "  wall, s: 29.9 ± 0.9",
        "  vs host: ×24.03 [23.79, 24.24]",
        "  verdict: slower",
    ]
