"""Whatever a program does: if its own syncs prove all that it leaves, a check that looks for all of that finds it."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.framework.command_line import CommandLine
from tests.framework.generated_programs import write_check, write_generated
from tests.framework.marks import long

pytestmark = [
    pytest.mark.skipif(os.getuid() != 0, reason="a loop device of this host takes root"),
    pytest.mark.timeout(1800),
]
SOME = 16


def proven(guestmark: CommandLine, *words: object) -> dict[str, Any]:
    done = guestmark("powercut", "--on", "host", "--states", "20", "--json", "-", *words, timeout=180)
    assert done.status == 0, done.stderr
    (cell,) = done.document()["cells"]
    (trial,) = cell["trials"]
    found: dict[str, Any] = trial["attestation"]["proof"]
    return found


@pytest.mark.parametrize(
    "seeds", [range(2), *(long(range(first, first + SOME)) for first in range(2, 66, SOME))], ids=str
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
