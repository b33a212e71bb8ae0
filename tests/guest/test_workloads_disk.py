"""The disk workloads in real guests: what they measure, and that a wrong byte does not pass."""

import os
import shutil
from collections.abc import Mapping
from typing import Any

import pytest

from guestmark.agent.client import Agent
from guestmark.core import registry as kinds
from guestmark.core.errors import MachineError, UsageError, WorkloadError
from guestmark.core.model import Cell, Plan, Policy, WorkloadSpec
from guestmark.core.platform_spec import PlatformSpec
from guestmark.disks.attached import AttachedDisk
from guestmark.disks.location import is_in_memory
from guestmark.disks.packed import FILE
from guestmark.platforms.base import Machine
from guestmark.workloads import base
from guestmark.workloads.base import Workload
from guestmark.workloads.common.moving import find_source, find_target
from tests.framework.cells import cell_of as make_cell
from tests.framework.disk_files import count_cached_bytes, flip_bit
from tests.framework.guests import prepared, started
from tests.framework.marks import long

AMOUNT = 8 << 20
FACTORS = {"size": "64M", "filesystem": "ext2"}


def cell_of(platform: str, kind: str, factors: Mapping[str, str] | None = None, **params: Any) -> Cell:
    checked = kinds.workload_kind(kind).check_params({"amount": "8M", **params})
    asked = FACTORS if factors is None else factors
    levels = {} if platform == "host" else dict(asked)
    return Cell("test", WorkloadSpec(kind, checked), PlatformSpec.read(platform), levels)


def measured(
    platform: str, kind: str, factors: Mapping[str, str] | None = None, **params: Any
) -> tuple[dict[str, float], Workload[Any]]:
    """Value by metric of one iteration, and the workload."""
    cell = cell_of(platform, kind, factors, **params)
    with prepared(cell) as (machine, workload):
        values = {measurement.metric.name: measurement.value for measurement in workload.run(machine)}
    described = kinds.workload_kind(kind)
    wanted = {metric.name for metric in described.metrics_of(cell.workload)}
    assert values.keys() <= wanted
    assert next(iter(values)) == "throughput"
    assert values["throughput"] == pytest.approx(AMOUNT / values["wall_s"])
    return values, workload


@pytest.mark.parametrize(("kind", "allocated"), [("dd", False), ("share", False), ("direct", True)])
def test_only_direct_copies_allocate_their_file_first(
    kind: str, allocated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`tar`, `upload` and `filewrite` do not, so a `dd` that did would be compared with other work."""
    copy, asked = Agent.copy, []

    def note(self: Agent, *paths: str, **how: Any) -> object:
        asked.append(how["preallocate"])
        return copy(self, *paths, **how)

    monkeypatch.setattr(Agent, "copy", note)
    with prepared(cell_of("host", kind, {"location": "/var/tmp"})) as (machine, workload):
        workload.run(machine)
    assert set(asked) == {allocated}


@pytest.mark.parametrize(
    ("kind", "platform"),
    [
        *(("dd", platform) for platform in ("uml", "tcg")),
        ("filewrite", "uml"),
        *(long(kind, "tcg") for kind in ("direct", "share", "tar", "fill", "filewrite")),
        *(long(kind, "uml") for kind in ("direct", "share", "tar", "fill")),
    ],
)
def test_what_is_written_arrives_and_is_measured(platform: str, kind: str) -> None:
    values, workload = measured(platform, kind, content="random" if kind != "fill" else "one")
    assert values["wall_s"] >= values["guest_flush_s"] + values["host_flush_s"]
    assert values["guest_wall_s"] >= values["guest_flush_s"]
    assert values["host_written_bytes"] >= AMOUNT
    assert values["guest_flushes"] >= 1
    assert workload.facts.facts().kept["flushes_reached_host"] in ("yes", "no", "unknown")


@pytest.mark.parametrize("platform", ["uml", long("tcg")])
def test_upload_splits_into_channel_and_disk(platform: str) -> None:
    amount = "1M" if platform == "uml" else "8M"  # UML's line is slow
    for variant in ("full", "channel", "disk"):
        with prepared(cell_of(platform, "upload", variant=variant, amount=amount)) as (machine, workload):
            assert len(machine.disks) == (0 if variant == "channel" else 1)
            names = {measurement.metric.name for measurement in workload.run(machine)}
        assert ("guest_flush_s" in names) == (variant != "channel")


@pytest.mark.parametrize("platform", ["host", "uml", "tcg"])
def test_files_are_read_back_from_the_disk(platform: str) -> None:
    values, workload = measured(platform, "fileread", content="random")
    if platform != "host":
        assert values["host_read_bytes"] >= AMOUNT
    assert "flushes_reached_host" not in workload.facts.facts().kept


@pytest.mark.parametrize("platform", ["host", "uml", long("tcg")])
def test_the_host_has_cached_what_is_copied_and_not_what_is_read(
    platform: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a guest's reads would come from the host's memory, and a source from the disk after some rows only."""
    if is_in_memory("/var/tmp"):
        pytest.skip("/var/tmp is in memory")
    read_back, copy = Agent.read_back, Agent.copy
    cached: list[int] = []
    machines: list[Machine] = []

    def note_target(self: Agent, *paths: str, **how: Any) -> object:
        image = find_target(machines[-1]).image
        cached.append(count_cached_bytes(image.path / FILE if image.path.is_dir() else image.path))
        return read_back(self, *paths, **how)

    def note_source(self: Agent, *paths: str, **how: Any) -> object:
        cached.append(count_cached_bytes(find_source(machines[-1]).image.path))
        return copy(self, *paths, **how)

    monkeypatch.setattr(Agent, "read_back", note_target)
    monkeypatch.setattr(Agent, "copy", note_source)
    factors = {**FACTORS, "location": "/var/tmp"} if platform != "host" else {"location": "/var/tmp"}
    for _ in range(2):
        with prepared(make_cell(platform, "fileread", factors, amount="8M", content="random")) as (
            machine,
            read,
        ):
            machines.append(machine)
            for _ in range(2):
                read.run(machine)
    assert max(cached) < AMOUNT / 4
    cached.clear()
    for _ in range(2):
        with started(make_cell(platform, "dd", factors, amount="8M", content="random")) as (machine, write):
            machines.append(machine)
            find_source(machine).image.evict_from_cache()
            write.prepare(machine)
            write.run(machine)
    assert min(cached) == AMOUNT


@pytest.mark.parametrize("kind", ["upload", "dd", "direct", "share", "tar", "fill", "filewrite"])
def test_the_host_is_the_ceiling(kind: str) -> None:
    values, _ = measured("host", kind)
    assert "host_written_bytes" not in values


@pytest.mark.long
def test_direct_does_not_pass_through_the_guests_memory() -> None:
    through = {}
    for kind in ("dd", "direct"):
        with prepared(cell_of("tcg", kind, content="random")) as (machine, workload):
            workload.run(machine)
            through[kind] = workload.facts.facts().kept["direct"]
    assert through == {"dd": False, "direct": True}


@pytest.mark.long
def test_block_size_is_a_factor() -> None:
    factors = {**FACTORS, "mount": "sync"}
    small, _ = measured("uml", "fill", {**factors, "block_size": "64K"})
    large, _ = measured("uml", "fill", {**factors, "block_size": "1M"})
    assert small["guest_flushes"] > 4 * large["guest_flushes"]


def test_iterations_write_anew() -> None:
    with prepared(cell_of("uml", "dd", content="random")) as (machine, workload):
        workload.run(machine)
        values = {measurement.metric.name: measurement.value for measurement in workload.run(machine)}
        assert values["host_written_bytes"] >= AMOUNT


@pytest.mark.parametrize(
    ("platform", "factors"),
    [
        ("uml", FACTORS),
        long("tcg", FACTORS),
        ("uml", {"size": "400M", "filesystem": "xfs"}),
    ],
    ids=["debugfs-uml", "debugfs-tcg", "guest"],
)
def test_a_byte_that_changed_on_the_image_fails_the_trial(platform: str, factors: dict[str, str]) -> None:
    if factors["filesystem"] == "xfs" and shutil.which("mkfs.xfs") is None:
        pytest.skip("mkfs.xfs is not installed")
    with prepared(cell_of(platform, "dd", factors, content="random")) as (machine, workload):
        image = next(disk.image for disk in machine.disks if disk.spec.name == "target")
        source = next(disk.image for disk in machine.disks if disk.spec.name == "source")
        page = source.path.read_bytes()[1 << 20 : (1 << 20) + 4096]
        umount = type(machine.disks[0]).umount
        flipped: list[int] = []

        def umount_and_flip(disk: AttachedDisk, agent: Agent, **how: Any) -> None:
            umount(disk, agent, **how)
            if not flipped:
                flipped.append(image.path.read_bytes().index(page))
                flip_bit(image.path, flipped[0])

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(machine.disks[0]), "umount", umount_and_flip)
            with pytest.raises(WorkloadError, match="did not arrive intact"):
                workload.run(machine)
        assert flipped


def test_an_image_that_was_damaged_fails_the_trial() -> None:
    with prepared(cell_of("uml", "fill")) as (machine, workload):
        (disk,) = machine.disks
        umount = type(disk).umount

        def umount_and_damage(disk: AttachedDisk, agent: Agent, **how: Any) -> None:
            umount(disk, agent, **how)
            with disk.image.path.open("r+b") as stream:
                stream.seek(4096 * 3)  # block bitmaps and inode tables of the first group
                stream.write(os.urandom(4096 * 2))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(disk), "umount", umount_and_damage)
            with pytest.raises((MachineError, WorkloadError)):
                workload.run(machine)


needs_guestfish = pytest.mark.skipif(shutil.which("guestfish") is None, reason="guestfish is not installed")


@pytest.mark.long
@needs_guestfish
@pytest.mark.parametrize("method", ["upload", "copy", "tgz-in", "fill"])
def test_guestfish_is_a_peer(method: str) -> None:
    values, workload = measured("tcg", "guestfish", method=method, content="one")
    assert values["wall_with_launch_s"] == pytest.approx(values["wall_s"] + values["launch_s"])
    assert values["launch_s"] > 0.5
    assert any("accel=tcg" in word for word in workload.facts.facts().kept["libguestfs_qemu"])


@pytest.mark.long
@needs_guestfish
def test_guestfish_writes_qcow2_too() -> None:
    measured("tcg", "guestfish", {**FACTORS, "format": "qcow2"}, content="random")


def test_guestfish_is_not_measured_where_it_cannot_run() -> None:
    cell = cell_of("uml", "guestfish")
    with pytest.raises(UsageError, match="tcg and kvm only"):
        base.find_trial_class("guestfish").preflight(Plan("test", (cell,), Policy(), ()), [cell])
