"""The picture of a real trace, laid out by a real browser: everything is inside its drawing, nothing is fetched."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

import capture_traffic as ct

from guestmark.capture import picture
from guestmark.capture.binary import Selection, analyse

# What the browser made of it: boxes of all drawn things relative to their drawing, what was fetched, what was said.
PROBE = """<script>addEventListener('load',()=>{const out={resources:performance.getEntriesByType('resource').length,
text:document.body.innerText,colours:[...document.querySelectorAll('.bar div')].map(d=>getComputedStyle(d)
.backgroundColor),drawings:[...document.querySelectorAll('svg')].map(s=>{const o=s.getBoundingClientRect();return{
id:s.id,width:o.width,height:o.height,things:[...s.querySelectorAll('rect,circle,text,polyline')].map(e=>{const
b=e.getBoundingClientRect();return[e.tagName,b.left-o.left,b.top-o.top,o.right-b.right,o.bottom-b.bottom,b.height,
e.getAttribute('class')]})}})};document.body.innerHTML='<pre id=probe>'+JSON.stringify(out).replace(/[&<]/g,c=>
c=='&'?'&amp;':'&lt;')+'</pre>'})</script>"""


@pytest.fixture(scope="module")
def laid_out(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.fail("chromium is missing: apt-get install chromium")
    ct.need("dumpcap")
    folder = tmp_path_factory.mktemp("picture")
    capture, page, probed = folder / "trace.pcapng", folder / "page.html", folder / "probed.html"
    with ct.dumping(capture):
        listener, stop = ct.echo_server(b"a" * 200_000, 0.001)
        ct.talk(listener.getsockname(), 40, 200_000, 0.003)
        stop()
    document, status = analyse(Selection((str(capture),)), histograms=True, sequence=True)
    assert status == 0
    picture.write(document, page)
    text = page.read_text()
    assert "http" not in text.replace("http-equiv", "")
    probed.write_text(text.replace("</body>", PROBE + "</body>"))
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
    flags += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
    flags += [f"--user-data-dir={folder}/profile", "--window-size=1100,1400", "--virtual-time-budget=3000"]
    done = subprocess.run(
        [chromium, *flags, "--dump-dom", probed.as_uri()],
        capture_output=True,
        text=True,
        timeout=90,
        check=True,
    )
    found = re.search(r'<pre id="probe">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stdout[:2000]
    answer: dict[str, Any] = json.loads(html.unescape(found[1]))
    return answer


def test_nothing_is_fetched(laid_out: dict[str, Any]) -> None:
    assert laid_out["resources"] == 0


def test_it_says_who_is_slow(laid_out: dict[str, Any]) -> None:
    assert re.search(r"Client \d+ %, server \d+ %, network/unknown \d+ %", laid_out["text"])
    assert "p50" in laid_out["text"]
    assert len(set(laid_out["colours"])) == len(laid_out["colours"]) >= 2


def test_every_drawing_holds_its_things(laid_out: dict[str, Any]) -> None:
    drawings = {drawing["id"]: drawing for drawing in laid_out["drawings"]}
    assert {"distributions", "sequence-server"} <= set(drawings)
    for drawing in drawings.values():
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
