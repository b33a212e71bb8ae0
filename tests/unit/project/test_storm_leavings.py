"""A storm sees what is left, of every kind: planted here."""

import contextlib
import ctypes
import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from guestmark.agent.confinement import Confinement
from guestmark.core.errors import GuestmarkError
from guestmark.core.own_program import find_agent_binary
from tests.framework.command_line import CommandLine
from tests.framework.guests import start
from tests.framework.processes import called, kill, others, started_at, wait_until
from tests.storm import leavings
from tests.storm.ways import family

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="mounts and loop devices take root")
_NO_ARGUMENTS = """
import ctypes, signal
lines = [line.split() for line in open("/proc/self/maps")]
begin, end = (int(word, 16) for word in next(line[0] for line in lines if line[-1] == "[stack]").split("-"))
start = int(open("/proc/self/stat").read().rpartition(")")[2].split()[45])
libc = ctypes.CDLL(None)
page = start & -4096
print(flush=True)
libc.munmap(ctypes.c_void_p(page), ctypes.c_size_t(end - page))
print(flush=True)
signal.pause()
"""


def test_a_process_with_another_parent() -> None:
    mark = secrets.token_hex(8)
    environment = {**os.environ, "GUESTMARK_STORM": mark}
    done = subprocess.run(
        ["sh", "-c", "setsid sleep 60 >/dev/null 2>&1 & echo $!"],
        env=environment,
        capture_output=True,
        check=True,
    )
    pid = int(done.stdout)
    try:
        assert Path(f"/proc/{pid}/status").read_text().split("PPid:")[1].split()[0] != str(os.getpid())
        sought = f"GUESTMARK_STORM={mark}".encode()
        assert wait_until(lambda: [found for found, _ in leavings.processes(sought, {})] == [pid])
    finally:
        kill([pid], signal.SIGKILL)


def test_a_process_that_has_unmapped_its_arguments() -> None:
    with subprocess.Popen([sys.executable, "-c", _NO_ARGUMENTS], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.readline()
        try:
            assert Path(f"/proc/{process.pid}/cmdline").read_bytes() == b""
            known = {process.pid: started_at(process.pid)}
            assert [pid for pid, _ in leavings.processes(b"nobody", known)] == [process.pid]
        finally:
            process.kill()


def test_a_directory_in_shared_memory() -> None:
    planted = Path("/dev/shm", f"guestmark-memory-{secrets.token_hex(6)}")
    planted.mkdir()
    try:
        assert planted in leavings.nobodys()
    finally:
        planted.rmdir()


@needs_root
def test_a_control_group() -> None:
    parents = [path for path in Path("/sys/fs/cgroup").glob("**/cgroup.procs") if os.access(path, os.W_OK)]
    if not parents:
        pytest.skip("no control groups here")
    planted = parents[0].parent / f"guestmark-machine-{secrets.token_hex(6)}"
    planted.mkdir()
    try:
        assert planted in leavings.nobodys()
    finally:
        planted.rmdir()


def test_whose_control_group_it_is(guestmark: CommandLine) -> None:
    """The first thing that a run makes is announced by it, and by no other."""
    with guestmark.running("exec", "--on", "uml", "--", "sleep", "60"):
        found: set[Path] = set()

        def all_announced() -> bool:
            found.update(leavings.announced(guestmark.folder))
            return any("guestmark-uml-" in path.name for path in found)

        assert wait_until(all_announced, 60)
        assert leavings.announced(guestmark.folder / "state") == set()


@needs_root
def test_a_mount(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "planted", str(place)], check=True)
    try:
        assert leavings.mounts(tmp_path) == [f"a mount at {place}"]
    finally:
        subprocess.run(["umount", str(place)], check=True)
    assert leavings.mounts(tmp_path) == []


@needs_root
def test_a_loop_device(tmp_path: Path) -> None:
    image = tmp_path / "image"
    image.write_bytes(bytes(1 << 20))
    made = subprocess.run(["losetup", "-f", "--show", str(image)], capture_output=True, text=True, check=True)
    device = made.stdout.strip()
    try:
        assert leavings.loops(tmp_path) == [f"the loop device {Path(device).name}"]
    finally:
        subprocess.run(["losetup", "-d", device], check=True)


def test_a_queue() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    queue = libc.msgget(0, 0o1600)
    try:
        assert libc.msgsnd(queue, ctypes.create_string_buffer(b"\1" + bytes(15)), 1, 0) == 0
        assert leavings.queues({os.getpid(): started_at(os.getpid())}) == [f"msg {queue}"]
    finally:
        libc.msgctl(queue, 0, None)


def status(pid: int) -> str:
    """Empty for a process that is gone."""
    try:
        return Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def test_helpers_of_a_user_mode_linux_that_nothing_confines(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a killed supervisor left before there were cages; storms could see it, and seldom killed that supervisor."""
    traces = [str(find_agent_binary()), "traces"]
    monkeypatch.setattr(Confinement, "wrap_command", lambda _, command, *__, **___: [*traces, *command])
    names: set[bytes] = set()  # of the machine, on the command line of all its processes
    try:
        with contextlib.suppress(GuestmarkError), start("uml") as machine:
            # Other tests of this process may have left an outer guest running, for the next of them.
            supervised = {pid: family(pid) for pid in family(os.getpid()) if "supervise" in called(pid)}
            supervisor, known = next(
                (pid, below) for pid, below in supervised.items() if machine.vmm_pid in below
            )
            of_machine = {pid: at for pid, at in known.items() if "linux.uml" in called(pid)}
            names = {
                word
                for at, words in others()
                if int(at.name) in of_machine
                for word in words
                if b"umid=" in word
            }
            # Whatever one of them does meanwhile might end the others: all stop, first those that trace.
            traced = [pid for pid in of_machine if (found := status(pid)) and "TracerPid:\t0\n" not in found]
            kill([pid for pid in of_machine if pid not in traced], signal.SIGSTOP)
            kill(traced, signal.SIGSTOP)
            kill([supervisor], signal.SIGKILL)
            assert wait_until(lambda: len([*leavings.processes(b"nobody", of_machine)]) < len(of_machine))
            left = [command for _, command in leavings.processes(b"nobody", of_machine)]
            assert left
            assert all("linux.uml" in command for command in left)
    finally:
        kill([int(at.name) for at, words in others() if names.intersection(words)], signal.SIGKILL)
