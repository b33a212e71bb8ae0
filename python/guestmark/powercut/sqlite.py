"""Rows that SQLite commits one by one: written on the machine by this very Python, recovered by SQLite itself."""

from __future__ import annotations

import sqlite3
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

# Arguments: the database, the tag, how many rows. Each statement is a transaction of its own; after each its number is
# printed, and the next waits for a byte.
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


def command(path: str, tag: str, count: int) -> list[str]:
    """The program that writes that many rows into the database `path`."""
    return [sys.executable, "-I", "-S", "-c", _WRITER, path, tag, str(count)]


def lost(tag: str, acknowledged: int, name: str, files: Mapping[str, bytes | None]) -> int | None:
    """The first acknowledged row that the database does not have when SQLite has recovered it; None when it has all."""
    if acknowledged < 0:
        return None
    if files.get(name) is None:
        return 0
    with tempfile.TemporaryDirectory(prefix="guestmark-sqlite-") as directory:
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
    return next((number for number in range(acknowledged + 1) if number not in there), None)
