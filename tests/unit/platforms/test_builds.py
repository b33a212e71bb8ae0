"""Executables that were built to be debugged are known by their files."""

import shutil
import subprocess
from pathlib import Path

import pytest

from guestmark.platforms.network.builds import is_debug_build

SOURCE = "int main(void) { return 0; }\n"
CASES = [
    (["-g", "-O0"], True),
    (["-g"], True),
    (["-g", "-Og"], True),
    (["-g", "-O2"], False),
    (["-g", "-gz", "-O0"], True),
    (["-g", "-gz", "-Os"], False),
    (["-O0"], None),
    (["-g", "-O0", "-s"], None),
]


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
@pytest.mark.parametrize(("options", "is_debug"), CASES)
def test_an_executable_tells_how_it_was_compiled(
    tmp_path: Path, options: list[str], is_debug: bool | None
) -> None:
    program = tmp_path / "program"
    # The C library's own parts may tell of their build, too; what counts is that any part was not optimised.
    subprocess.run(
        ["cc", *options, "-nostdlib", "-Wl,-e,main", "-xc", "-", "-o", program],
        input=SOURCE,
        text=True,
        check=True,
    )
    assert is_debug_build(str(program), (program.stat().st_ino, 0)) is is_debug


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"\x7fELF\x02\x01" + bytes(100), b"#!/bin/sh\n"])
def test_what_is_no_executable_tells_nothing(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "file"
    file.write_bytes(content)
    assert is_debug_build(str(file), (len(content), 1)) is None
