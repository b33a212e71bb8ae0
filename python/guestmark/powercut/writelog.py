"""Reads logs of writes in the format of guestmark's agent, QEMU's `blklogwrites` and Linux's `dm-log-writes`.

The format is described in the kernel's Documentation/admin-guide/device-mapper/log-writes.rst: a superblock, then
entries of one sector each, with the data of a write behind its entry. The superblock is updated only from time to time,
so its number of entries is ignored: the first empty entry is the end. In the field for the length of data, the agent
stores for a flush how many entries it covers, plus one (without those written while it was in progress), and for a mark
its number. Its superblock also has the errno of the first request that it refused.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntFlag
from pathlib import Path
from types import TracebackType

from guestmark.core.errors import MachineError

# Magic, version, entries, bytes of a sector.
_SUPERBLOCK = struct.Struct("<QQQI")
_REFUSED = struct.Struct("<Q")
_REFUSED_AT = 32  # bytes into the superblock
_ENTRY = struct.Struct("<QQQQ")  # sector, sectors, flags, bytes of data
_MAGIC = 0x6A736677736872


class Flag(IntFlag):
    """The operation of a request."""

    FLUSH = 1
    FUA = 2
    DISCARD = 4
    MARK = 8


@dataclass(frozen=True, slots=True)
class Entry:
    """One request: the bytes of the disk that it wrote or discarded, and where they are in the log."""

    offset: int
    length: int
    flags: Flag
    at: int = 0
    # How many entries a flush covers; None: all before it.
    covers: int | None = None
    mark: int | None = None  # the number of a mark

    @property
    def is_flush(self) -> bool:
        """True for a flush: everything before it is on the disk once it is done."""
        return bool(self.flags & Flag.FLUSH)

    @property
    def is_write(self) -> bool:
        """True if it writes data."""
        return self.length > 0 and not self.flags & (Flag.DISCARD | Flag.MARK)


def count_writes(entries: Sequence[Entry]) -> int:
    """Return how many of the requests write data."""
    return sum(entry.is_write for entry in entries)


def count_flushes(entries: Sequence[Entry]) -> int:
    """Return how many of the requests flush: the disk's whole cache, or with FUA what they write."""
    return sum(entry.is_flush or bool(entry.flags & Flag.FUA) for entry in entries)


def count_requests(path: Path) -> int:
    """Return the number of requests in a log."""
    with WriteLog(path) as log:
        return len(log)


def read_refusal(path: Path) -> int:
    """Return the errno of the first write, flush or mark that the agent refused; 0 if it refused none."""
    with path.open("rb") as file:
        found = os.pread(file.fileno(), _REFUSED.size, _REFUSED_AT)
    if len(found) != _REFUSED.size:
        return 0
    return int(_REFUSED.unpack(found)[0])


class WriteLog:
    """A log of writes; it is mapped rather than read, so its size does not matter."""

    def __init__(self, path: Path, sector: int = 512) -> None:
        self.path = path
        self._file = path.open("rb")
        size = path.stat().st_size
        # An empty file cannot be mapped.
        self._map = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ) if size else None
        self.entries: Sequence[Entry] = tuple(self._read_entries(sector, size))

    def __enter__(self) -> WriteLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        if self._map is not None:
            self._map.close()
        self._file.close()

    def read_data(self, entry: Entry) -> bytes:
        """Return the data that the request wrote."""
        assert self._map is not None
        return self._map[entry.at : entry.at + entry.length]

    def __len__(self) -> int:
        return len(self.entries)

    def _read_entries(self, sector: int, size: int) -> list[Entry]:
        if self._map is None or size < sector:
            return []
        magic, version, _, stated = _SUPERBLOCK.unpack_from(self._map, 0)
        if magic == _MAGIC:
            if version != 1 or stated < 512 or stated & (stated - 1):
                raise MachineError(
                    f"this log of writes is not supported: version {version}, sectors of {stated} bytes"
                )
            sector = stated
        # A superblock of zeroes belongs to a log that no flush has reached yet.
        elif magic:
            raise MachineError("this is not a log of writes: its superblock is missing")
        entries = []
        at = sector
        while at + sector <= size:
            first, count, flags, more = _ENTRY.unpack_from(self._map, at)
            if not (first or count or flags):
                break
            at += sector
            covers = more - 1 if more and not count and flags & Flag.FLUSH else None
            mark = more if flags & Flag.MARK else None
            entry = Entry(first * sector, count * sector, Flag(flags), at, covers, mark)
            if entry.is_write:
                at += entry.length
                # The writer was killed before all data of this entry were in the file.
                if at > size:
                    break
            entries.append(entry)
        return entries
