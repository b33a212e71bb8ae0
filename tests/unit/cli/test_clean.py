"""`guestmark clean` removes what is nobody's, and nothing else."""

import contextlib
import fcntl
import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from guestmark.core.keeper import Keeper, keeper
from tests.framework import PACKAGES
from tests.framework.preloaded import call as guestmark
from tests.framework.processes import alive, children, gone, wait_until


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    (tmp_path / "cache" / "guestmark" / "databases").mkdir(parents=True)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    return scratch


def clean(scratch: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return guestmark(
        "clean",
        *arguments,
        TMPDIR=str(scratch),
        XDG_RUNTIME_DIR=str(scratch),
        XDG_CACHE_HOME=str(scratch.parent / "cache"),
        XDG_STATE_HOME=str(scratch.parent),
        COLUMNS="200",
    )


def leave(folder: Path, *names: str) -> list[Path]:
    made = []
    for name in names:
        (folder / name).mkdir()
        (folder / name / "file").write_text("x")
        made.append(folder / name)
    return made


def test_leavings_are_listed_and_then_removed(scratch: Path) -> None:
    left = leave(
        scratch, "guestmark-tcg-a1b2c3d4", "guestmark-disks-0123456789ab", "guestmark-virtiofsd-abcdefgh",
        "guestmark-fleet-0123456789ab", "guestmark-server-0123456789ab", "guestmark-bisect-0123456789ab",
    )  # fmt: skip
    listed = clean(scratch, "--dry-run")
    assert listed.returncode == 0
    for path in left:
        assert f"would remove {path} (" in listed.stdout
        assert path.exists()
    removed = clean(scratch)
    assert removed.returncode == 0
    for path in left:
        assert f"removed {path} (" in removed.stdout
        assert not path.exists()
    assert str(scratch) not in clean(scratch).stdout


def test_what_is_somebodys_stays(scratch: Path) -> None:
    mine = leave(
        scratch, "guestmark-results", "guestmark-tcg", "guestmark-tcg-notes", "other-tcg-a1b2c3d4",
        "guestmark-20261120", "guestmark-examples", "guestmark-measurements", "guestmark-notes001.txt",
    )  # fmt: skip
    (busy,) = leave(scratch, "guestmark-uml-a1b2c3d4")
    held = keeper().directory("tcg", scratch)
    with subprocess.Popen(["sleep", "60"], cwd=busy) as process:
        said = clean(scratch)
        process.kill()
    keeper().remove(held)
    assert str(scratch) not in said.stdout, said.stdout
    assert all(path.exists() for path in (*mine, busy))
    assert f"removed {busy}" in clean(scratch).stdout


@pytest.mark.skipif(os.getuid() != 0, reason="makes another user's directory, which takes root")
def test_another_users_stays(scratch: Path) -> None:
    (theirs,) = leave(scratch, "guestmark-tcg-a1b2c3d4")
    os.chown(theirs, 12345, 12345)
    clean(scratch)
    assert theirs.exists()


def test_half_made_files_of_the_cache_go_when_they_are_old(scratch: Path) -> None:
    cache = scratch.parent / "cache" / "guestmark" / "databases"
    old, new = leave(cache, "0123.x.part", "4567.y.part")
    (whole,) = leave(cache, "89ab")
    for path in (old, whole):
        os.utime(path, (time.time() - 7200,) * 2)
    clean(scratch)
    assert not old.exists()
    assert new.exists()
    assert whole.exists()


def test_other_places_are_looked_at_when_they_are_named(scratch: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (left,) = leave(other, "guestmark-disks-0123456789ab")
    clean(scratch)
    assert left.exists()
    clean(scratch, str(other))
    assert not left.exists()
    assert clean(scratch, str(tmp_path / "none")).returncode == 2


KILLED = """
import os, signal, sys
from guestmark.core.keeper import keeper
if sys.argv[2] == "before":
    os.mkdir = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
path = keeper().directory("tcg", sys.argv[1])
(path / "file").write_text("x")
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_kill_at_any_moment_leaves_nothing(scratch: Path, when: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(PACKAGES)}
    done = subprocess.run([sys.executable, "-c", KILLED, scratch, when], env=environment, check=False)
    assert done.returncode == -9
    assert wait_until(lambda: not list(scratch.iterdir()), 5)


def test_a_keeper_that_was_killed_is_replaced(scratch: Path) -> None:
    mine = Keeper()
    first = mine.directory("tcg", scratch)
    assert mine._process is not None
    mine._process.kill()
    mine._process.wait()
    second = mine.directory("tcg", scratch)
    assert first.exists()
    os.close(mine.handles[0])  # as the end of this process would
    assert wait_until(lambda: not list(scratch.iterdir()), 5), second


def test_what_is_held_by_a_supervisor_stays_until_that_has_ended(scratch: Path) -> None:
    mine = Keeper()
    path = mine.directory("tcg", scratch)
    with subprocess.Popen(["sleep", "60"], pass_fds=(mine.handles[0],)) as process:
        os.close(mine.handles[0])
        time.sleep(0.3)
        assert path.exists()
        process.kill()
    assert wait_until(lambda: not path.exists(), 5)


def _groups() -> list[Path]:
    return [path for path in Path("/sys/fs/cgroup").glob("*/cgroup.procs") if os.access(path, os.W_OK)]


@pytest.mark.skipif(os.getuid() != 0 or not _groups(), reason="makes control groups")
def test_control_groups_that_nobody_has_go(scratch: Path) -> None:
    parent = _groups()[0].parent
    left, busy = (parent / f"guestmark-machine-{secrets.token_hex(6)}" for _ in range(2))
    for path in (left, busy):
        path.mkdir()
        if path == busy:
            descriptor = os.open(path, os.O_RDONLY)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
    try:
        assert wait_until(lambda: f"removed {left}" in clean(scratch).stdout)
        assert not left.exists()
        assert busy.exists()
    finally:
        busy.rmdir()
        os.close(descriptor)


_STOPPED = """
import os, subprocess, sys
from guestmark.agent.binary import build_supervise_command
theirs, ours = os.pipe()
command = build_supervise_command(["sleep", "300"], lifeline_fd=theirs)
process = subprocess.Popen(command, pass_fds=(theirs,), start_new_session=True)
print(process.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("stopped", [True, False])
def test_a_stopped_supervisor_without_a_controller_ends(scratch: Path, stopped: bool) -> None:
    environment = {**os.environ, "PYTHONPATH": str(PACKAGES)}
    with subprocess.Popen(
        [sys.executable, "-c", _STOPPED], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as controller:
        assert controller.stdout is not None
        pid = int(controller.stdout.readline())
        assert wait_until(lambda: children(pid))
        known = [pid, *children(pid)]
        if stopped:
            os.kill(pid, signal.SIGSTOP)
            assert f"process {pid}" not in clean(scratch).stdout  # it has its controller
            assert alive(pid)
        controller.kill()
    if stopped:
        assert f"would end process {pid}" in clean(scratch, "--dry-run").stdout
        assert f"ended process {pid}" in clean(scratch).stdout
    assert gone(*known)
    assert f"process {pid}" not in clean(scratch).stdout


def test_what_a_lost_worker_of_a_fleet_has_left_ends(scratch: Path) -> None:
    environment = {**os.environ, "GUESTMARK_FLEET_MACHINE": "lab1"}
    done = subprocess.run(
        [
            "sh",
            "-c",
            "setsid sh -c 'sleep 300; : from multiprocessing.spawn import spawn_main' >/dev/null 2>&1 & echo $!",
        ],
        env=environment,
        capture_output=True,
        check=True,
    )
    pid = int(done.stdout)
    try:
        assert f"ended process {pid}" in clean(scratch).stdout
        assert gone(pid)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # what it had started, too


def test_all_empties_the_cache_and_names_what_stays(scratch: Path) -> None:
    cache, key = scratch.parent / "cache" / "guestmark", scratch.parent / "guestmark" / "key"
    (cache / "kernels").mkdir()
    (cache / "kernels" / "vmlinux").write_text("x")
    key.parent.mkdir()
    key.write_text("x")
    assert f"would remove {cache}\n" in clean(scratch, "--all", "--dry-run").stdout
    assert cache.exists()
    removed = clean(scratch, "--all")
    assert removed.returncode == 0
    assert f"removed {cache}\n" in removed.stdout
    assert not cache.exists()
    assert key.exists()
    assert f"{key.parent} is kept: keys" in removed.stderr
    assert "rm -r " in removed.stderr
    assert "nothing is left behind" not in removed.stderr  # as it lists what is


def test_all_names_the_packages_that_set_up_has_installed(tmp_path: Path) -> None:
    """As set-up has written them down, but for those that are gone."""
    checkout = tmp_path / "checkout"
    (checkout / ".setup").mkdir(parents=True)
    (checkout / ".setup" / "packages").write_text("coreutils\nno-such-package\ncoreutils\ndash\n")
    script = (
        "from pathlib import Path; from guestmark.cli.do import clean\n"
        f"clean.find_checkout = lambda: Path({str(checkout)!r})\n"
        "clean._report_kept_files()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "has installed 2 packages: coreutils dash" in done.stderr
    assert "apt-get purge --autoremove coreutils dash" in done.stderr
