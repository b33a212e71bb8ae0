"""A kernel without 9p gets the host's root over virtiofs: Debian's cloud kernel, unpacked without installing it."""

import os
import subprocess
from pathlib import Path

import pytest

from guestmark.core.machine_facts import GuestMachine
from guestmark.platforms.qemu.virtiofs import DAEMONS
from tests.framework.guests import start
from tests.framework.known import a

pytestmark = pytest.mark.long


@pytest.fixture
def cloud_kernel(tmp_path: Path) -> Path:
    if not any(os.access(daemon, os.X_OK) for daemon in DAEMONS):
        pytest.skip("virtiofsd is not installed (package virtiofsd, or QEMU up to 7.2)")
    depends = subprocess.run(
        ["apt-cache", "depends", "linux-image-cloud-amd64"], capture_output=True, text=True, check=True
    ).stdout
    package = next(line.split()[-1] for line in depends.splitlines() if "Depends: linux-image-" in line)
    subprocess.run(["apt-get", "download", package], cwd=tmp_path, check=True, capture_output=True)
    (archive,) = tmp_path.glob("*.deb")
    subprocess.run(["dpkg-deb", "-x", archive, tmp_path], check=True)
    (kernel,) = (tmp_path / "boot").glob("vmlinuz-*")
    return kernel


def test_the_root_comes_over_virtiofs(cloud_kernel: Path) -> None:
    with start("tcg", kernel=str(cloud_kernel)) as guest:
        assert a(GuestMachine, guest.attest()).guest.kernel == cloud_kernel.name.removeprefix("vmlinuz-")
        result = guest.agent.exec(["sh", "-c", "echo x > /tmp/made; cat /tmp/made"], timeout_s=60)
        assert result.stdout == b"x\n"
        assert any("vhost-user-fs" in argument for argument in guest.command_line)
