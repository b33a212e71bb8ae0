"""Text from outside, through what every verb prints on a terminal: shown as it is, obeyed by nothing."""

import ast
import os
import pty
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from guestmark.cli.verbs import VERBS
from guestmark.ledger import open_ledger
from tests.framework import PACKAGES
from tests.framework import captures as cf
from tests.framework.preloaded import PreloadedCall
from tests.unit.report.test_hostile import run_with

CODE = "import sys; sys.argv[0] = 'guestmark'; from guestmark.cli import main; sys.exit(main())"
MARKUP = "[/bold]a [red]x[/] :smile:"
ACTIVE = "\x1b]0;owned\x07\x9b2J\u202e"
HOSTILE = f"{MARKUP} {ACTIVE}"
OBEYED = re.compile("\x1b]|\x07|\x9b|\u202e|\xc2\x9b")
# What Rich itself writes: colours, and the movements of a live display.
OURS = re.compile(r"\x1b\[[0-9;]*m|\x1b\[\?25[lh]|\x1b\[[0-9]*[AK]|\x1b\[2K")


def on_a_terminal(*arguments: str, folder: Path, code: str = CODE, **environment: str) -> str:
    """Everything that a call prints to a terminal, which is both its outputs."""
    ledger = "measured.sqlite" if arguments[:1] == ("exec",) else "ledger.sqlite"
    ours, theirs = pty.openpty()
    start = PreloadedCall if code == CODE else subprocess.Popen
    process = start(
        [sys.executable, *(("-m", "guestmark") if code == CODE else ("-c", code)), *arguments],
        env={
            **os.environ,
            "PYTHONPATH": str(PACKAGES),
            "PYTHONUTF8": "1",
            "TERM": "xterm",
            "COLUMNS": "400",
            "GUESTMARK_LEDGER": str(folder / ledger),
            "XDG_STATE_HOME": str(folder / "state"),
            "XDG_CACHE_HOME": str(folder / "cache"),
            **environment,
        },
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    pieces = []
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # EIO: the last who held the other end has gone
            break
        if not piece:
            break
        pieces.append(piece)
    os.close(ours)
    process.wait(60)
    return b"".join(pieces).decode("utf-8", "surrogateescape").replace("\r\n", "\n")


def assert_inert(said: str) -> None:
    assert "sorry, this is a bug" not in said, said
    assert "Traceback" not in said, said
    found = OBEYED.search(said)
    assert not found, repr(said[max(0, found.start() - 200) : found.end() + 50])
    left = OURS.sub("", said)
    assert "\x1b" not in left, repr(left)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger whose newest run holds hostile text everywhere, a plan and a capture likewise."""
    folder = tmp_path_factory.mktemp("hostile")
    run = run_with(HOSTILE)
    with open_ledger(folder / "ledger.sqlite") as opened:
        run_id = opened.create_run(run.plan, run.environments[0], run.seed)
        for entry in run.unusable:
            opened.record_left_out(run_id, entry)
        for trial in run.trials:
            opened.store_trial(run_id, replace(trial, console=f"{HOSTILE}\n"))
    rows = [f'"{n}","{n / 10}","{HOSTILE}","2001:db8::1","TCP","66","40000  >  8000 [ACK] Seq=1 Ack=1 Win=1 Len=0"'
            for n in range(1, 4)]  # fmt: skip
    text = "\n".join(['"No.","Time","Source","Destination","Protocol","Length","Info"', *rows, ""])
    (folder / f"{ACTIVE}.csv").write_text(text, encoding="utf-8")
    (folder / "mine.toml").write_text(
        f'schema = "guestmark-plan/1"\nname = "mine"\ntitle = {toml(HOSTILE)}\nplatforms = ["host"]\n'
        f'[workloads.mine]\nkind = "exec"\nlabel = {toml(HOSTILE)}\nparams.argv = [{toml(HOSTILE)}]\n'
    )
    (folder / "cut.pcap").write_bytes(cf.pcap(cf.frames(cf.conversation()))[:-5])
    shutil.copy(folder / "cut.pcap", folder / f"{ACTIVE}.pcap")
    return folder


def toml(text: str) -> str:
    return '"' + "".join(c if c.isascii() and c.isprintable() else f"\\u{ord(c):04x}" for c in text) + '"'


CALLS: dict[str, Sequence[str]] = {
    "show": ("show", "last", "--environment"),
    "show --console": ("show", "last", "--console", "host x=b"),
    "show of no cell": ("show", "last", "--console", HOSTILE),
    "show of no run": ("show", HOSTILE),
    "runs": ("runs",),
    "runs --json": ("runs", "--json"),
    "export json": ("export", "last"),
    "export csv": ("export", "last", "--format", "csv"),
    "export markdown": ("export", "last", "--format", "markdown"),
    "export html": ("export", "last", "--format", "html"),
    "export to nowhere": ("export", "last", "-o", f"/nowhere/{ACTIVE}.csv"),
    "resume": ("resume", HOSTILE),
    "block": ("block", HOSTILE),
    "quiet": ("quiet", HOSTILE),
    "capture": ("capture", f"{ACTIVE}.csv"),
    "capture narrow": ("capture", f"{ACTIVE}.csv", "cut.pcap"),
    "capture by endpoint": ("capture", "--by", "endpoint", f"{ACTIVE}.csv"),
    "capture json": ("capture", "-f", "json", f"{ACTIVE}.csv"),
    "capture csv": ("capture", "-f", "csv", f"{ACTIVE}.csv"),
    "capture tcp-stats": ("capture", "-f", "tcp-stats", f"{ACTIVE}.csv"),
    "capture of a damaged file": ("capture", f"{ACTIVE}.pcap"),
    "capture filtered": ("capture", "--filter", HOSTILE, "cut.pcap"),
    "run --list": ("run", "mine.toml", "--list"),
    "run of no plan": ("run", HOSTILE),
    "plans": ("plans",),
    "plans show": ("plans", "show", HOSTILE),
    "exec failing": ("exec", "--on", "host", "--", "sh", "-c", "printf '%s' \"$0\" >&2; exit 3", HOSTILE),
    "exec of nothing": ("exec", "--on", "host", "--", f"/nowhere/{HOSTILE}"),
    "exec on nothing": ("exec", "--on", HOSTILE, "--", "true"),
    "exec with a setting": ("exec", "--set", f"kernel={HOSTILE}", "--on", "host", "--", "true"),
    "boot": ("boot", "--on", HOSTILE),
    "tour": ("tour", "--on", HOSTILE),
    "shell": ("shell", HOSTILE),
    "clean": ("clean", HOSTILE),
    "tune": ("tune", HOSTILE),
    "powercut": ("powercut", HOSTILE),
    "powercut on nothing": ("powercut", "--on", HOSTILE),
    "prepare": ("prepare", HOSTILE),
    "prepare --load": ("prepare", "--load", HOSTILE),
    "ledger copy": ("ledger", "copy", HOSTILE, HOSTILE),
    "ledger role": ("ledger", "role", HOSTILE),
    "ssh": ("exec", "--on", "ssh:" + HOSTILE, "--", "true"),
    "doctor": ("doctor", HOSTILE),
    "campaign": ("campaign", HOSTILE, "--status"),
    "fleet run": ("fleet", "run", HOSTILE, "--machines", HOSTILE),
    "fleet show": ("fleet", "show", HOSTILE),
    "edit": ("edit", "last", "--note", HOSTILE),
    "edit of no run": ("edit", HOSTILE, "--tag", "x"),
    "edit with a bad label": ("edit", "last", "--label", HOSTILE),
    "rm": ("rm", HOSTILE),
    "import": ("import", HOSTILE),
    "vacuum": ("vacuum", HOSTILE),
    "gate": ("gate", "last", "--fail-if", HOSTILE),
    "ab": ("ab", HOSTILE),
    "bisect": ("bisect", HOSTILE),
    "compare": ("compare", "last", HOSTILE),
    "history": ("history", "last", "--cell", HOSTILE),
    "hyperfine's parameters": ("exec", "-L", HOSTILE, HOSTILE, "--", "true"),
    "hyperfine's commands": ("exec", "--command", f"'{HOSTILE}", "-n", HOSTILE),
    "machine": ("machine", "show", HOSTILE),
    "no verb": (HOSTILE,),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_nothing_that_is_printed_is_obeyed(folder: Path, name: str) -> None:
    said = on_a_terminal(*CALLS[name], folder=folder, COLUMNS="80" if "narrow" in name else "400")
    assert said.strip()
    assert_inert(said)


def test_every_verb_is_among_the_calls() -> None:
    assert {words[0] for words in CALLS.values()} >= set(VERBS)


@pytest.mark.parametrize(
    "name", ["capture", "capture by endpoint", "show", "show --console", "runs", "exec failing"]
)
def test_what_looks_like_markup_is_shown(folder: Path, name: str) -> None:
    said = OURS.sub("", on_a_terminal(*CALLS[name], folder=folder))
    assert MARKUP in " ".join(said.split())
    assert "\\x1b]0;owned\\x07" in said


def test_addresses_of_ipv6_are_whole(folder: Path) -> None:
    assert "[2001:db8::1]:8000" in OURS.sub("", on_a_terminal(*CALLS["capture"], folder=folder))


@pytest.mark.parametrize(("show", "shown"), [("_show_summary", 6), ("_show_details", 8)])
def test_what_the_doctor_finds_is_inert(folder: Path, show: str, shown: int) -> None:
    code = (
        f"from guestmark.cli.do import doctor as d; t = {HOSTILE!r}\n"
        "found = dict(name=t, usable=False, reason=t, hint=t, ready_s=None)\n"
        "host = dict(processor=dict(model=t), kernel=dict(release=t), distribution=t)\n"
        f"d.{show}(dict(platforms=[found], host=host, ledger=t, tools=dict(qemu=t)))\n"
    )
    said = on_a_terminal(folder=folder, code=code)
    assert_inert(said)
    assert said.count("[/bold]a") == shown


def test_pictures_of_captures_hold_nothing_active(folder: Path) -> None:
    page = folder / "picture.html"
    on_a_terminal("capture", f"{ACTIVE}.csv", "--plot", str(page), folder=folder)
    text = page.read_text()
    assert not OBEYED.search(text)
    assert "owned" in text


def test_tables_of_captures_hold_nothing_that_is_obeyed(folder: Path) -> None:
    """What a terminal or a spreadsheet would obey is spelled out."""
    written = folder / "rows.csv"
    on_a_terminal("capture", "-f", "csv", "-o", str(written), f"{ACTIVE}.csv", folder=folder)
    text = written.read_text(encoding="utf-8")
    assert "owned" in text
    assert not OBEYED.search(text)


def test_only_the_door_writes_to_the_standard_streams() -> None:
    """A new verb cannot print around `page.say` and `cli.console`, nor take markup."""
    allowed = {"console.py"}
    found = []
    for path in (PACKAGES / "guestmark").rglob("*.py"):
        inside = path.relative_to(PACKAGES / "guestmark")
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            if called == "print" or called.endswith("from_markup"):
                found.append(f"{inside}:{node.lineno}: {called}")
            if inside.parts[0] == "cli" and inside.name not in allowed:
                prints = re.fullmatch(r"sys\.(stdout|stderr)\.write(lines)?|(typer|click)\.s?echo", called)
                raw = called == "Text" and any(
                    isinstance(a, ast.Subscript | ast.Attribute) for a in node.args[:1]
                )
                if prints or raw:
                    found.append(f"{inside}:{node.lineno}: {called}")
    # Plans that come with guestmark are printed as they are.
    assert [place for place in found if not place.startswith("cli/do/plans.py")] == []
