"""Files and filesystems that tests of disks need: mounted small, or damaged."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def small_mount(where: Path, kind: str, options: str = "defaults") -> Iterator[Path]:
    """A filesystem in memory at the new directory `where`, gone afterwards; skips the test where nobody may mount."""
    where.mkdir()
    command = ["mount", "-t", kind, "-o", options, "none", str(where)]
    if os.getuid() or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("needs the right to mount")
    try:
        yield where
    finally:
        subprocess.run(["umount", "-l", where], check=True)


def flip_bit(path: Path, at: int, mask: int = 1) -> None:
    """Changes one bit of the byte at `at`."""
    with path.open("r+b") as stream:
        stream.seek(at)
        byte = stream.read(1)[0]
        stream.seek(at)
        stream.write(bytes([byte ^ mask]))
