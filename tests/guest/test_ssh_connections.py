"""Many trials over one connection to another machine: each as fresh as with one of its own, and nothing stays."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from guestmark.core.errors import MachineError
from guestmark.core.machine_facts import RemoteMachine
from guestmark.platforms import registry
from guestmark.platforms.exclusive import InUseError, LockPolicy, lock_machines
from guestmark.platforms.ssh.platform import Remote
from guestmark.platforms.ssh.session import MOST_KEPT
from tests.framework.command_line import CommandLine
from tests.framework.far import Relay, relay
from tests.framework.guests import start
from tests.framework.processes import wait_until
from tests.framework.sshd import Sshd, sshd


@dataclass(frozen=True, slots=True)
class There:
    """A machine, the way to it, and where it has what is kept and what is not."""

    server: Sshd
    way: Relay
    scratch: Path
    kept: Path


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[There]:
    directory = tmp_path / "sshd"
    scratch = directory / "scratch"
    scratch.mkdir(parents=True)
    places = {"TMPDIR": str(scratch), "GUESTMARK_LOCK": str(tmp_path / "lock")}
    with sshd(directory, places) as server, relay((server.address, server.port)) as way:
        for file in (server.config, directory / "known"):
            file.write_text(file.read_text().replace(str(server.port), str(way.port)))
        monkeypatch.setenv("GUESTMARK_SSH", server.client)
        monkeypatch.setattr(registry, "_platforms", {})
        yield There(server, way, scratch, directory / "cache" / "guestmark" / "agents")
        assert wait_until(lambda: not list(scratch.iterdir()), 10)


@contextlib.contextmanager
def trial() -> Iterator[Remote]:
    """What a trial does before it measures."""
    with start("ssh:lab1") as machine:
        assert isinstance(machine, Remote)
        assert isinstance(machine.attest(), RemoteMachine)
        user = machine.caller()
        found = machine.agent.which("sleep", path=user.env["PATH"], cwd=user.cwd)
        machine.agent.sha256(found)
        yield machine


def pids(machine: Remote) -> tuple[int, int]:
    """Of the trial's agent, and of what started that."""
    pid = machine.agent.hello().pid
    return pid, int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_trials_share_a_connection_and_nothing_else(there: There) -> None:
    with lock_machines(LockPolicy("mine"), here=False):
        with trial() as machine:
            agent, keeper = pids(machine)
            left = machine.agent.background(["sh", "-c", "setsid sleep 300 & exec sleep 300"])
            assert left.is_running
            machine.agent.write_file(f"{machine.scratch}/data", b"x")
            machine.agent.mkdir(f"{machine.scratch}/closed", mode=0o000)
            assert wait_until(lambda: len(of_session(keeper)) >= 3, 5)
        with trial() as machine:
            assert pids(machine)[1] == keeper
            assert pids(machine)[0] != agent
            assert of_session(keeper) == [pids(machine)[0]]
            assert list(Path(machine.scratch).iterdir()) == []
            assert not Path(f"/proc/{agent}").exists()
    assert wait_until(lambda: not Path(f"/proc/{keeper}").exists(), 5)


def of_session(keeper: int) -> list[int]:
    """All processes below one."""
    listed = Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()
    return [pid for child in map(int, listed) for pid in (child, *of_session(child))]


def test_a_trial_is_two_round_trips_and_a_word_at_its_end(there: There) -> None:
    there.way.one_way_s = 0.03  # so far that the clock is read once, with all that is asked ahead
    with lock_machines(LockPolicy("mine"), here=False):
        turns = []
        for _ in range(4):
            before = there.way.turns
            with trial() as machine:
                machine.agent.exec(["sleep", "0.05"], timeout_s=10)
                machine.remarks()
            turns.append(there.way.turns - before)
    assert max(turns[1:]) == 3  # two where what was said meanwhile comes at once


def test_nothing_is_answered_ahead_while_others_measure(there: There, tmp_path: Path) -> None:
    with lock_machines(LockPolicy("mine", wait=False), here=False):
        with trial() as machine:
            agent, _ = pids(machine)
        assert wait_until(lambda: not Path(f"/proc/{agent}").exists(), 5)  # which held the lock
        with (tmp_path / "lock").open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.truncate()  # or it says that it is us
            with pytest.raises(InUseError, match="ssh:lab1 is in use by "), trial():
                raise AssertionError("it was measured while somebody else measured")
        with trial() as machine:
            assert machine.agent.exec(["true"], timeout_s=10).ok


def test_the_agent_is_kept_and_a_damaged_one_is_not_run(there: There) -> None:
    with trial():
        pass
    (kept,) = there.kept.iterdir()
    assert kept.stat().st_mode & 0o077 == 0
    kept.write_bytes(b"#!/bin/sh\nexit 1\n")
    with trial():
        pass
    assert kept.stat().st_size > 100_000


def test_only_so_many_are_kept(there: There) -> None:
    there.kept.mkdir(parents=True)
    for number in range(9):
        file = there.kept / f"old{number}"
        file.touch()
        os.utime(file, (number, number))
    with trial():
        pass
    names = {file.name for file in there.kept.iterdir()}
    assert len(names) == MOST_KEPT
    assert {"old8", "old7", "old6"} < names


def test_a_home_that_cannot_be_written_is_no_fault(there: There) -> None:
    there.kept.parent.parent.write_text("no directory")
    with trial() as machine:
        assert machine.agent.exec(["true"], timeout_s=10).ok
    assert there.kept.parent.parent.read_text() == "no directory"


@pytest.mark.skipif(os.getuid() != 0, reason="mounting needs root")
def test_a_full_home_is_no_fault_and_has_nothing_half_made(there: There) -> None:
    home = there.kept.parent.parent
    home.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", home], check=True)
    try:
        for _ in range(2):
            with trial() as machine:
                assert machine.agent.exec(["true"], timeout_s=10).ok
        assert list(home.iterdir()) == []
    finally:
        subprocess.run(["umount", home], check=True)


def test_a_connection_that_was_cut_between_trials_costs_nothing(there: There) -> None:
    with lock_machines(LockPolicy("mine"), here=False):
        with trial():
            pass
        there.way.cut()
        with trial() as machine:
            assert machine.agent.exec(["true"], timeout_s=10).ok


def test_a_connection_that_is_cut_in_a_trial_costs_that(there: There) -> None:
    with lock_machines(LockPolicy("mine"), here=False):
        with trial():
            pass
        agents = []

        def cut() -> None:
            with trial() as machine:
                agents.append(pids(machine)[0])
                there.way.cut()
                machine.agent.exec(["sleep", "5"], timeout_s=10)

        with pytest.raises(MachineError, match="the connection to lab1 was lost") as caught:
            cut()
        assert "\n" not in caught.value.message
        assert wait_until(lambda: not Path(f"/proc/{agents[0]}").exists(), 5)
        with trial() as machine:
            assert machine.agent.exec(["true"], timeout_s=10).ok


@pytest.mark.parametrize("which", [0, 1])
def test_whichever_of_its_processes_is_killed_nothing_stays(there: There, which: int) -> None:
    """The trial's agent, or what starts those: the other one removes what the trial has started."""
    with lock_machines(LockPolicy("mine"), here=False):
        with trial():
            pass
        started: list[int] = []

        def kill() -> None:
            with trial() as machine:
                victims = pids(machine)
                machine.agent.background(["sh", "-c", "setsid sleep 300 & sleep 300"])
                assert wait_until(lambda: len(of_session(victims[1])) >= 3, 5)
                started.extend(of_session(victims[1]))
                os.kill(victims[which], signal.SIGKILL)
                machine.agent.exec(["sleep", "5"], timeout_s=10)

        with pytest.raises(MachineError, match="the connection to lab1 was lost"):
            kill()
        assert wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in started), 10)
        with trial() as machine:
            assert machine.agent.exec(["true"], timeout_s=10).ok


def test_clean_removes_what_is_kept_and_what_a_crash_has_left(there: There, guestmark: CommandLine) -> None:
    with trial():
        pass
    (kept,) = there.kept.iterdir()
    crashed = there.scratch / "guestmark-agent-0123456789abcdef-4194999"
    crashed.mkdir()
    guestmark.environment["GUESTMARK_SSH"] = there.server.client
    said = guestmark("clean", "--on", "ssh:lab1", "--dry-run").stdout
    assert f"would remove {kept} on ssh:lab1" in said
    assert kept.exists()
    done = guestmark("clean", "--on", "ssh:lab1")
    assert done.status == 0, done.stderr
    assert f"removed {kept} on ssh:lab1" in done.stdout
    assert f"removed {crashed} on ssh:lab1" in done.stdout
    assert not there.kept.exists()
    assert "nothing is left behind on ssh:lab1" in guestmark("clean", "--on", "ssh:lab1").stderr


def test_clean_spares_what_is_in_use(there: There, guestmark: CommandLine) -> None:
    guestmark.environment["GUESTMARK_SSH"] = there.server.client
    with trial() as machine:
        assert guestmark("clean", "--on", "ssh:lab1").status == 0
        assert Path(machine.scratch).exists()
        assert machine.agent.exec(["true"], timeout_s=10).ok
