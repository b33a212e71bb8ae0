"""The completions of bash, zsh and fish, by pressing the tabulator in those that are installed."""

import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from guestmark.cli.completion_scripts import SHELLS, read_completion_script
from guestmark.cli.verbs import GROUPED, VERBS
from tests.framework import PACKAGES
from tests.framework.command_line import CommandLine
from tests.framework.marks import long_but
from tests.framework.shells import Shell

STARTS = {
    "bash": ("bash", "--norc", "--noprofile", "-i"),
    "zsh": ("zsh", "-f", "-i"),
    "fish": ("fish", "--no-config", "--interactive"),
}
# What is typed, and what stands on the line, or below it, after the tabulator.
CASES = (
    ("guestmark camp", "guestmark campaign "),
    ("guestmark exec --on host,tc", "--on host,tcg"),
    ("guestmark exec --set memory=512M,1", "--set memory=512M,1G"),
    ("guestmark exec --set kernel_a", "--set kernel_args="),
    ("guestmark exec --on vi", "--on virsh:"),
    ("guestmark ab --kernel ker", "--kernel kernel-file"),
)


@pytest.fixture(params=long_but({"bash"}, SHELLS))
def shell(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    return name


def environment(folder: Path) -> dict[str, str]:
    """One in which `guestmark` is this checkout's, and the shell has nothing of the user's."""
    program = folder / "bin/guestmark"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec env PYTHONPATH={PACKAGES} {sys.executable} -m guestmark "$@"\n')
    program.chmod(0o755)
    (folder / "kernel-file").touch()
    return {
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "HOME": str(folder),
        "TERM": "xterm",
        "PS1": "> ",
        "LANG": "C.UTF-8",
        "GUESTMARK_LEDGER": str(folder / "ledger.sqlite"),
    }


def ready(shell: str, folder: Path) -> Shell:
    """The shell, with the completion loaded in the way of its own."""
    where = folder / "completions"
    where.mkdir()
    (where / ("_guestmark" if shell == "zsh" else "guestmark")).write_text(read_completion_script(shell))
    return Shell(STARTS[shell], environment(folder), folder)


LOAD = {
    "bash": "source completions/guestmark",
    "zsh": "fpath=($PWD/completions $fpath); autoload -Uz compinit; compinit -u -D",
    "fish": "source completions/guestmark",
}


def test_the_tabulator_completes(shell: str, tmp_path: Path) -> None:
    with ready(shell, tmp_path) as opened:
        opened.typed(f"{LOAD[shell]}; echo load''ed\r", until="loaded")
        for typed, found in CASES:
            said = opened.typed(f"{typed}\t", until=found.strip())
            assert found in said, (typed, said)
            if found.endswith(("=", ":")):  # what goes on is not cut off by a space
                assert not said.endswith(" "), said
            opened.typed("\x15echo next''\r", until="next\n")


@pytest.mark.parametrize("verb", sorted({*VERBS, *GROUPED, ""}))
@pytest.mark.parametrize("typed", ["--", "-", ""])
def test_no_candidate_is_a_sentence(guestmark: CommandLine, verb: str, typed: str) -> None:
    """Every line is a candidate and, behind a tabulator, what it is: one word, and an option where one was begun."""
    done = guestmark(
        env={
            "_GUESTMARK_COMPLETE": "1",
            "_GUESTMARK_COMPLETE_LINE": " ".join(filter(None, ("guestmark", verb, typed)))
            + ("" if typed else " "),
        }
    )
    assert done.stderr == ""
    candidates = [line.partition("\t")[0] for line in done.stdout.splitlines() if line]
    assert [word for word in candidates if not re.fullmatch(r"\S+", word)] == []
    assert [word for word in candidates if not word.startswith(typed)] == []
    if verb in GROUPED and verb not in VERBS:
        assert candidates == ([] if typed else list(GROUPED[verb]))
    else:
        assert candidates or typed != "--"
