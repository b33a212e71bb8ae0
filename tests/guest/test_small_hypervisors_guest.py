"""Firecracker and Cloud Hypervisor with KVM, inside an emulated guest. They have no packages: tried where they are."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from guestmark.core.errors import AttestationError, MachineError
from guestmark.core.model import Cell
from guestmark.platforms import registry
from guestmark.platforms.qemu.nested.outer import OUTERS
from guestmark.platforms.qemu.nested.place import OuterPlace
from guestmark.platforms.qemu.nested.platform import NestedGuest, NestedPlatform
from guestmark.platforms.vmm import platform as vmm
from guestmark.platforms.vmm.platform import HYPERVISORS
from tests.framework.command_line import CommandLine
from tests.framework.known import a, known
from tests.guest.test_nested import cell_of, uploaded

HERE = [name for name, hypervisor in HYPERVISORS.items() if hypervisor.program.path]
pytestmark = pytest.mark.skipif(not HERE, reason="neither Firecracker nor Cloud Hypervisor is in PATH")
every = pytest.mark.parametrize("name", HERE)


@pytest.fixture(scope="module", autouse=True)
def _one_block() -> Iterator[None]:
    with OUTERS.share_in_block([cell_of(f"tcg/{name}", smp="2") for name in HERE]):
        yield


def start(cell: Cell) -> AbstractContextManager[NestedGuest]:
    return a(NestedPlatform, registry.get_platform(cell.platform)).start(cell)


@every
def test_it_runs_with_the_hosts_root_and_two_disks_and_is_attested(name: str) -> None:
    cell = cell_of(f"tcg/{name}", smp="2")
    with start(cell) as guest:
        attested = guest.attest()
        assert known(attested.outer.vmm).accelerator == "tcg"
        program = known(attested.inner.run_by)
        assert (program.name, program.version[0].isdigit()) == (name, True)
        assert attested.inner.guest.processors == 2
        assert known(attested.inner.disks)["target"].write_cache == "write back"
        values, facts = uploaded(cell, guest)
        if name == "firecracker":
            assert 4 << 20 <= values["host_written_bytes"] < 6 << 20
            assert facts["flushes_reached_host"] == "yes"
        else:  # it has a ring, which nobody sees into
            assert "host_written_bytes" not in values
            assert facts["flushes_reached_host"] == "unknown"
        for path in ("/etc/os-release", "/usr/bin/env"):
            assert guest.agent.read_file(path) == Path(path).read_bytes()
        # Files have the same inode numbers in several directories of the outer guest.
        listing = [
            "sh",
            "-c",
            "find /etc/apt /etc/default /etc/pam.d -printf '%p %y %s %l\\n' | sort | md5sum",
        ]
        listed = guest.agent.exec(listing, timeout_s=300)
        assert listed.stdout == subprocess.run(listing, capture_output=True, check=True).stdout
        assert guest.agent.exec(["sh", "-c", "echo x > /etc/guestmark-was-here"], timeout_s=60).ok
    assert not os.path.exists("/etc/guestmark-was-here")


@every
def test_a_machine_that_says_it_is_another_ones_is_noticed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vmm, "_read_maker", lambda _guest: "BOCHS")
    cell = cell_of(f"tcg/{name}", smp="2")
    with (
        start(cell) as guest,
        pytest.raises(AttestationError, match=r"maker is not what was asked for: .* found BOCHS"),
    ):
        guest.attest()


@every
def test_one_that_is_killed_is_told_from_the_outer_guest(name: str) -> None:
    with (
        pytest.raises(MachineError, match=r"inside tcg: the guest ended"),
        start(cell_of(f"tcg/{name}", smp="2")) as guest,
    ):
        kill(guest)


def kill(guest: NestedGuest) -> None:
    """Its hypervisor, and asks what is gone then."""
    pid = str(known(guest.inner.vmm_pid))
    with a(OuterPlace, guest.place).hold_agent() as outer:
        assert outer.exec(["kill", f"-{signal.SIGKILL}", pid], timeout_s=30).status == 0
    guest.agent.exec(["true"], timeout_s=30)


needs_firecracker = pytest.mark.skipif("firecracker" not in HERE, reason="needs firecracker")


def started_by(tmp_path: Path, first: str, then: str = "") -> str:
    """A script that starts Firecracker after something else."""
    script = tmp_path / f"liar-{len(then)}"
    script.write_text(f'#!/bin/sh\n{first}\n{then} exec {HYPERVISORS["firecracker"].program.path} "$@"\n')
    script.chmod(0o755)
    return str(script)


@pytest.fixture(name="forgetful")
def _forgetful(tmp_path: Path) -> str:
    """A Firecracker that takes its guests' flushes and does nothing."""
    source, library = tmp_path / "none.c", tmp_path / "none.so"
    source.write_text("int fsync(int f) { return 0; }\nint fdatasync(int f) { return 0; }\n")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return started_by(tmp_path, "", f"LD_PRELOAD={library}")


@needs_firecracker
def test_a_disk_that_takes_no_flushes_is_noticed(tmp_path: Path) -> None:
    script = started_by(tmp_path, "[ ! -e machine.json ] || sed -i s/Writeback/Unsafe/ machine.json")
    with (
        start(cell_of("tcg/firecracker", smp="2", vmm=script)) as guest,
        pytest.raises(AttestationError, match=r"write cache .* asked for write back, found write through"),
    ):
        guest.attest()


@needs_firecracker
def test_flushes_are_watched_for_each_way_that_it_is_started(forgetful: str) -> None:
    ways: dict[str, dict[str, str]] = {"yes": {}, "no": {"vmm": forgetful}}
    for reached, more in ways.items():
        cell = cell_of("tcg/firecracker", smp="2", **more)
        with start(cell) as guest:
            guest.attest()
            _, facts = uploaded(cell, guest)
            assert facts["flushes_reached_host"] == reached, facts


@pytest.mark.long
@needs_firecracker
def test_power_cuts_find_that_flushes_do_nothing(forgetful: str, guestmark: CommandLine) -> None:
    done = guestmark(
        "run",
        "powercut",
        "--on",
        "tcg/firecracker",
        "--set",
        f"vmm={forgetful}",
        "--scale",
        "0.1",
        timeout=300,
    )
    assert "lost, 100 of 101 crash states" in " ".join(done.stdout.split()), done.stdout
