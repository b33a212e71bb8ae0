"""What `guestmark-agent syncs` says that a program was promised: no more than holds, and no less."""

import subprocess
import sys
from pathlib import Path

import pytest

from guestmark.agent.binary import agent_binary
from guestmark.powercut.syncs import Promises


def traced(directory: Path, *command: str, status: str = "0") -> Promises:
    """The promises of a program that runs in the directory; each is answered at once."""
    argv = [str(agent_binary()), "syncs", "--disk", str(directory), "--", *command]
    done = subprocess.run(argv, cwd=directory, input=b"\n" * 300, capture_output=True, check=True, timeout=60)
    found = Promises()
    for line in done.stdout.decode().splitlines():
        found.add(line)
    assert found.status == status, found.said
    return found


def python(directory: Path, *lines: str, status: str = "0") -> Promises:
    program = "\n".join(("import os, threading, time", "os.O = os.O_CREAT | os.O_RDWR", *lines))
    return traced(directory, sys.executable, "-I", "-S", "-c", program, status=status)


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
    (one,) = found.expected(0, exact=True)
    assert list(one.blocks) == [0]


def test_a_synchronous_write_among_threads_promises_its_own_blocks(tmp_path: Path) -> None:
    found = python(
        tmp_path, OTHER, "fd = os.open('file', os.O | os.O_DSYNC)", "os.write(fd, b'x' * 8192)",
        "os.pwrite(fd, b'y' * 4096, 8192)",
    )  # fmt: skip
    assert [call for call, _ in found.calls] == ["write", "write"]
    (one,) = found.expected(1, exact=False)
    assert sorted(one.blocks) == [0, 1, 2]


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
    assert all(1 not in one.blocks for one in found.expected(0, exact=False))


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
    (exactly,) = found.expected(0, exact=True)
    (later,) = found.expected(0, exact=False)
    assert (sorted(exactly.blocks), sorted(later.blocks)) == ([0, 1], [1])


def test_a_renamed_file_is_looked_for_under_both_names(tmp_path: Path) -> None:
    found = python(
        tmp_path, "fd = os.open('new', os.O); os.write(fd, b'x' * 4096); os.fsync(fd)", "os.rename('new', 'file')",
    )  # fmt: skip
    (one,) = found.expected(0, exact=False)
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
    ],
)  # fmt: skip
def test_what_was_written_and_never_synced_is_named(
    tmp_path: Path, lines: tuple[str, ...], named: str
) -> None:
    (tmp_path / "old").write_bytes(b"o" * 9000)
    said = python(tmp_path, *lines).unsynced
    assert said == (f"{named} has data that was written and never synced" if named else "")


def test_a_program_that_was_stopped_is_not_blamed_for_what_it_had_yet_to_sync(tmp_path: Path) -> None:
    loop = "while True: os.write(fd, b'y'); os.fsync(fd)"
    found = python(tmp_path, KEPT, "os.write(os.open('other', os.O), b'x')", loop, status="stopped")
    assert found.unsynced == "other has data that was written and never synced"
    (tmp_path / "other").unlink()
    loop = (
        "while True: os.pwrite(fd, b'y' * 8192, 0); g = os.open('sync', os.O); os.write(g, b'x'); os.fsync(g)"
    )
    assert python(tmp_path, KEPT, loop, status="stopped").unsynced == ""


def test_files_that_were_never_synced_are_counted(tmp_path: Path) -> None:
    found = python(tmp_path, KEPT, "[os.write(os.open(name, os.O), b'x') for name in 'cab']")
    assert found.unsynced == "3 files, a among them, have data that was written and never synced"


def test_a_file_whose_name_was_removed_is_looked_for_under_another_one(tmp_path: Path) -> None:
    found = python(tmp_path, KEPT, "os.link('kept', 'other'); os.unlink('kept'); os.sync()")
    for newest, names in ((0, [b"kept", b"other"]), (1, [b"other"])):
        (one,) = found.expected(newest, exact=False)
        assert [bytes.fromhex(path).rpartition(b"/")[2] for path in one.paths] == names
