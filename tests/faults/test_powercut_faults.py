"""What may go wrong around a log of writes: each is one line, and nothing stays mounted."""

import mmap
import os
import random
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from guestmark.disks import logged
from guestmark.disks.logged import SERVER, LoggedFiles, serve_logged, unmount_below
from guestmark.powercut import cuts
from guestmark.powercut.cuts import Survival
from guestmark.powercut.judge import Replay
from guestmark.powercut.writelog import WriteLog
from tests.framework.processes import others, wait_until

with_fuse = pytest.mark.skipif(bool(logged.explain_no_log()), reason="no image can be logged here")


@pytest.fixture
def files(tmp_path: Path) -> LoggedFiles:
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(1 << 20)
    return LoggedFiles(tmp_path / "base", tmp_path / "log", image)


def mounted(below: Path) -> bool:
    return f" {below}/" in Path("/proc/self/mountinfo").read_text()


def readable(path: Path) -> bool:
    try:
        path.read_bytes()
    except OSError:
        return False
    return True


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may take /dev/fuse away")
def test_a_server_that_may_not_mount_is_one_line(files: LoggedFiles, tmp_path: Path) -> None:
    """In a mount namespace in which /dev/fuse is another device."""
    script = f"""
import sys
from pathlib import Path
from guestmark.core.errors import MachineError
from guestmark.disks.logged import LoggedFiles, serve_logged
where = Path({str(tmp_path)!r})
try:
    with serve_logged(LoggedFiles(where / "base", where / "log", where / "image"), where / "at"):
        sys.exit("something is mounted")
except MachineError as error:
    print(error.message, error.hint, sep="|")
"""
    shell = f'mount --bind /dev/null /dev/fuse && exec {sys.executable} -c "$0"'
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", shell, script],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    message, hint = done.stdout.strip().split("|")
    assert "cannot be logged" in message
    assert "/dev/fuse" in hint


@with_fuse
def test_writes_are_logged_and_the_mount_ends_with_its_context(files: LoggedFiles, tmp_path: Path) -> None:
    at = tmp_path / "at"
    with serve_logged(files, at):
        with at.open("r+b", buffering=0) as file:
            file.write(b"x" * 4096)
            os.fsync(file.fileno())
        assert mounted(tmp_path)
    assert not mounted(tmp_path)
    assert files.image.read_bytes()[:4096] == b"x" * 4096
    assert b"x" * 4096 in files.log.read_bytes()


@with_fuse
def test_a_killed_server_leaves_no_mount(files: LoggedFiles, tmp_path: Path) -> None:
    with serve_logged(files, tmp_path / "at"):
        for folder, command in others():
            if SERVER.encode() in command[1:2] and any(str(tmp_path).encode() in w for w in command):
                os.kill(int(folder.name), signal.SIGKILL)
        assert wait_until(lambda: not readable(tmp_path / "at"), 5)
    assert wait_until(lambda: not mounted(tmp_path), 5)
    unmount_below(tmp_path)  # nothing is there: no error


@with_fuse
def test_parallel_writes_keep_their_bytes(files: LoggedFiles, tmp_path: Path) -> None:
    """The kernel splits large direct writes into requests that go on at once; small ones come in between."""
    size = 8 << 20
    content = bytearray(random.Random(1).randbytes(size))
    for path in (files.image, files.base):
        path.write_bytes(content)

    def write(number: int) -> None:
        generator = random.Random(number)
        region, descriptor = (
            size // 4,
            os.open(tmp_path / "at", os.O_RDWR | (os.O_DIRECT if number % 2 else 0)),
        )
        with mmap.mmap(-1, region) as memory:
            for _ in range(20):
                length = generator.choice([512, 4096, 70 << 10, 2 << 20])
                offset = number * region + generator.randrange(0, region - length + 1, 512)
                memory[:length] = generator.randbytes(length)
                assert os.pwrite(descriptor, memoryview(memory)[:length], offset) == length
                content[offset : offset + length] = memory[:length]
        os.close(descriptor)

    with serve_logged(files, tmp_path / "at"):
        threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert files.image.read_bytes() == content
    with WriteLog(files.log) as log:
        (tmp_path / "cut").mkdir()
        replay = Replay(files.base, log, log.entries, tmp_path / "cut")
        assert (
            replay.make_image(cuts.make_cut_at(log.entries, len(log), Survival.ALL)).read_bytes() == content
        )
        replay.close()


@with_fuse
def test_closing_the_file_flushes_nothing(files: LoggedFiles, tmp_path: Path) -> None:
    with serve_logged(files, tmp_path / "at"):
        for _ in range(3):
            with (tmp_path / "at").open("r+b") as file:
                file.write(b"x" * 4096)
    with WriteLog(files.log) as log:
        assert [entry.is_flush for entry in log.entries] == [False] * 3


@with_fuse
def test_what_is_acknowledged_before_its_flush_has_ended_is_seen_to(
    files: LoggedFiles, tmp_path: Path
) -> None:
    """A hypervisor that returns at once while a thread of its own flushes."""
    files = replace(files, at=tmp_path / "at")
    with serve_logged(files, tmp_path / "at"), logged.open_marker(files, 60.0) as mark:
        descriptor = os.open(tmp_path / "at", os.O_RDWR)
        os.pwrite(descriptor, b"a" * 512, 0)
        flushing = threading.Thread(target=os.fsync, args=(descriptor,))
        flushing.start()
        time.sleep(0.003)
        mark(1)
        flushing.join()
        mark(2)
        os.close(descriptor)
    with WriteLog(files.log) as log:
        assert [entry.mark for entry in log.entries] == [None, 1, None, 2]
        assert [cuts.make_cut_at(log.entries, after, Survival.NONE).kept for after in (2, 4)] == [0, 4]


@with_fuse
def test_a_server_that_hangs_is_ended_and_hangs_nobody_else(files: LoggedFiles, tmp_path: Path) -> None:
    """Who waits for it in the kernel could not be killed either."""
    at = tmp_path / "at"
    with serve_logged(files, at) as kill:
        files = replace(files, at=at, kill=kill)
        with logged.open_marker(files, 1.0) as mark:
            mark(1)
            (server,) = (
                int(folder.name)
                for folder, command in others()
                if SERVER.encode() in command[1:2] and str(at).encode() in command
            )
            os.kill(server, signal.SIGSTOP)
            with pytest.raises(logged.LogHangsError, match="did not accept a mark within 1 s"):
                mark(2)
    assert wait_until(lambda: not mounted(tmp_path), 10)
