"""tools/prose.py finds what it is there for, and lets pass what is meant."""

import pytest

from tests.framework import CHECKOUT
from tools import prose

HOST = ".".join(("packages", "registry", "io"))  # put together here, so that this file keeps the rules itself
TICKET = "issue " + "42"


@pytest.mark.parametrize(
    ("path", "line", "said"),
    [
        ("tools/x", f"fetch http://{HOST}/simple", f"names the host {HOST}"),
        ("x.md", f"taken from {HOST}, as ever", f"names the host {HOST}"),
        ("x.py", f"# see {TICKET}", f"refers to {TICKET}"),
        ("x.py", f"# {'PR'} 17 explains it", "refers to"),
        ("python/x.py", 'f"in {share:' + '.0%} of runs"', "use format_share"),
        ("x.md", "as in " + "#12", "refers to #12"),
        ("x.toml", f'path = "{CHECKOUT}/target"', "a path of this machine"),
        ("x.md", "it is in `/builds/me/checkout`", "no usual directory"),
        ("x.md", "the interval is that of a machine", "says 'is that of'"),
        ("x.md", "a later run is held against it", "says 'held against'"),
        ("x.md", "which nobody has tried", "says 'nobody'"),
        ("x.md", "it comes in a package of its own", "says 'a package of its own'"),
        ("x.md", "it is removed when it ends, in whatever way", "says 'in whatever way'"),
    ],
)
def test_a_broken_rule_is_said(path: str, line: str, said: str) -> None:
    assert any(said in rule for rule in prose.find_broken_rules(path, line))


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("x.py", 'xmlns="http://www.w3.org/2000/svg"'),
        ("x.py", "color: #123456; host#2; http://10.0.0.1/file"),
        ("x.py", "import workloads.io"),
        ("x.md", "in `/usr/lib`, `~/.cache/x`, read/write, and `$TMPDIR/guestmark`"),
        ("x.md", "host#2 is a copy of host"),
        ("x.md", "servers run as `nobody`, and cells are told apart"),
        ("docs/results/starts.md", "nobody had tried it then"),
    ],
)
def test_what_is_meant_passes(path: str, line: str) -> None:
    assert not list(prose.find_broken_rules(path, line))


def test_links_must_lead_somewhere() -> None:
    text = (
        "[a](README.md) [b](missing.md)\n\n```\n[c](also-missing.md)\n```\n[d](README.md#no-such-heading)\n"
    )
    assert [number for number, _ in prose.find_broken_links("X.md", text)] == [1, 6]


def test_documents_named_in_code_must_exist() -> None:
    name = "docs/" + "nowhere.md"
    assert list(prose.find_broken_links("x.py", f"# one\n# see {name}\n")) == [
        (2, f"mentions {name}, which does not exist")
    ]


def test_anchors_are_those_of_forges() -> None:
    assert prose.anchors_of("# A `b` c: d\n```\n# no\n```\n") == {"a-b-c-d"}
