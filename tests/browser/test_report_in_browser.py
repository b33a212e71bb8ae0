"""A run's page, laid out by a real browser on a telephone and on a desk, by day and by night."""

from __future__ import annotations

import html
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from guestmark.report.export_format import Format
from guestmark.report.formats import render
from tests.framework.browser import FLAGS, browser
from tests.framework.run_kinds import RUNS

# How wide everything is, and the contrast of every text with what is painted below it (WCAG 2.2, relative luminance).
_PROBE = """<script>addEventListener('load',()=>{
document.querySelectorAll('details').forEach(d=>{d.open=true});
const canvas=document.createElement('canvas').getContext('2d',{willReadFrequently:true});
const rgba=c=>{canvas.clearRect(0,0,1,1);canvas.fillStyle=c;canvas.fillRect(0,0,1,1);
return [...canvas.getImageData(0,0,1,1).data].map((v,i)=>i<3?v:v/255)};
const over=(a,b)=>[0,1,2].map(i=>a[i]*a[3]+b[i]*(1-a[3]));
const light=c=>{const l=c.map(v=>(v/=255)<=.04045?v/12.92:((v+.055)/1.055)**2.4);
return .2126*l[0]+.7152*l[1]+.0722*l[2]};
const below=e=>{const layers=[];for(;e;e=e.parentElement){layers.push(rgba(getComputedStyle(e).backgroundColor))}
return layers.reverse().reduce((under,layer)=>over(layer,under),[255,255,255])};
const texts=[];const walker=document.createTreeWalker(document.body,NodeFilter.SHOW_TEXT);
while(walker.nextNode()){const e=walker.currentNode.parentElement,text=walker.currentNode.data.trim();
if(!text||e.closest('script,style,.hidden'))continue;const s=getComputedStyle(e);
const part=e.closest('[fill="var(--on-part)"]');
const ink=rgba(e.closest('svg')?s.fill:s.color),parts=[...Array(10).keys()].map(n=>rgba(
getComputedStyle(document.documentElement).getPropertyValue('--part-'+n)));
const papers=part?parts.map(p=>p.slice(0,3)):[below(e)];
for(const paper of papers){const a=light(over(ink,paper)),b=light(paper);
texts.push([text.slice(0,40),(Math.max(a,b)+.05)/(Math.min(a,b)+.05),parseFloat(s.fontSize)*(e.closest('svg')?
e.closest('svg').getBoundingClientRect().width/e.closest('svg').viewBox.baseVal.width:1)])}}
const out={texts,page:document.documentElement.scrollWidth,window:innerWidth,
paper:below(document.body),boxes:[...document.querySelectorAll('figure svg')].map(s=>{
const o=s.getBoundingClientRect();return{width:o.width,outside:[...s.querySelectorAll('text,circle,rect')].map(e=>{
const b=e.getBoundingClientRect();return Math.min(b.left-o.left,b.top-o.top,o.right-b.right,o.bottom-b.bottom)})
.filter(m=>m<-2).length}})};
(window.parent||window).postMessage(JSON.stringify(out),'*')})</script>"""
_FRAME = """<!doctype html><body><iframe src="page.html" style="width:{width}px;height:4000px;border:0"></iframe>
<script>addEventListener('message',e=>{{const p=document.createElement('pre');p.id='probe';p.textContent=e.data;
document.body.replaceChildren(p)}})</script></body>"""


def laid_out(page: str, folder: Path, *, width: int, dark: bool) -> dict[str, Any]:
    (folder / "page.html").write_text(page.replace("</body>", _PROBE + "</body>"))
    frame = folder / "frame.html"
    frame.write_text(_FRAME.format(width=width))
    scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    command = [browser(), *FLAGS, scheme, f"--user-data-dir={folder}/profile", "--dump-dom", frame.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=True)
    found = re.search(r'<pre id="probe">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stdout[:2000]
    answer: dict[str, Any] = json.loads(html.unescape(found[1]))
    return answer


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [400, 1200])
@pytest.mark.parametrize("name", ["plain", "starts", "matrix", "disks"])
def test_a_page_can_be_read(name: str, width: int, dark: bool, tmp_path: Path) -> None:
    page = render(RUNS[name](), Format.HTML).decode()
    found = laid_out(page, tmp_path, width=width, dark=dark)
    assert found["window"] == width
    assert found["page"] <= width  # nothing scrolls sideways but tables in their own boxes
    assert (sum(found["paper"]) < 150) is dark
    assert len(found["texts"]) > 100
    for text, contrast, size in found["texts"]:
        assert contrast >= 4.5, (text, contrast)
        assert size >= 9.5, (text, size)
    assert found["boxes"]
    for box in found["boxes"]:
        assert box["outside"] == 0
        assert box["width"] >= min(width, 450) * 0.85
