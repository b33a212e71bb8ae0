"""Kernels built from source: what is corrected before, and the reason that is told when it fails."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from guestmark.core.errors import GuestmarkError
from guestmark.foreign.commands import run_command
from guestmark.foreign.kernels import correct_sources
from guestmark.foreign.progress import Progress

# As Linux 6.12.117 and 6.1.192 have them.
LATER = """\
/*
 * Together with FMODE_NONOTIFY_PERM defines which fsnotify events shouldn't be
 * generated (see below)
 */
#define FMODE_NONOTIFY\t\t((__force fmode_t)(1 << 25))

/*
 * Together with FMODE_NONOTIFY defines which fsnotify events shouldn't be
 * generated (see below)
 */
#define FMODE_NONOTIFY_PERM\t((__force fmode_t)(1 << 26))
"""
EARLIER = """\
/* File was opened by fanotify and shouldn't generate fanotify events */
#define FMODE_NONOTIFY\t\t((__force fmode_t)0x4000000)
"""


def _tree(place: Path, text: str) -> Path:
    header = place / "include/linux/fs.h"
    header.parent.mkdir(parents=True)
    header.write_text(text)
    return header


def test_the_mode_that_collides_with_an_open_flag_gets_the_other_bit(tmp_path: Path) -> None:
    header = _tree(tmp_path, LATER)
    assert len(correct_sources(tmp_path, "sparc64")) == 1
    bits = dict(
        line.split(None, 1)[1].split(None, 1)
        for line in header.read_text().splitlines()
        if line.startswith("#define")
    )
    assert bits == {
        "FMODE_NONOTIFY": "((__force fmode_t)(1 << 26))",
        "FMODE_NONOTIFY_PERM": "((__force fmode_t)(1 << 25))",
    }


@pytest.mark.parametrize(("architecture", "text"), [("sparc64", EARLIER), ("s390x", LATER)])
def test_sources_without_the_fault_stay_as_they_are(tmp_path: Path, architecture: str, text: str) -> None:
    header = _tree(tmp_path, text)
    assert correct_sources(tmp_path, architecture) == []
    assert header.read_text() == text


def test_the_first_error_of_the_failed_step_is_the_reason(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("==== an earlier step\nerror: of that step\n")
    script = "print('E: Mirror sync in progress?'); print('E: Some files failed'); raise SystemExit(100)"
    with pytest.raises(GuestmarkError, match=r"^reading failed: E: Mirror sync in progress\?$"):
        run_command([sys.executable, "-c", script], "reading", log=log, progress=Progress(), cwd=tmp_path)
