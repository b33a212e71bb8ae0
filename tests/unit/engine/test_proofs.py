"""What two cells must have in common to share the proof of their disks."""

import pytest

from guestmark.core import registry
from guestmark.core.findings import Durability, Proof, Proven
from guestmark.core.metric import Better
from guestmark.core.model import WorkloadSpec
from guestmark.core.platform_spec import PlatformSpec
from guestmark.core.tuning import Settings
from guestmark.engine.proofs import explain_barred_cells, find_proof_kind, make_proof_cell
from guestmark.setting.base import DiskKind, list_disk_settings
from guestmark.setting.disk import Disks
from guestmark.setting.image import BACKING, COMPRESSION, SUBCLUSTERS
from tests.framework.cells import cell

GUESTS = ("tcg", "uml", "kvm")
DISK_SIZE = "size"
VARIANTS = {BACKING.name, COMPRESSION.name, SUBCLUSTERS.name}  # of qcow2
PART_OF_A_DISK = {
    factor.name for factor in list_disk_settings() if factor.default or factor.on is DiskKind.DIRECTORY
}


def taken(platform: str) -> dict[str, str]:
    """The settings that its machines take, each with a level that is not its default."""
    factors = PlatformSpec.read(platform).inner.description.accepted_factors
    return {factor.name: factor.levels[-1] if factor.levels else "2" for factor in factors}


@pytest.mark.parametrize("platform", GUESTS)
def test_every_setting_of_the_machine_belongs_to_the_proof(platform: str) -> None:
    assert {"memory", "kernel", "kernel_args"} <= taken(platform).keys()
    for name, level in taken(platform).items():
        if name in PART_OF_A_DISK:
            continue
        disk = {"filesystem": "ext4"} | ({"format": "qcow2"} if name in VARIANTS else {})
        other = cell(platform, **disk, **{name: level})
        assert find_proof_kind(other) != find_proof_kind(cell(platform, **disk)), name
        assert make_proof_cell(other).factors[name] == level
        assert find_proof_kind(make_proof_cell(other)) is not None


@pytest.mark.parametrize(
    "level", ["/opt/qemu-8/bin/qemu-system-x86_64", "/opt/qemu-9/bin/qemu-system-x86_64"]
)
def test_two_hypervisors_do_not_share_one(level: str) -> None:
    ours = cell("tcg", filesystem="ext4", qemu=level)
    assert find_proof_kind(ours) != find_proof_kind(cell("tcg", filesystem="ext4"))
    assert make_proof_cell(ours).factors["qemu"] == level


def test_what_does_not_decide_is_shared() -> None:
    small, large = (cell("tcg", filesystem="ext4", size=size) for size in ("64M", "1G"))
    assert find_proof_kind(small) == find_proof_kind(large)
    assert DISK_SIZE not in make_proof_cell(large).factors
    content = [{"role": "target", "filesystem": "ext4", "tree": "/usr/share/doc"}]
    assert find_proof_kind(cell("tcg", WorkloadSpec("test", {"disks": content}))) == find_proof_kind(
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
    assert find_proof_kind(asked) != find_proof_kind(cell("tcg", filesystem="xfs"))
    target = make_proof_cell(asked).view(Disks).target
    assert (target.cache, target.aio, target.format, target.preallocation) == (
        "none",
        "native",
        "qcow2",
        "metadata",
    )
    assert target.filesystem == "xfs"


def made_proof(word: Durability, *, of_row: bool) -> Proof:
    found = Proven(
        word=word, why="", method="append, fsync", acknowledged=10, states=99, losing=0, repaired=0, controls=[],
        below=[], writes=20, flushes=10, run_s=1.0, judge_s=1.0, of_row=of_row,
    )  # fmt: skip
    return Proof(proven=found)


@pytest.mark.parametrize("kind", [*sorted(registry.index_workload_kinds()), "test"])
@pytest.mark.parametrize("of_row", [False, True], ids=["of the disk", "of the row"])
def test_a_proven_disk_alone_admits_no_row_that_may_not_sync(kind: str, of_row: bool) -> None:
    """Of all words a race may ask for: who can tell whether a program syncs looks at that, or does the syncing."""
    asked = cell("tcg", WorkloadSpec(kind), filesystem="ext4")
    settings = Settings("wall_s", Better.LOWER, durability=("proven",))
    barred = explain_barred_cells(settings, [asked], {asked.id: made_proof(Durability.PROVEN, of_row=of_row)})
    flushes = kind in {"upload", "dd", "direct", "share", "tar", "fill", "filewrite", "fileread"}
    assert bool(barred) == (not of_row and not flushes)
    if barred:
        assert "whether the workload syncs its writes cannot be judged" in barred[asked.id]
