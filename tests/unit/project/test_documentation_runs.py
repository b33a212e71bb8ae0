"""What README and guides print runs as printed: commands, plans and Python.

Every command is typed into a shell, page by page, in a folder with the files that the page names, with less to measure
(`documented.briefly`). What cannot run here is marked in the page's source, with the reason.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from guestmark.ledger import open_ledger
from guestmark.ledger.run_annotations import Annotations
from guestmark.plan.load import load_outline
from guestmark.platforms.own.definition import parse_definition
from tests.framework import CHECKOUT, PACKAGES, captures, documented
from tests.framework.command_line import CommandLine
from tests.framework.runs import host_uml_tcg

PAGES = {page.name: page for page in documented.pages()}
WITH_COMMANDS = [
    name for name, page in PAGES.items() if any(not each.why_not for each in documented.commands(page))
]
MOST_UNRUN = 81  # a page that adds one says why, and this number changes with it
GATED = "--fail-if"
PLACEHOLDERS = {"COMMAND": "./program", "RUN…": "last"}
COMPARED = {"ab.md", "gates.md"}  # pages about runs that were made before, by this user

_WRAPPER = """#!{python}
import os, sys
sys.path[:0] = {paths!r}
from tests.framework.documented import briefly
words = sys.argv[1:]
os.execv(sys.executable, [sys.executable, "-m", "guestmark", *(briefly(words) if words else [])])
"""
_STORE = """#!/usr/bin/env python3
import os, sys
def write(name, text):
    with open(name, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    folder = os.open(".", os.O_RDONLY)
    os.fsync(folder)
if sys.argv[1] == "put":
    write(sys.argv[2], sys.argv[3])
elif sys.argv[1] == "write-and-acknowledge":
    for number in range(5):
        write(f"entry{number}", "x")
        print(f"entry{number}", flush=True)
        sys.stdin.readline()
else:
    sys.exit(any(not os.path.exists(line.strip()) for line in sys.stdin))
"""


@pytest.fixture
def shown_files(tmp_path: Path) -> Path:
    """A folder with the files that the pages name and commands do not make."""
    here = tmp_path / "here"
    here.mkdir()
    wrapper = _WRAPPER.format(python=sys.executable, paths=[str(CHECKOUT), str(PACKAGES)])
    scripts = {"guestmark": wrapper, "store": _STORE}
    scripts["server"] = f'#!/bin/sh\nexec "{here}/store" write-and-acknowledge\n'
    scripts["restart-and-test"] = f'#!/bin/sh\nexec "{here}/store" verify\n'
    scripts |= dict.fromkeys(("program", "my-program", "old", "new", "bench"), "#!/bin/sh\nsleep 0.01\n")
    for name, text in scripts.items():
        (here / name).write_text(text)
        (here / name).chmod(0o755)
    for name in ("file", "data.bin"):
        (here / name).write_text("some text\n" * 1000)
    (here / "main.cpp").write_text("int main() {}\n")
    (here / "mine.fio").write_text("[job]\nrw=write\nsize=${SIZE}\nruntime=${TIME}\nnumjobs=${THREADS}\n")
    packets = captures.frames(captures.conversation())
    for name in ("FILE.pcap", "CLIENT.pcapng", "SERVER.pcapng"):
        (here / name).write_bytes(captures.pcap(packets))
    for name in ("examples", "requirements.txt"):
        (here / name).symlink_to(CHECKOUT / name)
    subprocess.run(["git", "init", "-q"], cwd=here, check=True)
    commit = [
        "git",
        "-c",
        "user.name=a",
        "-c",
        "user.email=a@b",
        "commit",
        "-q",
        "--allow-empty",
        "-m",
        "one",
    ]
    subprocess.run(commit, cwd=here, check=True)
    return here


@pytest.fixture
def sandbox(guestmark: CommandLine, shown_files: Path, request: pytest.FixtureRequest) -> Path:
    """A folder with every file that the pages name, and a ledger with the runs that they name."""
    here = shown_files
    run = host_uml_tcg(blocks=12)
    names = [f"{side}{number}" for side in ("OLD", "NEW", "RUN") for number in (1, 2, 3)]
    with open_ledger(guestmark.ledger) as ledger:
        if "library" in request.node.name:
            names.append("before-upgrade")
        for name in (*names, "of-the-page"):
            run_id = ledger.create_run(run.plan, {}, run.seed, said=Annotations(name=name))
            for trial in run.trials:
                ledger.store_trial(run_id, trial)
    hyperfine = ["hyperfine", "-N", "-r", "2", "true", "--export-json", "result.json"]
    subprocess.run(hyperfine, cwd=here, check=True, capture_output=True)
    (here / "plan.toml").write_text(guestmark("plans", "show", "upload").stdout)
    return here


def _store_earlier_runs(guestmark: CommandLine, here: Path) -> None:
    """Measure the program of the pages once, and store what was found as each of the runs that they name."""
    first, *others = "before-upgrade", "monday", "tuesday", "newest"
    options = ("-q", "-r", "6", "--on", "host,tcg", "--name", first)
    made = guestmark("exec", *options, "--", "./program", cwd=here, timeout=600)
    assert made.status == 0, made.stderr
    with open_ledger(guestmark.ledger) as ledger:
        run = ledger.load_run(first)
        for name in others:
            run_id = ledger.create_run(run.plan, run.environments[0], run.seed, said=Annotations(name=name))
            for trial in run.trials:
                ledger.store_trial(run_id, trial)
            ledger.set_run_state(run_id, run.state)


def _plans_of(page: str, here: Path, guestmark: CommandLine) -> None:
    """`mine.toml` is the page's own plan where it shows one; else a copy of a built-in one."""
    own = [each.text for each in documented.blocks(PAGES[page]) if each.language == "toml"]
    text = own[0] if own else guestmark("plans", "show", "filesystems").stdout
    if page == "gates.md":
        # A gate needs each row that it names, and two minutes are not enough for all filesystems.
        text = text.replace('["ext2", "ext3", "ext4", "xfs", "btrfs"]', '["ext3", "ext4", "btrfs"]')
    (here / "mine.toml").write_text(text)


def _answered(text: str, done: subprocess.CompletedProcess[str]) -> bool:
    """Whether the command said anything, or was to write a file instead."""
    return bool(done.stdout or done.stderr) or " -o " in text or " > " in text


def _lacks_hardware_alone(guestmark: CommandLine) -> bool:
    """Whether the last run left out guests on KVM, which this machine may not start, and nothing failed."""
    shown = guestmark("export", "last")
    if shown.status:
        return False
    document = shown.document()
    platforms = [entry["platform"] for entry in document["unusable"]]
    return bool(platforms) and not document["run"]["failed"] and all("kvm" in name for name in platforms)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("page", WITH_COMMANDS)
def test_every_command_of_a_page_runs(
    guestmark: CommandLine, guests_known: None, sandbox: Path, page: str
) -> None:
    del guests_known
    _plans_of(page, sandbox, guestmark)
    if page == "README.md":
        # It is read in a fresh clone, which has the files of this checkout and no others.
        for name in ("file", "data.bin", "main.cpp"):
            (sandbox / name).unlink()
    kept = sandbox / "kept.sqlite"
    if page in COMPARED:
        _store_earlier_runs(guestmark, sandbox)
        shutil.copy(guestmark.ledger, kept)
    environment = {**guestmark.environment, "PATH": f"{sandbox}:{os.environ['PATH']}", "GUESTMARK_PAGER": ""}
    failed = []
    for each in documented.commands(PAGES[page]):
        if each.why_not or documented.repeats(each):
            continue
        text = each.text
        if page in COMPARED and (
            " last" in text or " history" in text
        ):  # is one of those, whatever the page has measured meanwhile
            shutil.copy(kept, guestmark.ledger)
        for placeholder, file in PLACEHOLDERS.items():
            text = text.replace(placeholder, file)
        environment[documented.KNOWN_PLAN] = "1" if documented.runs_known_plan(each) else ""
        begun = time.monotonic()
        done = subprocess.run(
            ["bash", "-c", text], cwd=sandbox, env=environment, capture_output=True, text=True, timeout=1500,
            check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        print(f"{time.monotonic() - begun:4.0f} s  {each.where} {text}")
        # A gate may well be broken, undecided after one block, or not be reached in so short a time.
        allowed = {0, 1, 125, 128} if GATED in text else {0}
        if done.returncode == 1 and _lacks_hardware_alone(guestmark):
            allowed.add(1)
        if done.returncode not in allowed or "Traceback" in done.stderr or not _answered(text, done):
            failed.append((each.where, text, done.returncode, done.stdout[-2000:], done.stderr[-2000:]))
    assert not failed, "\n".join(map(str, failed))


def test_what_does_not_run_is_counted_and_says_why() -> None:
    unrun = [each for page in PAGES.values() for each in documented.commands(page) if each.why_not]
    assert len(unrun) == MOST_UNRUN, "\n".join(f"{each.where} {each.text}: {each.why_not}" for each in unrun)
    marks = [mark for page in PAGES.values() for block in documented.blocks(page) for mark in block.marks]
    lines = [
        line
        for page in PAGES.values()
        for block in documented.blocks(page)
        for line in block.text.splitlines()
    ]
    assert all(why for _, why in marks)
    assert len(marks) <= len(lines)


@pytest.mark.parametrize("page", [name for name, page in PAGES.items() if "```toml" in page.read_text()])
def test_every_file_of_a_page_is_what_it_shows(
    shown_files: Path, monkeypatch: pytest.MonkeyPatch, page: str
) -> None:
    monkeypatch.chdir(shown_files)
    plans = [
        each for each in documented.blocks(PAGES[page]) if each.language == "toml" and not each.why_not("")
    ]
    for each in plans:
        if re.search(r"^exec +=", each.text, re.MULTILINE):
            parse_definition(each.text, Path(each.file))
        elif not each.text.lstrip().startswith(("[machines", "[[machine")):  # of a lab, not a plan
            load_outline(each.text, each.file)


def test_the_library_s_page_runs(guestmark: CommandLine, sandbox: Path) -> None:
    (block,) = [each for each in documented.blocks(PAGES["library.md"]) if each.language == "python"]
    text = block.text.replace('on=["host", "tcg"], blocks=10', 'on=["host"], blocks=2')
    text = text.replace('result.ratio("tcg")', "result.ratios").replace(
        'result.gates("tcg > x12")', "result.cells"
    )
    text = text.replace('guestmark.run("upload", scale=0.02, on=["tcg"], blocks=3)', "")
    done = subprocess.run(
        [sys.executable, "-c", text], cwd=sandbox, env=guestmark.environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
