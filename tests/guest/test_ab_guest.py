"""Guests with a QEMU and a root filesystem of their own: they have just these."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from guestmark.core import registry
from guestmark.core.architectures import find_host_architecture
from guestmark.core.errors import AttestationError, GuestmarkError
from guestmark.core.own_program import find_agent_binary
from tests.framework.guests import start
from tests.framework.known import known
from tests.framework.root_images import FORMS, squashfs


def tree(root: Path) -> Path:
    """A root with one program, which no other root has."""
    for folder in ("bin", "etc", "usr", "proc", "sys", "dev", "tmp"):
        (root / folder).mkdir(parents=True)
    shutil.copy(find_agent_binary(), root / "bin" / "only-here")
    return root


@pytest.mark.long
def test_a_guest_has_the_qemu_and_the_root_that_were_asked_for(tmp_path: Path) -> None:
    program = tmp_path / "other-qemu"  # a link: a copy does not find its modules
    program.symlink_to(known(shutil.which(find_host_architecture().emulator.name)))
    root = tree(tmp_path / "root")
    with start("tcg", qemu=str(program), rootfs=str(root)) as machine:
        machine.attest()
        assert machine.command_line[0] == str(program)
        done = machine.agent.exec(["/bin/only-here", "--version"], env={}, cwd="/", timeout_s=20)
        assert done.stdout.startswith(b"guestmark-agent")


OTHER_PROGRAM = """
#include <unistd.h>
int main(int argc, char **argv) { execv("%s", argv); return 126; }
"""


def test_a_program_that_becomes_another_is_noticed(tmp_path: Path) -> None:
    asked = tmp_path / "qemu"
    real = known(shutil.which(find_host_architecture().emulator.name))
    source = tmp_path / "other.c"
    source.write_text(OTHER_PROGRAM % real)
    subprocess.run(["cc", "-static", "-o", asked, source], check=True)
    with (
        start("tcg", qemu=str(asked)) as machine,
        pytest.raises(AttestationError, match="the hypervisor") as caught,
    ):
        machine.attest()
    assert str(asked) in caught.value.message
    assert os.path.realpath(real) in caught.value.message


def test_a_root_that_is_another_is_noticed(tmp_path: Path) -> None:
    """A script may start what it likes; what the guest then has as its root is looked at."""
    asked, other = tree(tmp_path / "asked"), tree(tmp_path / "other")
    script = tmp_path / "qemu"
    real = known(shutil.which(find_host_architecture().emulator.name))
    script.write_text(
        f"#!/bin/bash\nasked={asked} other={other}\n"
        f'exec {real} "${{@//$asked/$other}}"\n'  # every argument with one path for the other
    )
    script.chmod(0o755)
    with (
        start("tcg", qemu=str(script), rootfs=str(asked)) as machine,
        pytest.raises(AttestationError, match="the root filesystem") as caught,
    ):
        machine.attest()
    assert str(other) in caught.value.message


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
