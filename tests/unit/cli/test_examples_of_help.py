"""The examples at the end of each verb's help: lines of that verb that can be typed, and fit on a screen."""

import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from guestmark.cli.app import app
from guestmark.cli.examples import EXAMPLES, render_examples
from guestmark.cli.verbs import VERBS
from tests.framework import CHECKOUT
from tests.framework.command_line import CommandLine

GROUP: Any = app
LINES = [(verb, line) for verb, rows in EXAMPLES.items() for line, _ in rows]


def test_every_verb_has_some() -> None:
    assert list(EXAMPLES) == list(VERBS)
    assert all(1 <= len(rows) <= 3 for rows in EXAMPLES.values())
    assert all(len(line) <= 96 for verb in EXAMPLES for line in render_examples(verb))


@pytest.mark.parametrize(("verb", "line"), LINES)
def test_each_is_a_line_of_its_verb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str, line: str
) -> None:
    """Its options are known, and nothing in it can be read in two ways."""
    monkeypatch.chdir(tmp_path)
    words = shlex.split(line.partition(" > mine")[0])
    assert words[0] == verb
    parent = GROUP.make_context("guestmark", ["runs"])
    _, command, rest = GROUP.resolve_command(parent, words)
    command.make_context(verb, list(rest), parent=parent)


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_ends_with_them(guestmark: CommandLine, verb: str) -> None:
    shown = guestmark(verb, "--help").stdout.rstrip().splitlines()
    assert shown[-len(render_examples(verb)) :] == render_examples(verb)


def test_the_manual_page_has_them_and_set_up_makes_it(tmp_path: Path) -> None:
    tool = [str(CHECKOUT / ".venv/bin/python"), "-m", "tools.manual", str(tmp_path)]
    subprocess.run(tool, check=True, capture_output=True, cwd=CHECKOUT, env={"PYTHONPATH": "python"})
    page = tmp_path / "share/man/man1/guestmark.1"
    text = page.read_text().replace("\\-", "-").replace("\\e", "\\")
    assert not [line for _, line in LINES if f"guestmark {line}" not in text]
    made = CHECKOUT / "share/man/man1/guestmark.1"
    assert made.exists()  # by the set-up of this checkout
    environment = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "HOME": str(tmp_path)}
    found = subprocess.run(
        ["man", "-w", "-l", page], capture_output=True, text=True, env=environment, check=False
    )
    assert found.returncode in {0, 127}, found.stderr  # where there is man
