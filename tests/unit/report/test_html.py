"""The page holds the figures, loads nothing, and lets nothing that was measured become markup."""

import base64
import hashlib
import math
import re
from dataclasses import replace
from html import escape
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guestmark.ledger.model import StoredRun
from guestmark.page import templates
from guestmark.page.charts import Ratios
from guestmark.page.nodes import Chart, Section
from guestmark.page.scales import log_ticks
from guestmark.page.tables import Table
from guestmark.page.text import Tone
from guestmark.report.export_format import Format
from guestmark.report.formats import export_run
from guestmark.report.full_report import make_page as page_of
from guestmark.report.render.charts import WIDTH, format_raw_points, render_svg
from guestmark.report.render.html import _keep_words_whole
from guestmark.report.sections.results import make_nodes
from guestmark.stats.analysis import analyse_run
from guestmark.stats.pairwise import list_block_ratios
from tests.framework.runs import host_uml_tcg, memory_sweep, renamed


def page(run: StoredRun) -> str:
    return export_run(run, Format.HTML).decode()


def sections_of(run: StoredRun) -> tuple[Section, ...]:
    return page_of(run, analyse_run(run.plan, run.trials, run.unusable)).sections


def ratios(run: StoredRun) -> tuple[Chart, Ratios]:
    (workload,) = analyse_run(run.plan, run.trials, run.unusable).workloads
    (chart,) = [node for node in make_nodes(workload, run) if isinstance(node, Chart)]
    assert isinstance(chart.drawing, Ratios)
    return chart, chart.drawing


def test_every_block_is_a_dot_inside_the_drawing() -> None:
    chart, drawing = ratios(host_uml_tcg(failing={("uml", 3)}))
    assert [len(row.blocks) for row in drawing.rows] == [11, 12, 12]  # uml lost one; tcg; the null cell
    assert 4 not in [block for block, _ in drawing.rows[0].blocks]
    assert drawing.noise_floor is not None
    picture = ElementTree.fromstring(render_svg(chart))
    dots = list(picture.iter("circle"))
    assert len(dots) == 35
    assert all(0 <= float(dot.attrib["cx"]) <= WIDTH for dot in dots)
    assert len({dot.attrib["cx"] for dot in dots}) > 20
    groups = [group for group in picture.iter() if group.get("fill-opacity") == "0.28"]
    assert [len(group) for group in groups] == [3]  # a bar for each of them
    assert [rect.get("fill") for rect in picture.iter("rect")].count("var(--band)") == 1
    told = [dot.findtext("title") for dot in dots]
    assert f"tcg, block 1: ×{drawing.rows[1].blocks[0][1]:.4g}" in told


def test_a_drawing_is_told_in_words_and_takes_its_colours_from_the_page() -> None:
    text = page(host_uml_tcg(failing={("uml", 3)}))
    drawings = re.findall(r"<svg viewBox.*?</svg>.*?</svg>", text, re.DOTALL)
    assert len(drawings) == 3
    for drawing in drawings:
        picture = ElementTree.fromstring(drawing)
        assert picture.get("role") == "img"
        assert "tcg" in picture.attrib["aria-label"]
        assert not re.search(r"(fill|stroke)=\"(#|rgb|black|white)", drawing)
        colours = set(re.findall(r"var\((--[\w-]+)\)", drawing))
        assert colours <= set(re.findall(r"(--[\w-]+):", text))


@pytest.mark.parametrize(
    "tone", [Tone.FASTER, Tone.SLOWER, Tone.SAME, Tone.UNCLEAR, Tone.WARNING, Tone.ERROR]
)
def test_a_word_has_the_colour_of_its_tone(tone: Tone) -> None:
    style = re.search(r"<style>(.*?)</style>", page(host_uml_tcg()), re.DOTALL)
    assert style
    assert re.search(rf"\.{tone.value}\b[^{{}}]*\{{color:", style[1])


def test_ratios_are_those_of_the_blocks() -> None:
    run = memory_sweep(
        failing={("tcg memory=1G", 2), ("tcg memory=4G", 5)}, values={("tcg memory=4G", 7): 0.0}
    )
    cells = {result.cell.id: result for result in analyse_run(run.plan, run.trials).cells}
    found = list_block_ratios(cells["tcg memory=1G"].trials, cells["tcg memory=4G"].trials, "wall_s")
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
        run, trials=tuple(replace(trial, reason="<img src=x onerror=alert(1)>") for trial in run.trials)
    )
    text = page(evil)
    text.encode()  # strictly UTF-8
    scripts = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    assert scripts == [(Path(templates.__file__).parent / "chart.js").read_text().strip()]
    assert text.count("<script") == 1
    digest = base64.b64encode(hashlib.sha256(scripts[0].encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'" in text
    assert "<img" not in text
    loading = text.replace("&lt;img src=x", "").replace('href="#part-', "").replace(scripts[0], "")
    assert not re.search(r"(src|href|url|@import|https?:)\s*[=(\"/]", loading)
    assert "secret" not in text


def test_the_page_has_what_assistive_programs_look_for() -> None:
    text = page(host_uml_tcg())
    assert '<html lang="en">' in text
    assert re.search(r"<title>[^<]*20261121-213000-k3f</title>", text)
    for landmark in ("header", "main", "footer"):
        assert text.count(f"<{landmark}>") == text.count(f"</{landmark}>") == 1
    assert text.count("<table") == text.count("<caption") == len(re.findall(r"</caption>", text))
    assert not re.search(r"<th(?![^>]*scope=)[ >]", text)
    levels = [int(level) for level in re.findall(r"<h(\d)", text)]
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))


@pytest.mark.parametrize("blocks", [0, 1, 2])
def test_little_data_does(blocks: int) -> None:
    assert page(host_uml_tcg(blocks=blocks)).endswith("</html>\n")


@given(st.floats(1e-6, 0.98), st.floats(1.02, 1e6))
def test_ticks_are_few_and_inside(low: float, high: float) -> None:
    found = log_ticks(low, high)
    assert 1 <= len(found) <= 8
    assert all(low <= tick <= high or math.isclose(tick, low) or math.isclose(tick, high) for tick in found)
    assert found == sorted(set(found))


def test_the_only_workload_is_in_the_headline_once() -> None:
    text = page(host_uml_tcg())
    headline, rest = text.partition('<section class="conclusion')[2].split("</section>", 1)
    assert headline.count("<svg viewBox") == 1
    assert headline.count("<table") == 1
    assert headline.index("<table") < headline.index("<svg")
    assert re.search(r"verdict\">(slower|faster)<", headline)
    assert "wall against host" in headline
    assert "wall against host" not in rest
    assert rest.count("<details") >= 3  # limits, the rest of the results, where it was measured


def test_what_is_folded_is_all_there() -> None:
    run = host_uml_tcg()
    made = sections_of(run)
    text = page(run)
    tables = [node.caption for section in made for node in section.nodes if isinstance(node, Table)]
    assert len(tables) > 2
    for caption in tables:
        assert text.count(f'<caption class="hidden">{escape(caption)}</caption>') >= 1
    assert text.count("<table") == len(tables) + text.count('<table class="matrix"')
    assert text.count("<svg viewBox") == sum(
        isinstance(node, Chart) for section in made for node in section.nodes
    )


def test_raw_points_are_there_on_request() -> None:
    chart, drawing = ratios(host_uml_tcg(failing={("uml", 3)}))
    lines = format_raw_points(drawing).splitlines()
    assert len(lines) == 35
    block, value = drawing.rows[1].blocks[0]
    assert f"tcg,{block},{value:.6g}" in lines
    assert f"<pre>{lines[0]}\n" in page(host_uml_tcg(failing={("uml", 3)}))
    assert chart.title in page(host_uml_tcg(failing={("uml", 3)}))


def test_a_command_breaks_between_its_words_only() -> None:
    words = "guestmark resume 20261121-213000-k3f --blocks 12"
    shown = str(_keep_words_whole(words))
    assert re.findall(r'<span class="word">([^<]*)</span>', shown) == words.split()
