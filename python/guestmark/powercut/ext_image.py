"""Compares images of ext2 to ext4 by the content that a kernel would find, without mounting them.

The digest covers the blocks in use, each with its place. It leaves out free blocks, those of the journal, which has
been replayed, and the superblock's times. So two images with equal digests have the same files. The kernel's
Documentation/filesystems/ext4 describes the layout.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from guestmark.disks import sparse

_SUPERBLOCK = 1024  # its place and its size
_MAGIC = 0xEF53
# Features with which bitmaps lie elsewhere, or stand for more than blocks.
_META_GROUPS, _CLUSTERS = 0x10, 0x200
_WIDE = 0x80
_UNINITIALIZED = 0x2  # the flag of a group without a bitmap
# Fields that e2fsck and each mount write: times, counts of mounts and of what was written, the checksum.
_VARYING = ((0x2C, 10), (0x40, 4), (0x178, 8), (0x274, 6), (0x3FC, 4))
# The superblock's copy of the journal's block map, valid with this type.
_JOURNAL_COPY, _JOURNAL_COPY_TYPE, _COPIED = 0x10C, 0xFD, 1
_EXTENTS_MAGIC = 0xF30A
_EXTENT = struct.Struct("<IHHI")
_MOST_BLOCKS = 1 << 22
_PIECE = 64 << 10  # a multiple of each size of a block
_ZEROES = bytes(_PIECE)


@dataclass(frozen=True, slots=True)
class _Geometry:
    blocks: int
    block_size: int
    first: int
    per_group: int
    descriptor_size: int

    @property
    def groups(self) -> int:
        return -(-(self.blocks - self.first) // self.per_group)


def digest_image(image: Path) -> bytes | None:
    """Return the digest of an image that e2fsck has left clean; None if its layout is not supported here."""
    descriptor = os.open(image, os.O_RDONLY | os.O_CLOEXEC)
    try:
        superblock = bytearray(os.pread(descriptor, _SUPERBLOCK, _SUPERBLOCK))
        geometry = _read_geometry(superblock)
        if geometry is None:
            return None
        used = _mark_used(descriptor, geometry)
        for start, count in _list_journal_extents(superblock):
            used &= ~_mark_blocks(start, count)
        for at, length in _VARYING:
            superblock[at : at + length] = bytes(length)
        digest = hashlib.blake2b(superblock, digest_size=16)
        for at, data in _read_used(descriptor, geometry.block_size, used):
            digest.update(struct.pack("<Q", at))
            digest.update(data)
        return digest.digest()
    finally:
        os.close(descriptor)


def _read_geometry(superblock: bytes | bytearray) -> _Geometry | None:
    if len(superblock) < _SUPERBLOCK or struct.unpack_from("<H", superblock, 56)[0] != _MAGIC:
        return None
    (blocks,) = struct.unpack_from("<I", superblock, 4)
    first, logarithm = struct.unpack_from("<II", superblock, 20)
    (per_group,) = struct.unpack_from("<I", superblock, 32)
    incompatible, read_only = struct.unpack_from("<II", superblock, 96)
    if incompatible & _META_GROUPS or read_only & _CLUSTERS or blocks > _MOST_BLOCKS or not per_group:
        return None
    (size,) = struct.unpack_from("<H", superblock, 254)
    return _Geometry(blocks, 1024 << logarithm, first, per_group, size if incompatible & _WIDE else 32)


def _mark_blocks(start: int, count: int) -> int:
    """Return a bit mask of these blocks."""
    return ((1 << count) - 1) << start


def _mark_used(descriptor: int, geometry: _Geometry) -> int:
    table = os.pread(
        descriptor,
        geometry.groups * geometry.descriptor_size,
        (geometry.first + 1) * geometry.block_size,
    )
    used = _mark_blocks(0, geometry.first)
    for number in range(geometry.groups):
        at = number * geometry.descriptor_size
        (where,) = struct.unpack_from("<I", table, at)
        (flags,) = struct.unpack_from("<H", table, at + 18)
        if flags & _UNINITIALIZED:
            in_group = _mark_blocks(0, geometry.per_group)
        else:
            bitmap = os.pread(descriptor, geometry.per_group // 8, where * geometry.block_size)
            in_group = int.from_bytes(bitmap, "little")
        used |= in_group << (geometry.first + number * geometry.per_group)
    return used


def _list_journal_extents(superblock: bytes | bytearray) -> Iterator[tuple[int, int]]:
    """Yield the first block and the number of blocks of each extent of the journal, if the superblock lists all."""
    magic, entries, _, depth = struct.unpack_from("<HHHH", superblock, _JOURNAL_COPY)
    if superblock[_JOURNAL_COPY_TYPE] != _COPIED or magic != _EXTENTS_MAGIC or depth:
        return
    for number in range(min(entries, 4)):
        _, count, high, low = _EXTENT.unpack_from(superblock, _JOURNAL_COPY + 12 * (number + 1))
        yield low | high << 32, count


def _read_used(descriptor: int, block_size: int, used: int) -> Iterator[tuple[int, bytes]]:
    """Yield the pieces of the image that are not all zeroes, each with its number; unused blocks count as zeroes.

    Holes and zeroes are treated alike, because a write may turn a hole into blocks of zeroes.
    """
    blocks = _PIECE // block_size
    every = _mark_blocks(0, blocks)
    last = -1
    for start, end in sparse.iterate_data_ranges(descriptor, os.fstat(descriptor).st_size):
        for number in range(max(start // _PIECE, last + 1), -(-end // _PIECE)):
            last = number
            wanted = used >> (number * blocks) & every
            if not wanted:
                continue
            data = bytearray(os.pread(descriptor, _PIECE, number * _PIECE))
            if number == 0:
                # The superblock is already in the digest.
                data[_SUPERBLOCK : 2 * _SUPERBLOCK] = bytes(_SUPERBLOCK)
            if wanted != every:
                _clear_unused_blocks(data, wanted, block_size)
            if data != _ZEROES[: len(data)]:
                yield number, bytes(data)


def _clear_unused_blocks(data: bytearray, wanted: int, block_size: int) -> None:
    for block in range(_PIECE // block_size):
        if not wanted >> block & 1:
            data[block * block_size : (block + 1) * block_size] = _ZEROES[:block_size]
