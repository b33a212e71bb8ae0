"""A guest with a QEMU and a root filesystem of its own: it has just these."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from guestmark.agent.binary import agent_binary
from guestmark.core.architectures import host_architecture
from guestmark.core.errors import AttestationError
from guestmark.platforms.guest import Guest
from tests.framework.guests import start
from tests.framework.known import a, known


@pytest.mark.long
def test_a_guest_has_the_qemu_and_the_root_that_were_asked_for(tmp_path: Path) -> None:
    program = tmp_path / "other-qemu"  # a link: a copy does not find its modules
    program.symlink_to(known(shutil.which(host_architecture().emulator.name)))
    root = tmp_path / "root"
    for folder in ("bin", "etc", "usr", "proc", "sys", "dev", "tmp"):
        (root / folder).mkdir(parents=True)
    shutil.copy(agent_binary(), root / "bin" / "only-here")
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
