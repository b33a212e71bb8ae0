"""Lays out pages in a real headless browser, and reports the result."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

# Collects the boxes of all drawn elements relative to their drawing, the number of fetched resources, the text, the
# colours of bars, and which drawings are visible after each choice.
_PROBE = """<script>addEventListener('load',()=>{document.querySelectorAll('details').forEach(d=>{d.open=true});
const out={resources:performance.getEntriesByType('resource').length,
text:document.body.innerText,colours:[...document.querySelectorAll('.bar div')].map(d=>getComputedStyle(d)
.backgroundColor),drawings:[...document.querySelectorAll('svg[role=img]')].map(s=>{
const o=s.getBoundingClientRect();return{id:s.id,width:o.width,height:o.height,
things:[...s.querySelectorAll('rect,circle,text,polyline')].map(e=>{const
b=e.getBoundingClientRect();return[e.tagName,b.left-o.left,b.top-o.top,o.right-b.right,o.bottom-b.bottom,b.height,
e.getAttribute('class')]})}})};out.choices=[...document.querySelectorAll('input')].map(i=>{i.click();return[
...document.querySelectorAll('svg[role=img]')].filter(s=>s.getBoundingClientRect().width).map(s=>s.id)});
document.body.innerHTML='<pre id=probe>'+JSON.stringify(out).replace(/[&<]/g,c=>
c=='&'?'&amp;':'&lt;')+'</pre>'})</script>"""
_OUT_OF_FRAME = """<script>document.getElementById('page').addEventListener('load',e=>{
document.body.innerHTML=e.target.contentDocument.body.innerHTML})</script>"""
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1100,1400",
    "--virtual-time-budget=60000",  # virtual time passes at once when nothing is left to do
]


def browser() -> str:
    """Return the path of Chromium. Fails the test if it is not installed."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.fail("chromium is missing: apt-get install chromium")
    return chromium


def probing(page: str, probe: str) -> str:
    """Return the page with a script that inspects it, and without its own policy, which would block that script."""
    return re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page).replace(
        "</body>", probe + "</body>"
    )


def lay_out(page: str, folder: Path, width: int | None = None) -> dict[str, Any]:
    """Lay out a page in the browser, and return what a script found there.

    The result has the `resources` that were fetched, the `text`, the `colours` of bars, `drawings` with `things` whose
    second to fifth items are the distances to the drawing's left, top, right and bottom edge in pixels, and `choices`,
    the drawings that are shown after each button was pressed. A window is at least 500 pixels wide; with `width` the
    page is in a frame, which may be narrower.
    """
    assert "http" not in page.replace("http-equiv", "")
    probed = folder / "probed.html"
    whole = probing(page, _PROBE)
    if width is not None:
        framed = (
            f'<iframe id="page" width="{width}" height="1400" frameborder="0" srcdoc="{html.escape(whole)}">'
        )
        whole = f"<!doctype html><body>{framed}</iframe>{_OUT_OF_FRAME}</body>"
    probed.write_text(whole)
    command = [browser(), *FLAGS, f"--user-data-dir={folder}/profile", "--dump-dom", probed.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=True)
    found = re.search(r'<pre id="probe">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stdout[:2000]
    answer: dict[str, Any] = json.loads(html.unescape(found[1]))
    return answer
