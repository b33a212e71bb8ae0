"""The supervisor: nothing of a command outlives its controller, however that ends."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from guestmark.agent.binary import build_supervise_command
from guestmark.core.own_program import find_agent_binary
from tests.framework import PACKAGES
from tests.framework.processes import alive, gone, wait_until


def wait_for(condition: Callable[[], object]) -> None:
    assert wait_until(condition), "did not happen within 20 s"


class Supervised:
    """A supervisor that runs a shell script, and the lifeline's other end."""

    def __init__(
        self,
        script: str,
        *,
        remove: tuple[str, ...] = (),
        grace_ms: int = 0,
        spare_keepers: bool = False,
        keep_started: bool = False,
    ) -> None:
        read, self.lifeline = os.pipe()
        command = build_supervise_command(
            ["sh", "-c", script],
            lifeline_fd=read,
            remove=remove,
            grace_ms=grace_ms,
            spare_keepers=spare_keepers,
            keep_started=keep_started,
        )
        self.process = subprocess.Popen(command, pass_fds=[read], start_new_session=True)
        os.close(read)

    def let_go(self) -> None:
        os.close(self.lifeline)


def family(pids: Path) -> str:
    """A script with a child, one in another session, and a daemon; their pids go to the file, then it waits."""
    return (
        f"sleep 300 & echo $! >> {pids}; setsid sleep 300 & echo $! >> {pids}; "
        f"(setsid sh -c 'echo $$ >> {pids}; exec sleep 300' &); echo $$ >> {pids}; wait"
    )


def members(pids: Path, count: int = 4) -> list[int]:
    wait_for(lambda: pids.exists() and len(pids.read_text().split()) == count)
    return [int(word) for word in pids.read_text().split()]


@pytest.mark.parametrize("keep_started", [True, False])
def test_a_commands_own_end_leaves_what_it_has_started_only_where_asked_for(
    tmp_path: Path, keep_started: bool
) -> None:
    pids = tmp_path / "pids"
    started = (
        f"(setsid sh -c 'echo $$ >> {pids}; exec sleep 300' &); until [ -s {pids} ]; do sleep 0.01; done"
    )
    run = Supervised(f"{started}; exit 7", keep_started=keep_started)
    assert run.process.wait(20) == 7
    (daemon,) = members(pids, 1)
    assert alive(daemon) == keep_started
    if keep_started:
        os.kill(daemon, signal.SIGKILL)


def test_an_end_by_the_controller_leaves_nothing_whatever_was_asked_for(tmp_path: Path) -> None:
    run = Supervised(family(tmp_path / "pids"), keep_started=True)
    found = members(tmp_path / "pids")
    run.let_go()
    run.process.wait(20)
    assert gone(*found)


@pytest.mark.parametrize("how", ["lifeline", signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_the_whole_family_and_the_files_go(tmp_path: Path, how: str | signal.Signals) -> None:
    scratch = tmp_path / "guestmark-scratch"
    (scratch / "deep").mkdir(parents=True)
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("x")
    (scratch / "deep" / "link").symlink_to(precious)
    link = tmp_path / "guestmark-link"
    link.symlink_to(precious)
    socket_file = tmp_path / "guestmark-file"
    socket_file.write_text("")
    pids = tmp_path / "pids"
    run = Supervised(
        family(pids), remove=(str(scratch), str(link), str(socket_file), str(tmp_path / "guestmark-none"))
    )
    found = members(pids)
    assert all(alive(pid) for pid in found)
    if isinstance(how, signal.Signals):
        os.kill(run.process.pid, how)
    else:
        run.let_go()
    assert run.process.wait(20) == 128 + signal.SIGKILL
    assert not any(alive(pid) for pid in found)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pids", "precious"]
    assert (precious / "file").exists()
    if isinstance(how, signal.Signals):
        run.let_go()


def test_the_commands_own_end_takes_its_strays_along(tmp_path: Path) -> None:
    scratch = tmp_path / "guestmark-scratch"
    scratch.mkdir()
    pids = tmp_path / "pids"
    script = (
        family(pids).removesuffix("wait") + f"while [ $(wc -l < {pids}) -lt 4 ]; do sleep 0.01; done; exit 5"
    )
    run = Supervised(script, remove=(str(scratch),))
    assert run.process.wait(20) == 5
    assert not any(alive(pid) for pid in members(pids))
    assert not scratch.exists()
    run.let_go()


def test_a_signals_status_is_passed_on() -> None:
    run = Supervised("kill -USR1 $$")
    assert run.process.wait(20) == 128 + signal.SIGUSR1
    run.let_go()


def test_a_period_of_grace(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    run = Supervised(f"trap 'exit 3' TERM; touch {ready}; while :; do sleep 0.02; done", grace_ms=15_000)
    wait_for(ready.exists)
    run.let_go()
    assert run.process.wait(20) == 3


def test_grace_is_not_for_ever(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    run = Supervised(f"trap '' TERM; touch {ready}; while :; do sleep 0.02; done", grace_ms=100)
    wait_for(ready.exists)
    run.let_go()
    assert run.process.wait(20) == 128 + signal.SIGKILL


def test_a_controller_killed_with_sigkill_leaves_nothing(tmp_path: Path) -> None:
    scratch = tmp_path / "guestmark-scratch"
    scratch.mkdir()
    pids = tmp_path / "pids"
    code = (
        "import os, subprocess, time\n"
        "from guestmark.agent.binary import build_supervise_command\n"
        "read, write = os.pipe()\n"
        f"command = build_supervise_command(['sh', '-c', {family(pids)!r}], lifeline_fd=read, "
        f"remove=[{str(scratch)!r}])\n"
        "subprocess.Popen(command, pass_fds=[read], start_new_session=True)\n"
        "os.close(read)\n"
        "time.sleep(100)\n"
    )
    controller = subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(PACKAGES)}
    )
    found = members(pids)
    controller.kill()
    controller.wait()
    assert gone(*found, seconds=20)
    wait_for(lambda: not scratch.exists())


def test_a_killed_supervisor_takes_the_command_along(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    run = Supervised(f"echo $$ > {pids}; exec sleep 300")
    (pid,) = members(pids, 1)
    run.process.kill()
    run.process.wait()
    assert gone(pid, seconds=20)
    run.let_go()


def test_the_command_gets_other_descriptors_but_not_the_lifeline() -> None:
    read, write = os.pipe()
    passed = os.open("/dev/null", os.O_RDONLY)
    command = build_supervise_command(["sh", "-c", "ls -l /proc/self/fd"], lifeline_fd=read)
    listed = subprocess.run(
        command, pass_fds=[read, passed], capture_output=True, text=True, timeout=20, check=True
    )
    numbers = {line.split()[8]: line.split()[10] for line in listed.stdout.splitlines()[1:]}
    assert numbers[str(passed)] == "/dev/null"
    assert str(read) not in numbers or "pipe" not in numbers[str(read)]
    for fd in (read, write, passed):
        os.close(fd)


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["--", "true"], 125, "lifeline"),
        (["--lifeline", "99", "--", "true"], 125, "not an open"),
        (["--lifeline", "FD", "--remove", "/etc", "--", "true"], 125, "guestmark-"),
        (["--lifeline", "FD", "--", "/no/such/program"], 127, "No such file"),
        (["--lifeline", "FD", "--", "/etc/passwd"], 126, "denied"),
        (["--lifeline", "FD"], 125, "no command"),
    ],
)
def test_its_own_failures(arguments: list[str], status: int, says: str) -> None:
    read, write = os.pipe()
    words = [str(read) if word == "FD" else word for word in arguments]
    command = [str(find_agent_binary()), "supervise", *words]
    result = subprocess.run(command, pass_fds=[read], capture_output=True, text=True, timeout=20, check=False)
    assert result.returncode == status
    assert says in result.stderr
    assert result.stderr.startswith("guestmark-agent: ")
    os.close(read)
    os.close(write)


@pytest.mark.parametrize("name", ["keep", "other"])
def test_keepers_that_are_spared_remove_what_they_were_told(tmp_path: Path, name: str) -> None:
    """A guestmark under the supervisor is killed with all of its processes but its keeper; names spare nobody."""
    made, pids = tmp_path / "guestmark-made", tmp_path / "pids"
    made.mkdir()
    keeper = {"keep": f"{find_agent_binary()} keep --lifeline 6", "other": "cat keep"}[name]
    run = Supervised(
        f"cd {tmp_path}; mkfifo line keep; (setsid {keeper} 6<line & echo $! >> pids); exec 7>line; "
        f"printf '+%s\\0' {made} >&7; echo $$ >> pids; sleep 300",
        spare_keepers=True,
    )
    keeping, shell = members(pids, 2)
    command = Path(f"/proc/{keeping}/cmdline")
    wait_for(lambda: command.read_bytes().split(b"\0")[1:2] == [b"keep"])  # nothing while it becomes it
    run.let_go()
    assert gone(keeping, shell)
    assert run.process.wait(10) == 128 + signal.SIGKILL
    assert wait_until(lambda: not made.exists(), 5) == (name == "keep")


_POOL = """
import multiprocessing, os, sys, time
queue = multiprocessing.get_context("spawn").Queue()
print(queue._rlock._semlock.name, flush=True)
time.sleep(300)
"""


def test_semaphores_of_a_pool_that_is_ended_go(tmp_path: Path) -> None:
    """Python's tracker of them is a child of the pool, and removes them when that has ended."""
    (tmp_path / "pool.py").write_text(_POOL)
    said = tmp_path / "said"
    run = Supervised(f"{sys.executable} {tmp_path}/pool.py > {said}", spare_keepers=True)
    wait_for(lambda: said.exists() and said.read_text().endswith("\n"))
    semaphore = Path(f"/dev/shm/sem.{said.read_text().strip().lstrip('/')}")
    assert semaphore.exists()
    run.let_go()
    run.process.wait(10)
    assert wait_until(lambda: not semaphore.exists(), 5)
