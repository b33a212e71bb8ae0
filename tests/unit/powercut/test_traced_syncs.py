"""What `guestmark-agent syncs` says that a program was promised: no more than holds, and no less."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from guestmark.core.own_program import find_agent_binary
from guestmark.powercut.syncs import Promises


def traced(directory: Path, *command: str, status: str = "0") -> Promises:
    """The promises of a program that runs in the directory; each is answered at once."""
    argv = [str(find_agent_binary()), "syncs", "--disk", str(directory), "--", *command]
    done = subprocess.run(argv, cwd=directory, input=b"\n" * 300, capture_output=True, check=True, timeout=60)
    found = Promises()
    for line in done.stdout.decode().splitlines():
        found.add_line(line)
    assert found.status == status, found.said
    return found


def python(directory: Path, *lines: str, status: str = "0") -> Promises:
    program = "\n".join(("import os, threading, time", "os.O = os.O_CREAT | os.O_RDWR", *lines))
    return traced(directory, sys.executable, "-I", "-S", "-c", program, status=status)


ASKING = (Path(__file__).parents[2] / "framework" / "asking.py").read_text()


def asking(directory: Path, program: str) -> Promises:
    """The promises of a program that asks the kernel by queues; see `ASKING`."""
    return traced(
        directory, sys.executable, "-I", "-S", "-c", f"{ASKING}\nX, Y = b'x' * 8192, b'y' * 4096\n{program}"
    )


OTHER = "threading.Thread(target=time.sleep, args=(0.5,)).start()"


@pytest.mark.parametrize(
    "command",
    [
        "dd if=/dev/zero of=file bs=4k count=1 conv=fsync",
        "dd if=/dev/zero of=file bs=4k count=1 conv=fsync; :",
    ],
)
def test_a_shell_that_waits_is_no_writer(tmp_path: Path, command: str) -> None:
    assert traced(tmp_path, "sh", "-c", command).calls == [("fsync", True)]


def test_a_thread_makes_the_moment_unsure(tmp_path: Path) -> None:
    found = python(tmp_path, OTHER, "fd = os.open('file', os.O); os.write(fd, b'x' * 4096); os.fsync(fd)")
    assert found.calls == [("fsync", False)]
    (one,) = found.list_expected_files(0, exact=True)
    assert list(one.blocks) == [0]


def test_a_synchronous_write_among_threads_promises_its_own_blocks(tmp_path: Path) -> None:
    found = python(
        tmp_path, OTHER, "fd = os.open('file', os.O | os.O_DSYNC)", "os.write(fd, b'x' * 8192)",
        "os.pwrite(fd, b'y' * 4096, 8192)",
    )  # fmt: skip
    assert [call for call, _ in found.calls] == ["write", "write"]
    (one,) = found.list_expected_files(1, exact=False)
    assert sorted(one.blocks) == [0, 1, 2]


# Each writes 8192 bytes at 4096 of `fd`.
SOURCE = "source = os.open('source', os.O); os.write(source, b'y' * 8192); os.lseek(source, 0, 0)"
PIPE = "read, write = os.pipe(); os.write(write, b'y' * 8192)"
WRITERS = {
    "write": "os.lseek(fd, 4096, 0); os.write(fd, b'y' * 8192)",
    "writev": "os.lseek(fd, 4096, 0); os.writev(fd, [b'y' * 4096] * 2)",
    "pwrite": "os.pwrite(fd, b'y' * 8192, 4096)",
    "pwritev": "os.pwritev(fd, [b'y' * 4096] * 2, 4096)",
    "splice": "os.splice(read, fd, 8192, offset_dst=4096)",
    "splice where the file is": "os.lseek(fd, 4096, 0); os.splice(read, fd, 8192)",
    "splice less than asked for": "os.splice(read, fd, 1 << 20, offset_dst=4096)",
    "sendfile": "os.lseek(fd, 4096, 0); os.sendfile(fd, source, 0, 8192)",
    "copy_file_range": "os.copy_file_range(source, fd, 8192, offset_dst=4096)",
}


@pytest.mark.parametrize("flag", ["os.O_DSYNC", "os.O_SYNC", "0"])
@pytest.mark.parametrize("call", WRITERS.values(), ids=WRITERS)
def test_each_way_to_write_through_promises_what_it_wrote(tmp_path: Path, call: str, flag: str) -> None:
    (tmp_path / "file").write_bytes(b"x" * 16384)
    found = python(tmp_path, SOURCE, PIPE, f"fd = os.open('file', os.O_RDWR | {flag})", call)
    assert found.calls == ([] if flag == "0" else [("write", True)])
    if flag != "0":
        (one,) = found.list_expected_files(0, exact=False)
        assert sorted(one.blocks) == [1, 2]


@pytest.mark.parametrize(
    ("flags", "opened", "blocks"),
    [
        ("os.RWF_DSYNC", "0", [1]), ("os.RWF_SYNC", "0", [1]), ("os.RWF_DSYNC | os.RWF_APPEND", "0", [2]),
        ("os.RWF_APPEND", "os.O_DSYNC", [2]),
    ],
)  # fmt: skip
def test_a_write_that_asks_to_be_synced_promises_where_it_went(
    tmp_path: Path, flags: str, opened: str, blocks: list[int]
) -> None:
    (tmp_path / "file").write_bytes(b"x" * 8192)
    found = python(
        tmp_path, f"os.pwritev(os.open('file', os.O_RDWR | {opened}), [b'y' * 4096], 4096, {flags})"
    )
    assert found.calls == [("write", True)]
    (one,) = found.list_expected_files(0, exact=False)
    assert sorted(one.blocks) == blocks


def test_sync_promises_nothing_that_another_thread_writes_meanwhile(tmp_path: Path) -> None:
    """A writer that never stops changes its block between any two looks."""
    found = python(
        tmp_path,
        "fd = os.open('file', os.O); os.write(fd, b'x' * 8192); going = True",
        "def write():",
        "    n = 0",
        "    while going: n += 1; os.pwrite(fd, b'%d' % n, 4096)",
        "thread = threading.Thread(target=write); thread.start(); time.sleep(0.1)",
        "os.sync(); going = False; thread.join()",
    )
    assert found.calls == [("sync", False)]
    assert all(1 not in one.blocks for one in found.list_expected_files(0, exact=False))


@pytest.mark.parametrize(
    "lines",
    [
        ["os.write(os.open('file', os.O), b'x' * 4096)"],
        ["fd = os.open('/dev/shm/guestmark-traced', os.O | os.O_DSYNC); os.unlink('/dev/shm/guestmark-traced')",
         "os.write(fd, b'x' * 4096); os.fsync(fd)"],
        ["fd = os.open('file', os.O); os.write(fd, b'x')", "try: os.fsync(99)", "except OSError: pass"],
    ],
)  # fmt: skip
def test_what_was_not_synced_on_the_disk_is_no_promise(tmp_path: Path, lines: list[str]) -> None:
    assert python(tmp_path, *lines).calls == []


def test_what_is_overwritten_later_is_looked_for_only_right_after_its_sync(tmp_path: Path) -> None:
    found = python(
        tmp_path, "fd = os.open('file', os.O); os.write(fd, b'x' * 8192); os.fsync(os.dup(fd))",
        "os.pwrite(fd, b'y' * 4096, 0)",
    )  # fmt: skip
    (exactly,) = found.list_expected_files(0, exact=True)
    (later,) = found.list_expected_files(0, exact=False)
    assert (sorted(exactly.blocks), sorted(later.blocks)) == ([0, 1], [1])


def test_a_renamed_file_is_looked_for_under_both_names(tmp_path: Path) -> None:
    found = python(
        tmp_path, "fd = os.open('new', os.O); os.write(fd, b'x' * 4096); os.fsync(fd)", "os.rename('new', 'file')",
    )  # fmt: skip
    (one,) = found.list_expected_files(0, exact=False)
    assert [bytes.fromhex(path).rpartition(b"/")[2] for path in one.paths] == [b"new", b"file"]


KEPT = "fd = os.open('kept', os.O); os.write(fd, b'x' * 8192); os.fsync(fd)"


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        ((KEPT,), ""),
        ((KEPT, "os.open('empty', os.O)"), ""),
        ((KEPT, "os.write(os.open('other', os.O), b'x')"), "other"),
        ((KEPT, "os.pwrite(fd, b'y', 5000)"), "kept"),
        ((KEPT, "os.pwrite(fd, b'y', 5000); os.fdatasync(fd)"), ""),
        ((KEPT, "os.pwrite(fd, b'y' * 4096, 8192); fd = os.open('kept', os.O | os.O_DSYNC)",
          "os.pwrite(fd, b'z' * 4096, 0)"), "kept"),
        ((KEPT, "os.write(os.open('other', os.O), b'x'); os.unlink('other')"), ""),
        ((KEPT, "os.write(os.open('other', os.O), b'x'); os.sync()"), ""),
        (("fd = os.open('old', os.O); os.pwrite(fd, b'x', 0)", KEPT), "old"),
        (("fd = os.open('old', os.O | os.O_DSYNC); os.pwrite(fd, b'x', 0)", KEPT), ""),
        (("fd = os.open('old', os.O); os.pread(fd, 1, 0); os.utime('old')", KEPT), ""),
        # The same again: in place nothing can be lost, after the file was emptied all of it.
        ((KEPT, "os.pwrite(fd, b'x' * 8192, 0)"), ""),
        ((KEPT, "os.ftruncate(fd, 0); os.pwrite(fd, b'x' * 8192, 0)"), "kept"),
        ((KEPT, "os.truncate('kept', 4096); os.pwrite(fd, b'x' * 4096, 4096)"), "kept"),
        ((KEPT, "os.ftruncate(fd, 0); os.pwrite(fd, b'x' * 8192, 0); os.fsync(fd)"), ""),
        ((KEPT, "os.write(os.open('old', os.O | os.O_TRUNC), b'o' * 9000)"), "old"),
        ((KEPT, "os.write(os.open('old', os.O | os.O_TRUNC), b'o' * 9000); os.sync()"), ""),
        ((KEPT, "os.write(os.open('old', os.O | os.O_TRUNC | os.O_DSYNC), b'o' * 9000)"), ""),
        ((KEPT, "os.ftruncate(fd, 8192)"), ""),
        # Zeroes are data, too, and a file that has grown may be shorter again.
        ((KEPT, "os.ftruncate(fd, 1 << 20)"), "kept"),
        ((KEPT, "os.ftruncate(fd, 8200)"), "kept"),
        ((KEPT, "os.ftruncate(fd, 1 << 20); os.fdatasync(fd)"), ""),
        ((KEPT, "os.pwrite(fd, bytes(4096), 0)"), "kept"),
        ((KEPT, "os.pwrite(fd, bytes(4096), 0); os.fdatasync(fd)"), ""),
        ((KEPT, "os.pwrite(os.open('kept', os.O | os.O_DSYNC), bytes(5000), 100)"), ""),
        ((KEPT, "os.pwrite(os.open('kept', os.O | os.O_DSYNC), bytes(5000), 8192)"), ""),
        ((KEPT, "os.write(os.open('zeroes', os.O), bytes(9000))"), "zeroes"),
        ((KEPT, "os.ftruncate(fd, 0); os.fsync(fd); os.ftruncate(fd, 8192)"), "kept"),
    ],
)  # fmt: skip
def test_what_was_written_and_never_synced_is_named(
    tmp_path: Path, lines: tuple[str, ...], named: str
) -> None:
    (tmp_path / "old").write_bytes(b"o" * 9000)
    left = python(tmp_path, *lines).unsynced
    assert [(Path(file.path).name, file.bytes > 0) for file in left] == ([(named, True)] if named else [])


# SQLite makes the index of its log anew after a crash, and never syncs it.
INDEX = "rows.db-shm"


@pytest.mark.parametrize(
    ("synchronous", "named"),
    [("full", [INDEX]), ("normal", [INDEX, "rows.db-wal"]), ("off", [INDEX, "rows.db-wal"])],
)
def test_rows_of_sqlite_that_no_commit_synced_are_named(
    tmp_path: Path, synchronous: str, named: list[str]
) -> None:
    found = python(
        tmp_path,
        "import sqlite3; db = sqlite3.connect('rows.db', isolation_level=None)",
        f"db.execute('pragma journal_mode=wal'); db.execute('pragma synchronous={synchronous}')",
        "db.execute('create table t(a)')",
        "for n in range(20): db.execute('insert into t values (?)', (n,))",
        # What is left as by a power cut: closing would copy the log into the database.
        "os._exit(0)",
    )
    assert sorted(Path(file.path).name for file in found.unsynced) == named


IN_DIRECTORY = "\n".join(
    [
        KEPT,
        "os.makedirs('d/in'); os.rename('kept', 'd/kept')",
        "f = os.open('d/in/new', os.O); os.write(f, b'x'); os.sync()",
    ]
)


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        ((KEPT, "os.rename('kept', 'new')"), ["new"]),
        ((KEPT, "os.rename('kept', 'new'); os.fsync(fd)"), []),
        ((KEPT, "os.rename('kept', 'new')", "os.fsync(os.open('.', os.O_RDONLY))"), []),
        ((KEPT, "os.rename('kept', 'new')", "os.sync()"), []),
        # What is needed to find the data again does not include another name.
        ((KEPT, "os.rename('kept', 'new'); os.fdatasync(fd)"), ["new"]),
        ((KEPT, "fd = os.open('new', os.O); os.write(fd, b'x'); os.fdatasync(fd)"), []),
        # The second file has the number of the one that the first rename removed.
        (2 * ("fd = os.open('t', os.O); os.write(fd, b'x' * 9); os.fsync(fd); os.close(fd); os.rename('t', 'old')",),
         ["old"]),
        ((KEPT, "os.link('kept', 'also')"), ["also"]),
        ((KEPT, "os.mkdir('d'); os.rename('kept', 'd/kept')", "os.fsync(os.open('.', os.O_RDONLY))"), ["kept"]),
        ((KEPT, "os.mkdir('d'); os.rename('kept', 'd/kept')", "os.fsync(os.open('d', os.O_RDONLY))"), []),
        ((KEPT, "os.rename('old', 'kept')"), ["kept"]),
        ((KEPT, "os.unlink('old')"), []),
        ((KEPT, "os.open('empty', os.O)"), []),
        (("os.rename('old', 'new')", KEPT), ["new"]),
        ((KEPT, "os.rename('kept', 'new'); os.pwrite(os.open('new', os.O | os.O_SYNC), b'y', 0)"), []),
        ((KEPT, "os.rename('kept', 'new'); os.pwrite(os.open('new', os.O | os.O_DSYNC), b'y', 0)"), ["new"]),
        ((KEPT, "os.rename('kept', 'new'); os.pwritev(os.open('new', os.O), [b'y'], 0, os.RWF_SYNC)"), []),
        ((KEPT, "os.symlink('kept', 'link')"), ["link"]),
        ((KEPT, "os.symlink('kept', 'link')", "os.fsync(os.open('.', os.O_RDONLY))"), []),
        ((KEPT, "os.symlink('kept', 'link')", "os.sync(); os.unlink('link')"), []),
        # A directory that was renamed is where it was until the one around it is synced, with all that is in it.
        ((IN_DIRECTORY, "os.rename('d', 'e')"), ["new", "kept"]),
        ((IN_DIRECTORY, "os.rename('d', 'e')", "os.fsync(os.open('.', os.O_RDONLY))"), []),
        ((IN_DIRECTORY, "os.rename('d', 'e'); os.rename('e', 'f'); os.sync()"), []),
        ((IN_DIRECTORY, "os.mkdir('other'); os.rename('d', 'other/d')", "os.fsync(os.open('other', os.O_RDONLY))"),
         []),
    ],
)  # fmt: skip
def test_a_name_that_was_never_synced_is_named(
    tmp_path: Path, lines: tuple[str, ...], named: list[str]
) -> None:
    (tmp_path / "old").write_bytes(b"o" * 9000)
    left = python(tmp_path, *lines).unsynced
    assert [(Path(file.path).name, file.bytes) for file in left] == [(name, 0) for name in named]


def test_bytes_that_were_never_synced_are_counted(tmp_path: Path) -> None:
    left = python(
        tmp_path, KEPT, "os.pwrite(fd, b'y' * 10000, 4096)", "os.write(os.open('b', os.O), b'x' * 5)"
    )
    assert [(Path(file.path).name, file.bytes) for file in left.unsynced] == [("b", 5), ("kept", 10000)]


def test_a_program_that_was_stopped_is_not_blamed_for_what_it_had_yet_to_sync(tmp_path: Path) -> None:
    loop = "while True: os.write(fd, b'y'); os.fsync(fd)"
    found = python(tmp_path, KEPT, "os.write(os.open('other', os.O), b'x')", loop, status="stopped")
    assert [Path(file.path).name for file in found.unsynced] == ["other"]
    (tmp_path / "other").unlink()
    loop = (
        "while True: os.pwrite(fd, b'y' * 8192, 0); g = os.open('sync', os.O); os.write(g, b'x'); os.fsync(g)"
    )
    assert python(tmp_path, KEPT, loop, status="stopped").unsynced == []


# A child writes and syncs after so many seconds; its parent has ended long before.
LATE_CHILD = """
if os.fork() == 0:
    fd = os.open('file', os.O); os.write(fd, b'x' * 4096)
    time.sleep({seconds}); os.fsync(fd)
"""


def test_what_a_child_syncs_after_its_parent_s_end_is_synced(tmp_path: Path) -> None:
    found = python(tmp_path, LATE_CHILD.format(seconds=0.3))
    assert [call for call, _ in found.calls] == ["fsync"]
    assert (found.unsynced, found.elsewhere) == ([], "")


@pytest.mark.long
def test_a_child_that_outlives_its_parent_leaves_it_unknown_what_is_synced(tmp_path: Path) -> None:
    found = python(tmp_path, LATE_CHILD.format(seconds=30))
    assert found.calls == []
    assert found.unsynced == []
    assert found.elsewhere == "it ended and left processes running, which may sync later"


def test_all_files_that_were_never_synced_are_named(tmp_path: Path) -> None:
    found = python(tmp_path, KEPT, "[os.write(os.open(name, os.O), b'x') for name in 'cab']")
    assert [Path(file.path).name for file in found.unsynced] == ["a", "b", "c"]


def test_a_file_whose_name_was_removed_is_looked_for_under_another_one(tmp_path: Path) -> None:
    found = python(tmp_path, KEPT, "os.link('kept', 'other'); os.unlink('kept'); os.sync()")
    for newest, names in ((0, [b"kept", b"other"]), (1, [b"other"])):
        (one,) = found.list_expected_files(newest, exact=False)
        assert [bytes.fromhex(path).rpartition(b"/")[2] for path in one.paths] == names


BOTH, FIRST = [0, 1], [0]


@pytest.mark.parametrize(
    ("program", "calls", "blocks"),
    [
        ("r, f = Ring(), opened('f'); os.write(f, X); r.ask(FSYNC, f); r.enter()", [("fsync", True)], BOTH),
        (
            "r, f = Ring(), opened('f'); os.write(f, X); r.ask(FSYNC, f, how=1); r.enter()",
            [("fdatasync", True)],
            BOTH,
        ),
        # Nothing but a look into the ring says that it is done.
        (
            "r, f = Ring(), opened('f'); os.write(f, X); r.ask(FSYNC, f); r.enter(0)\nwhile not r.take(): pass\n"
            "os.write(f, Y)",
            [("fsync", True)],
            BOTH,
        ),
        # A write is not covered by a flush that goes on beside it, and is by one that waits for it.
        (
            "r, f = Ring(), opened('f'); r.ask(WRITE, f, X, key=1); r.ask(FSYNC, f, key=2); r.enter()",
            [("fsync", False)],
            [],
        ),
        (
            "r, f = Ring(), opened('f'); r.ask(WRITE, f, X, flags=LINK); r.ask(FSYNC, f); r.enter()",
            [("fsync", False)],
            BOTH,
        ),
        (
            "r, f = Ring(), opened('f'); r.ask(WRITE, f, X, key=1); r.ask(FSYNC, f, key=2, flags=DRAIN); r.enter()",
            [("fsync", False)],
            BOTH,
        ),
        ("r, f = Ring(), opened('f', os.O_DSYNC); r.ask(WRITE, f, X); r.enter()", [("write", True)], BOTH),
        ("r, f = Ring(), opened('f'); r.ask(WRITE, f, X, how=2); r.enter()", [("write", True)], BOTH),
        (
            "r, f = Ring(), opened('f'); os.write(f, X); r.register([-1, f]); r.ask(FSYNC, 1, flags=FIXED); r.enter()",
            [("fsync", True)],
            BOTH,
        ),
        # Two requests with one name: neither is known to be done before both are.
        (
            "r, f, g = Ring(), opened('f'), opened('g'); os.write(f, X)\n"
            "r.ask(FSYNC, f); r.ask(FSYNC, f); r.enter()",
            [("fsync", False), ("fsync", False)],
            BOTH,
        ),
        (
            "c, f = Context(), opened('f'); os.write(f, X); c.submit((2, f, b'', 0)); c.wait(1)",
            [("fsync", True)],
            BOTH,
        ),
        (
            "c, f = Context(), opened('f'); os.write(f, X); c.submit((3, f, b'', 0)); c.wait(1)",
            [("fdatasync", True)],
            BOTH,
        ),
        (
            "c, f = Context(), opened('f', os.O_DSYNC); c.submit((1, f, Y, 0)); c.wait(1)",
            [("write", True)],
            FIRST,
        ),
        (
            "r, f = Ring(), opened('f', os.O_DSYNC); r.ask(WRITE, f, X[:100]); r.enter()",
            [("write", True)],
            FIRST,
        ),
        (
            "r, f = Ring(), opened('f'); r.ask(WRITE, f, X[:5000], flags=LINK); r.ask(FSYNC, f); r.enter()",
            [("fsync", False)],
            BOTH,
        ),
        # Appended: behind what the file has, and behind what the request waits for.
        (
            "r, f = Ring(), opened('f', os.O_APPEND); os.write(f, X[:4096]); r.ask(WRITE, f, Y, how=2); r.enter()",
            [("write", True)],
            [1],
        ),
        (
            "r, f = Ring(), opened('f'); os.write(f, X[:4096]); r.ask(WRITE, f, Y, how=0x12); r.enter()",
            [("write", True)],
            [1],
        ),
        (
            "r, f = Ring(), opened('f', os.O_APPEND)\n"
            "r.ask(WRITE, f, Y, flags=LINK); r.ask(WRITE, f, Y, how=2); r.enter()",
            [("write", False)],
            [1],
        ),
        ("r, f = Ring(), opened('f'); os.write(f, X); r.ask(FSYNC, 99); r.enter()", [], []),
        ("r, f = Ring(), opened('f'); r.ask(WRITE, f, X); r.enter()", [], []),
    ],
)
def test_requests_to_the_kernel(
    tmp_path: Path, program: str, calls: list[tuple[str, bool]], blocks: list[int]
) -> None:
    found = asking(tmp_path, program)
    assert (found.calls, found.elsewhere) == (calls, "")
    expected = found.list_expected_files(len(calls) - 1, exact=True) if calls else ()
    assert [list(one.blocks) for one in expected] == ([blocks] if blocks else [])


@pytest.mark.parametrize(
    "program",
    [
        "r = Ring(flags=SQPOLL)",
        "r, f = Ring(), opened('f'); os.write(f, X); r.ask(FSYNC, f, flags=SILENT); r.enter(0)",
        "r, f = Ring(), opened('f'); r.ask(FSYNC, 3, flags=FIXED); r.enter()",
        "r, f = Ring(), opened('f', os.O_APPEND); r.ask(WRITE, f, X); r.ask(WRITE, f, X, how=2); r.enter()",
    ],
)
def test_what_cannot_be_followed_is_named(tmp_path: Path, program: str) -> None:
    assert asking(tmp_path, program).elsewhere


def test_a_file_that_grows_during_a_flush_is_promised_as_long_as_it_was(tmp_path: Path) -> None:
    """The flush waits for a pipe; it may have begun before the file grew."""
    found = asking(
        tmp_path,
        "r, f, pipe = Ring(), opened('f'), os.pipe(); os.write(f, X)\n"
        "r.ask(POLL, pipe[0], how=1, key=1, flags=LINK); r.ask(FSYNC, f, key=2); r.enter(0)\n"
        "os.ftruncate(f, 20000); os.write(pipe[1], b'x'); r.enter(2)",
    )
    assert found.calls == [("fsync", False)]
    (one,) = found.list_expected_files(0, exact=True)
    assert (list(one.blocks), one.most) == ([0, 1], None)
    assert one.least <= 8192


@pytest.mark.parametrize(
    ("change", "blocks", "least"),
    [
        ("pass", [0, 1], 8192),
        ("os.pwrite(f, b'y' * 4096, 4096); os.pwrite(f, b'x' * 4096, 4096)", [0], 8192),
        ("os.lseek(f, 100, 0); os.write(f, b'y'); os.pwrite(f, b'x', 100)", [1], 8192),
        ("os.pwritev(f, [b'y', b'y'], 4096); os.pwrite(f, b'xx', 4096)", [0], 8192),
        ("os.ftruncate(f, 4096); os.pwrite(f, b'x' * 4096, 4096)", [0], 4096),
        ("os.truncate('f', 0); os.pwrite(f, b'x' * 8192, 0)", [], 0),
        ("h = os.open('f', os.O_WRONLY | os.O_TRUNC); os.write(h, b'x' * 8192)", [], 0),
        ("m = mmap.mmap(f, 8192); m[:1] = b'y'; m[:1] = b'x'", [], 8192),
        (
            "threading.Thread(target=lambda: (os.pwrite(f, b'y', 0), os.pwrite(f, b'x', 0))).start(); time.sleep(0.2)",
            [1],
            8192,
        ),
    ],
)
def test_what_was_another_for_a_while_is_not_looked_for_later(
    tmp_path: Path, change: str, blocks: list[int], least: int
) -> None:
    """Between two promises a crash may leave what the program wrote over, though it then wrote the same again."""
    found = python(
        tmp_path, "import mmap", "f = os.open('f', os.O); os.write(f, b'x' * 8192); os.fsync(f)", change,
        "os.fsync(f)",
    )  # fmt: skip
    later = found.list_expected_files(0, exact=False)
    assert [sorted(one.blocks) for one in later] == ([blocks] if blocks or least else [])
    assert [one.least for one in later] == ([least] if blocks or least else [])
    (now,) = found.list_expected_files(0, exact=True)
    assert sorted(now.blocks) == [0, 1]


def test_what_another_file_promises_meanwhile_hides_no_change(tmp_path: Path) -> None:
    found = python(
        tmp_path,
        "f = os.open('f', os.O); os.write(f, b'x' * 8192); os.fsync(f)",
        "g = os.open('g', os.O); os.pwrite(f, b'y', 0); os.write(g, b'y'); os.fsync(g)",
        "os.pwrite(f, b'x', 0); os.fsync(f)",
    )
    for newest, blocks in ((0, [[1]]), (1, [[1], [0]]), (2, [[0, 1], [0]])):
        assert [sorted(one.blocks) for one in found.list_expected_files(newest, exact=False)] == blocks


def test_a_write_under_way_changes_its_file_after_a_promise_too(tmp_path: Path) -> None:
    """It waits for a pipe, while another file is synced twice."""
    found = asking(
        tmp_path,
        "r, f, g, pipe = Ring(), opened('f'), opened('g'), os.pipe(); os.write(f, X); os.fsync(f)\n"
        "r.ask(POLL, pipe[0], how=1, key=1, flags=LINK); r.ask(WRITE, f, Y, key=2); r.enter(0)\n"
        "os.write(g, b'1'); os.fsync(g); os.write(g, b'2'); os.fsync(g)\n"
        "os.write(pipe[1], b'x'); r.enter(2); os.pwrite(f, X[:4096], 0); os.fsync(g)",
    )
    for newest in (0, 1, 2):
        first = found.list_expected_files(newest, exact=False)[0]
        assert sorted(first.blocks) == [1], newest


def test_what_is_renamed_may_be_found_under_its_old_name(tmp_path: Path) -> None:
    """fdatasync promises data, not that a rename has reached the disk."""
    found = python(
        tmp_path, "fd = os.open('old', os.O); os.write(fd, b'x')", "os.rename('old', 'new'); os.fdatasync(fd)"
    )
    (one,) = found.list_expected_files(0, exact=True)
    assert [Path(bytes.fromhex(path).decode()).name for path in one.paths] == ["new", "old"]


EXCHANGE = "call(316, -100, address(b'a\\0'), -100, address(b'b\\0'), 2)"


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the number of renameat2 is that of x86-64")
@pytest.mark.parametrize(
    ("program", "names"),
    [
        (f"f, g = opened('a'), opened('b'); os.write(f, X)\n{EXCHANGE}; os.fdatasync(f)", ["b", "a"]),
        (f"f, g = opened('a'), opened('b'); os.write(g, X)\n{EXCHANGE}; os.fdatasync(g)", ["a", "b"]),
        (
            "r, f = Ring(), opened('a'); os.write(f, X); new = b'b\\0'\n"
            "r.ask(RENAME, -100, b'a\\0', address(new), length=-100 % 2**32); r.enter(); os.fdatasync(f)",
            ["b", "a"],
        ),
        (
            "os.makedirs('d/in'); f = opened('d/in/a'); os.write(f, X)\n"
            "os.rename('d', 'e'); os.rename('e/in', 'e/now'); os.fdatasync(f)",
            ["e/now/a", "e/in/a", "d/now/a", "d/in/a"],
        ),
    ],
    ids=["exchanged", "exchanged, the other", "through io_uring", "above it"],
)
def test_what_is_renamed_in_any_way_may_be_where_it_was(
    tmp_path: Path, program: str, names: list[str]
) -> None:
    (one,) = asking(tmp_path, program).list_expected_files(0, exact=True)
    found = {str(Path(bytes.fromhex(path).decode()).relative_to(tmp_path)) for path in one.paths}
    assert found == set(names)


def test_a_directory_that_is_synced_may_be_where_it_was(tmp_path: Path) -> None:
    found = python(
        tmp_path,
        "os.mkdir('d'); os.open('d/a', os.O); os.rename('d', 'e')",
        "os.fsync(os.open('e', os.O_RDONLY))",
    )
    (one,) = found.list_expected_files(0, exact=True)
    assert [Path(bytes.fromhex(path).decode()).name for path in one.paths] == ["e", "d"]


@pytest.mark.parametrize(("kind", "named"), [("os.link", ["also"]), ("os.symlink", ["also"])])
def test_a_name_that_is_made_while_its_directory_is_synced_is_not_promised(
    tmp_path: Path, kind: str, named: list[str]
) -> None:
    """The sync waits for a pipe; it may have begun before there was the name."""
    found = asking(
        tmp_path,
        "r, f, pipe = Ring(), opened('f'), os.pipe(); os.write(f, X); os.fsync(f)\n"
        "r.ask(POLL, pipe[0], how=1, key=1, flags=LINK); r.ask(FSYNC, os.open('.', os.O_RDONLY), key=2); r.enter(0)\n"
        f"{kind}('f', 'also'); os.write(pipe[1], b'x'); r.enter(2)",
    )
    assert [Path(file.path).name for file in found.unsynced] == named


@pytest.mark.parametrize(
    ("lines", "blocks"),
    [
        (["os.write(fd, b'x' * 100); os.write(fd, b'y' * 100)"], [0]),
        (["os.write(fd, b'x' * 5000); os.pwrite(fd, b'y', 4500); os.pwrite(fd, b'z' * 300, 4900)"], [0, 1]),
    ],
)
def test_a_part_of_a_block_that_is_written_among_threads_is_promised(
    tmp_path: Path, lines: list[str], blocks: list[int]
) -> None:
    found = python(tmp_path, OTHER, "fd = os.open('file', os.O | os.O_DSYNC)", *lines)
    (one,) = found.list_expected_files(len(found.calls) - 1, exact=False)
    assert sorted(one.blocks) == blocks
    assert found.unsynced == []


def test_a_chain_of_renames_is_followed_in_directories_too(tmp_path: Path) -> None:
    found = python(
        tmp_path,
        "os.mkdir('d'); fd = os.open('a', os.O); os.write(fd, b'x')",
        "os.rename('a', 'b'); here = os.open('d', os.O_RDONLY)",
        "os.rename('b', 'c', dst_dir_fd=here); os.fdatasync(fd)",
    )
    (one,) = found.list_expected_files(0, exact=True)
    assert [Path(bytes.fromhex(path).decode()).name for path in one.paths] == ["c", "b", "a"]


CHANGING = """
go, done = threading.Event(), threading.Event()
fd = os.open('file', os.O); os.write(fd, b'x' * 40000)
def change():
    while not done.is_set():
        os.ftruncate(fd, 5000); os.pwrite(fd, b'x' * 35000, 5000)
thread = threading.Thread(target=change); thread.start()
for _ in range(20): os.fsync(fd)
done.set(); thread.join()
"""


def test_what_is_changed_and_changed_back_during_a_sync_is_not_promised(tmp_path: Path) -> None:
    """The file looks the same before and after each call; in between it is shorter."""
    found = python(tmp_path, CHANGING)
    for number, (_, exact) in enumerate(found.calls):
        if exact:
            continue
        for one in found.list_expected_files(number, exact=False):
            assert one.least <= 40000
            assert all(block <= 1 for block in one.blocks), (number, sorted(one.blocks))


MAPPED = (
    "import mmap; fd = os.open('file', os.O); os.ftruncate(fd, 8192); view = mmap.mmap(fd, 8192)",
    "view[:] = b'm' * 8192",
)
FORKED = (
    "fd = os.open('file', os.O); os.write(fd, b'x' * 4096)",
    "if os.fork() == 0:",
    "    time.sleep(0.3); os.fsync(fd); os._exit(0)",
)


@pytest.mark.parametrize(
    ("lines", "calls", "left"),
    [
        (["os.write(os.open('file', os.O), b'x' * 4096)"], [], ["file"]),
        (
            ["import atexit; fd = os.open('file', os.O); os.write(fd, b'x' * 4096)",
             "atexit.register(lambda: (os.fsync(fd), os.sync()))"],
            ["fsync", "sync"], [],
        ),
        (["os.write(os.open('/dev/shm', os.O_TMPFILE | os.O_RDWR), b'x' * 4096)"], [], []),
        ([*FORKED, "os.wait(); os.sync()"], ["fsync", "sync"], []),
        (["fd = os.open('file', os.O); os.write(fd, b'x' * 4096); os.closerange(0, 99)"], [], ["file"]),
        (["fd = os.open('file', os.O); os.write(fd, b'x'); os.closerange(0, 99); os.sync()"], ["sync"], []),
        ([*MAPPED], [], ["file"]),
        ([*MAPPED, "view.flush()"], ["msync"], []),  # a new file's first sync covers its name
        ([*MAPPED, "view.flush(0, 4096)"], ["msync"], ["file"]),
        ([*MAPPED, "os.fsync(fd); os.fsync(os.open('.', os.O_RDONLY))"], ["fsync", "fsync"], []),
    ],
    ids=[
        "never", "at the end", "elsewhere", "by a child", "closed", "closed, all synced", "mapped", "mapped, synced",
        "mapped, half synced", "mapped, by its file",
    ],
)  # fmt: skip
def test_what_odd_programs_have_synced_and_left(
    tmp_path: Path, lines: list[str], calls: list[str], left: list[str]
) -> None:
    found = python(tmp_path, *lines)
    assert [call for call, _ in found.calls] == calls
    assert [one.path.rpartition("/")[2] for one in found.unsynced] == left


def test_a_thread_that_executes_a_program_is_not_left_running(tmp_path: Path) -> None:
    found = python(
        tmp_path,
        KEPT,
        "threading.Thread(target=os.execv, args=('/bin/true', ['true'])).start(); time.sleep(9)",
    )
    assert found.elsewhere == ""
    assert found.unsynced == []


OTHER_NUMBERS = """
#include <unistd.h>
int main(void) {
    int result, file = 1;
    write(file, "", 0);
    /* nanosleep of i386, whose number is that of sync */
    __asm__ volatile("int $0x80" : "=a"(result) : "a"(162), "b"(0), "c"(0) : "memory");
    return 0;
}
"""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="its kernels alone have two sets of numbers")
def test_calls_of_another_instruction_set_are_no_syncs(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    source = tmp_path / "numbers.c"
    source.write_text(OTHER_NUMBERS)
    subprocess.run(["cc", "-o", tmp_path / "numbers", source], check=True)
    found = traced(disk, str(tmp_path / "numbers"))
    assert found.calls == []
    assert "another instruction set" in found.elsewhere
