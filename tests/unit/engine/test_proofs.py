"""What two cells must have in common to share the proof of their disks."""

import pytest

from guestmark.core.model import WorkloadSpec
from guestmark.core.platform_spec import PlatformSpec
from guestmark.engine.proofs import cell_for, kind_of
from guestmark.setting.base import On, disk_settings
from guestmark.setting.disk import Disks
from guestmark.setting.image import BACKING, COMPRESSION, SUBCLUSTERS
from tests.framework.cells import cell

GUESTS = ("tcg", "uml", "kvm")
DISK_SIZE = "size"
VARIANTS = {BACKING.name, COMPRESSION.name, SUBCLUSTERS.name}  # of qcow2
PART_OF_A_DISK = {factor.name for factor in disk_settings() if factor.default or factor.on is On.DIRECTORY}


def taken(platform: str) -> dict[str, str]:
    """The settings that its machines take, each with a level that is not its default."""
    factors = PlatformSpec.read(platform).inner.described.accepted
    return {factor.name: factor.levels[-1] if factor.levels else "2" for factor in factors}


@pytest.mark.parametrize("platform", GUESTS)
def test_every_setting_of_the_machine_belongs_to_the_proof(platform: str) -> None:
    assert {"memory", "kernel", "kernel_args"} <= taken(platform).keys()
    for name, level in taken(platform).items():
        if name in PART_OF_A_DISK:
            continue
        disk = {"filesystem": "ext4"} | ({"format": "qcow2"} if name in VARIANTS else {})
        other = cell(platform, **disk, **{name: level})
        assert kind_of(other) != kind_of(cell(platform, **disk)), name
        assert cell_for(other).factors[name] == level
        assert kind_of(cell_for(other)) is not None


@pytest.mark.parametrize(
    "level", ["/opt/qemu-8/bin/qemu-system-x86_64", "/opt/qemu-9/bin/qemu-system-x86_64"]
)
def test_two_hypervisors_do_not_share_one(level: str) -> None:
    ours = cell("tcg", filesystem="ext4", qemu=level)
    assert kind_of(ours) != kind_of(cell("tcg", filesystem="ext4"))
    assert cell_for(ours).factors["qemu"] == level


def test_what_does_not_decide_is_shared() -> None:
    small, large = (cell("tcg", filesystem="ext4", size=size) for size in ("64M", "1G"))
    assert kind_of(small) == kind_of(large)
    assert DISK_SIZE not in cell_for(large).factors
    content = [{"role": "target", "filesystem": "ext4", "tree": "/usr/share/doc"}]
    assert kind_of(cell("tcg", WorkloadSpec("test", {"disks": content}))) == kind_of(
        cell("tcg", filesystem="ext4")
    )


def test_what_a_workload_says_of_its_disk_is_proven() -> None:
    said = {
        "role": "target",
        "cache": "none",
        "aio": "native",
        "format": "qcow2",
        "preallocation": "metadata",
    }
    asked = cell("tcg", WorkloadSpec("test", {"disks": [said]}), filesystem="xfs")
    assert kind_of(asked) != kind_of(cell("tcg", filesystem="xfs"))
    target = cell_for(asked).view(Disks).target
    assert (target.cache, target.aio, target.format, target.preallocation) == (
        "none",
        "native",
        "qcow2",
        "metadata",
    )
    assert target.filesystem == "xfs"
