"""Recognises files that need no sync, because a database recreates them after a power cut without reading them.

A name alone proves nothing, so their content and that of the database beside them are examined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath

from guestmark.core.findings import Unsynced

# Reads up to this many bytes of a file at an offset; fewer at its end, none if there is no such file.
ReadFile = Callable[[str, int, int], bytes]

_LMDB_MAGIC = 0xBEEFC0DE
_LMDB_META = 16  # bytes of a page before the meta data
_WAL_INDEX_VERSION = 3_007_000


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of recreated file: the end of its name, its first bytes in either byte order, and its database."""

    ending: str
    begins: tuple[bytes, ...]
    # Replaces the end of the name.
    database: str
    has: tuple[bytes, ...]
    at: int


def _pack_in_both_byte_orders(number: int) -> tuple[bytes, ...]:
    return number.to_bytes(4, "little"), number.to_bytes(4, "big")


_KINDS = (
    # SQLite's index of a write-ahead log (sqlite.org/walformat.html): the first connection truncates it.
    _Kind("-shm", _pack_in_both_byte_orders(_WAL_INDEX_VERSION), "", (b"SQLite format 3\0",), 0),
    # LMDB's table of readers (lmdb.h, MDB_NOLOCK): the first process initializes it.
    _Kind(
        "/lock.mdb",
        _pack_in_both_byte_orders(_LMDB_MAGIC),
        "/data.mdb",
        _pack_in_both_byte_orders(_LMDB_MAGIC),
        _LMDB_META,
    ),
    _Kind(
        "-lock",
        _pack_in_both_byte_orders(_LMDB_MAGIC),
        "",
        _pack_in_both_byte_orders(_LMDB_MAGIC),
        _LMDB_META,
    ),
)


def split_rebuilt(unsynced: Iterable[Unsynced], read: ReadFile) -> tuple[list[Unsynced], list[Unsynced]]:
    """Split the files into those that may lose data in a power cut, and those that are recreated after it."""
    lacking, rebuilt = list[Unsynced](), list[Unsynced]()
    for file in unsynced:
        if _is_rebuilt(file.path, read):
            rebuilt.append(file)
        else:
            lacking.append(file)
    return lacking, rebuilt


def _is_rebuilt(path: str, read: ReadFile) -> bool:
    for kind in _KINDS:
        if not str(PurePosixPath("/", path)).endswith(kind.ending):
            continue
        database = path.removesuffix(kind.ending) + kind.database
        if _has_any(read, path, 0, kind.begins) and _has_any(read, database, kind.at, kind.has):
            return True
    return False


def _has_any(read: ReadFile, path: str, at: int, wanted: tuple[bytes, ...]) -> bool:
    return read(path, at, len(wanted[0])) in wanted
