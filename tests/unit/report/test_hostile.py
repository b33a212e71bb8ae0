"""Text from outside (labels, reasons, levels, digests, models of disks) is inert in every format."""

import io
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.console import Console

from guestmark.core.model import Cell, LeftOut, WorkloadSpec
from guestmark.core.platform_spec import HOST, PlatformSpec
from guestmark.ledger.model import StoredRun
from guestmark.page.text import make_inert
from guestmark.report.export_format import Format
from guestmark.report.formats import export_run
from guestmark.report.render import markdown
from tests.framework.runs import constructed, print_report

HOSTILE = {
    "escape sequences": "\x1b]0;owned\x07\x1b[31mred\x1b[2J\x1b]8;;http://x\x1b\\link",
    "C1": "\x9b31m\x9d0;owned\x9c\x85next",
    "bidi": "abc\u202edcba\u2066\u200f\u061c",
    "unseen": "a\u200bb\u2060c\ufeffd\u00ade\U000e0041",
    "separators": "one\u2028two\u2029three\r\nfour\tfive\x0bsix",
    "rich": "[bold red]x[/] [link=http://x]y[/link] [/nothing] :smile:",
    "html": "<script>alert(1)</script><img src=x onerror=alert(1)> \" onmouseover='x' &lt;b&gt; </svg></style>",
    "template": "{{ 7 * 191 }} {% raw %} {# comment #}",
    "markdown": "[a](javascript:x) ![i](http://x) **b** _c_ `d` | e ~~f~~ <http://x> $g$ [h]: http://i &amp;",
    "block": "# heading\n\n- item\n\n> quote\n\n```\ncode",
    "list": "1. one",
    "surrogate": "a\udcffb\ud800",
}
ACTIVE = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\u00ad]")


def run_with(text: str) -> StoredRun:
    """A run that holds the text wherever something can come from outside."""
    workload = WorkloadSpec("exec", {"argv": [text, "x"]}, text, "k")  # the name is not the command
    cells = [
        (Cell(f"host x={text}", workload, HOST, {"x": text}, True), 1.0),
        (Cell("host x=b", workload, HOST, {"x": "b"}), 2.0),
        (Cell("kvm x=b", workload, PlatformSpec.read("kvm"), {"x": "b"}), None),
    ]
    run = constructed(cells, failing={("host x=b", 2)}, warnings={("host x=b", 1): (text,)})
    trials = tuple(
        replace(trial, reason=text if trial.reason else "", command_line=("qemu", text), console=text)
        for trial in run.trials
    )
    environment = {"processor": {"model": text}, "kernel": {"release": text}, "programs": {"qemu": text}}
    plan = replace(run.plan, title=text)
    unusable = (LeftOut("kvm", text, text),)
    return replace(run, plan=plan, trials=trials, environments=(environment,), unusable=unusable)


def printed(run: StoredRun, **options: object) -> str:
    out = io.StringIO()
    console = Console(file=out, width=200, highlight=False, **options)  # type: ignore[arg-type]
    print_report(run, console, published=True, environment=True)
    return out.getvalue()


@pytest.mark.parametrize("name", HOSTILE)
def test_terminals_are_given_nothing_to_obey(name: str) -> None:
    run = run_with(HOSTILE[name])
    text = printed(run)
    assert not ACTIVE.search(text)
    assert " ".join(make_inert(HOSTILE[name]).split()) in " ".join(text.split())
    coloured = printed(run, force_terminal=True, color_system="standard")
    assert not ACTIVE.search(re.sub("\x1b\\[[0-9;]*m", "", coloured))  # our own colours are all there is


class Tags(HTMLParser):
    """The tags and attributes of a page, and its text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def parsed(run: StoredRun) -> Tags:
    tags = Tags()
    tags.feed(export_run(run, Format.HTML).decode())
    return tags


@pytest.mark.parametrize("name", HOSTILE)
def test_pages_have_the_tags_that_any_page_has(name: str) -> None:
    usual, found = parsed(run_with("usual")), parsed(run_with(HOSTILE[name]))
    assert found.tags == usual.tags
    assert found.attributes == usual.attributes
    text = " ".join("".join(found.texts).split())
    assert " ".join(make_inert(HOSTILE[name]).split()) in text
    assert "1337" not in text
    assert not ACTIVE.search("".join(found.texts))


def tokens(run: StoredRun) -> Iterator[Token]:
    reader = MarkdownIt("gfm-like", {"linkify": False, "html": True})
    for token in reader.parse(export_run(run, Format.MARKDOWN).decode()):
        yield token
        yield from token.children or ()


@pytest.mark.parametrize("name", HOSTILE)
def test_markdown_has_the_elements_that_any_report_has(name: str) -> None:
    def shape(run: StoredRun) -> list[str]:
        return [
            token.type for token in tokens(run) if token.type not in {"text", "text_special", "softbreak"}
        ]

    assert shape(run_with(HOSTILE[name])) == shape(run_with("usual"))
    text = "".join(token.content for token in tokens(run_with(HOSTILE[name])) if token.type == "text")
    assert not ACTIVE.search(text)


@settings(deadline=None)
@given(st.text())
def test_any_text_is_one_paragraph_of_plain_markdown(text: str) -> None:
    reader = MarkdownIt("gfm-like", {"linkify": False})
    escaped = markdown.escape_text(text)
    blocks = [token for token in reader.parse(escaped) if token.nesting >= 0]
    if not escaped.strip():
        return
    assert [token.type for token in blocks] == ["paragraph_open", "inline"]
    children = blocks[1].children or []
    assert {token.type for token in children} <= {"text", "text_special"}
    read = "".join(token.content for token in children)
    assert read.split() == make_inert(text).split()


@given(st.text(), st.booleans())
def test_inert_text_holds_nothing_active_and_says_the_rest(text: str, lines: bool) -> None:
    found = make_inert(text, lines=lines)
    assert not ACTIVE.search(found.replace("\t", "") if lines else found)
    assert make_inert(found, lines=lines) == found
    if text.isalnum() and text.isascii():
        assert found == text


@pytest.mark.parametrize("name", HOSTILE)
def test_documents_hold_it_exactly_but_escaped(name: str) -> None:
    raw = export_run(run_with(HOSTILE[name]), Format.JSON).decode()
    assert not ACTIVE.search(raw)
    reason = json.loads(raw)["cells"][1]["trials"][2]["reason"]
    assert reason == HOSTILE[name].replace("\udcff", "\ufffd\ufffd\ufffd").replace(
        "\ud800", "\ufffd\ufffd\ufffd"
    )


@pytest.mark.parametrize(
    ("kind", "params"),
    [
        ("exec", {"argv": 7, "parameters": 3, "ignore_failure": "x"}),
        ("exec", {"argv": [None], "metrics": [7], "output": []}),
        ("upload", {"variant": 1}),
        ("boot", {"watch": 3}),
        ("nothing that is known", {"argv": 7}),
    ],
)
def test_parameters_of_another_shape_are_shown(kind: str, params: dict[str, object]) -> None:
    workload = WorkloadSpec(kind, params, "label", "k")
    cells = [
        (Cell("host", workload, HOST, {}, True), 1.0),
        (Cell("uml", workload, PlatformSpec.read("uml")), 2.0),
    ]
    run = constructed(cells)
    assert "uml" in printed(run)
    for form in Format:
        assert b"uml" in export_run(run, form)
