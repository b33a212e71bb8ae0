"""Numbered records: how they are made durable, which had been acknowledged at a cut, and what has to be left of them.

The agent writes them (`crates/agent/src/records.rs`); a record is 64-byte lines that name it.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from guestmark.powercut.writelog import Entry, WriteLog

LINE = 64
SLOTS = 8  # of an overwritten file


class Method(StrEnum):
    """How a record is written and made durable."""

    APPEND = "append"
    REPLACE = "replace"
    OVERWRITE = "overwrite"
    DSYNC = "dsync"
    SQLITE = "sqlite"  # rows, each committed by SQLite
    MARIADB = "mariadb"
    POSTGRESQL = "postgresql"

    @property
    def words(self) -> str:
        """For tables."""
        return _WORDS[self]

    @property
    def size(self) -> int:
        """Bytes of a record."""
        return 4096 if self in (Method.REPLACE, Method.OVERWRITE) else 512

    @property
    def served(self) -> bool:
        """Whether a database server commits the records, and has to recover them."""
        return self in {Method.MARIADB, Method.POSTGRESQL}

    def files(self, name: str) -> tuple[str, ...]:
        """The files that hold records, of which the main one is called `name`."""
        return (name, f"{name}-wal") if self is Method.SQLITE else (name,)


_WORDS = {
    Method.APPEND: "append, fsync",
    Method.REPLACE: "write, fsync, rename",
    Method.OVERWRITE: "overwrite, fdatasync",
    Method.DSYNC: "append, O_DSYNC",
    Method.SQLITE: "SQLite commit (WAL, synchronous=FULL)",
    Method.MARIADB: "MariaDB commit",
    Method.POSTGRESQL: "PostgreSQL commit",
}


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """Which records had been acknowledged after so many requests: record k once k + 1 is seen on its way."""

    starts: tuple[int, ...]  # requests after which the number of the newest record seen grows
    newest: tuple[int, ...]

    @classmethod
    def of(cls, log: WriteLog, entries: Sequence[Entry], tag: str) -> Acknowledged:
        """From the records with that tag in a log."""
        pattern = re.compile(re.escape(tag.encode()) + rb"(\d{8});")
        starts, newest = [], []
        highest = -1
        for position, entry in enumerate(entries):
            if not entry.writes:
                continue
            found = max((int(match[1]) for match in pattern.finditer(log.data(entry))), default=-1)
            if found > highest:
                highest = found
                starts.append(position + 1)
                newest.append(found)
        return cls(tuple(starts), tuple(newest))

    def ended(self, requests: int, count: int) -> Acknowledged:
        """With what the writer's end says: all `count` records had been acknowledged after so many requests.

        What a hypervisor keeps to itself is on no log, and is known by this.
        """
        before = bisect.bisect_left(self.starts, requests)
        return Acknowledged((*self.starts[:before], requests), (*self.newest[:before], count))

    def begin(self, start: int) -> int:
        """How many requests there were before the first record, which is not before `start`."""
        return max(start, self.starts[0] - 1) if self.starts else start

    @property
    def last(self) -> int:
        """The newest record that is seen to have been acknowledged; -1 when there is none."""
        return self.newest[-1] - 1 if self.newest else -1

    def after(self, requests: int) -> int:
        """The newest record that had been acknowledged after so many requests; -1 when there was none."""
        at = bisect.bisect_right(self.starts, requests)
        return self.newest[at - 1] - 1 if at else -1


def record(tag: str, number: int, size: int) -> bytes:
    """The bytes of a record."""
    line = f"{tag}{number:08};".encode()
    return line.ljust(LINE, b"%c" % (ord("a") + number % 26)) * (size // LINE)


def lost(  # noqa: PLR0911 (one for each way)
    method: Method, tag: str, acknowledged: int, content: bytes | None
) -> int | None:
    """The first acknowledged record that is not whole in what is left of the file; None when all are."""
    if acknowledged < 0:
        return None
    if content is None:
        return acknowledged if method in (Method.REPLACE, Method.OVERWRITE) else 0
    if method.served:
        return _missing(method, tag, acknowledged, content)
    size = method.size
    match method:
        case Method.APPEND | Method.DSYNC:
            for number in range(acknowledged + 1):
                if content[number * size : (number + 1) * size] != record(tag, number, size):
                    return number
        case Method.REPLACE:
            # A newer one may have been renamed over it already: that must be whole as well.
            found = _number(tag, content)
            if found < acknowledged or content != record(tag, found, size):
                return acknowledged
        case Method.OVERWRITE:
            under_way = (acknowledged + 1) % SLOTS
            for number in range(max(0, acknowledged - SLOTS + 1), acknowledged + 1):
                slot = number % SLOTS
                if slot != under_way and content[slot * size : (slot + 1) * size] != record(
                    tag, number, size
                ):
                    return number
    return None


def _missing(method: Method, tag: str, acknowledged: int, rows: bytes) -> int | None:
    """As `lost`, of rows that a server has, each a line."""
    there = set(rows.splitlines())
    numbers = range(acknowledged + 1)
    return next((number for number in numbers if record(tag, number, method.size) not in there), None)


def _number(tag: str, content: bytes) -> int:
    start = len(tag)
    digits = content[start : start + 8]
    return int(digits) if content.startswith(tag.encode()) and digits.isdigit() else -1
