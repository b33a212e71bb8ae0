"""What `show` and `export` write where, from a ledger with one run in it."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from guestmark.ledger import open_ledger
from tests.framework import PACKAGES
from tests.framework.marks import long
from tests.framework.preloaded import call as guestmark
from tests.framework.runs import host_uml_tcg

MEASURING = ("exec", "run", "boot", "tour", "resume", "show")
CODE = "import sys; sys.argv[0] = 'guestmark'; from guestmark.cli import main; sys.exit(main())"


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("ledger") / "ledger.sqlite"
    run = host_uml_tcg(blocks=7, failing={("uml", 3)})
    environment = {"processor": {"model": "Core 5", "count": 2}, "kernel": {"release": "6.1.0"}}
    with open_ledger(path) as opened:
        run_id = opened.create_run(run.plan, environment, run.seed)
        for trial in run.trials:
            opened.store_trial(run_id, replace(trial, console="ok\n\x1b[2J\x1b]0;owned\x07 \u202eend\n"))
    return str(path)


def show(ledger: str, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return guestmark("show", "last", *options, GUESTMARK_LEDGER=ledger, COLUMNS="100", **environment)


@pytest.mark.parametrize("verb", MEASURING)
def test_every_verb_that_shows_a_result_can_write_a_page(verb: str) -> None:
    shown = guestmark(verb, "--help", COLUMNS="100").stdout
    for option in ("--html", "--json", "--markdown"):
        assert option in shown


def test_a_page_is_written(ledger: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    shown = show(ledger, "--html", str(page))
    assert shown.returncode == 0
    assert "sysbench cpu run" in shown.stdout
    text = page.read_text()
    assert text.startswith("<!doctype html>")
    assert text.count("<svg viewBox") == 3
    to_stdout = show(ledger, "--html", "-")
    assert to_stdout.stdout == text


def test_the_environment_is_a_line_unless_it_is_asked_for(ledger: str) -> None:
    brief, full = show(ledger, "--details").stdout, show(ledger, "--details", "--environment").stdout
    assert "Measured on Core 5, 2 processors, kernel 6.1.0" in brief
    assert "tcg command" not in brief
    assert "tcg command" in full
    assert len(brief.splitlines()) < len(full.splitlines())
    result = brief.splitlines()
    footer = next(number for number, line in enumerate(result) if "blocks, " in line)
    assert len(result) - footer <= 6


@pytest.mark.parametrize("name", ["foo.pdf", "foo.PDF", "dir.d/foo.txt"])
def test_a_format_that_is_unknown_is_not_json(ledger: str, tmp_path: Path, name: str) -> None:
    target = tmp_path / name
    target.parent.mkdir(exist_ok=True)
    done = guestmark("export", "last", "-o", str(target), GUESTMARK_LEDGER=ledger)
    assert done.returncode == 2
    assert f"{target.suffix} is not a format" in done.stderr
    assert ".parquet" in done.stderr
    assert ".html" in done.stderr
    assert not target.exists()


def test_an_output_without_a_name_is_told(ledger: str) -> None:
    done = guestmark("export", "last", "-o", "", GUESTMARK_LEDGER=ledger)
    assert (done.returncode, done.stdout) == (2, "")
    assert "-o names no file" in done.stderr


@pytest.mark.parametrize(
    ("name", "start"),
    [("a.json", "{"), ("a", "{"), ("a.md", "###"), ("a.HTML", "<!doctype"), ("a.csv", "run,")],
)
def test_suffixes_name_formats(ledger: str, tmp_path: Path, name: str, start: str) -> None:
    target = tmp_path / name
    assert guestmark("export", "last", "-o", str(target), GUESTMARK_LEDGER=ledger).returncode == 0
    assert target.read_text().startswith(start)


@pytest.mark.parametrize(
    "options",
    [
        (),
        *(long(options) for options in (("--html", "-"), ("--json", "-"), ("--console", "uml"))),
    ],
)
def test_a_full_disk_is_one_line(ledger: str, options: tuple[str, ...]) -> None:
    environment = {**os.environ, "PYTHONPATH": str(PACKAGES), "GUESTMARK_LEDGER": ledger}
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", CODE, "show", "last", *options],
            env=environment,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 3
    first, hint = done.stderr.splitlines()
    assert first == "guestmark: standard output cannot be written: No space left on device"
    assert "guestmark show" in hint


def test_a_reader_that_has_gone_is_no_error(ledger: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(PACKAGES), "GUESTMARK_LEDGER": ledger}
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-c", CODE, "show", "last"],
        env=environment,
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


def test_consoles_are_shown_with_everything_active_spelled_out(ledger: str) -> None:
    assert show(ledger, "--console", "uml").stdout == "ok\n\\x1b[2J\\x1b]0;owned\\x07 \\u202eend\n"
    kept = json.loads(show(ledger, "--json", "-").stdout)
    (failed,) = [trial for trial in kept["cells"][1]["trials"] if trial["status"] == "failed"]
    assert failed["console"].startswith("ok\n\x1b[2J")


def test_the_old_name_of_published_still_works(ledger: str) -> None:
    for option in ("--published", "--then"):
        assert "has no published figures" in show(ledger, option).stderr
