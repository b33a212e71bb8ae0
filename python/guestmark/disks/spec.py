"""The disks of a cell: frozen descriptions, derived only from the cell's workload and factors.

A workload states in its parameters which disks it needs, so that a stored plan has it too:
`params["disks"] = [{"role": "target"}, {"role": "source", "size": "1500M", "content": "random"}]`. The factors of the
cell (`guestmark.disks.factors`) shape the target disk; a source disk is plain, raw and read-only.
"""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from guestmark.core.errors import UsageError
from guestmark.core.model import Cell
from guestmark.core.units import format_size, parse_size
from guestmark.disks import devices, shares
from guestmark.disks.formats import VARIANTS
from guestmark.setting.base import DiskSetting, disk_settings
from guestmark.setting.drive import CACHE, CacheMode

L = TypeVar("L")
SHARED_MEMORY = "/dev/shm"
NO_FILESYSTEM = "none"
VHOST_USER = "vhost-user"  # the bus of disks that qemu-storage-daemon serves
DEFAULTS: Mapping[str, str] = {
    "format": "raw",
    "preallocation": "off",
    "cluster_size": "64K",
    **{factor.name: factor.default for factor in disk_settings() if factor.default},
    "aio": "threads",
    "bus": "virtio-blk",
    "location": SHARED_MEMORY,
    "size": "2G",
    "filesystem": "ext4",
    "mkfs": "defaults",
    "mount": "defaults",
}
PACKED = frozenset({"erofs", "squashfs"})  # filesystems made with their content, which cannot be written
_NEED_KEYS = {"role", "content", "holds", "host", "tree", "logged", *DEFAULTS}
_SMALL = {
    "xfs": "320M",
    "btrfs": "128M",
    "f2fs": "128M",
    "nilfs2": "256M",
}  # what a log of writes is taken of where nobody says more
_SWITCHES = (
    *(factor.name for factor in disk_settings() if not factor.default),
    "discard", "detect_zeroes", "iothread", "queues", "logical_block", "physical_block", "bandwidth", "iops",
    "disk_protocol", *VARIANTS, shares.CACHE, shares.SECURITY_MODEL,
)  # fmt: skip
_SMALLEST_DIVIDED = 16 << 10
_LOOP_CACHES = (CacheMode.WRITEBACK, CacheMode.NONE)


class Role(StrEnum):
    """What a disk is for: bytes go to the target, and come from the source."""

    TARGET = "target"
    SOURCE = "source"


@dataclass(frozen=True, slots=True)
class DiskSpec:
    """One disk. `size` is what the guest sees, in bytes; `location` a directory of the host, or (`overwritten`) a block
    device that is the disk.

    `content` is for sources: `zero`, `one` (bytes of value 1), `random` (the same bytes every time for one size) or
    `file:PATH` (its first `size` bytes). `mkfs` and `mount` are options as typed, `defaults` when there are none;
    `filesystem` `none` leaves the disk unformatted (sources always are), and one of `disks.shares` means a directory
    of the host that the guest mounts. `loop`: an image on the host too, mounted
    there through a loop device, where otherwise a target is a directory. `tree`: a directory of this host whose content
    a fresh target holds; a tree is never changed, one with other content has another name. `logged`: what the host's
    kernel sees of its writes and flushes is logged (`disks.logged`).
    """

    role: Role
    size: int
    format: str = "raw"
    preallocation: str = "off"
    cluster_size: int = 64 << 10
    cache: CacheMode = CacheMode.WRITEBACK
    aio: str = "threads"
    bus: str = "virtio-blk"
    location: str = SHARED_MEMORY
    filesystem: str = NO_FILESYSTEM
    mkfs: str = "defaults"
    mount: str = "defaults"
    content: str = "zero"
    loop: bool = False
    tree: str = ""
    logged: bool = False
    overwritten: bool = False
    holds: int = 0  # bytes of `content` in a file that is only read, where the workload says so
    switches: tuple[tuple[str, str], ...] = ()  # of QEMU, by factor; others are at its defaults

    def level(self, factor: DiskSetting[L]) -> L | None:
        """The level of a factor; None when it is QEMU's default."""
        text = getattr(self, factor.name) if factor.default else self.switch(factor.name)
        return factor.read(text) if text else None

    def switch(self, name: str) -> str:
        """The level of one of them, empty when it is QEMU's default."""
        return dict(self.switches).get(name, "")

    @property
    def name(self) -> str:
        """Unique within a cell: image name, drive id and serial number."""
        return str(self.role)

    @property
    def shared(self) -> bool:
        """Whether it is no disk but a directory of the host, which the guest mounts."""
        return self.filesystem in shares.SHARES

    @property
    def read_only(self) -> bool:
        """Sources and what is packed cannot be written."""
        return self.role is Role.SOURCE or self.packed

    @property
    def packed(self) -> bool:
        """Whether its filesystem is made with its content and never written."""
        return self.filesystem in PACKED

    @property
    def mkfs_options(self) -> tuple[str, ...]:
        """The mkfs options as arguments."""
        return () if self.mkfs == "defaults" else tuple(shlex.split(self.mkfs))

    @property
    def mount_options(self) -> str:
        """The mount options as for `mount -o`; empty when there are none."""
        return "" if self.mount == "defaults" else self.mount


def disks_of(cell: Cell) -> tuple[DiskSpec, ...]:
    """The disks of a cell, in the order in which they are attached: what its workload's parameters ask for, else one
    target when the cell has any disk factor, else none.

    Levels of factors override the workload, which overrides `DEFAULTS`. Raises `UsageError` for impossible
    combinations.
    """
    needs = cell.workload.params.get("disks")
    if needs is None:
        needs = [{"role": "target"}] if {*DEFAULTS, *_SWITCHES} & cell.factors.keys() else []
    disks = tuple(_disk(need, cell) for need in needs)
    if len({disk.role for disk in disks}) != len(disks):
        raise UsageError(f"{cell.id}: two disks have the same role", hint="ask for one target and one source")
    return disks


def _disk(need: Mapping[str, Any], cell: Cell) -> DiskSpec:
    if extra := need.keys() - _NEED_KEYS:
        raise UsageError(f"{cell.id}: a disk has no {', '.join(sorted(extra))}")
    role = Role(need["role"])
    given = {name: str(value) for name, value in need.items() if name in DEFAULTS}
    if role is Role.SOURCE:
        values = {**DEFAULTS, "filesystem": NO_FILESYSTEM, **given}
        shared = {
            name: cell.factors[name] for name in ("cache", "aio", "bus", "location") if name in cell.factors
        }
        values |= shared
        values["location"] = devices.directory_of(values["location"])
    else:
        values = {
            **DEFAULTS,
            **given,
            **{name: cell.factors[name] for name in DEFAULTS if name in cell.factors},
        }
    logged = bool(need.get("logged"))
    if logged and not {"size"} & (given.keys() | cell.factors.keys()):
        values["size"] = _SMALL.get(values["filesystem"], "64M")
    platform = cell.platform.inner.described
    loop = cell.platform.is_this_host and need.get("host") == "loop"
    if loop:
        values |= {"bus": "loop", "format": "raw", "aio": "threads"}
    if platform.disk:
        values |= platform.disk
        values["bus"] = cell.factors.get(platform.bus_factor, values["bus"])
    device = devices.path_of(values["location"])
    if device:
        values |= {"location": device, "size": str(devices.size_of(device))}
    if values["filesystem"] in shares.SHARES:
        values["bus"] = values["filesystem"]
    disk = DiskSpec(
        role=role,
        size=parse_size(values["size"]),
        format=values["format"],
        preallocation=values["preallocation"],
        cluster_size=parse_size(values["cluster_size"]),
        cache=CACHE.read(values["cache"]),
        aio=values["aio"],
        bus=values["bus"],
        location=values["location"],
        filesystem=values["filesystem"],
        mkfs=values["mkfs"],
        mount=values["mount"],
        content=str(need.get("content", "zero")),
        loop=loop,
        tree=str(need.get("tree", "")),
        logged=logged,
        overwritten=bool(device),
        holds=parse_size(str(need["holds"])) if "holds" in need else 0,
        switches=tuple((name, cell.factors[name]) for name in _SWITCHES if name in cell.factors),
    )
    if role is Role.TARGET:
        shares.check(disk, cell, _SWITCHES)
    if disk.overwritten:
        _check_device(disk, cell)
    if disk.packed:
        _check_packed(disk, cell)
    _check(disk, cell)
    return disk


def _check(disk: DiskSpec, cell: Cell) -> None:
    if disk.format == "raw" and disk.preallocation == "metadata":
        raise UsageError(
            f"{cell.id}: preallocation=metadata needs format=qcow2, because a raw image has no metadata",
            hint="use preallocation=off (sparse), falloc or full, or exclude the combination",
        )
    if disk.format not in {"raw", "qcow2"} and disk.preallocation == "metadata":
        raise UsageError(
            f"{cell.id}: preallocation=metadata is qcow2's", hint="use another, or exclude the combination"
        )
    variants = [name for name in VARIANTS if disk.switch(name) not in {"", "off"}]
    if variants and disk.format != "qcow2":
        raise UsageError(
            f"{cell.id}: {variants[0]} needs format=qcow2", hint="use it, or exclude the combination"
        )
    if "subclusters" in variants and disk.cluster_size < _SMALLEST_DIVIDED:
        raise UsageError(
            f"{cell.id}: clusters of {disk.cluster_size} bytes cannot be divided",
            hint="use cluster_size=16K or larger",
        )
    if disk.preallocation != "off" and {"compression", "backing"} & set(variants):
        raise UsageError(
            f"{cell.id}: what is compressed, or lies on top of another image, is not allocated in advance",
            hint="use preallocation=off, or exclude the combination",
        )
    if disk.switch("queues") and disk.bus != "virtio-blk":
        raise UsageError(
            f"{cell.id}: queues are counted on virtio-blk",
            hint="use bus=virtio-blk, or exclude the combination",
        )
    logical, physical = int(disk.switch("logical_block") or 512), disk.switch("physical_block")
    if logical > int(physical or 4096):
        raise UsageError(
            f"{cell.id}: logical_block={logical} is more than physical_block={physical}",
            hint="use a larger physical_block, or exclude the combination",
        )
    if disk.switch("disk_protocol") == "nbd" and cell.platform.nested:
        raise UsageError(
            f"{cell.id}: nothing serves images inside another guest",
            hint="use disk_protocol=file for nested platforms",
        )
    if disk.switch("disk_protocol") == "nbd" and disk.format != "raw":
        raise UsageError(
            f"{cell.id}: a {disk.format} image grows, and what is served over NBD cannot",
            hint="use format=raw, or exclude the combination",
        )
    if disk.switch("iothread") == "on" and not disk.bus.startswith("virtio-"):
        raise UsageError(
            f"{cell.id}: a disk on {disk.bus} cannot have a thread of its own",
            hint="use bus=virtio-blk or virtio-scsi, or exclude the combination",
        )
    _check_served(disk, cell)
    if disk.loop and (disk.cache not in _LOOP_CACHES or disk.filesystem == NO_FILESYSTEM):
        raise UsageError(
            f"{cell.id}: a loop device on the host has a filesystem, and cache=writeback or cache=none",
            hint="use one of these, or exclude the combination",
        )
    if disk.size % 4096 and not disk.overwritten:
        raise UsageError(
            f"{cell.id}: a disk of {disk.size} bytes is not a whole number of 4096-byte blocks",
            hint=f"e.g. size={format_size(-(-disk.size // 4096) * 4096)}",
        )


def _check_served(disk: DiskSpec, cell: Cell) -> None:
    if disk.bus == VHOST_USER and (disk.format != "raw" or disk.switches):
        what = f"format={disk.format}" if disk.format != "raw" else "=".join(disk.switches[0])
        raise UsageError(
            f"{cell.id}: {what} is QEMU's, and a disk on {VHOST_USER} is served as a raw image by another program",
            hint="use bus=virtio-blk, or exclude the combination",
        )


def _check_device(disk: DiskSpec, cell: Cell) -> None:
    given = [name for name in ("size", "preallocation", "backing", "disk_protocol") if name in cell.factors]
    what = "a directory" if disk.shared else f"format={disk.format}" if disk.format != "raw" else ""
    what = what or next((f"{name}={cell.factors[name]}" for name in given), "")
    what = what or ("prepared files" if disk.tree else "")
    if what:
        raise UsageError(
            f"{cell.id}: {disk.location} is a block device as it is, without {what}",
            hint="choose a directory with --set location=DIRECTORY, or exclude the combination",
        )
    if cell.platform.nested:
        raise UsageError(
            f"{cell.id}: a guest inside a guest is not given devices of this host",
            hint="exclude the combination",
        )


def _check_packed(disk: DiskSpec, cell: Cell) -> None:
    if not disk.holds:
        raise UsageError(
            f"{cell.id}: {disk.filesystem} cannot be written, and {cell.workload.name} writes",
            hint="use workload fileread, which only reads, or another filesystem",
        )
    other = "a device" if disk.overwritten else "" if disk.format == "raw" else f"format={disk.format}"
    if other or disk.preallocation != "off":
        raise UsageError(
            f"{cell.id}: an image with {disk.filesystem} is a raw file of its maker's, not "
            f"{other or f'preallocation={disk.preallocation}'}",
            hint="leave that out, or exclude the combination",
        )
