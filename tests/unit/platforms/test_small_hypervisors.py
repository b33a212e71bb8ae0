"""Firecracker and Cloud Hypervisor: their command lines, and the errors where they are missing or are others."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from guestmark.core.architectures import ARCHITECTURES, find_host_architecture
from guestmark.core.errors import PlatformUnusableError, UsageError
from guestmark.core.model import Cell, WorkloadSpec
from guestmark.core.platform_kind import index_platform_kinds
from guestmark.core.platform_spec import PlatformSpec
from guestmark.platforms import registry
from guestmark.platforms.base import Unusable
from guestmark.platforms.network.trial_network import MACHINE_MAC
from guestmark.platforms.network.vmm_link import TapCard, open_vmm_network
from guestmark.platforms.place import HERE
from guestmark.platforms.uml import platform as user_mode
from guestmark.platforms.vmm import platform as hypervisors
from guestmark.platforms.vmm.platform import HYPERVISORS, MachineConfig
from guestmark.setting.drive import Bus
from guestmark.setting.machine import VMM, StartedGuest
from guestmark.setting.network import Network, Offloads
from guestmark.workloads.common import flushes
from tests.framework.command_line import CommandLine
from tests.framework.made_facts import guest

every = pytest.mark.parametrize("name", HYPERVISORS)


def machine(
    disks: tuple[str, ...] = (), version: tuple[int, ...] = (54, 0, 0), card: TapCard | None = None
) -> MachineConfig:
    images = [
        SimpleNamespace(
            path=Path(f"/images/{name}"), spec=SimpleNamespace(name=name, read_only=name == "source")
        )
        for name in disks
    ]
    return MachineConfig("/vmlinux", "/initrd", "quiet a=b", 2, 512 << 20, images, version, card)  # type: ignore[arg-type]


def saying(tmp_path: Path, line: str) -> str:
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\necho '{line}'\n")
    program.chmod(0o755)
    return str(program)


def cell(name: str, **factors: str) -> Cell:
    return Cell("test", WorkloadSpec("exec", {"argv": ["true"]}), PlatformSpec.read(name), factors)


def test_each_is_a_platform_on_kvm() -> None:
    described = {name: kind for name, kind in index_platform_kinds().items() if kind.takes_factor(VMM.name)}
    assert set(described) == set(HYPERVISORS)
    assert all(kind.needs_kvm and kind.guest for kind in described.values())


def test_firecracker_is_told_by_a_file() -> None:
    words = HYPERVISORS["firecracker"].command("/fc", machine(("source", "target")))
    told = json.loads(words[3])
    assert words[4:] == ["/fc", "--no-api", "--level", "Error", "--config-file", "machine.json"]
    assert told["machine-config"] == {"vcpu_count": 2, "mem_size_mib": 512}
    assert told["boot-source"]["boot_args"] == "quiet a=b"
    # Its default drops the guest's flushes.
    assert [drive["cache_type"] for drive in told["drives"]] == ["Writeback"] * 2
    assert [drive["is_read_only"] for drive in told["drives"]] == [True, False]
    assert not any(drive["is_root_device"] for drive in told["drives"])


@pytest.mark.parametrize(("version", "told"), [((54, 0, 0), True), ((52, 0), True), ((51, 1, 0), False)])
def test_cloud_hypervisor_is_told_what_an_image_is(version: tuple[int, ...], told: bool) -> None:
    words = HYPERVISORS["cloud-hypervisor"].command("/ch", machine(("source", "target"), version))
    disks = words[words.index("--disk") + 1 :]
    assert len(disks) == 2
    assert all((",image_type=raw" in disk) == told for disk in disks)
    assert "readonly=on" in disks[0]
    assert "readonly=off" in disks[1]
    assert "--disk" not in HYPERVISORS["cloud-hypervisor"].command("/ch", machine())


def test_a_card_opens_or_inherits_its_tap() -> None:
    named = TapCard("peer1", (), queues=1, ring=None, offloads=Offloads.ON)
    told = json.loads(HYPERVISORS["firecracker"].command("/fc", machine(card=named))[3])
    assert told["network-interfaces"] == [
        {"iface_id": "network", "host_dev_name": "peer1", "guest_mac": MACHINE_MAC}
    ]
    inherited = TapCard("peer1", (7, 8), queues=2, ring=512, offloads=Offloads.OFF)
    for card, option in (
        (named, f"tap=peer1,mac={MACHINE_MAC},num_queues=2"),
        (
            inherited,
            f"fd=[7,8],mac={MACHINE_MAC},num_queues=4,queue_size=512,"
            "offload_tso=off,offload_ufo=off,offload_csum=off",
        ),
    ):
        words = HYPERVISORS["cloud-hypervisor"].command("/ch", machine(card=card))
        assert words[words.index("--net") + 1] == option


@every
def test_one_line_says_which_networks_they_have(name: str, tmp_path: Path) -> None:
    for level in set(Network) - {Network.NONE, Network.TAP, Network.VSOCK}:
        with (
            pytest.raises(UsageError, match=f"{name} cannot have network={level}") as caught,
            open_vmm_network(
                name,
                cell(name, network=level).levels,
                HERE,
                vsock=tmp_path / "vsock",
                cid=3,
                inherits=True,
            ),
        ):
            pass
        assert caught.value.hint == "use tap, vsock, or exclude the combination"


def test_a_disk_of_firecracker_is_known_by_its_file(tmp_path: Path) -> None:
    image = tmp_path / "image"
    image.touch()
    found = image.stat()
    serial = HYPERVISORS["firecracker"].serial("target", HERE.identify_file(image))
    assert serial == f"{found.st_dev}0{found.st_ino}"[:20]


def test_none_is_started_on_other_hosts_than_x86(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hypervisors, "find_host_architecture", lambda: ARCHITECTURES["arm64"])
    for name in HYPERVISORS:
        found = registry.get_platform(name).probe()
        assert isinstance(found, Unusable)
        assert found.reason == f"{name} runs only on x86-64 hosts"


def test_no_kernel_is_a_program_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_mode, "find_host_architecture", lambda: ARCHITECTURES["arm64"])
    found = registry.get_platform("uml").probe()
    assert isinstance(found, Unusable)
    assert found.reason == "there is no User-Mode Linux for this host's architecture"
    assert "install" not in found.hint


on_x86 = pytest.mark.skipif(
    not find_host_architecture().kernel_unpacked, reason="none is started on this host"
)


@on_x86
@every
def test_one_that_is_missing_says_what_to_do(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    for platform in (name, f"tcg/{name}"):
        found = registry.get_platform(platform).probe()
        assert isinstance(found, Unusable)
        assert f"{name} is not installed" in found.reason
        assert "--set vmm=FILE" in found.hint


@on_x86
@every
@pytest.mark.parametrize("line", ["", "QEMU emulator version 7.2", "firecrackers v1"])
def test_another_program_is_refused(name: str, line: str, tmp_path: Path) -> None:
    with (
        pytest.raises(PlatformUnusableError, match=r"cannot read the version|reports that it is") as caught,
        registry.get_platform(f"tcg/{name}").start(cell(f"tcg/{name}", vmm=saying(tmp_path, line))),
    ):
        pass
    assert "--set vmm=FILE" in caught.value.hint


@every
def test_a_file_that_is_no_program_is_refused(name: str, tmp_path: Path, guestmark: CommandLine) -> None:
    (tmp_path / "file").touch()
    for path, said in ((tmp_path / "file", "cannot be executed"), (tmp_path / "none", "there is no file")):
        done = guestmark("exec", "--on", f"tcg/{name}", "--set", f"vmm={path}", "--", "true")
        assert done.status == 2
        assert said in done.stderr


def test_the_program_that_runs_is_held_against_the_one_that_was_named(tmp_path: Path) -> None:
    program = tmp_path / "vmm"
    program.write_bytes(b"\x7fELF")
    inside = guest().guest
    (same,) = VMM.attest(str(program), StartedGuest(inside, program=str(program)))
    assert same.asked == same.found
    (other,) = VMM.attest(str(program), StartedGuest(inside, program="/usr/bin/true"))
    assert other.asked != other.found
    assert list(VMM.attest(str(program), StartedGuest(inside))) == []  # nobody could look
    script = saying(tmp_path, "x")
    assert list(VMM.attest(script, StartedGuest(inside, program="/usr/bin/true"))) == []


def test_its_own_process_is_watched_for_flushes() -> None:
    """Its descendants carry the channel and serve the root: they make none, which is no loss."""
    place = SimpleNamespace(list_descendants=lambda pid: [pid + 1], read=lambda _: "\nTracerPid:\t0\n")
    seen: dict[Bus, list[int]] = {}
    for bus in (Bus.VIRTIO_BLK, Bus.UBD):
        disk = SimpleNamespace(spec=SimpleNamespace(bus=bus, is_directory=False), server=None)
        machine_with = SimpleNamespace(place=place, query=None)
        seen[bus] = flushes._find_io_processes(machine_with, disk, 7)  # type: ignore[arg-type]
    assert seen == {Bus.VIRTIO_BLK: [7], Bus.UBD: [8]}
