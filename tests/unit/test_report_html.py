"""The page holds the figures, loads nothing, and lets nothing that was measured become markup."""

import math
import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_runs import host_uml_tcg, memory_sweep
from test_report_formats import renamed

from guestmark.report.html import block_ratios, page, ticks
from guestmark.stats.analysis import analyse

SVG = "{http://www.w3.org/2000/svg}"


def plot(text: str) -> ElementTree.Element:
    """The plot, read by a strict parser."""
    found = re.search(r"<svg.*?</svg>", text, re.DOTALL)
    assert found
    return ElementTree.fromstring(found[0].replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1))


def test_every_block_is_a_dot_inside_the_plot() -> None:
    run = host_uml_tcg(failing={("uml", 3)})
    picture = plot(page(run))
    dots = picture.findall(f".//{SVG}circle")
    assert len(dots) == 11 + 12 + 12  # uml lost one; tcg; the null cell
    assert all(0 <= float(dot.attrib["cx"]) <= 900 for dot in dots)
    assert len(picture.findall(f".//{SVG}rect")) == 3
    assert len({dot.attrib["cx"] for dot in dots}) > 20


def test_ratios_are_those_of_the_blocks() -> None:
    run = memory_sweep(
        failing={("tcg memory=1G", 2), ("tcg memory=4G", 5)}, values={("tcg memory=4G", 7): 0.0}
    )
    cells = {result.cell.id: result for result in analyse(run.plan, run.trials).cells}
    found = block_ratios(cells["tcg memory=1G"].trials, cells["tcg memory=4G"].trials, "wall_s")
    assert sorted(found) == [0, 1, 3, 4, 6, 8, 9, 10, 11]
    value = {
        (trial.cell_id, trial.block): trial.measurements[0].value
        for trial in run.trials
        if trial.measurements
    }
    assert found[4] == value["tcg memory=4G", 4] / value["tcg memory=1G", 4]


def test_nothing_is_loaded_and_nothing_becomes_markup() -> None:
    run = renamed(
        host_uml_tcg(blocks=7, failing={("uml", 3)}), "<script>alert(1)</script> & \"x\" 'y' \udcff"
    )
    evil = replace(
        run, trials=tuple(replace(one, reason="<img src=x onerror=alert(1)>") for one in run.trials)
    )
    text = page(evil)
    text.encode()  # strictly UTF-8
    assert "<script" not in text
    assert "<img" not in text
    assert not re.search(r"(src|href|url|@import|https?:)\s*[=(\"/]", text.replace("&lt;img src=x", ""))
    assert "secret" not in text


@pytest.mark.parametrize("blocks", [0, 1, 2])
def test_little_data_does(blocks: int) -> None:
    assert page(host_uml_tcg(blocks=blocks)).endswith("</html>\n")


@given(st.floats(1e-6, 0.98), st.floats(1.02, 1e6))
def test_ticks_are_few_and_inside(low: float, high: float) -> None:
    found = ticks(low, high)
    assert 1 <= len(found) <= 8
    assert all(low <= one <= high or math.isclose(one, low) or math.isclose(one, high) for one in found)
    assert found == sorted(set(found))
