"""Images as a power cut would have left them, made one after the other without writing the whole image anew."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from guestmark.disks import sparse
from guestmark.powercut.cuts import Cut
from guestmark.powercut.writelog import Entry, Flag, WriteLog

_HOLE = 4096


class Replay:
    """Turns cuts, in order, into images in `directory`.

    One image goes along with what is kept; each state is a copy of what it occupies (by reference, where the filesystem
    can), with what survives on top. So neither the image's size nor the log's decides how much memory or time is taken.
    """

    def __init__(self, base: Path, log: WriteLog, entries: Sequence[Entry], directory: Path) -> None:
        self._log = log
        self._entries = entries
        self._directory = directory
        self._durable = directory / "kept"
        self._applied = 0
        copy_without_zeroes(base, self._durable)
        self._descriptor = os.open(self._durable, os.O_RDWR)

    def close(self) -> None:
        """Removes its image."""
        os.close(self._descriptor)
        self._durable.unlink(missing_ok=True)

    def state(self, cut: Cut, name: str = "state") -> Path:
        """The image of a cut, which must keep no less than the last one. The caller removes it."""
        for position in range(self._applied, cut.kept):
            entry = self._entries[position]
            self._write(self._descriptor, entry, 0, entry.length)
        self._applied = max(self._applied, cut.kept)
        target = self._directory / name
        target.unlink(missing_ok=True)
        sparse.copy(self._durable, target)
        descriptor = os.open(target, os.O_RDWR)
        try:
            for piece in cut.pieces:
                self._write(descriptor, self._entries[piece.entry], piece.skip, piece.length)
        finally:
            os.close(descriptor)
        return target

    def _write(self, descriptor: int, entry: Entry, skip: int, length: int) -> None:
        if entry.flags & Flag.MARK or not length:
            return
        if entry.flags & Flag.DISCARD:  # what is read of it from a file is zeroes
            for part in _parts(length):
                os.pwrite(descriptor, bytes(part[1]), entry.offset + skip + part[0])
            return
        data = self._log.data(entry)[skip : skip + length]
        os.pwrite(descriptor, data, entry.offset + skip)


def copy_without_zeroes(source: Path, target: Path) -> None:
    """A copy that has holes where the source has blocks of zeroes."""
    with source.open("rb") as read, target.open("xb") as write:
        size = os.fstat(read.fileno()).st_size
        os.ftruncate(write.fileno(), size)
        zeroes = bytes(_HOLE)
        for start, end in sparse.data_ranges(read.fileno(), size):
            for offset, length in _parts(end - start):
                data = os.pread(read.fileno(), length, start + offset)
                if not any(data):
                    continue
                for block in range(0, len(data), _HOLE):
                    piece = data[block : block + _HOLE]
                    if piece != zeroes[: len(piece)]:
                        os.pwrite(write.fileno(), piece, start + offset + block)


def _parts(length: int, most: int = 1 << 20) -> Iterator[tuple[int, int]]:
    for start in range(0, length, most):
        yield start, min(most, length - start)
