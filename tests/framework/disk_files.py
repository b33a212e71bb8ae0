"""Provides small mounted filesystems, and damages files, for tests of disks."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def small_mount(where: Path, kind: str, options: str = "defaults") -> Iterator[Path]:
    """Yield a filesystem in memory, mounted at the new directory `where`. Skips the test if mounting is denied."""
    where.mkdir()
    command = ["mount", "-t", kind, "-o", options, "none", str(where)]
    if os.getuid() or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("needs the right to mount")
    try:
        yield where
    finally:
        subprocess.run(["umount", "-l", where], check=True)


def flip_bit(path: Path, at: int, mask: int = 1) -> None:
    """Flip one bit, or those of `mask`, of the byte at offset `at`."""
    with path.open("r+b") as stream:
        stream.seek(at)
        byte = stream.read(1)[0]
        stream.seek(at)
        stream.write(bytes([byte ^ mask]))


def count_cached_bytes(path: Path) -> int:
    """Return how many bytes of a file are in this host's page cache."""
    found = subprocess.run(
        ["fincore", "--bytes", "--noheadings", "--output", "RES", path],
        check=True,
        capture_output=True,
        text=True,
    )
    return int(found.stdout)
