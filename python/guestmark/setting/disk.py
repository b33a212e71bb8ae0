"""The disks of a cell: frozen descriptions, derived only from the cell's workload and factors.

A workload states in its parameters which disks it needs, so that they are stored with the plan: `params["disks"] =
[{"role": "target"}, {"role": "source", "size": "1500M", "content": "random"}]`. The factors of the cell apply to the
target disk; a source disk is plain, raw and read-only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, TypeVar

from guestmark.core.errors import UsageError
from guestmark.core.levels import Levels
from guestmark.core.model import Cell
from guestmark.core.units import format_size, parse_size
from guestmark.setting import location
from guestmark.setting.base import (
    EXCLUDE,
    DiskKind,
    DiskSetting,
    is_disk_setting,
    iterate_disk_levels,
    list_disk_settings,
)
from guestmark.setting.drive import AIO, BUS, CACHE, Aio, Bus, CacheMode
from guestmark.setting.filesystem import FILESYSTEM, MKFS, MOUNT, Filesystem
from guestmark.setting.image import FORMAT, PREALLOCATION, SIZE, Format, Preallocation
from guestmark.setting.location import LOCATION

L = TypeVar("L")
_BLOCK = 4096


class Role(StrEnum):
    """The role of a disk: bytes are written to the target and read from the source."""

    TARGET = "target"
    SOURCE = "source"


@dataclass(frozen=True, slots=True)
class DiskSpec:
    """One disk. `levels` are its levels of all factors, including defaults; properties return the common ones.

    `content` is what a source holds: `zero`, `one` (bytes of value 1), `random` (the same bytes for the same size) or
    `file:PATH` (the first bytes of that file). `loop`: on the host the target is an image, mounted through a loop
    device; otherwise it is a directory. `tree`: a host directory that is copied to a fresh target; a tree never
    changes, so different content has a different path. `logged`: the writes and flushes that the host's kernel sees are
    logged (`disks.logged`). `holds`: bytes of `content` in a file that is only read; 0 if the
    workload does not state them.
    """

    role: Role
    levels: Levels
    content: str = "zero"
    loop: bool = False
    tree: str = ""
    logged: bool = False
    holds: int = 0
    # Its name, if disks of several cells are attached to one machine.
    alias: str = ""

    @classmethod
    def from_levels(
        cls, role: Role, size: int, *, content: str = "zero", tree: str = "", **levels: object
    ) -> DiskSpec:
        """Create a disk of `size` bytes with these levels, which are not checked; the default filesystem is `none`."""
        given = {FILESYSTEM.name: Filesystem.NONE, SIZE.name: size, **levels}
        texts = {name: str(level) for name, level in given.items()}
        return cls(role, Levels(_list_defaults() | texts), content, tree=tree)

    def with_levels(self, **levels: str) -> DiskSpec:
        """Return the same disk with some levels replaced."""
        return replace(self, levels=self.levels.with_levels(levels))

    def level(self, factor: DiskSetting[L]) -> L | None:
        """Return the disk's level of a factor; None if none was given and QEMU decides."""
        return self.levels.get(factor)

    def __getitem__(self, factor: DiskSetting[L]) -> L:
        """Return the disk's level of a factor that every disk has."""
        return self.levels[factor]

    @property
    def name(self) -> str:
        """The disk's name, unique on its machine; used as image name, drive id and serial number."""
        return self.alias or str(self.role)

    @property
    def size(self) -> int:
        """The size that the guest sees, in bytes."""
        return self[SIZE]

    @property
    def format(self) -> Format:
        """The image's format."""
        return self[FORMAT]

    @property
    def preallocation(self) -> Preallocation:
        """The part of the image that is allocated in advance."""
        return self[PREALLOCATION]

    @property
    def cache(self) -> CacheMode:
        """QEMU's cache mode."""
        return self[CACHE]

    @property
    def aio(self) -> Aio:
        """The interface that QEMU uses for the disk's I/O."""
        return self[AIO]

    @property
    def bus(self) -> Bus:
        """The bus to which the disk is attached."""
        return self[BUS]

    @property
    def filesystem(self) -> Filesystem:
        """The filesystem on the disk. A source has none."""
        return self[FILESYSTEM]

    @property
    def mkfs_options(self) -> tuple[str, ...]:
        """Options for the program that creates the filesystem."""
        return self[MKFS]

    @property
    def mount_options(self) -> str:
        """Mount options, as for `mount -o`; empty when there are none."""
        return self[MOUNT]

    @property
    def is_device(self) -> bool:
        """Whether it is a block device of this host instead of an image."""
        return bool(location.parse_device_path(self[LOCATION]))

    @property
    def location(self) -> str:
        """The host directory that holds the image, or the block device that is the disk."""
        return location.parse_device_path(self[LOCATION]) or self[LOCATION]

    @property
    def is_directory(self) -> bool:
        """True if it is not a disk but a host directory that the guest mounts."""
        return self.filesystem.is_directory

    @property
    def is_packed(self) -> bool:
        """True if its filesystem is created together with its content and never written to."""
        return self.filesystem.is_packed

    @property
    def read_only(self) -> bool:
        """True if it cannot be written, as for sources and packed filesystems."""
        return self.role is Role.SOURCE or self.is_packed

    @property
    def kind(self) -> DiskKind:
        """The kind of disk, for factors that apply only to some disks."""
        if self.is_directory:
            return DiskKind.DIRECTORY
        if self.is_device:
            return DiskKind.DEVICE
        if self.loop:
            return DiskKind.LOOP
        return DiskKind.DAEMON if self.bus is Bus.VHOST_USER else DiskKind.IMAGE

    @property
    def durability_levels(self) -> Levels:
        """The levels that decide how much of the written data survives a power cut."""
        kept = {}
        for factor, _ in iterate_disk_levels(self):
            if factor.keeps:
                kept[factor.name] = self.levels.texts[factor.name]
        return Levels(kept)


def _list_defaults() -> dict[str, str]:
    return {factor.name: str(factor.default) for factor in list_disk_settings() if factor.default}


def read_disk_requests(cell: Cell) -> Sequence[Mapping[str, Any]] | None:
    """Return the disks that the workload's parameters request, with roles and levels; None if they request none."""
    return cell.workload.params.get("disks")


class Disks(tuple[DiskSpec, ...]):
    """The disks of a cell, in the order in which they are attached; `cell.view(Disks)` derives and checks them once.

    They are the disks that the workload's parameters request, else one target if the cell has a disk factor, else none.
    Levels of factors override the workload's, which override defaults. Raises `UsageError` for impossible
    combinations.
    """

    __slots__ = ()

    def __new__(cls, cell: Cell) -> Disks:
        """Derive the disks of this cell."""
        needs = read_disk_requests(cell)
        if needs is None:
            needs = [{"role": "target"}] if any(map(is_disk_setting, cell.factors)) else []
        disks = super().__new__(cls, (_derive_disk(need, cell) for need in needs))
        if len({disk.name for disk in disks}) != len(disks):
            raise UsageError(
                f"{cell.id}: two disks have the same role", hint="request one target and one source"
            )
        return disks

    def find_target(self) -> DiskSpec | None:
        """Return the disk under test; None if the cell has none."""
        return next((disk for disk in self if disk.role is Role.TARGET), None)

    @property
    def any_logged(self) -> bool:
        """Whether the writes to a disk of the cell are logged."""
        return any(disk.logged for disk in self)

    @property
    def target(self) -> DiskSpec:
        """The disk under test of a workload that needs one. Raises `LookupError` if there is none."""
        if (found := self.find_target()) is None:
            raise LookupError("the cell has no disk under test")
        return found


def has_disks(cell: Cell) -> bool:
    """Return whether the cell's machine has disks; False for a cell that requests an impossible disk."""
    try:
        return bool(cell.view(Disks))
    except UsageError:
        # The preflight of disks reports the mistake.
        return False


_NEED_KEYS = {"role", "content", "holds", "host", "tree", "logged", "alias"}


def _derive_disk(need: Mapping[str, Any], cell: Cell) -> DiskSpec:
    needed = _select_needed_levels(need, cell)
    role = Role(need["role"])
    asked = _select_asked_levels(role, cell)
    levels = _list_defaults() | needed
    if role is Role.SOURCE and FILESYSTEM.name not in need:
        levels[FILESYSTEM.name] = Filesystem.NONE
    levels |= asked
    # A source cannot share a block device with the target, so its image is stored in a directory.
    if role is Role.SOURCE:
        levels[LOCATION.name] = location.parse_image_directory(levels[LOCATION.name])
    logged = bool(need.get("logged"))
    # A log holds a copy of every write, so the default size is small.
    if logged and SIZE.name not in need and SIZE.name not in asked:
        levels[SIZE.name] = Filesystem(levels[FILESYSTEM.name]).logged_size
    # The loop driver determines these; the levels record what it does.
    loop = cell.platform.is_this_host and need.get("host") == "loop"
    if loop:
        levels |= {BUS.name: Bus.LOOP, FORMAT.name: Format.RAW, AIO.name: Aio.THREADS}
    machine = cell.platform.inner.description
    # Levels that all disks of such a machine have, whatever was requested.
    if machine.disk:
        levels |= machine.disk
        levels[BUS.name] = levels.pop(machine.bus_factor, levels[BUS.name])
    if device := location.parse_device_path(levels[LOCATION.name]):
        levels[SIZE.name] = str(location.read_device_size(device))
    # A directory's bus is the filesystem type that mounts it, such as virtiofs.
    if Filesystem(levels[FILESYSTEM.name]).is_directory:
        levels[BUS.name] = levels[FILESYSTEM.name]
    disk = DiskSpec(
        role,
        Levels(levels),
        str(need.get("content", "zero")),
        loop,
        str(need.get("tree", "")),
        logged,
        parse_size(str(need["holds"])) if "holds" in need else 0,
        str(need.get("alias", "")),
    )
    _check_disk(disk, asked, cell)
    return disk


def _select_needed_levels(need: Mapping[str, Any], cell: Cell) -> dict[str, str]:
    """Return the levels that the workload needs its disk to have. Raises `UsageError` for other properties."""
    known = {factor.name for factor in list_disk_settings()}
    if extra := need.keys() - _NEED_KEYS - known:
        raise UsageError(f"{cell.id}: unknown disk properties: {', '.join(sorted(extra))}")
    return {name: str(value) for name, value in need.items() if name in known}


def _select_asked_levels(role: Role, cell: Cell) -> dict[str, str]:
    """Return the cell's own levels for a disk of this role."""
    asked = {}
    for factor in list_disk_settings():
        is_about_disk = role is Role.TARGET or DiskKind.SOURCE in factor.on
        if is_about_disk and factor.name in cell.factors:
            asked[factor.name] = cell.factors[factor.name]
    return asked


def _check_disk(disk: DiskSpec, asked: Mapping[str, str], cell: Cell) -> None:
    # Only levels that the user asked for can be misplaced; defaults apply to every disk.
    for factor in list_disk_settings():
        if factor.name in asked and disk.kind not in factor.on:
            raise _describe_misplaced_level(disk, factor, cell)
    if disk.is_device:
        _check_device(disk, cell)
    if disk.is_packed:
        _check_packed(disk, cell)
    for factor, level in iterate_disk_levels(disk):
        if refusal := factor.refuse(level, disk, cell):
            raise UsageError(f"{cell.id}: {refusal.why}", hint=refusal.hint)
    if disk.kind is DiskKind.DAEMON and disk.format is not Format.RAW:
        raise _describe_qemu_only(f"format={disk.format}", cell)
    if disk.loop and disk.filesystem is Filesystem.NONE:
        raise UsageError(
            f"{cell.id}: a loop device on the host needs a filesystem",
            hint=f"choose a filesystem other than none, {EXCLUDE}",
        )
    if disk.size % _BLOCK and not disk.is_device:
        raise UsageError(
            f"{cell.id}: the disk size of {disk.size} bytes is not a multiple of {_BLOCK}",
            hint=f"use e.g. size={format_size(-(-disk.size // _BLOCK) * _BLOCK)}",
        )


def _describe_misplaced_level(disk: DiskSpec, factor: DiskSetting[Any], cell: Cell) -> UsageError:
    """Return the error for a requested level that this kind of disk cannot have."""
    given = f"{factor.name}={cell.factors[factor.name]}"
    if disk.kind is DiskKind.DIRECTORY:
        return UsageError(
            f"{cell.id}: filesystem={disk.filesystem} is a directory of the host, which has no {factor.name}",
            hint=f"leave {factor.name} out, {EXCLUDE}",
        )
    if factor.on is DiskKind.DIRECTORY:
        return UsageError(
            f"{cell.id}: {factor.name} applies to directories of the host, not to a disk with {disk.filesystem}",
            hint=f"use filesystem={Filesystem.VIRTIOFS} or filesystem={Filesystem.NINE_P}, {EXCLUDE}",
        )
    if disk.kind is DiskKind.DEVICE:
        return _describe_bare_device(disk, given, cell)
    if disk.kind is DiskKind.DAEMON:
        return _describe_qemu_only(given, cell)
    return UsageError(
        f"{cell.id}: {given} applies to hypervisors, but this host mounts the image itself",
        hint=f"leave {factor.name} out, {EXCLUDE}",
    )


def _describe_qemu_only(given: str, cell: Cell) -> UsageError:
    return UsageError(
        f"{cell.id}: {given} applies only to QEMU, but disks on {Bus.VHOST_USER} are served by qemu-storage-daemon",
        hint=f"use bus=virtio-blk, {EXCLUDE}",
    )


def _describe_bare_device(disk: DiskSpec, without: str, cell: Cell) -> UsageError:
    return UsageError(
        f"{cell.id}: {disk.location} is a plain block device, which cannot be combined with {without}",
        hint=f"choose a directory with --set location=DIRECTORY, {EXCLUDE}",
    )


def _check_device(disk: DiskSpec, cell: Cell) -> None:
    if disk.is_directory:
        raise _describe_bare_device(disk, "a directory", cell)
    if disk.format is not Format.RAW:
        raise _describe_bare_device(disk, f"format={disk.format}", cell)
    if disk.tree:
        raise _describe_bare_device(disk, "prepared files", cell)
    if cell.platform.is_nested:
        raise UsageError(
            f"{cell.id}: a nested guest cannot use block devices of this host",
            hint="exclude the combination",
        )


def _check_packed(disk: DiskSpec, cell: Cell) -> None:
    if not disk.holds:
        raise UsageError(
            f"{cell.id}: {disk.filesystem} is read-only, but {cell.workload.name} writes to it",
            hint="use workload fileread, which only reads, or another filesystem",
        )
    other = ""
    if disk.is_device:
        other = "a device"
    elif disk.format is not Format.RAW:
        other = f"format={disk.format}"
    elif disk.preallocation is not Preallocation.OFF:
        other = f"preallocation={disk.preallocation}"
    if other:
        raise UsageError(
            f"{cell.id}: {disk.filesystem} images are raw files written by mkfs, which cannot be combined with "
            f"{other}",
            hint=f"leave it out, {EXCLUDE}",
        )


def explain_unshareable(disk: DiskSpec, cell: Cell) -> str:
    """Return why the cell's machine cannot mount its host directory; empty if it can, or if the disk is not one."""
    if not disk.is_directory:
        return ""
    if cell.platform.is_nested:
        return f"a nested guest cannot mount {disk.filesystem} from this host"
    if disk.filesystem not in cell.platform.inner.description.shares:
        return f"{cell.platform.inner} does not support {disk.filesystem}"
    return ""
