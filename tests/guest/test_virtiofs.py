"""A kernel without 9p gets the host's root over virtiofs, and nobody can write to the host through it."""

import os
import time
from pathlib import Path

import pytest

from guestmark.appliance.kernel import Kernel, find_kernel
from guestmark.core.errors import MachineError
from guestmark.core.machine_facts import GuestMachine
from guestmark.platforms.guest import Guest
from guestmark.platforms.process import SupervisedProcess
from guestmark.platforms.qemu import boots
from guestmark.platforms.qemu.programs import VIRTIOFSD_PATHS
from tests.framework.command_line import CommandLine
from tests.framework.guests import start
from tests.framework.kernels import cloud, without_9p
from tests.framework.known import a, known
from tests.guest.test_confined import attempts

needs_daemon = pytest.mark.skipif(
    not any(os.access(daemon, os.X_OK) for daemon in VIRTIOFSD_PATHS),
    reason="virtiofsd is not installed (package virtiofsd, or QEMU up to 7.2)",
)


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    return without_9p(tmp_path)


@pytest.fixture
def cloud_kernel(tmp_path: Path) -> Path:
    return cloud(tmp_path)


@pytest.mark.long
@needs_daemon
def test_the_root_comes_over_virtiofs_and_cannot_be_changed(kernel: Path, tmp_path: Path) -> None:
    folder = tmp_path / "host"
    folder.mkdir()
    with start("tcg", kernel=str(kernel)) as guest:
        found = guest.attest().confined
        assert found is not None
        assert found.shares is not None
        assert found.protects_files
        assert found.shares.no_new_privileges
        result = guest.agent.exec(["sh", "-c", "echo x > /tmp/made; cat /tmp/made"], timeout_s=60)
        assert result.stdout == b"x\n"
        assert any("vhost-user-fs" in argument for argument in guest.command_line)
        did, saw = attempts(guest, folder)
        assert saw, "the host's root could not be mounted once more, so nothing was tried"
        assert did == ""


@needs_daemon
@pytest.mark.long
def test_debians_cloud_kernel_likewise(cloud_kernel: Path, tmp_path: Path) -> None:
    folder = tmp_path / "host"
    folder.mkdir()
    with start("tcg", kernel=str(cloud_kernel)) as guest:
        assert a(GuestMachine, guest.attest()).guest.kernel == cloud_kernel.name.removeprefix("vmlinuz-")
        assert attempts(guest, folder) == ("", True)


def test_a_daemon_that_ends_at_once_ends_the_start_at_once_in_its_own_words(
    kernel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "virtiofsd").write_text("#!/bin/sh\necho 'virtiofsd: this host is too old' >&2\nexit 3\n")
    (programs / "virtiofsd").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    begin = time.monotonic()
    said = "virtiofsd exited with status 3: virtiofsd: this host is too old"
    with pytest.raises(MachineError, match=said), start("tcg", kernel=str(kernel)):
        pass
    assert time.monotonic() - begin < 20


@pytest.mark.long
@needs_daemon
def test_a_daemon_that_dies_takes_the_guest_along(kernel: Path) -> None:
    with start("tcg", kernel=str(kernel)) as machine:
        guest = a(Guest, machine)
        (helper,) = a(SupervisedProcess, guest.process).helpers.values()
        os.kill(known(helper.pid()), 9)
        assert guest.process.wait(10) is not None


def test_of_two_kernels_the_one_with_9p_is_taken(kernel: Path) -> None:
    with_9p = find_kernel(rank=boots.rank_kernel)
    without = find_kernel(str(kernel))
    assert boots.rank_kernel(with_9p) == 0
    assert boots.rank_kernel(without) in {1, None}


def test_the_old_daemon_is_roots_alone(kernel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    monkeypatch.setattr("guestmark.platforms.qemu.virtiofs.VIRTIOFSD_PATHS", ("/usr/lib/qemu/virtiofsd",))
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(os, "access", lambda *_: True)
    found: Kernel = find_kernel(str(kernel))
    assert boots.rank_kernel(found) is None


def test_probes_boot_the_kernel_that_cells_ask_for(
    guestmark: CommandLine, kernel: Path, tmp_path: Path
) -> None:
    """A kernel without modules of its own for any share: found out before the first trial, and only for its cells."""
    (tmp_path / "modules" / "modules.dep").write_text("")
    (tmp_path / "modules" / "kernel").unlink()
    (tmp_path / "modules" / "kernel").mkdir()
    done = guestmark.measure("--on", "host,tcg", "--set", f"kernel={kernel}", "--blocks", "1", "--", "true")
    assert "is left out" in done.stderr
    assert "neither 9p nor virtiofs" in done.stderr
    document = done.document()
    assert not [trial for cell in document["cells"] if cell["id"] != "host" for trial in cell["trials"]]
