"""Block devices of the host as disks; here loop devices, of which each test makes its own."""

import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from guestmark.core.errors import UsageError
from guestmark.core.findings import Durability, Flushes
from guestmark.core.machine_facts import GuestMachine
from guestmark.disks import devices, loop
from guestmark.disks.factors import LOCATION
from guestmark.disks.location import in_memory, storage
from guestmark.disks.preflight import check, impossible
from guestmark.disks.spec import disks_of
from guestmark.workloads import base as workloads
from tests.framework.cells import cell_of
from tests.framework.guests import prepared
from tests.framework.known import known

SIZE = 192 << 20


@pytest.fixture
def device() -> Iterator[str]:
    """An empty loop device on an image in /var/tmp."""
    if reason := loop.why_not():
        pytest.skip(reason)
    image = Path("/var/tmp/guestmark-test-device.raw")
    image.unlink(missing_ok=True)
    with image.open("wb") as file:
        file.truncate(SIZE)
    try:
        with loop.attached(image) as path:
            yield path
            devices.give_back()
    finally:
        image.unlink()


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
        return facts, known(workload.facts.facts().of(Flushes))


def test_a_device_is_the_disk_of_uml_and_empty_afterwards(device: str) -> None:
    for _ in range(2):
        facts, flushes = written("uml", device, {})
        assert known(facts.disks)["target"].size == SIZE
        assert flushes.word is Durability.LOST  # by ubd
    assert devices.signatures(device) == ["ext4"]
    devices.give_back()
    assert devices.signatures(device) == []


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
    assert flushes.word is word, flushes.why


def test_a_device_is_named_only_by_who_means_it(device: str) -> None:
    with pytest.raises(ValueError, match=f"write overwrite:{device}"):
        LOCATION.parse(device)
    with pytest.raises(ValueError, match="no block device"):
        LOCATION.parse("overwrite:/var/tmp")


def test_what_has_something_on_it_or_is_in_use_is_refused(device: str, tmp_path: Path) -> None:
    cells = [cell_of("tcg", "filewrite", overwriting(device), amount="4M")]
    check(cells)
    subprocess.run(["mke2fs", "-q", "-F", device], check=True, capture_output=True)
    with pytest.raises(UsageError, match=r"has something on it: ext2"):
        check(cells)
    subprocess.run(["mount", device, str(tmp_path)], check=True)
    try:
        with pytest.raises(UsageError, match="in use: mounted"):
            check(cells)
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_below_a_device_the_layers_are_walked(device: str) -> None:
    (disk,) = storage(cell_of("tcg", "filewrite", overwriting(device), amount="4M"), None).disks.values()
    assert disk.filesystem == "block device"
    assert disk.in_memory == in_memory("/var/tmp")


def test_what_a_device_is_not_is_refused(device: str) -> None:
    for factors in ({"format": "qcow2"}, {"size": "1G"}, {"preallocation": "full"}, {"filesystem": "9p"}):
        with pytest.raises(UsageError, match="block device"):
            disks_of(cell_of("tcg", "filewrite", {**overwriting(device), **factors}, amount="4M"))
    assert "guests only" in impossible(cell_of("host", "filewrite", overwriting(device), amount="4M"))
    assert "images only" in workloads.impossible(cell_of("tcg", "powercut", overwriting(device)))
