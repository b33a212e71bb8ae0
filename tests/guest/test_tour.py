"""The whole tour in real guests, and what it leaves in the ledger."""

import re
from pathlib import Path

import pytest

from guestmark.cli.verbs import VERBS
from tests.framework.command_line import CommandLine

ROWS = (
    "computing",
    "system calls",
    "writing memory",
    "writing a file",
    "starting a guest",
    "sending a file in",
)


def assert_one_screen_of_commands(guestmark: CommandLine, text: str) -> None:
    """24 lines of 80 columns, and each command that they name is one."""
    lines = text.splitlines()
    assert len(lines) <= 24
    assert all(len(line) <= 80 for line in lines)
    assert "cannot show a difference" not in text
    commands = [re.split(r"  +", line)[-1] for line in lines if re.search(r"  guestmark \w", line)]
    assert len(commands) >= 3
    for command in commands:
        verb, *words = command.removeprefix("guestmark ").split()
        assert verb in VERBS
        if verb == "run":
            assert guestmark("run", *words, "--list").status == 0
        elif verb == "show":
            assert guestmark("show", *words).status == 0


@pytest.mark.usefixtures("guests_known")
@pytest.mark.long
@pytest.mark.timeout(1200)
def test_the_whole_tour(guestmark: CommandLine, tmp_path: Path) -> None:
    result = guestmark(
        "tour", "--on", "uml,tcg", "--json", tmp_path / "tour.json", env={"COLUMNS": "80"}, timeout=1100
    )
    assert result.status == 0, result.stderr
    for row in ROWS:
        line = next(line for line in result.stdout.splitlines() if line.startswith(row))
        assert "failed" not in line
        assert "not yet" not in line
    assert "guestmark run syscalls" in result.stdout  # what to run next
    assert result.stderr.count("guestmark: block") >= 3  # one for each, and what a long one does
    document = guestmark("export", "last").document()
    assert document["run"]["name"] == "tour"
    assert document["run"]["blocks"] == 3
    assert document["run"]["failed"] == 0
    ratios = {cell["id"]: cell["vs_baseline"] for cell in document["cells"] if cell["platform"] == "tcg"}
    assert ratios["cpu tcg"]["wall_s"]["ratio"] > 1.5
    assert ratios["syscalls tcg"]["geomean_ns"]["ratio"] > 1.5
    assert (tmp_path / "tour.json").stat().st_size > 10_000
    assert_one_screen_of_commands(guestmark, result.stdout)
    shown = guestmark("show", "last")
    assert "3 blocks" in shown.stdout  # only what is far beyond any scatter is claimed from so few
