"""Troubles of a power cut, for real: no room for its log, a flush that hangs, a daemon that dies, no FUSE."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from guestmark.core.errors import GuestmarkError
from guestmark.disks import logged, loop
from guestmark.disks.logged import SERVER
from guestmark.platforms.base import Machine
from guestmark.powercut.writelog import WriteLog
from guestmark.workloads.base import Workload
from tests.framework.cells import cell_of
from tests.framework.guests import prepared
from tests.framework.processes import others, wait_until

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(bool(logged.explain_no_log()), reason="no image can be logged here"),
    pytest.mark.skipif(bool(loop.explain_no_loop()), reason="nothing can be mounted here"),
]
LIMIT_S = 6.0
_SOME = 20  # records


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A directory with room for the image, and for a few megabytes of log."""
    directory = tmp_path / "small"
    directory.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=72m", "none", str(directory)], check=True)
    yield directory
    subprocess.run(["umount", "-l", str(directory)], check=False, capture_output=True)


def run_with_room(workload: Workload[Any], machine: Machine, location: Path, leave: int | None) -> None:
    if leave is not None:
        there = os.statvfs(location)
        with (location / "filler").open("wb") as filler:
            os.posix_fallocate(filler.fileno(), 0, there.f_bavail * there.f_frsize - leave)
    workload.run(machine)


def trouble(
    platform: str, location: Path, *, records: int, limit_s: float = LIMIT_S, leave: int | None = None
) -> str:
    """What the workload says when its records cannot be written; nothing of it is left then.

    With `leave` the location has so many bytes left when the first one is written.
    """
    factors = {"location": str(location)}
    cell = cell_of(platform, "powercut", factors, records=records, method="replace", states=10)
    with (
        pytest.raises(GuestmarkError) as caught,
        prepared(cell, limit_s=limit_s) as (machine, workload),
    ):
        run_with_room(workload, machine, location, leave)
    assert "\n" not in caught.value.message
    return caught.value.message


def mounts(below: Path) -> list[str]:
    return [line for line in Path("/proc/self/mounts").read_text().splitlines() if f" {below}/" in line]


def count_acknowledged(location: Path) -> int:
    """How many records the log says to be acknowledged; preparing the disk has none."""
    path = next(location.rglob("writes.log"), None)
    if path is None:
        return 0
    try:
        with WriteLog(path) as log:
            return max((entry.mark or 0 for entry in log.entries), default=0)
    except (GuestmarkError, OSError, ValueError):
        return 0  # its end is just being written


def signalled(number: signal.Signals, location: Path) -> threading.Thread:
    """Sends a signal to the daemon once it has logged some records."""

    def wait() -> None:
        wait_until(lambda: count_acknowledged(location) > _SOME, 60)
        for folder, command in others():
            if SERVER.encode() in command[1:2] and any(str(location).encode() in word for word in command):
                os.kill(int(folder.name), number)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("platform", ["uml", "host", "tcg"])
def test_no_room_for_the_log_is_said(platform: str, small: Path) -> None:
    said = trouble(platform, small, records=20_000, limit_s=60, leave=4 << 20)
    assert f"{small}, which holds the image and the log of its writes, is full" in said
    assert wait_until(lambda: not mounts(small), 10)


def test_records_that_are_only_slow_are_not_said_to_hang(tmp_path: Path) -> None:
    said = trouble("host", tmp_path, records=90_000)
    assert "hangs" not in said
    assert f"of 90,000 records were written within {LIMIT_S:g} s" in said
    assert wait_until(lambda: not mounts(tmp_path), 10)


@pytest.mark.parametrize("platform", ["uml", "host", "tcg"])
def test_a_flush_that_hangs_ends_at_the_limit(platform: str, tmp_path: Path) -> None:
    begin = time.monotonic()
    signalled(signal.SIGSTOP, tmp_path)
    said = trouble(platform, tmp_path, records=90_000)
    assert f"not done within {LIMIT_S:g} s: a flush hangs" in said
    assert time.monotonic() - begin < 60
    assert wait_until(lambda: not mounts(tmp_path), 10)


@pytest.mark.parametrize("platform", ["uml", "host"])
def test_a_daemon_that_dies_is_one_line(platform: str, tmp_path: Path) -> None:
    signalled(signal.SIGKILL, tmp_path)
    said = trouble(platform, tmp_path, records=90_000)
    assert "cannot be written" in said
    assert wait_until(lambda: not mounts(tmp_path), 10)


def test_fuse_that_is_not_allowed_is_one_line(tmp_path: Path) -> None:
    """In a mount namespace in which /dev/fuse is another device."""
    location = tmp_path / "images"
    location.mkdir()
    command = [
        sys.executable, "-m", "guestmark", "powercut", "--on", "uml", "--records", "5", "--states", "5", "--set",
        f"location={location}", "--ledger", str(tmp_path / "ledger.sqlite"),
    ]  # fmt: skip
    script = 'mount --bind /dev/null /dev/fuse && exec "$@"'
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh", *command],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    said = " ".join((done.stdout + done.stderr).split())
    assert "the writes to the image cannot be logged" in said
    assert "Traceback" not in said
    assert done.returncode == 3
    assert not mounts(location)
    assert not any(location.iterdir())
