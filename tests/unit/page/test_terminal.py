"""What users see, against files that were looked at: `GOLDEN=1 pytest` writes them anew."""

import io
import os
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from guestmark.core.model import Cell, RunState
from guestmark.core.platform_spec import HOST, PlatformSpec
from guestmark.ledger.model import StoredRun
from guestmark.page.tables import Align, Column, Row, RowName, Table, make_figure_cell
from guestmark.report.render.terminal import _draw_definitions
from guestmark.report.render.terminal_table import draw_table, shorten_columns
from guestmark.report.sections.results import ESTIMATE
from tests.framework import GOLDEN
from tests.framework.runs import EXEC, constructed, host_uml_tcg, memory_sweep, print_report, renamed

RUNS: Mapping[str, Callable[[], StoredRun]] = {
    "plain": lambda: host_uml_tcg(failing={("uml", 3)}),
    "few": lambda: host_uml_tcg(blocks=3, state=RunState.INTERRUPTED),
    "sweep": memory_sweep,
    "nothing": lambda: host_uml_tcg(blocks=0, state=RunState.FAILED),
    "no-baseline": lambda: host_uml_tcg(failing={("host", block) for block in range(12)}),
    "null": lambda: constructed(
        [(Cell("host", EXEC, HOST, {}, True), 1.0), (Cell("host#2", EXEC, HOST, null_of="host"), 1.0)]
    ),
    "downgraded": lambda: constructed(
        [
            (Cell("host", EXEC, HOST, {}, True), 1.0),
            (Cell("uml", EXEC, PlatformSpec.read("uml")), 2.0),
            (Cell("host#2", EXEC, HOST, null_of="host"), 1.1),
        ],
        noise={("uml", 1): {"swapped_pages": 5}},
        warnings={("uml", 1): ("clocks disagree by 2 %",)},
    ),
}


def printed(run: StoredRun, width: int, **options: object) -> str:
    out = io.StringIO()
    print_report(run, Console(file=out, width=width, **options))  # type: ignore[arg-type]
    return out.getvalue()


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("name", RUNS)
def test_reports(name: str, width: int) -> None:
    text = "".join(line.rstrip() + "\n" for line in printed(RUNS[name](), width).splitlines())
    file = GOLDEN / f"{name}-{width}.txt"
    if os.environ.get("GOLDEN"):
        file.write_text(text)
    assert text == file.read_text()
    assert all(cell_len(line) <= width for line in text.splitlines())


def test_no_colour_when_it_is_not_a_terminal() -> None:
    assert "\x1b" not in printed(RUNS["plain"](), 80)
    assert "\x1b[31mslower" in printed(RUNS["plain"](), 80, force_terminal=True, color_system="standard")


def test_markup_in_commands_is_text() -> None:

    text = printed(renamed(host_uml_tcg(blocks=7), "echo [bold]x[/nothing] :smile:"), 80)
    assert "echo [bold]x[/nothing] :smile:" in text


@pytest.mark.parametrize("encoding", ["ascii", "iso-8859-1", "utf-8"])
def test_any_encoding_does(encoding: str) -> None:

    raw = io.BytesIO()
    with io.TextIOWrapper(raw, encoding=encoding, write_through=True) as file:
        print_report(renamed(RUNS["plain"](), "cat 'a\udcffb'"), Console(file=file, width=100))
        text = raw.getvalue().decode(encoding)
    assert "cat 'a" in text
    assert ("×24" if encoding == "utf-8" else "x24") in text
    assert "## " in text or encoding == "utf-8"


@pytest.mark.parametrize("width", [20, 40, 60, 250])
def test_any_width_does(width: int) -> None:
    for run in RUNS.values():
        assert all(
            cell_len(line) <= width for line in printed(run(), width).splitlines() if "guestmark" not in line
        )


def test_cells_with_as_many_slow_runs_share_a_sentence() -> None:
    cells = [Cell("host", EXEC, HOST, {}, True)]
    cells += [Cell(f"tcg memory={size}M", EXEC, PlatformSpec.read("tcg")) for size in (256, 512, 1024, 2048)]
    run = constructed([(cell, 1.0) for cell in cells], values={("host", 3): 5.0})
    said = printed(run, 200)
    assert "Slow runs: 1 of 12 in host, 1 over twice as long; 0 of 12 in each of the 4 others: " in said
    assert said.count("Slow runs: ") == 1
    few = printed(constructed([(cell, 1.0) for cell in cells[:3]], values={("host", 3): 5.0}), 200)
    assert "; 0 of 12 in tcg memory=256M, tcg memory=512M: " in few


def test_an_interval_in_brackets_does_not_move_a_half_width() -> None:
    rows = {
        "host": make_figure_cell("1.6", "[0.82, 4.2]"),
        "tcg": make_figure_cell("112", "±", "28"),
        "uml": make_figure_cell("9.25", "±", "0.31"),
    }
    named = tuple(Row(RowName((name,)), (cell,)) for name, cell in rows.items())
    (shown,) = draw_table(Table("", ("platform",), (Column("wall, ms", ESTIMATE),), named), 60)
    assert [line.plain.rstrip() for line in shown[2:]] == [
        "host        1.6  [0.82, 4.2]",
        "tcg       112    ± 28",
        "uml         9.25 ±  0.31",
    ]


# Letters of one column and of two.
_NAMES = st.text(alphabet="ab é測定", min_size=1, max_size=30)


@given(names=st.lists(_NAMES, min_size=1, max_size=5), room=st.integers(10, 60))
def test_names_are_shortened_by_the_columns_that_they_take(names: list[str], room: int) -> None:
    (shortened,) = shorten_columns([names], room)
    assert max(map(cell_len, shortened)) <= room - 2


# Names wider than half of the terminal have lines of their own.
@given(names=st.lists(_NAMES.map(lambda name: name[:20].strip()).filter(bool), min_size=2, max_size=5))
def test_what_follows_wide_letters_lines_up(names: list[str]) -> None:
    rows = tuple(
        Row(RowName((str(number),)), (make_figure_cell(name, "|"),)) for number, name in enumerate(names)
    )
    column = Column("name", (Align.LEFT, Align.LEFT))
    (shown,) = draw_table(Table("", ("row",), (column,), rows), 80)
    places = {cell_len(line.plain.partition("|")[0]) for line in shown[2:]}
    assert len(places) == 1
    defined = [line.plain for line in _draw_definitions([(name, "|") for name in names], 80)]
    assert len({cell_len(line.partition("|")[0]) for line in defined}) == 1
