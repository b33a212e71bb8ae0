"""What a cell's disks are, what can be typed, what mount options mean, what a plan's images take."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from guestmark.agent.client import Agent
from guestmark.core import registry
from guestmark.core.errors import UsageError
from guestmark.core.findings import Durability, Reached
from guestmark.core.model import Cell, WorkloadSpec
from guestmark.core.platform_spec import PlatformSpec
from guestmark.disks import preflight
from guestmark.disks.attached import AttachedDisk, compare_options
from guestmark.disks.image import Image
from guestmark.platforms.host_like import Host
from guestmark.platforms.qemu.nested.images import check_disks as check_nested_disks
from guestmark.setting.disk import Disks, DiskSpec, Role
from guestmark.workloads.common import flushes
from guestmark.workloads.common.flushes import judge_flushes, judge_qemu_counters
from guestmark.workloads.fio.trial import requests_flushes
from tests.framework.cells import cell_of

BOTH = {
    "disks": [
        {"role": "target", "filesystem": "ext2"},
        {"role": "source", "size": "1500M", "content": "random"},
    ]
}


def cell(platform: str = "tcg", params: Mapping[str, Any] | None = None, **levels: str) -> Cell:
    return Cell("a cell", WorkloadSpec("x", params or {}), PlatformSpec.read(platform), levels)


def test_a_cell_without_needs_and_factors_has_no_disks() -> None:
    assert cell(memory="1G").view(Disks) == ()


def test_one_disk_factor_means_a_target() -> None:
    (disk,) = cell(filesystem="xfs").view(Disks)
    assert (disk.role, disk.filesystem, disk.format, disk.size) == (Role.TARGET, "xfs", "raw", 2 << 30)


def test_factors_win_over_needs_and_shape_the_target_only() -> None:
    target, source = cell(params=BOTH, filesystem="ext4", format="qcow2", cache="none", bus="nvme").view(
        Disks
    )
    assert (target.filesystem, target.format, target.cache, target.bus) == ("ext4", "qcow2", "none", "nvme")
    assert (source.filesystem, source.format, source.cache, source.bus) == ("none", "raw", "none", "nvme")
    assert source.read_only
    assert source.size == 1500 << 20


def test_uml_has_its_own_bus_and_raw_images() -> None:
    target, source = cell("uml", BOTH).view(Disks)
    assert {target.bus, source.bus} == {"ubd"}


def test_the_innermost_machine_has_the_disks() -> None:
    assert cell("kvm/uml", BOTH).view(Disks)[0].bus == "ubd"


@pytest.mark.parametrize(
    ("levels", "said"),
    [
        ({"preallocation": "metadata"}, "needs format=qcow2"),
        ({"size": "1000001"}, "not a multiple of 4096"),
        ({"format": "vdi", "preallocation": "falloc"}, "vdi image grows as it is written"),
        ({"format": "vmdk", "preallocation": "full"}, "cannot be preallocated"),
        ({"format": "vhdx", "preallocation": "full"}, "cannot be preallocated"),
        ({"bus": "nvme", "iothread": "on"}, "cannot have an I/O thread"),
    ],
)
def test_what_cannot_be_made_is_said(levels: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        cell(params=None, **levels).view(Disks)


def test_a_nested_guest_has_no_backing_image_and_nothing_packed() -> None:
    with pytest.raises(UsageError, match="no backing image"):
        cell("tcg/kvm", format="qcow2", backing="on").view(Disks)
    reads = cell_of("tcg/kvm", "fileread", {"filesystem": "erofs"}, amount="8M")
    with pytest.raises(UsageError, match="erofs image is made on this host"):
        check_nested_disks(reads)


def test_two_targets_are_refused() -> None:
    with pytest.raises(UsageError, match="same role"):
        cell(params={"disks": [{"role": "target"}, {"role": "target"}]}).view(Disks)


def test_an_unknown_key_is_refused() -> None:
    with pytest.raises(UsageError, match="fs"):
        cell(params={"disks": [{"role": "target", "fs": "ext4"}]}).view(Disks)


@pytest.mark.parametrize(
    ("name", "typed", "canonical"),
    [
        ("preallocation", "sparse", "off"),
        ("preallocation", "prealloc", "falloc"),
        ("format", "QCOW2", "qcow2"),
        ("size", "2 GiB", "2G"),
        ("size", "2048MB", "2G"),
        ("cluster_size", "65536", "64K"),
        ("mount", "", "defaults"),
        ("mkfs", "-b 1024", "-b 1024"),
        ("location", "/dev/../dev/shm", "/dev/shm"),
        ("qemu_args", " -device   virtio-rng-pci ", "-device virtio-rng-pci"),
    ],
)
def test_levels_have_one_spelling(name: str, typed: str, canonical: str) -> None:
    factor = registry.find_factor(name)
    assert registry.parse_level(factor, typed) == canonical
    assert registry.parse_level(factor, canonical) == canonical


@pytest.mark.parametrize(
    ("name", "typed"),
    [
        ("format", "zip"),
        ("cache", "direct"),
        ("cluster_size", "3K"),
        ("cluster_size", "4M"),
        ("size", "100K"),
        ("size", "5000000"),
        ("location", "/nowhere/at/all"),
        ("location", ""),
        ("mkfs", "-O 'unclosed"),
        ("qemu_args", "-device 'unclosed"),
        ("qemu_args", "virtio-rng-pci"),
        ("mount", "sync\n"),
    ],
)
def test_bad_levels_are_refused_in_one_line(name: str, typed: str) -> None:
    if typed == "sync\n":
        typed = "sy\nnc"
    with pytest.raises(UsageError) as caught:
        registry.parse_level(registry.find_factor(name), typed)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("asked", "shown", "refuted", "unconfirmed"),
    [
        ("sync", "rw,sync,relatime", (), ()),
        ("sync", "rw,relatime", ("sync",), ()),
        ("data=journal", "rw,data=ordered", ("data=journal",), ()),
        ("data=journal,barrier=0", "rw,nobarrier,data=journal", (), ()),
        ("barrier=0", "rw,barrier", ("barrier=0",), ()),
        ("nodelalloc", "rw,delalloc", ("nodelalloc",), ()),
        ("discard", "rw,nodiscard", ("discard",), ()),
        ("defaults,rw,async", "rw,relatime", (), ()),
        ("async", "rw,sync", ("async",), ()),
        ("commit=30", "rw,relatime", (), ("commit=30",)),
        ("compress=zstd", "rw,compress=zstd:3,space_cache=v2", (), ()),
        ("compress-force=zstd", "rw,compress-force=zstd:3", (), ()),
        ("compress", "rw,compress=zlib:3", (), ()),
        ("compress=lzo", "rw,compress=zstd:3", ("compress=lzo",), ()),
        ("", "rw", (), ()),
    ],
)
def test_mount_options_are_held_against_what_the_kernel_shows(
    asked: str, shown: str, refuted: tuple[str, ...], unconfirmed: tuple[str, ...]
) -> None:
    verdict = compare_options(asked, shown.split(","))
    assert (verdict.refuted, verdict.unconfirmed) == (refuted, unconfirmed)


def test_room_is_for_the_largest_target_and_every_source() -> None:
    small = DiskSpec.from_levels(Role.TARGET, 1 << 30)
    large = DiskSpec.from_levels(Role.TARGET, 2 << 30)
    source = DiskSpec.from_levels(Role.SOURCE, 1 << 20)
    other = DiskSpec.from_levels(Role.SOURCE, 1 << 20, content="random")
    unknown = cell()
    trials = [(unknown, [small, source]), (unknown, [large, source]), (unknown, [large, other])]
    assert preflight.count_needed_bytes(trials) == (2 << 30) + (2 << 20)
    qcow2 = DiskSpec.from_levels(Role.TARGET, 2 << 30, format="qcow2")
    assert preflight.count_needed_bytes([(unknown, [qcow2])]) > 2 << 30


@pytest.mark.parametrize(
    ("kind", "params", "files"),
    [
        ("upload", {}, 1),
        ("upload", {"variant": "channel"}, 1),
        ("upload", {"variant": "disk"}, 0),
        ("share", {}, 1),
        ("tar", {}, 2),
        ("tar", {"content": "zero"}, 1),
        ("guestfish", {"method": "upload"}, 1),
        ("guestfish", {"method": "tgz-in"}, 2),
        ("fill", {}, 0),
    ],
)
def test_room_is_for_the_files_that_are_sent_too(
    kind: str, params: dict[str, str], files: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "count_free_bytes", lambda _location: 0)
    needed: list[int] = []
    count = preflight.count_needed_bytes

    def note(trials: Sequence[tuple[Cell, Sequence[DiskSpec]]]) -> int:
        needed.append(count(trials))
        return needed[-1]

    monkeypatch.setattr(preflight, "count_needed_bytes", note)
    given = {"location": str(tmp_path), "size": "1G"}
    moves = cell_of("tcg", kind, given, amount="100M", **params)
    with contextlib.suppress(UsageError):
        preflight.check_disks([moves, moves])
    target = count([(moves, moves.view(Disks))])
    assert needed == [target + files * (100 << 20)]


def test_a_sparse_image_needs_room_for_what_is_written_to_it() -> None:
    writes = cell_of("tcg", "upload", amount="10M")
    sparse = DiskSpec.from_levels(Role.TARGET, 2 << 30)
    assert 10 << 20 < preflight.count_needed_bytes([(writes, [sparse])]) < 200 << 20
    whole = DiskSpec.from_levels(Role.TARGET, 2 << 30, preallocation="falloc")
    assert preflight.count_needed_bytes([(writes, [whole])]) == 2 << 30


def test_a_workload_that_writes_files_is_refused_a_bare_disk() -> None:
    writes = cell(params={"disks": [{"role": "target"}]}, filesystem="none")
    with pytest.raises(UsageError, match="needs a filesystem"):
        preflight.check_filesystems([writes])
    preflight.check_filesystems([cell(params=None, filesystem="none")])  # a command may want it bare


def test_a_plan_that_does_not_fit_is_said_before_anything_runs() -> None:
    with pytest.raises(UsageError, match=r"/dev/shm is too small: .* 9005\.0 GB") as caught:
        preflight.check_disks([cell(size="8793945312K")])
    assert "location" in caught.value.hint


@pytest.mark.parametrize(
    ("cache", "sent", "passed_on", "reached"),
    [
        ({"writeback": True, "no-flush": False}, 3, 3, "yes"),
        ({"writeback": True, "no-flush": False}, 3, 2, "no"),
        ({"writeback": True, "no-flush": False}, 0, 0, "no"),
        ({"writeback": True, "no-flush": True}, 3, 0, "no"),
        ({"writeback": False, "no-flush": False}, 0, 0, "yes"),
        ({"writeback": True, "no-flush": False}, 3, None, None),
    ],
)
def test_flushes_are_judged_by_what_was_counted(
    cache: dict[str, bool], sent: int, passed_on: int | None, reached: str | None
) -> None:
    blocks: list[dict[str, object]] = [
        {"device": "source", "inserted": {"cache": {"writeback": True, "no-flush": True}}},
        {"device": "target", "inserted": {"cache": cache}},
    ]
    verdict = judge_qemu_counters(blocks, "target", sent, passed_on)
    assert (verdict and verdict.reached) == reached


@pytest.mark.parametrize(
    ("job", "asks"),
    [
        ("[w]\nrw=write\nsync=1\n", True),
        ("[w]\nrw=write\nend_fsync=1\n", True),
        ("[w]\nrw=write\nfsync_on_close\n", True),
        ("[w]\nrw=write\nsync=0\n", False),
        ("[w]\nrw=write\nsync=none\n", False),
        ("[w]\nioengine=psync\n", False),
    ],
)
def test_a_fio_job_asks_for_flushes_or_does_not(job: str, asks: bool) -> None:
    assert requests_flushes(job) is asks


@pytest.mark.parametrize(
    ("cache", "word"),
    [
        ("writethrough", Durability.REACHED),
        ("directsync", Durability.REACHED),
        ("writeback", Durability.NOTHING),
    ],
)
def test_a_served_disk_without_a_write_cache_needs_no_flush_of_the_guest(
    cache: str, word: Durability, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = DiskSpec.from_levels(Role.TARGET, 1 << 20, location="/var/tmp", bus="vhost-user", cache=cache)
    seen = flushes.Verdict(Reached.YES, "as strace saw", Durability.REACHED)
    monkeypatch.setattr(flushes, "_watch_flush_once", lambda _machine, _disk: seen)
    guest = Host(Agent.__new__(Agent), ())
    monkeypatch.setattr(Host, "vmm_pid", 1)
    disk = AttachedDisk(spec, Image(spec, Path("/var/tmp")), "/dev/vda")
    assert judge_flushes(guest, disk, 0, None).word is word


def test_who_asks_for_no_flush_on_the_host_is_not_called_durable() -> None:
    spec = DiskSpec.from_levels(Role.TARGET, 1 << 20, location="/var/tmp")
    host = Host(Agent.__new__(Agent), ())
    disk = AttachedDisk(spec, Image(spec, Path("/var/tmp")))
    assert judge_flushes(host, disk, None, None, flushed=False).word is Durability.NOTHING
    assert judge_flushes(host, disk, None, None).word is Durability.REACHED
    in_memory = replace(disk, spec=spec.with_levels(location="/dev/shm"))
    assert judge_flushes(host, in_memory, None, None).word is Durability.MEMORY
