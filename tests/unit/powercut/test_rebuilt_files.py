"""Files that a database makes anew need no sync; what only has such a name does."""

import sqlite3
from pathlib import Path

import pytest

from guestmark.core.findings import Unsynced
from guestmark.powercut.rebuilt import split_rebuilt


def read(path: str, at: int, count: int) -> bytes:
    try:
        return Path(path).read_bytes()[at : at + count]
    except OSError:
        return b""


def classify(*files: Path) -> tuple[list[str], list[str]]:
    lacking, rebuilt = split_rebuilt([Unsynced(str(file), 4096) for file in files], read)
    return [Path(file.path).name for file in lacking], [Path(file.path).name for file in rebuilt]


def test_the_index_of_a_log_of_sqlite_is_made_anew(tmp_path: Path) -> None:
    database = sqlite3.connect(tmp_path / "rows.db", isolation_level=None)
    database.execute("pragma journal_mode=wal")
    database.execute("create table rows (n)")
    try:
        files = [tmp_path / name for name in ("rows.db", "rows.db-wal", "rows.db-shm")]
        assert classify(*files) == (["rows.db", "rows.db-wal"], ["rows.db-shm"])
    finally:
        database.close()


@pytest.mark.parametrize("name", ["rows.db-shm", "lock.mdb", "data-lock"])
def test_a_name_alone_says_nothing(tmp_path: Path, name: str) -> None:
    for other in ("rows.db", "data.mdb", "data", name):
        (tmp_path / other).write_bytes(b"something else" * 10)
    assert classify(tmp_path / name) == ([name], [])


@pytest.mark.parametrize(
    ("lock", "data"), [("lock.mdb", "data.mdb"), ("rows-lock", "rows")], ids=["directory", "file"]
)
def test_the_readers_of_lmdb_are_made_anew(tmp_path: Path, lock: str, data: str) -> None:
    magic = (0xBEEFC0DE).to_bytes(4, "little")
    (tmp_path / lock).write_bytes(magic + bytes(4092))
    (tmp_path / data).write_bytes(bytes(16) + magic + bytes(4076))
    assert classify(tmp_path / lock, tmp_path / data) == ([data], [lock])
    # Without its database nothing is known of it.
    (tmp_path / data).unlink()
    assert classify(tmp_path / lock) == ([lock], [])
