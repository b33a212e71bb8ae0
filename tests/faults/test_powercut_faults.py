"""What may go wrong around a log of writes: each is one line, and nothing stays mounted."""

import os
import signal
from pathlib import Path

import pytest

from guestmark.core.errors import MachineError
from guestmark.disks import logged
from guestmark.disks.daemon import DAEMON
from guestmark.disks.logged import Logged, exported, unmount_below
from tests.framework.processes import others, wait_until

with_fuse = pytest.mark.skipif(bool(logged.why_not()), reason="no image can be logged here")


@pytest.fixture
def files(tmp_path: Path) -> Logged:
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(1 << 20)
    return Logged(tmp_path / "base", tmp_path / "log", image)


def mounted(below: Path) -> bool:
    return f" {below}/" in Path("/proc/self/mountinfo").read_text()


def readable(path: Path) -> bool:
    try:
        path.read_bytes()
    except OSError:
        return False
    return True


def test_a_daemon_that_may_not_mount_is_one_line(
    files: Logged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = tmp_path / "bin" / DAEMON
    daemon.parent.mkdir()
    daemon.write_text("#!/bin/sh\necho 'fuse: device not found' >&2\nexit 1\n")
    daemon.chmod(0o755)
    monkeypatch.setenv("PATH", f"{daemon.parent}:{os.environ['PATH']}")
    with (
        pytest.raises(MachineError, match="cannot be logged: fuse: device not found") as caught,
        exported(files, tmp_path / "at"),
    ):
        pytest.fail("nothing is mounted")
    assert "/dev/fuse" in caught.value.hint


def test_a_missing_daemon_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("guestmark.disks.logged.DAEMON", "no-such-daemon")
    assert "no-such-daemon is not installed" in logged.why_not()


@with_fuse
def test_writes_are_logged_and_the_mount_ends_with_its_context(files: Logged, tmp_path: Path) -> None:
    at = tmp_path / "at"
    with exported(files, at):
        with at.open("r+b", buffering=0) as file:
            file.write(b"x" * 4096)
            os.fsync(file.fileno())
        assert mounted(tmp_path)
    assert not mounted(tmp_path)
    assert files.image.read_bytes()[:4096] == b"x" * 4096
    assert b"x" * 4096 in files.log.read_bytes()


@with_fuse
def test_a_killed_daemon_leaves_no_mount(files: Logged, tmp_path: Path) -> None:
    with exported(files, tmp_path / "at"):
        for folder, command in others():
            if command[0].endswith(DAEMON.encode()) and any(str(tmp_path).encode() in w for w in command):
                os.kill(int(folder.name), signal.SIGKILL)
        assert wait_until(lambda: not readable(tmp_path / "at"), 5)
    assert wait_until(lambda: not mounted(tmp_path), 5)
    unmount_below(tmp_path)  # nothing is there: no error
