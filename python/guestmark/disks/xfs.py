"""XFS on a block device: `mkfs.xfs` sets the device's block size, which takes privileges that it is not given here.

So it makes an image of the same size, without what is never written to, and that is copied.
"""

from __future__ import annotations

import fcntl
import os
import struct
from pathlib import Path

from guestmark.disks import sparse

_BLKZEROOUT = 0x127F  # linux/fs.h
_SUPERBLOCK = 512
_MAGIC = b"XFSB"


def lay(image: Path, device: Path) -> None:
    """Copies what an image of a new filesystem holds to a device of the same size. Raises `OSError`."""
    with image.open("rb") as read, device.open("r+b", buffering=0) as write:
        start, length = log_of(read.read(_SUPERBLOCK))
        # Of the log the image has holes only, and what the device had there would be replayed.
        fcntl.ioctl(write.fileno(), _BLKZEROOUT, struct.pack("=QQ", start, length))
        sparse.copy_data(read.fileno(), write.fileno())
        os.fsync(write.fileno())


def log_of(superblock: bytes) -> tuple[int, int]:
    """Where the internal log is, and its length, in bytes. Raises `ValueError` for what is no superblock of XFS.

    The fields are those of `struct xfs_dsb` (xfs_format.h); the upper bits of a block's number are its group's.
    """
    if superblock[: len(_MAGIC)] != _MAGIC:
        raise ValueError("no superblock of XFS")
    (size,) = struct.unpack_from(">I", superblock, 4)
    (first,) = struct.unpack_from(">Q", superblock, 48)
    group_blocks, _, _, blocks = struct.unpack_from(">IIII", superblock, 84)
    bits = superblock[124]
    block = (first >> bits) * group_blocks + (first & (1 << bits) - 1)
    return block * size, blocks * size
