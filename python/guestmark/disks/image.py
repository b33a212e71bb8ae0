"""Disk images of one trial: made outside the timing, flushed inside it, checked after it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from guestmark.disks.spec import DiskSpec


@dataclass(frozen=True, slots=True)
class Image:
    """An image that exists. `prepared_s` is how long making it took; `from_template` whether it was a copy."""

    spec: DiskSpec
    path: Path
    prepared_s: float
    from_template: bool

    def flush(self) -> float:
        """Writes the image and its directory to the host's disk (fsync); seconds it took."""
        raise NotImplementedError

    def allocated_bytes(self) -> int:
        """Bytes the image occupies on the host's disk."""
        return self.path.stat().st_blocks * 512

    def check(self) -> None:
        """`qemu-img check` (qcow2) and `e2fsck -fn` (ext2 to ext4, raw), disk unmounted.

        Raises `MachineError` with what they found.
        """
        raise NotImplementedError


@contextmanager
def images(specs: Sequence[DiskSpec]) -> Iterator[tuple[Image, ...]]:
    """Makes fresh images for one trial; leaving the context removes them. A kill leaves nothing either.

    Raises `MachineError` when there is no room, `PlatformUnusableError` when a program is missing.
    """
    raise NotImplementedError
