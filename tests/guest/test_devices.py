"""Block devices of the host as disks; here loop devices, of which each test makes its own."""

import os
import random
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from guestmark.core.errors import UsageError
from guestmark.core.findings import Durability, Flushes
from guestmark.core.machine_facts import GuestMachine
from guestmark.disks import devices, loop, template
from guestmark.disks.location import describe_storage, is_in_memory
from guestmark.disks.preflight import check_disks, explain_impossible_disk
from guestmark.setting.disk import Disks, DiskSpec
from guestmark.setting.filesystem import Filesystem
from guestmark.setting.location import LOCATION, read_device_size
from guestmark.workloads import base as workloads
from tests.framework.cells import cell_of
from tests.framework.guests import prepared
from tests.framework.known import known

SIZE = 192 << 20
IMAGE = Path("/var/tmp/guestmark-test-device.raw")


@pytest.fixture
def device() -> Iterator[str]:
    """An empty loop device on an image in /var/tmp."""
    if reason := loop.explain_no_loop():
        pytest.skip(reason)
    IMAGE.unlink(missing_ok=True)
    with IMAGE.open("wb") as file:
        file.truncate(SIZE)
    try:
        with loop.attach_loop(IMAGE) as path:
            yield path
            devices.wipe_taken_devices()
    finally:
        IMAGE.unlink()


def overwriting(device: str) -> dict[str, str]:
    """The factor, as somebody types it who means it."""
    return {"location": LOCATION.parse(f"overwrite:{device}")}


def written(platform: str, device: str, factors: Mapping[str, str]) -> tuple[GuestMachine, Flushes]:
    """What a guest and its flushes are, after 4 MB were written to the device."""
    cell = cell_of(platform, "filewrite", {**overwriting(device), **factors}, amount="4M", content="random")
    with prepared(cell) as (machine, workload):
        facts = machine.attest()
        assert isinstance(facts, GuestMachine)
        workload.run(machine)
        return facts, known(workload.facts.facts().find_fact(Flushes))


def test_a_device_is_the_disk_of_uml_and_empty_afterwards(device: str) -> None:
    for _ in range(2):
        facts, flushes = written("uml", device, {})
        assert known(facts.disks)["target"].size == SIZE
        assert flushes.durability_word is Durability.LOST  # by ubd
    assert {kind for kind, _ in devices.list_signatures(device)} == {"ext4"}
    devices.wipe_taken_devices()
    assert devices.list_signatures(device) == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("platform", "factors", "word"),
    [
        ("tcg", {"cache": "none", "aio": "native"}, Durability.CLAIMED),
        ("tcg", {"bus": "vhost-user", "filesystem": "btrfs"}, Durability.REACHED),
        ("uml", {"uml_disk": "vhost-user"}, Durability.REACHED),
    ],
)
def test_a_device_is_a_disk_of_every_kind(
    device: str, platform: str, factors: Mapping[str, str], word: Durability
) -> None:
    facts, flushes = written(platform, device, factors)
    assert known(facts.disks)["target"].location == device
    assert flushes.durability_word is word, flushes.why


def test_a_device_is_named_only_by_who_means_it(device: str) -> None:
    with pytest.raises(ValueError, match=f"write overwrite:{device}"):
        LOCATION.parse(device)
    with pytest.raises(ValueError, match="not a block device"):
        LOCATION.parse("overwrite:/var/tmp")


def test_what_has_something_on_it_or_is_in_use_is_refused(device: str, tmp_path: Path) -> None:
    cells = [cell_of("tcg", "filewrite", overwriting(device), amount="4M")]
    check_disks(cells)
    subprocess.run(["mke2fs", "-q", "-F", device], check=True, capture_output=True)
    with pytest.raises(UsageError, match=r"has signatures on it: ext2"):
        check_disks(cells)
    subprocess.run(["mount", device, str(tmp_path)], check=True)
    try:
        with pytest.raises(UsageError, match="in use: it is mounted"):
            check_disks(cells)
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def grown(device: str, filesystem: str) -> DiskSpec:
    """The disk, as large as xfs needs it at least."""
    os.truncate(IMAGE, 320 << 20)
    subprocess.run(["losetup", "--set-capacity", device], check=True)
    cell = cell_of("tcg", "filewrite", {**overwriting(device), "filesystem": filesystem}, amount="4M")
    return cell.view(Disks)[0]


KILLED = """
import os, signal, sys
from pathlib import Path
from guestmark.disks import devices, template
from guestmark.setting.disk import DiskSpec, Disks
from tests.framework.cells import cell_of
factors = {"location": f"overwrite:{sys.argv[1]}", "filesystem": sys.argv[2]}
(spec,) = cell_of("tcg", "filewrite", factors, amount="4M").view(Disks)
devices.take_device(spec.location)
template.format_fresh(spec, Path(spec.location))
print([kind for kind, _ in devices.list_signatures(spec.location)], flush=True)
signal.pause()
"""


@pytest.mark.parametrize("filesystem", ["ext4", "xfs", "btrfs", "f2fs"])
def test_what_a_killed_run_has_left_is_taken_again(device: str, filesystem: str) -> None:
    if not shutil.which(Filesystem(filesystem).maker):
        pytest.skip(f"{Filesystem(filesystem).maker} is not installed")
    grown(device, filesystem)
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, device, filesystem], stdout=subprocess.PIPE
    ) as killed:
        assert known(killed.stdout).readline().decode().strip() == repr([filesystem])
        with pytest.raises(UsageError, match="in use by another guestmark"):
            devices.take_device(device)
        killed.kill()
    devices.take_device(device)
    assert devices.list_signatures(device) == []


def test_xfs_is_whole_on_a_device_that_was_full(device: str, tmp_path: Path) -> None:
    if not shutil.which(Filesystem.XFS.maker):
        pytest.skip("mkfs.xfs is not installed")
    spec = grown(device, "xfs")
    with Path(device).open("wb") as file:
        rubbish = random.Random(1).randbytes(1 << 20)
        for _ in range(read_device_size(device) >> 20):
            file.write(rubbish)
    template.format_fresh(spec, Path(device))
    subprocess.run(["xfs_repair", "-n", device], check=True, capture_output=True)
    subprocess.run(["mount", device, str(tmp_path)], check=True)
    subprocess.run(["umount", str(tmp_path)], check=True)
    with pytest.raises(ValueError, match="not an XFS superblock"):
        template.locate_xfs_log(bytes(512))


def test_only_a_mark_of_our_own_is_taken_for_one(device: str) -> None:
    assert devices.is_mark(devices.make_mark())
    assert devices.make_mark() != devices.make_mark()
    theirs = str(uuid.uuid4())
    assert not any(map(devices.is_mark, ("", "1234-ABCD", theirs, devices.make_mark()[:-1] + "g")))
    subprocess.run(["mke2fs", "-q", "-F", "-U", devices.make_mark(), device], check=True, capture_output=True)
    devices.check_device(device)
    for changed in (["tune2fs", "-U", theirs, device], ["wipefs", "--all", device]):
        subprocess.run(changed, check=True, capture_output=True)
        if changed[0] == "tune2fs":
            with pytest.raises(UsageError, match="has signatures on it: ext2"):
                devices.take_device(device)
    devices.check_device(device)


def test_below_a_device_the_layers_are_walked(device: str) -> None:
    (disk,) = describe_storage(
        cell_of("tcg", "filewrite", overwriting(device), amount="4M"), None
    ).disks.values()
    assert disk.filesystem == "block device"
    assert disk.in_memory == is_in_memory("/var/tmp")


def test_what_a_device_is_not_is_refused(device: str) -> None:
    for factors in ({"format": "qcow2"}, {"size": "1G"}, {"preallocation": "full"}, {"filesystem": "9p"}):
        with pytest.raises(UsageError, match="block device"):
            cell_of("tcg", "filewrite", {**overwriting(device), **factors}, amount="4M").view(Disks)
    assert "only guests can use" in explain_impossible_disk(
        cell_of("host", "filewrite", overwriting(device), amount="4M")
    )
    assert "only writes to images" in workloads.find_trial_class("powercut").impossible(
        cell_of("tcg", "powercut", overwriting(device))
    )
