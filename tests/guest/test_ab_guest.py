"""Guests with a QEMU and a root filesystem of their own: they have just these."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from guestmark.agent.binary import agent_binary
from guestmark.core import registry
from guestmark.core.architectures import host_architecture
from guestmark.core.errors import AttestationError, GuestmarkError
from guestmark.platforms.guest import Guest
from tests.framework.guests import start
from tests.framework.known import a, known
from tests.framework.root_images import FORMS, squashfs


def tree(root: Path) -> Path:
    """A root with one program, which no other root has."""
    for folder in ("bin", "etc", "usr", "proc", "sys", "dev", "tmp"):
        (root / folder).mkdir(parents=True)
    shutil.copy(agent_binary(), root / "bin" / "only-here")
    return root


@pytest.mark.long
def test_a_guest_has_the_qemu_and_the_root_that_were_asked_for(tmp_path: Path) -> None:
    program = tmp_path / "other-qemu"  # a link: a copy does not find its modules
    program.symlink_to(known(shutil.which(host_architecture().emulator.name)))
    root = tree(tmp_path / "root")
    with start("tcg", qemu=str(program), rootfs=str(root)) as machine:
        machine.attest()
        assert machine.command_line[0] == str(program)
        done = machine.agent.exec(["/bin/only-here", "--version"], env={}, cwd="/", timeout_s=20)
        assert done.stdout.startswith(b"guestmark-agent")
        # What was asked for afterwards is not what runs.
        guest = a(Guest, machine)
        guest.cell = replace(guest.cell, factors={"qemu": str(agent_binary())})
        with pytest.raises(AttestationError, match="QEMU"):
            machine.attest()


@pytest.mark.long
@pytest.mark.parametrize("make", FORMS, ids=lambda make: str(make.__name__))
def test_a_guest_boots_from_an_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path, Path], None]
) -> None:
    if make is squashfs and shutil.which("mksquashfs") is None:
        pytest.skip("install the package squashfs-tools")
    make(tree(tmp_path / "root"), image := tmp_path / "root.img")
    with monkeypatch.context() as patched:  # the kernel of the guest is in the real cache
        patched.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        (level,) = registry.parse_settings([f"rootfs={image}"])["rootfs"]
    with start("tcg", rootfs=str(level)) as machine:
        machine.attest()
        done = machine.agent.exec(["/bin/only-here", "--version"], env={}, cwd="/", timeout_s=20)
        assert done.stdout.startswith(b"guestmark-agent")
        with pytest.raises(GuestmarkError, match="/bin/true"):  # nothing of the host's is there
            machine.agent.exec(["/bin/true"], env={}, cwd="/", timeout_s=20)
