"""Two guestmarks never measure on one machine at once: who waits, what is said, and when it goes on."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from guestmark.core.errors import GuestmarkError
from guestmark.engine.audience import hold_machines
from guestmark.platforms import exclusive
from guestmark.platforms.exclusive import (
    InUseError,
    LockHolder,
    LockPolicy,
    find_lock_file,
    lock_machines,
    lock_remote,
)
from tests.framework.cells import cell, plan_of
from tests.framework.command_line import CommandLine
from tests.framework.guests import start
from tests.framework.processes import wait_until


@pytest.fixture
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The lock of this machine, for this test alone."""
    path = tmp_path / "lock"
    monkeypatch.setenv(exclusive.LOCK_VARIABLE, str(path))
    return path


@pytest.fixture
def held(guestmark: CommandLine, lock: Path) -> Iterator[int]:
    """A guestmark that measures for as long as the test wants; its process id."""
    environment = {exclusive.LOCK_VARIABLE: str(lock)}
    with guestmark.running("exec", "--blocks", 1, "--", "sleep", "60", env=environment) as process:
        assert wait_until(lambda: lock.exists() and bool(lock.read_bytes()), 20)
        yield process.pid


@pytest.mark.parametrize(("network", "in_use"), [("none", False), ("existing", True)])
def test_this_host_is_in_use_while_another_machine_connects_to_it(
    lock: Path, network: str, in_use: bool
) -> None:
    plan = plan_of(cell("ssh:lab1", "network", network=network))
    with hold_machines(plan, print, wait=False):
        assert (lock.exists() and bool(lock.read_bytes())) is in_use


def test_the_machine_is_in_use(guestmark: CommandLine, lock: Path, held: int) -> None:
    environment = {exclusive.LOCK_VARIABLE: str(lock)}
    refused = guestmark("exec", "--no-wait", "--", "true", env=environment)
    assert refused.status == 3
    assert f"this machine is in use by process {held} of " in refused.stderr
    assert ": exec" in refused.stderr
    assert not guestmark.trials_stored()
    with guestmark.running("exec", "--blocks", 1, "--", "true", env=environment) as waiting:
        assert waiting.stderr is not None
        assert (
            f"waiting for this machine, which is in use by process {held}".encode()
            in waiting.stderr.readline()
        )
        assert not guestmark.trials_stored()
        os.kill(held, signal.SIGKILL)  # however the holder ends, its lock is free
        assert waiting.wait(30) == 0
    assert guestmark.trials_stored() == 1


def test_waiting_can_be_interrupted(guestmark: CommandLine, lock: Path, held: int) -> None:
    with guestmark.running("exec", "--", "true", env={exclusive.LOCK_VARIABLE: str(lock)}) as waiting:
        assert waiting.stderr is not None
        assert b"waiting for this machine" in waiting.stderr.readline()
        waiting.send_signal(signal.SIGINT)
        assert waiting.wait(10) == 130


def test_an_agent_holds_the_same_lock(lock: Path) -> None:
    theirs = json.dumps(
        {"pid": 4711, "user": "ann", "host": "desk", "since": 1.0, "what": "upload", "token": "x"}
    )
    with start("host") as machine:
        assert machine.agent.lock(theirs.encode()).held
        assert machine.agent.lock(theirs.encode()).held  # it is still ours
        with (
            pytest.raises(
                InUseError, match=r"in use by process 4711 of ann on desk, since 1970-01-01 .*: upload$"
            ),
            lock_machines(LockPolicy("mine", wait=False), here=True),
        ):
            pass
        with (
            start("host") as other,
            lock_machines(LockPolicy("mine", wait=False), here=False),
            pytest.raises(InUseError, match="lab1 is in use by process 4711"),
        ):
            lock_remote(other.agent, "lab1", exclusive.encode_own_holder())
    with lock_machines(LockPolicy("mine", wait=False), here=True):
        assert LockHolder.read(lock.read_bytes()).is_us


def test_a_machine_that_is_this_host_is_locked_once(lock: Path) -> None:
    with lock_machines(LockPolicy("mine", wait=False), here=True), start("host") as machine:
        lock_remote(machine.agent, "ssh:this-host", exclusive.encode_own_holder())


def test_a_measured_guestmark_does_not_wait_for_what_measures_it(guestmark: CommandLine, lock: Path) -> None:
    inner = (
        "sh",
        "-c",
        "exec $0 -m guestmark exec --no-wait --quiet --ledger inner.sqlite --blocks 1 -- true",
    )
    command = (*inner, sys.executable)
    done = guestmark(
        "exec", "--blocks", 1, "--warmup", 0, "--", *command, env={exclusive.LOCK_VARIABLE: str(lock)}
    )
    assert done.status == 0, done.stderr


def test_what_a_lock_says_is_not_trusted(lock: Path) -> None:
    lock.write_bytes(b"\xff" * 9000)
    with lock_machines(LockPolicy("mine", wait=False), here=True):
        assert json.loads(lock.read_bytes())["what"] == "mine"
    hostile = LockHolder(1, "\x1b[2J", "host", 1e300, "x", "")
    assert "\x1b" not in str(hostile)
    assert str(LockHolder.read(b"[1,2]")) == "another guestmark"


def test_a_link_is_not_followed(lock: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    lock.symlink_to(victim)
    with (
        pytest.raises(GuestmarkError, match="cannot be opened"),
        lock_machines(LockPolicy("mine"), here=True),
    ):
        pass
    assert victim.read_text() == "precious"


def test_all_users_agree_on_the_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(exclusive.LOCK_VARIABLE)
    place = find_lock_file()
    assert place is not None
    assert place.parent.stat().st_mode & 0o002
    monkeypatch.setenv(exclusive.LOCK_VARIABLE, exclusive.NO_LOCK)
    assert find_lock_file() is None
