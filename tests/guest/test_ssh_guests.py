"""Guests on another machine: booted there, measured from here, and nothing of them stays."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from guestmark.core.errors import MachineError, PlatformUnusableError
from guestmark.core.machine_facts import RemoteGuestMachine
from guestmark.platforms.ssh.guests import RemoteGuest
from tests.framework.command_line import CommandLine
from tests.framework.guests import start
from tests.framework.processes import others, wait_until
from tests.framework.sshd import sshd

pytestmark = pytest.mark.skipif(shutil.which("ssh") is None, reason="install the package openssh-client")


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where sessions on the other machine have their temporary files."""
    directory = tmp_path_factory.mktemp("sshd")
    scratch = directory / "scratch"
    scratch.mkdir()
    with sshd(directory, {"TMPDIR": str(scratch)}) as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("GUESTMARK_SSH", server.client)
        yield scratch


def _there(scratch: Path) -> list[list[bytes]]:
    """Processes that work in the other machine's temporary files."""
    return [command for _, command in others() if any(str(scratch).encode() in word for word in command)]


def _nothing_left(scratch: Path) -> None:
    assert wait_until(lambda: not list(scratch.iterdir()) and not _there(scratch), 10), _there(scratch)


def test_a_guest_is_booted_there(scratch: Path) -> None:
    with start("ssh:lab1/uml") as guest:
        assert isinstance(guest, RemoteGuest)
        found = guest.attest()
        assert isinstance(found, RemoteGuestMachine)
        assert found.on.dest == "lab1"
        assert found.guest.kernel != os.uname().release == found.on.kernel
        there = guest.agent.exec(["cat", str(scratch.parent / "ssh_config")], timeout_s=20)
        assert there.stdout == (scratch.parent / "ssh_config").read_bytes()  # its root is that machine's
        guest.agent.write_file(f"{guest.scratch}/file", b"kept in the guest")
        assert not Path(guest.scratch).exists()
        assert guest.vmm_stats()["vmm_peak_bytes"] > 0
    _nothing_left(scratch)


def test_a_hypervisor_that_dies_there_costs_one_trial(scratch: Path) -> None:
    def killed() -> None:
        with start("ssh:lab1/uml") as guest:
            assert isinstance(guest, RemoteGuest)
            pid = guest.process.pid()
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            guest.agent.exec(["sleep", "20"], timeout_s=20)

    with pytest.raises(MachineError, match="on ssh:lab1: the guest ended"):
        killed()
    _nothing_left(scratch)


def _ssh_after(tmp_path: Path, before: str) -> str:
    """An ssh that does something first."""
    script = tmp_path / "ssh"
    script.write_text(f'#!/bin/sh\n{before}\nexec {os.environ["GUESTMARK_SSH"]} "$@"\n')
    script.chmod(0o755)
    return str(script)


@pytest.mark.long
def test_what_a_login_prints_is_not_taken_for_the_guests_words(
    scratch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GUESTMARK_SSH", _ssh_after(tmp_path, "echo Welcome; printf 'no newline: '"))
    with start("ssh:lab1/uml") as guest:
        assert guest.agent.exec(["true"], timeout_s=20).status == 0
    _nothing_left(scratch)


def test_a_machine_that_gives_no_further_connection(
    scratch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse = 'case "$*" in *guestmark-line*) exit 255; esac'
    monkeypatch.setenv("GUESTMARK_SSH", _ssh_after(tmp_path, refuse))
    with pytest.raises(MachineError, match="lab1 refuses a further connection"), start("ssh:lab1/uml"):
        raise AssertionError("it was measured all the same")
    _nothing_left(scratch)


def test_disks_are_refused(guestmark: CommandLine, scratch: Path) -> None:
    done = guestmark("run", "upload", "--on", "ssh:lab1/uml", "--scale", "0.01", "--blocks", 1, timeout=120)
    assert done.status != 0
    assert "ssh:lab1/uml cannot be given a disk" in done.stderr


def test_other_architectures_are_refused() -> None:
    with pytest.raises(PlatformUnusableError, match="another architecture"), start("ssh:lab1/tcg@arm64"):
        pass


@pytest.mark.long
def test_host_machine_and_guest_are_in_one_table(guestmark: CommandLine, scratch: Path) -> None:
    done = guestmark.measure("--blocks", 2, "--on", "host,ssh:lab1,ssh:lab1/tcg", "--", "true", timeout=240)
    assert done.status == 0, done.stderr
    cells = {cell["id"]: cell for cell in done.document()["cells"]}
    assert set(cells) == {"host", "ssh:lab1", "ssh:lab1/tcg"}
    assert all(trial["status"] == "ok" for cell in cells.values() for trial in cell["trials"])
    _nothing_left(scratch)
