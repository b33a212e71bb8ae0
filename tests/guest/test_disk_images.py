"""Disk images that boot by their own firmware, boot loader and kernel, made here from Debian's packages."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from guestmark.core.architectures import ARCHITECTURES
from guestmark.core.errors import AttestationError, PlatformUnusableError
from guestmark.core.machine_facts import GuestMachine, ImageEntry, ImageFirmware, NestedMachine
from guestmark.platforms.base import LoggedIn, Machine, find_login
from guestmark.platforms.libguestfs import GUESTFISH
from guestmark.platforms.place import Place
from guestmark.platforms.qemu import image_login
from guestmark.platforms.qemu.disk_images import ImageBoot
from guestmark.platforms.qemu.restored import TEMPLATES
from tests.framework.cells import cell_of
from tests.framework.disk_images import make_disk_image, make_root_archive
from tests.framework.guests import prepared, start, start_cell
from tests.framework.marks import thorough

NETWORK = "systemd-networkd.service"
pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def bios_image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_disk_image(make_root_archive("bookworm"), tmp_path_factory.mktemp("bios") / "bios.qcow2")


@pytest.fixture(scope="module")
def uefi_image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("uefi") / "with, comma.raw"
    return make_disk_image(make_root_archive("bookworm"), target, uefi=True, image_format="raw")


def digest(path: Path) -> str:
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def hide_programs(monkeypatch: pytest.MonkeyPatch, folder: Path, *names: str) -> None:
    """Let PATH be a folder of links to all programs but these."""
    folder.mkdir()
    for each in os.environ["PATH"].split(os.pathsep):
        for program in Path(each).glob("*"):
            link = folder / program.name
            if program.name not in names and not link.is_symlink():
                link.symlink_to(program)
    monkeypatch.setenv("PATH", str(folder))


def look(machine: Machine, *command: str) -> str:
    return machine.agent.exec(command, timeout_s=60).stdout.decode().strip()


def test_an_image_boots_its_own_system_and_stays_as_it_is(bios_image: Path) -> None:
    before = digest(bios_image)
    with start("tcg", image=str(bios_image)) as machine:
        found = machine.attest()
        assert isinstance(found, GuestMachine)
        assert found.image is not None
        assert found.image.firmware is ImageFirmware.BIOS
        assert found.image.sha256 == before
        assert "bookworm" in found.image.distribution
        assert look(machine, "cat", "/etc/hostname") == "image-guest"
        assert look(machine, "uname", "-r") == found.guest.kernel
        assert look(machine, "systemctl", "is-system-running") in {"running", "degraded"}
        assert isinstance(machine, LoggedIn)
        assert machine.caller().uid == 0
        look(machine, "sh", "-c", "echo changed > /etc/hostname; sync")
    with start("tcg", image=str(bios_image)) as machine:
        assert look(machine, "cat", "/etc/hostname") == "image-guest"
    assert digest(bios_image) == before


def test_uefi_boots_a_raw_image_with_a_disk_beside_it(uefi_image: Path) -> None:
    factors = {"image": str(uefi_image), "filesystem": "ext4", "size": "64M"}
    with prepared(cell_of("tcg", "filewrite", factors, amount="4M"), limit_s=600) as (machine, workload):
        found = machine.attest()
        assert isinstance(found, GuestMachine)
        assert found.image is not None
        assert found.image.firmware is ImageFirmware.UEFI
        assert all(measurement.value > 0 for measurement in workload.run(machine))


@pytest.mark.parametrize("kind", [thorough("bios"), "uefi"])
def test_restored_guests_of_an_image_go_on_from_the_same_boot_with_disks_of_their_own(
    kind: str, request: pytest.FixtureRequest
) -> None:
    image = request.getfixturevalue(f"{kind}_image")
    before = digest(image)
    trial = cell_of("tcg", "exec", {"image": str(image), "start": "restored"}, command=["true"])
    boots, drawn, templates = set(), set(), set()
    with TEMPLATES.share_in_block([trial]):
        for number in range(2):
            with start_cell(trial) as machine:
                found = machine.attest()
                assert isinstance(found, GuestMachine)
                assert found.image is not None
                assert found.restored is not None
                assert found.restored.clone == number + 1
                assert look(machine, "systemctl", "is-system-running") in {"running", "degraded"}
                assert abs(int(look(machine, "date", "+%s")) - time.time()) < 5
                assert (
                    look(machine, "sh", "-c", "cat /root/mark 2>/dev/null; echo here > /root/mark; sync")
                    == ""
                )
                templates.add(found.restored.template)
                boots.add(look(machine, "cat", "/proc/sys/kernel/random/boot_id"))
                drawn.add(look(machine, "sh", "-c", "head -c 16 /dev/urandom | od -x"))
    assert (len(boots), len(templates), len(drawn)) == (1, 1, 2)
    assert digest(image) == before


@pytest.mark.thorough
def test_an_image_of_another_architecture_boots_by_its_own_firmware(tmp_path: Path) -> None:
    row = ARCHITECTURES["arm64"]
    image = make_disk_image(
        make_root_archive("bookworm", architecture=row),
        tmp_path / "arm64.qcow2",
        uefi=True,
        architecture=row,
    )
    with start("tcg@arm64", image=str(image)) as machine:
        found = machine.attest()
        assert isinstance(found, GuestMachine)
        assert found.image is not None
        assert found.image.firmware is ImageFirmware.UEFI
        assert look(machine, "uname", "-m") == "aarch64"
        assert look(machine, "cat", "/etc/hostname") == "image-guest"
    refused = pytest.raises(
        PlatformUnusableError, match=r"contains a system for aarch64, but the machine is x86_64"
    )
    with refused as error, start("tcg", image=str(image)):
        pass
    assert error.value.hint == "use --on tcg@arm64, or another image"


@pytest.mark.thorough
def test_a_pushed_program_runs_in_an_image(bios_image: Path, tmp_path: Path) -> None:
    program = tmp_path / "greet"
    program.write_text("#!/bin/sh\ntest $(cat /etc/hostname) = image-guest\n")
    program.chmod(0o755)
    trial = cell_of("tcg", "exec", {"image": str(bios_image)}, command=["greet"], push=[str(program)])
    with prepared(trial, limit_s=600) as (machine, workload):
        assert workload.run(machine)


def test_another_image_than_the_one_asked_for_is_noticed(
    bios_image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_files = ImageBoot.create_files
    other = tmp_path / "other.qcow2"

    def create_others(self: ImageBoot, place: Place, directory: Path, saved: Path | None = None) -> None:
        shutil.copy(self.overlay, other)
        create_files(replace(self, overlay=other), place, directory, saved)

    monkeypatch.setattr(ImageBoot, "create_files", create_others)
    with (
        start("tcg", image=str(bios_image)) as machine,
        pytest.raises(AttestationError, match=r"the image is not what was asked for: .*found .*other\.qcow2"),
    ):
        machine.attest()


def test_a_disk_without_a_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blank = tmp_path / "blank.raw"
    blank.write_bytes((b"\xeb\x63".ljust(510, b"\0") + b"\x55\xaa").ljust(8 << 20, b"\0"))
    monkeypatch.setattr(image_login, "LIMIT_S", 5.0)
    with pytest.raises(PlatformUnusableError, match=r"put into blank\.raw: libguestfs reports"):  # noqa: SIM117
        with start("tcg", image=str(blank)):
            pass


@pytest.mark.thorough
def test_an_image_boots_inside_another_guest(bios_image: Path) -> None:
    """The overlay is made in the outer guest, whose files are this host's."""
    with start("tcg/kvm", image=str(bios_image)) as machine:
        found = machine.attest()
        assert isinstance(found, NestedMachine)
        assert found.inner.image is not None
        login = find_login(machine)
        assert login is not None
        assert login.caller().uid == 0
        assert look(machine, "cat", "/etc/hostname") == "image-guest"


@pytest.mark.thorough
def test_cloud_init_brings_the_agent_where_libguestfs_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = make_root_archive("bookworm", ("cloud-init",))
    image = make_disk_image(archive, tmp_path / "cloud.qcow2")
    hide_programs(monkeypatch, tmp_path / "programs", GUESTFISH)
    with start("tcg", image=str(image)) as machine:
        found = machine.attest()
        assert isinstance(found, GuestMachine)
        assert found.image is not None
        assert found.image.entered is ImageEntry.SEED
        assert "bookworm" in found.image.distribution
        assert look(machine, "cat", "/etc/hostname") == "image-guest"


def test_an_image_s_own_guest_agent_lets_in_where_nothing_else_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = make_disk_image(make_root_archive("bookworm", ("qemu-guest-agent",)), tmp_path / "agent.qcow2")
    hide_programs(monkeypatch, tmp_path / "programs", GUESTFISH, "mkfs.vfat")
    assert find_way_in(image) is ImageEntry.GUEST_AGENT


@pytest.mark.thorough
def test_ssh_with_a_key_lets_in_where_nothing_else_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    image = make_disk_image(
        make_root_archive("bookworm", ("openssh-server", "qemu-guest-agent")),
        tmp_path / "sshd.qcow2",
        files={
            "root/.ssh/authorized_keys": key.with_suffix(".pub").read_text(),
            # As on RHEL, whose guest agent neither writes files nor executes programs.
            "etc/qemu/qemu-ga.conf": "[general]\nblacklist=guest-file-open,guest-exec\n",
            "etc/systemd/network/all.network": "[Match]\nName=e*\n[Network]\nDHCP=yes\n",
        },
        links={f"etc/systemd/system/multi-user.target.wants/{NETWORK}": f"/lib/systemd/system/{NETWORK}"},
    )
    hide_programs(monkeypatch, tmp_path / "programs", GUESTFISH, "mkfs.vfat")
    monkeypatch.setenv("GUESTMARK_SSH", f"ssh -F none -o IdentitiesOnly=yes -i {key}")
    assert find_way_in(image) is ImageEntry.SSH


def find_way_in(image: Path) -> ImageEntry:
    """Boot the image twice, once to put the agent in, and return how that was done."""
    before = digest(image)
    with start("tcg", image=str(image)) as machine:
        found = machine.attest()
        assert isinstance(found, GuestMachine)
        assert found.image is not None
        assert look(machine, "cat", "/etc/hostname") == "image-guest"
    assert digest(image) == before
    return found.image.entered


@pytest.mark.thorough
def test_an_image_that_lets_nobody_in_is_refused_with_what_was_tried(
    bios_image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = tmp_path / "closed.qcow2"
    shutil.copy(bios_image, image)
    hide_programs(monkeypatch, tmp_path / "programs", GUESTFISH, "mkfs.vfat")
    monkeypatch.setattr(image_login, "LIMIT_S", 5.0)
    with (
        pytest.raises(
            PlatformUnusableError, match=r"guestfish is not installed; it was booted, but no guest agent"
        ),
        start("tcg", image=str(image)),
    ):
        pass
