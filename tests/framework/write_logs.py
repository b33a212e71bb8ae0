"""Logs of writes made by hand, in the format of `blklogwrites`."""

import struct
from collections.abc import Sequence
from pathlib import Path

SECTOR = 512
FLUSH, FUA, DISCARD = 1, 2, 4
Request = tuple[int, bytes, int]  # offset, data, flags; of a mark its number comes first
_MARK = 8


def mark(number: int) -> Request:
    """Return a mark, whose number tells what had been acknowledged by then."""
    return (number, b"", _MARK)


def write(path: Path, requests: Sequence[Request], *, superblock: bool = True) -> Path:
    """Write a log of these requests; without `superblock`, as it is before the first flush."""
    head = struct.pack("<QQQI", 0x6A736677736872, 1, len(requests), SECTOR) if superblock else b""
    parts = [head.ljust(SECTOR, b"\0")]
    for offset, data, flags in requests:
        length = len(data) // SECTOR
        if flags == _MARK:
            parts += [struct.pack("<QQQQ", 0, 0, flags, offset).ljust(SECTOR, b"\0")]
            continue
        parts += [struct.pack("<QQQQ", offset // SECTOR, length, flags, len(data)).ljust(SECTOR, b"\0")]
        parts += [data] if not flags & DISCARD else []
    path.write_bytes(b"".join(parts))
    return path
