"""Detects torn superblocks: some filesystems expect disks to write them atomically although they exceed a sector.

The superblock of btrfs has 4096 bytes. If a cut tears it, the kernel cannot mount the disk, and the copies date from
the last full commit: data that was only logged since then, for instance by `fsync`, is lost. No program can prevent
that.
"""

from __future__ import annotations

import functools
import struct
from pathlib import Path

# Offsets of btrfs's superblocks (fs/btrfs/disk-io.h), and the fields of one that are read here.
_PLACES = (64 << 10, 64 << 20, 256 << 30)
_SIZE = 4096
_CHECKSUM = struct.Struct("<I")
_CHECKSUM_BYTES = 32
_MAGIC, _MAGIC_AT = b"_BHRfS_M", 64
_KIND, _KIND_AT = struct.Struct("<H"), 196
_CRC32C = 0
_POLYNOMIAL = 0x82F6_3B78


def has_torn_superblock(filesystem: str, image: Path) -> bool:
    """Return True if a superblock of the filesystem in a raw image was written only partly."""
    if filesystem != "btrfs":
        return False
    with image.open("rb") as file:
        for place in _PLACES:
            file.seek(place)
            if _is_torn(file.read(_SIZE)):
                return True
    return False


def _is_torn(block: bytes) -> bool:
    if len(block) < _SIZE or block[_MAGIC_AT : _MAGIC_AT + len(_MAGIC)] != _MAGIC:
        return False
    # The filesystem uses another checksum, which is not computed here.
    if _KIND.unpack_from(block, _KIND_AT)[0] != _CRC32C:
        return False
    return bool(_CHECKSUM.unpack_from(block)[0] != compute_crc32c(block[_CHECKSUM_BYTES:]))


def compute_crc32c(data: bytes) -> int:
    """Return the CRC-32C (Castagnoli) of the data, as in RFC 3720."""
    table = _make_table()
    crc = 0xFFFF_FFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFF_FFFF


@functools.cache
def _make_table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (_POLYNOMIAL if crc & 1 else 0)
        table.append(crc)
    return tuple(table)
