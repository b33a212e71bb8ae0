"""Logs of writes as guestmark's agent, QEMU's `blklogwrites` and Linux's `dm-log-writes` make them.

The format is in the kernel's Documentation/admin-guide/device-mapper/log-writes.rst: a superblock, then entries of
one sector each, the data of a write behind its entry. The superblock says how many there are only from time to time, so
that the entries themselves are believed: the first that is empty is the end. Where others have the length of data, the
agent has of a flush how many entries it covers, plus one (none that were written while it went on), and of a mark its
number.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntFlag
from pathlib import Path
from types import TracebackType

from guestmark.core.errors import MachineError

_SUPERBLOCK = struct.Struct("<QQQI")  # magic, version, entries, bytes of a sector
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
    """One request: bytes of the disk that it wrote (or discarded), and where they stand in the log."""

    offset: int
    length: int
    flags: Flag
    at: int = 0
    covers: int | None = None  # of a flush: how many entries; None: all before it
    mark: int | None = None  # the number of a mark

    @property
    def is_flush(self) -> bool:
        """Whether everything before it is on the disk once it is done."""
        return bool(self.flags & Flag.FLUSH)

    @property
    def is_write(self) -> bool:
        """Whether it has data."""
        return self.length > 0 and not self.flags & (Flag.DISCARD | Flag.MARK)


def count_requests(path: Path) -> int:
    """How many requests a log has by now."""
    with WriteLog(path) as log:
        return len(log)


class WriteLog:
    """A log, mapped rather than read: its size does not matter."""

    def __init__(self, path: Path, sector: int = 512) -> None:
        self._file = path.open("rb")
        size = path.stat().st_size
        self._map = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ) if size else None
        self.entries: Sequence[Entry] = tuple(self._read_entries(sector, size))

    def __enter__(self) -> WriteLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file."""
        if self._map is not None:
            self._map.close()
        self._file.close()

    def read_data(self, entry: Entry) -> bytes:
        """The bytes that the request wrote."""
        assert self._map is not None
        return self._map[entry.at : entry.at + entry.length]

    def __len__(self) -> int:
        return len(self.entries)

    def _read_entries(self, sector: int, size: int) -> list[Entry]:
        if self._map is None or size < sector:
            return []
        magic, version, _, said = _SUPERBLOCK.unpack_from(self._map, 0)
        if magic == _MAGIC:
            if version != 1 or said < 512 or said & (said - 1):
                raise MachineError(f"the log of writes has version {version} and sectors of {said} bytes")
            sector = said
        elif magic:  # no flush has arrived yet: it is still empty
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
                if at > size:  # whoever wrote it was killed
                    break
            entries.append(entry)
        return entries
