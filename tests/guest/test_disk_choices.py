"""Every kind of image, filesystem and setting of a disk: a file is written to it, and the setting is seen."""

from collections.abc import Mapping

import pytest

from guestmark.core.errors import AttestationError, PlatformUnusableError, UsageError
from guestmark.core.metric import Measurement
from guestmark.disks import daemon
from guestmark.setting.disk import Disks
from guestmark.setting.filesystem import Filesystem
from tests.framework.cells import cell_of
from tests.framework.guests import prepared

CHOICES: dict[str, Mapping[str, str]] = {
    "vmdk": {"format": "vmdk"},
    "vdi": {"format": "vdi"},
    "vhdx": {"format": "vhdx"},
    "luks": {"format": "luks"},
    "subclusters": {"format": "qcow2", "subclusters": "on", "cluster_size": "128K"},
    "zstd": {"format": "qcow2", "compression": "zstd"},
    "backing": {"format": "qcow2", "backing": "on"},
    "backing, of another shape": {
        "format": "qcow2",
        "backing": "on",
        "cluster_size": "128K",
        "subclusters": "on",
        "compression": "zstd",
    },
    "blocks of 4096": {"logical_block": "4096", "filesystem": "ext4"},
    "sectors of 4096": {"physical_block": "4096"},
    "queues": {"queues": "2", "smp": "2"},
    "bandwidth": {"bandwidth": "20M"},
    "nbd": {"disk_protocol": "nbd"},
    "iops": {"iops": "500"},
    "vhost-user": {"bus": "vhost-user", "smp": "2"},
    "vhost-user, direct": {"bus": "vhost-user", "cache": "none", "aio": "native"},
    "vhost-user, written through": {"bus": "vhost-user", "cache": "writethrough"},
    "f2fs": {"filesystem": "f2fs"},
    "vfat": {"filesystem": "vfat"},
    "exfat": {"filesystem": "exfat"},
    "nilfs2": {"filesystem": "nilfs2"},
    "jfs": {"filesystem": "jfs"},
}


def written(factors: Mapping[str, str]) -> dict[str, Measurement]:
    """A file of 8 MB on such a disk of a TCG guest, whose attestation compares it with what was asked for."""
    given = {"location": "/var/tmp", "size": "256M", **factors}
    with prepared(cell_of("tcg", "filewrite", given, amount="8M", content="random")) as (machine, workload):
        machine.attest()
        return {measurement.metric.name: measurement for measurement in workload.run(machine)}


@pytest.mark.long
@pytest.mark.parametrize("factors", CHOICES.values(), ids=CHOICES)
def test_a_disk_is_what_was_asked_for(factors: Mapping[str, str]) -> None:
    maker = Filesystem(factors.get("filesystem", "ext4")).maker
    try:
        daemon.find_program(maker)
    except PlatformUnusableError as error:
        pytest.skip(str(error))
    assert written(factors)["throughput"].value > 0


@pytest.mark.long
def test_a_limited_disk_is_slow() -> None:
    free, limited = written({}), written({"bandwidth": "4M"})
    assert limited["wall_s"].value > 1.5
    assert limited["wall_s"].value > 2 * free["wall_s"].value


@pytest.mark.long
def test_what_the_image_is_not_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made without the option, so that only attestation can tell."""
    monkeypatch.setattr("guestmark.disks.template.collect_options", lambda spec, of: [])
    with pytest.raises(AttestationError, match="subclusters"):
        written({"format": "qcow2", "subclusters": "on", "size": "252M"})


@pytest.mark.parametrize(
    ("factors", "said"),
    [
        ({"format": "vmdk", "preallocation": "metadata"}, "only qcow2 supports"),
        ({"format": "vmdk", "subclusters": "on"}, "needs format=qcow2"),
        ({"format": "qcow2", "subclusters": "on", "cluster_size": "4K"}, "cannot be divided"),
        ({"format": "qcow2", "backing": "on", "preallocation": "full"}, "cannot be preallocated"),
        ({"bus": "nvme", "queues": "2"}, "queues applies only to virtio-blk"),
        ({"disk_protocol": "nbd", "format": "qcow2"}, "an NBD export cannot"),
        ({"bus": "vhost-user", "format": "qcow2"}, "format=qcow2 applies only to QEMU"),
        ({"bus": "vhost-user", "iops": "500"}, "iops=500 applies only to QEMU"),
        ({"logical_block": "4096", "physical_block": "512"}, "larger than physical_block"),
    ],
)
def test_settings_that_exclude_each_other_are_refused(factors: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        cell_of("tcg", "filewrite", factors, amount="8M").view(Disks)
