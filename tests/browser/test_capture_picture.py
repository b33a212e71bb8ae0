"""The picture of a real trace, laid out by a real browser: everything is inside its drawing, nothing is fetched."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from guestmark.capture import picture
from guestmark.capture.binary import Selection, Wanted, analyse_capture
from tests.framework import traffic as ct
from tests.framework.browser import browser, lay_out


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    browser()
    ct.need("dumpcap")
    folder = tmp_path_factory.mktemp("picture")
    capture, page = folder / "trace.pcapng", folder / "page.html"
    with ct.dumping(capture):
        listener, stop = ct.echo_server(b"a" * 200_000, 0.001)
        ct.talk(listener.getsockname(), 40, 200_000, 0.003)
        ct.talk(listener.getsockname(), 20, 200_000, 0.003)
        ct.talk(listener.getsockname(), 10, 200_000, 0.003)
        stop()
    document, status = analyse_capture(Selection((str(capture),)), Wanted(histograms=True, sequences=3))
    assert status == 0
    picture.write_picture(document, page)
    return page


@pytest.fixture(scope="module")
def laid_out(page: Path) -> dict[str, Any]:
    return lay_out(page.read_text(), page.parent)


def test_a_narrow_window_shows_whole_drawings_with_signs_to_be_read(page: Path) -> None:
    """At the width of a telephone nothing is cut off at either side, and nothing has to be pushed aside."""
    narrow = lay_out(page.read_text(), page.parent, width=400)
    shown = {drawing["id"]: drawing for drawing in narrow["drawings"] if drawing["width"]}
    assert set(shown) == {
        "distributions-for-narrow", "sequence-server-for-narrow", "sequence-client-for-narrow",
    }  # fmt: skip
    for name, drawing in shown.items():
        assert 250 < drawing["width"] <= 400
        for tag, *margins, height, css in drawing["things"]:
            assert min(margins) > -2, (name, tag, margins, css)
            assert tag != "text" or height >= 10, (name, height)
        assert sum(thing[0] in {"rect", "circle"} for thing in drawing["things"]) > 10


def test_nothing_is_fetched(laid_out: dict[str, Any]) -> None:
    assert laid_out["resources"] == 0


def test_it_says_who_is_slow(laid_out: dict[str, Any]) -> None:
    assert re.search(r"client \d+ %, server \d+ %, network/unknown \d+ %", laid_out["text"])
    assert re.search(r"(Client|Server|Network|Unknown) \d+ %, [a-z]+ \d+ %", laid_out["text"])
    assert "p50" in laid_out["text"]
    assert len(set(laid_out["colours"])) == len(laid_out["colours"]) >= 2


def test_every_drawing_holds_its_things(laid_out: dict[str, Any]) -> None:
    drawings = {drawing["id"]: drawing for drawing in laid_out["drawings"]}
    assert {"distributions", "sequence-server"} <= set(drawings)
    shown = [drawing for drawing in drawings.values() if drawing["width"]]
    assert {drawing["id"] for drawing in shown} == {"distributions", "sequence-server", "sequence-client"}
    for drawing in shown:
        assert drawing["width"] > 500
        assert drawing["height"] > 80
        for tag, *margins, _, _ in drawing["things"]:
            assert min(margins) > -2, (drawing["id"], tag, margins)
    bars = [t for t in drawings["distributions"]["things"] if t[0] == "rect"]
    assert max(bar[5] for bar in bars) > 20
    dots = [t for t in drawings["sequence-server"]["things"] if t[0] == "circle"]
    assert len(dots) > 40
    # Bytes only grow, so dots climb from the left to the right.
    assert dots[0][1] < dots[-1][1]
    assert dots[0][2] > dots[-1][2]


def test_each_of_the_larger_connections_can_be_chosen(laid_out: dict[str, Any]) -> None:
    places = ("", "1-2-", "1-3-")
    expected = [{"distributions", f"sequence-{at}server", f"sequence-{at}client"} for at in places]
    assert [set(shown) for shown in laid_out["choices"]] == expected
    assert len(re.findall(r"127\.0\.0\.1:\d+ → 127\.0\.0\.1:\d+\s+[\d,]+ packets, ", laid_out["text"])) == 3
