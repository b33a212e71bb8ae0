"""Removes single files from this host's page cache, or reads them into it, without touching what else is cached."""

from __future__ import annotations

import os
from pathlib import Path

_PIECE = 4 << 20


def evict_file(path: str) -> None:
    """Flush a file or device and remove its content from the page cache. Raises `OSError`."""
    fd = os.open(path, os.O_RDONLY)
    try:
        # The kernel keeps what is not written yet.
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def read_into_cache(path: Path) -> None:
    """Read a file to its end, so that what reads it next need not wait for the disk. Raises `OSError`."""
    piece = bytearray(_PIECE)
    with path.open("rb", buffering=0) as stream:
        while stream.readinto(piece):
            pass
