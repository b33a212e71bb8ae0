"""Whatever a program does: if its own syncs prove all that it leaves, a check that looks for all of that finds it."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.framework.command_line import CommandLine
from tests.framework.generated_programs import write_check, write_combined, write_generated
from tests.framework.marks import count_cases, long

pytestmark = [
    pytest.mark.skipif(os.getuid() != 0, reason="a loop device of this host takes root"),
    pytest.mark.timeout(1800),
]
SOME = 16


def proven(guestmark: CommandLine, *words: object, on: Sequence[str] = ("host",)) -> dict[str, Any]:
    done = guestmark("powercut", "--on", *on, "--states", "20", "--json", "-", *words, timeout=400)
    assert done.status == 0, done.stderr
    (cell,) = done.document()["cells"]
    (trial,) = cell["trials"]
    found: dict[str, Any] = trial["attestation"]["proof"]
    return found


@pytest.mark.parametrize(
    "seeds",
    [range(2), *(long(range(first, first + SOME)) for first in range(2, 2 + count_cases(SOME), SOME))],
    ids=str,
)
def test_own_syncs_that_prove_all_are_no_contradiction(
    guestmark: CommandLine, tmp_path: Path, seeds: range
) -> None:
    words = set()
    for seed in seeds:
        program, calls = write_generated(seed, tmp_path)
        left = tmp_path / f"left-{seed}"
        left.mkdir()
        python = (sys.executable, "-I", "-S", str(program))
        subprocess.run(python, cwd=left, check=True)
        own = proven(guestmark, "--", *python)
        words.add(own["word"])
        if own["word"] != "proven":
            continue
        checked = proven(
            guestmark, "--check", write_check(seed, tmp_path, left), "--", *python, "acknowledge"
        )
        # Where nothing had to be flushed, as for a file that was removed again, the control loses nothing either.
        assert checked["word"] in {"proven", "reached the kernel"}, (seed, calls, checked)
        assert checked["losing"] == 0, (seed, calls, checked)
    assert len(seeds) < SOME or len(words) > 1, words  # some prove all, others do not


@pytest.mark.long
@pytest.mark.parametrize(
    "on", [("tcg",), ("uml", "--set", "uml_disk=vhost-user"), ("host",)], ids=lambda on: on[0]
)
@pytest.mark.parametrize(
    "seeds", [range(first, first + 8) for first in range(0, count_cases(16), 8)], ids=str
)
def test_programs_that_sync_all_lose_nothing_on_any_machine(
    guestmark: CommandLine, tmp_path: Path, seeds: range, on: Sequence[str]
) -> None:
    program = write_combined(seeds, tmp_path)
    left = tmp_path / "left"
    left.mkdir()
    python = (sys.executable, "-I", "-S", str(program))
    subprocess.run(python, cwd=left, check=True)
    own = proven(guestmark, "--", *python, on=on)
    assert (own["word"], own["losing"]) == ("proven", 0), own
    check = write_check(seeds[0], tmp_path, left)
    checked = proven(guestmark, "--check", check, "--", *python, "acknowledge", on=on)
    assert (checked["word"], checked["losing"]) == ("proven", 0), checked
