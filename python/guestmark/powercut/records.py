"""Numbered records: how they are made durable, which are acknowledged at a cut, and which have to survive it.

The agent writes them (`crates/agent/src/records.rs`); a record consists of 64-byte lines that name it.
"""

from __future__ import annotations

import bisect
import sqlite3
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from guestmark.core.temporary import scratch_directory
from guestmark.powercut.writelog import Entry

LINE = 64
SLOTS = 8  # records in an overwritten file


class Method(StrEnum):
    """How a record is written and made durable."""

    APPEND = "append"
    REPLACE = "replace"
    OVERWRITE = "overwrite"
    DSYNC = "dsync"
    SQLITE = "sqlite"  # rows, each committed by SQLite
    MARIADB = "mariadb"
    POSTGRESQL = "postgresql"
    COMMAND = "command"  # lines that the user's program prints
    SYNCS = "syncs"  # what a program's own calls promise

    @property
    def description(self) -> str:
        """A description of the method for tables."""
        return _WORDS[self]

    @property
    def record_size(self) -> int:
        """The size of a record in bytes."""
        return 4096 if self in (Method.REPLACE, Method.OVERWRITE) else 512

    @property
    def is_program(self) -> bool:
        """True if a user's program writes the data, which is then examined on the mounted filesystem."""
        return self in {Method.COMMAND, Method.SYNCS}

    @property
    def is_call(self) -> bool:
        """True if the return of a system call acknowledges a record; a program might do so too early."""
        return self not in {Method.SQLITE, Method.COMMAND} and not self.is_served

    @property
    def is_served(self) -> bool:
        """True if a database server commits the records and has to recover them after the cut."""
        return self in {Method.MARIADB, Method.POSTGRESQL}

    def list_record_files(self, name: str) -> tuple[str, ...]:
        """Return the names of the files with records, whose main one is `name`."""
        return (name, f"{name}-wal") if self is Method.SQLITE else (name,)


_WORDS = {
    Method.APPEND: "append, fsync",
    Method.REPLACE: "write, fsync, rename",
    Method.OVERWRITE: "overwrite, fdatasync",
    Method.DSYNC: "append, O_DSYNC",
    Method.SQLITE: "SQLite commit (WAL, synchronous=FULL)",
    Method.MARIADB: "MariaDB commit",
    Method.POSTGRESQL: "PostgreSQL commit",
    Method.COMMAND: "lines of a command",
    Method.SYNCS: "syncs of a command",
}


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The newest acknowledged record after each number of requests, by the marks in a log.

    Mark 0 is the start, mark k + 1 acknowledges record k.
    """

    after_requests: tuple[int, ...]  # ascending
    # The newest record at that moment; -1 for the start.
    newest: tuple[int, ...]

    @classmethod
    def from_marks(cls, entries: Sequence[Entry], start: int, end: int) -> Acknowledged:
        """Return the acknowledgements between two moments of a log."""
        moments, newest = list[int](), list[int]()
        for position in range(start, min(end, len(entries))):
            mark = entries[position].mark
            if mark is not None:
                moments.append(position + 1)
                newest.append(mark - 1)
        return cls(tuple(moments), tuple(newest))

    @property
    def requests_before_first_record(self) -> int:
        """The number of requests before the first record; 0 if the log has no mark."""
        return self.after_requests[0] if self.after_requests else 0

    @property
    def acknowledgement_moments(self) -> tuple[int, ...]:
        """The numbers of requests after which each record had been acknowledged."""
        return tuple(at for at, newest in zip(self.after_requests, self.newest, strict=True) if newest >= 0)

    def find_newest_after(self, requests: int) -> int:
        """Return the newest record acknowledged after this many requests; -1 if there was none."""
        at = bisect.bisect_right(self.after_requests, requests)
        return self.newest[at - 1] if at else -1

    def find_newest_moment(self, requests: int) -> int:
        """Return after how many requests the record from `find_newest_after` was acknowledged; 0 without one."""
        at = bisect.bisect_right(self.after_requests, requests)
        return self.after_requests[at - 1] if at else 0


def make_record(tag: str, number: int, size: int) -> bytes:
    """Return the bytes of a record."""
    line = f"{tag}{number:08};".encode()
    return line.ljust(LINE, b"%c" % (ord("a") + number % 26)) * (size // LINE)


def find_lost_record(  # noqa: PLR0911 (one for each way)
    method: Method, tag: str, acknowledged: int, content: bytes | None
) -> int | None:
    """Return the first acknowledged record that is missing or damaged in the file; None if all are intact."""
    if acknowledged < 0:
        return None
    if content is None:
        return acknowledged if method.is_program or method in (Method.REPLACE, Method.OVERWRITE) else 0
    if method.is_served:
        return _find_missing_record(method, tag, acknowledged, content)
    size = method.record_size
    match method:
        case Method.APPEND | Method.DSYNC:
            for number in range(acknowledged + 1):
                if content[number * size : (number + 1) * size] != make_record(tag, number, size):
                    return number
        case Method.REPLACE:
            # A newer record may already have been renamed over it; that must be whole as well.
            found = _read_record_number(tag, content)
            if found < acknowledged or content != make_record(tag, found, size):
                return acknowledged
        case Method.OVERWRITE:
            # The next record may have been half written into this slot, which proves nothing.
            under_way = (acknowledged + 1) % SLOTS
            for number in range(max(0, acknowledged - SLOTS + 1), acknowledged + 1):
                slot = number % SLOTS
                if slot != under_way and content[slot * size : (slot + 1) * size] != make_record(
                    tag, number, size
                ):
                    return number
    return None


def _find_missing_record(method: Method, tag: str, acknowledged: int, rows: bytes) -> int | None:
    """Return the first acknowledged record that is not among the rows of a server, one per line; None if all are."""
    there = set(rows.splitlines())
    for number in range(acknowledged + 1):
        if make_record(tag, number, method.record_size) not in there:
            return number
    return None


def _read_record_number(tag: str, content: bytes) -> int:
    """Return the number of the record that a file begins with; -1 if it begins with none."""
    start = len(tag)
    digits = content[start : start + 8]
    return int(digits) if content.startswith(tag.encode()) and digits.isdigit() else -1


# Arguments: the database, the tag, the number of rows. Each statement is a transaction; after each one its number is
# printed, and the next one waits for a byte.
_WRITER = """
import os, sqlite3, sys
path, tag, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
database = sqlite3.connect(path, isolation_level=None)
database.execute("pragma journal_mode=wal")
database.execute("pragma synchronous=full")
database.execute("create table if not exists records (number integer primary key, content text)")
for number in range(count):
    database.execute("insert into records values (?, ?)", (number, f"{tag}{number:08};"))
    print(number, flush=True)
    os.read(0, 1)
os._exit(0)  # nothing is tidied up: closing the last connection would
"""


def build_writer_command(path: str, tag: str, count: int) -> list[str]:
    """Return the command that writes `count` rows into the SQLite database `path`."""
    return [sys.executable, "-I", "-S", "-c", _WRITER, path, tag, str(count)]


def find_lost_row(tag: str, acknowledged: int, name: str, files: Mapping[str, bytes | None]) -> int | None:
    """Return the first acknowledged row that the database lacks after SQLite has recovered it; None if it has all."""
    if acknowledged < 0:
        return None
    if files.get(name) is None:
        return 0
    with scratch_directory("sqlite") as directory:
        for file, content in files.items():
            if content is not None:
                Path(directory, file).write_bytes(content)
        database = sqlite3.connect(Path(directory, name))
        try:
            rows = database.execute("select number, content from records order by number").fetchall()
        except sqlite3.DatabaseError:
            return 0
        finally:
            database.close()
    there = {number for number, content in rows if content == f"{tag}{number:08};"}
    for number in range(acknowledged + 1):
        if number not in there:
            return number
    return None
