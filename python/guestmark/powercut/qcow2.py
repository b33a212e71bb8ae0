"""The content of a qcow2 image as a raw one, read here: starting a program takes longer than reading a small image.

The format is in QEMU's docs/interop/qcow2.txt. What is not plain (compressed or divided clusters, a backing image,
an external data file) is left to qemu-img.
"""

from __future__ import annotations

import os
import struct
import sys
from array import array
from pathlib import Path

_HEADER = struct.Struct(">4sIQIIQIIQQIIQ")  # to the offset of the snapshots
_FEATURES = struct.Struct(">Q")
_MAGIC = b"QFI\xfb"
_HARMLESS = 0b11  # incompatible features: dirty, corrupt, which the format's own check has judged
_OFFSET = 0x00FF_FFFF_FFFF_FE00
_COMPRESSED, _ZERO = 1 << 62, 1
_PIECE = 1 << 20


def to_raw(image: Path, raw: Path) -> bool:
    """Writes the content; False, and nothing, where the image is not plain. Raises `OSError`."""
    with image.open("rb") as read:
        first = read.read(_HEADER.size + _FEATURES.size)
        if len(first) < _HEADER.size + _FEATURES.size:
            return False
        magic, version, backing, _, bits, size, encrypted, entries, table, *_ = _HEADER.unpack_from(first)
        features = _FEATURES.unpack_from(first, _HEADER.size)[0] if version > 2 else 0
        if magic != _MAGIC or backing or encrypted or features & ~_HARMLESS or not 9 <= bits <= 21:
            return False
        cluster = 1 << bits
        extents = _extents(read.fileno(), table, entries, cluster, size)
        if extents is None:
            return False
        with raw.open("xb") as write:
            os.ftruncate(write.fileno(), size)
            for at, where, length in extents:
                for done in range(0, length, _PIECE):
                    data = os.pread(read.fileno(), min(_PIECE, length - done), where + done)
                    os.pwrite(write.fileno(), data[: max(0, size - at - done)], at + done)
    return True


def _extents(
    image: int, table: int, entries: int, cluster: int, size: int
) -> list[tuple[int, int, int]] | None:
    """Offsets of the disk's bytes in the image, neighbours merged; None for clusters that are not plain."""
    found: list[tuple[int, int, int]] = []
    per_table = cluster // 8
    wanted = -(-size // (cluster * per_table))
    for number, entry in enumerate(_numbers(image, table, min(entries, wanted))):
        if not entry & _OFFSET:
            continue
        for index, each in enumerate(_numbers(image, entry & _OFFSET, per_table)):
            if each & _COMPRESSED:
                return None
            where, at = each & _OFFSET, (number * per_table + index) * cluster
            if not where or each & _ZERO or at >= size:
                continue
            if found and (last := found[-1])[0] + last[2] == at and last[1] + last[2] == where:
                found[-1] = (last[0], last[1], last[2] + cluster)
            else:
                found.append((at, where, cluster))
    return found


def _numbers(image: int, at: int, count: int) -> array[int]:
    """Big-endian numbers of 64 bits; what is beyond the image's end is none."""
    data = os.pread(image, count * 8, at)
    numbers = array("Q", data[: len(data) // 8 * 8])
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers
