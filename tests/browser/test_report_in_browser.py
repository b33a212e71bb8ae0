"""A run's page, laid out by a real browser on a telephone and on a desk, by day and by night."""

from __future__ import annotations

import html
import json
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from guestmark.report.export_format import Format
from guestmark.report.formats import export_run
from tests.framework.browser import FLAGS, browser, probing
from tests.framework.marks import long
from tests.framework.run_kinds import RUNS, analysed, run_of

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
paper:below(document.body),boxes:[...document.querySelectorAll('.drawing>svg')].map(s=>{
const o=s.getBoundingClientRect();return{width:o.width,outside:[...s.querySelectorAll('text,circle,rect')].map(e=>{
const b=e.getBoundingClientRect();return Math.min(b.left-o.left,b.top-o.top,o.right-b.right,o.bottom-b.bottom)})
.filter(m=>m<-2).length}})};
(window.parent||window).postMessage(JSON.stringify(out),'*')})</script>"""
# All pages at once, as a browser takes longer to start than to lay them out; the answers are in their order.
_FRAMES = """<!doctype html><script>const got={{}};addEventListener('message',e=>{{
const all=[...document.querySelectorAll('iframe')];got[all.findIndex(f=>f.contentWindow===e.source)]=e.data;
if(Object.keys(got).length<{count})return;const p=document.createElement('pre');p.id='probe';
p.textContent='['+all.map((_,n)=>got[n]).join()+']';document.body.replaceChildren(p)}})</script>
<body>{frames}</body>"""


def laid_out(
    pages: Sequence[tuple[str, int]], folder: Path, *, dark: bool, probe: str = _PROBE
) -> list[dict[str, Any]]:
    """What the probe finds on each page at its width."""
    frames = ""
    for number, (page, width) in enumerate(pages):
        (folder / f"{number}.html").write_text(probing(page, probe))
        frames += f'<iframe src="{number}.html" style="width:{width}px;height:4000px;border:0"></iframe>'
    document = folder / "frames.html"
    document.write_text(_FRAMES.format(frames=frames, count=len(pages)))
    scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    command = [
        browser(),
        *FLAGS,
        scheme,
        f"--user-data-dir={folder}/profile",
        "--dump-dom",
        document.as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=True)
    found = re.search(r'<pre id="probe">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stdout[:2000]
    answers: list[dict[str, Any]] = json.loads(html.unescape(found[1]))
    return answers


NAMES, WIDTHS = ("plain", "starts", "matrix", "disks"), (400, 1200)
Found = dict[tuple[str, int], dict[str, Any]]


@pytest.fixture(scope="module", params=[False, long(True)], ids=["light", "dark"])
def pages(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[bool, Found]:
    """Whether it is night, and what was found on each page at each width."""
    asked = [(name, width) for name in NAMES for width in WIDTHS]
    made = {name: export_run(run_of(name), Format.HTML, analysed(name)).decode() for name in NAMES}
    folder = tmp_path_factory.mktemp("pages")
    answers = laid_out([(made[name], width) for name, width in asked], folder, dark=request.param)
    return request.param, dict(zip(asked, answers, strict=True))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", NAMES)
def test_a_page_can_be_read(name: str, width: int, pages: tuple[bool, Found]) -> None:
    dark, answers = pages
    found = answers[name, width]
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


_POINTER = """<script>addEventListener('load',()=>{
const svg=document.querySelector('svg[data-low]'),box=svg.getBoundingClientRect(),plot=svg.querySelector('.plot');
const at=(type,x,y)=>svg.dispatchEvent(new PointerEvent(type,{clientX:x,clientY:y,button:0,pointerId:1,bubbles:true}));
svg.setPointerCapture=()=>{};
const places=()=>[...plot.querySelectorAll('circle')].map(c=>+c.getAttribute('cx'));
const ticks=()=>[...svg.querySelectorAll('.tick text')].map(t=>t.textContent);
const dot=plot.querySelector('circle').getBoundingClientRect();
at('pointermove',dot.left+dot.width/2,dot.top+dot.height/2);
const out={tip:document.querySelector('.tip').textContent,before:places(),ticks:ticks()};
const y=box.top+20;
at('pointerdown',box.left+box.width*.5,y);at('pointermove',box.left+box.width*.8,y);
at('pointermove',box.left+box.width*.99,y);at('pointerup',box.left+box.width*.99,y);
out.zoomed=places();out.zoomedTicks=ticks();
svg.dispatchEvent(new MouseEvent('dblclick'));out.after=places();out.afterTicks=ticks();
(window.parent||window).postMessage(JSON.stringify(out),'*')})</script>"""


def test_a_chart_answers_the_pointer(tmp_path: Path) -> None:
    page = export_run(RUNS["plain"](), Format.HTML).decode()
    (found,) = laid_out([(page, 1200)], tmp_path, dark=False, probe=_POINTER)
    assert re.fullmatch(r"uml, block 1: ×[\d.]+", found["tip"])
    before, zoomed = found["before"], found["zoomed"]
    low, high = min(before), max(before)
    assert max(zoomed) - min(zoomed) > 1.8 * (high - low)  # about twice as wide
    assert found["zoomedTicks"] != found["ticks"]
    assert found["after"] == pytest.approx(before, abs=0.11)
    assert {tick.lstrip("×") for tick in found["afterTicks"]} & {tick.lstrip("×") for tick in found["ticks"]}
