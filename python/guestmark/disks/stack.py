"""Where a file really lies: the layers below it down to a device, and which of them lose what was flushed.

Sources: the kernel's Documentation for /proc/PID/mountinfo, overlayfs ("volatile mount"), Documentation/block
(`queue/write_cache`, `queue/fua`), and `loop/backing_file` and `slaves` in sysfs.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from guestmark.disks import devices

_OCTAL = re.compile(r"\\([0-7]{3})")
_IN_MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs", "hugetlbfs"})
_ELSEWHERE = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "9p", "virtiofs", "ceph", "glusterfs", "fuse", "fuseblk"}
)
_RAM_DISKS = ("ram", "zram", "pmem")
_DEEPEST = 16
_ZFS_S = 5.0


class Loses(StrEnum):
    """What a layer does to what was flushed."""

    NOTHING = ""
    MEMORY = "memory"  # the layer is memory
    FLUSHES = "flushes"  # it does not pass flushes on
    UNKNOWN = "unknown"  # what is behind it cannot be seen from here


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer: what it is, and how it deals with flushes."""

    name: str
    loses: Loses = Loses.NOTHING
    why: str = ""

    def __str__(self) -> str:
        return f"{self.name} ({self.why})" if self.why else self.name


@dataclass(frozen=True, slots=True)
class _Mount:
    device: str  # major:minor
    where: str
    kind: str
    source: str
    options: tuple[str, ...]  # of the mount and of the filesystem


def layers(path: str | Path, *, mounts: str | None = None, sys: Path = Path("/sys")) -> list[Layer]:
    """The layers below a file, directory or block device, topmost first; `mounts` and `sys`: this host's."""
    table = Path("/proc/self/mountinfo").read_text(errors="surrogateescape") if mounts is None else mounts
    if device := devices.number_of(os.path.realpath(path)):
        return list(_below_device(device, _mounts(table), sys, _DEEPEST))
    return list(_below_file(os.path.realpath(path), _mounts(table), sys, _DEEPEST))


def volatile(found: list[Layer]) -> Layer | None:
    """The layer that loses most: one that is memory, else one that drops flushes."""
    for loses in (Loses.MEMORY, Loses.FLUSHES):
        for layer in found:
            if layer.loses is loses:
                return layer
    return None


def _below_file(path: str, mounts: list[_Mount], sys: Path, depth: int) -> list[Layer]:
    mount = _mount_of(path, mounts)
    if mount is None or depth == 0:
        return [Layer(path, Loses.UNKNOWN, "its mount is not known")]
    layer = _filesystem(mount)
    if mount.kind in _IN_MEMORY or mount.kind in _ELSEWHERE:
        return [layer]
    if mount.kind == "overlay":
        upper = next((o.partition("=")[2] for o in mount.options if o.startswith("upperdir=")), "")
        if not upper:
            return [layer]
        return [layer, *_below_file(os.path.realpath(upper), _others(mounts, mount), sys, depth - 1)]
    return [layer, *_below_device(_device_of(mount), mounts, sys, depth - 1)]


def _others(mounts: list[_Mount], mount: _Mount) -> list[_Mount]:
    """Where an overlay covers its own upper directory (as that of a container's root), what is below it counts."""
    return [other for other in mounts if other is not mount]


def _filesystem(mount: _Mount) -> Layer:
    name = f"{mount.kind} at {mount.where}"
    if mount.kind in _IN_MEMORY:
        return Layer(name, Loses.MEMORY, "it is memory")
    if mount.kind in _ELSEWHERE or mount.kind.startswith("fuse."):
        return Layer(name, Loses.UNKNOWN, "what serves it cannot be seen from here")
    if mount.kind == "overlay" and {"volatile", "fsync=volatile"} & set(mount.options):
        return Layer(name, Loses.FLUSHES, "mounted volatile: it drops every flush")
    if {"nobarrier", "barrier=0"} & set(mount.options):
        return Layer(name, Loses.FLUSHES, "mounted without barriers: flushes are not sent to the device")
    if mount.kind == "zfs" and _zfs_sync(mount.source) == "disabled":
        return Layer(name, Loses.FLUSHES, "sync=disabled: it returns from fsync at once")
    return Layer(name)


def _zfs_sync(dataset: str) -> str:
    if shutil.which("zfs") is None:
        return ""
    command = ["zfs", "get", "-H", "-o", "value", "sync", dataset]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_ZFS_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


def _below_device(device: str, mounts: list[_Mount], sys: Path, depth: int) -> list[Layer]:
    """`device` is `major:minor`, or empty where there is none."""
    folder = sys / "dev" / "block" / device
    if not device or not folder.exists():
        return [Layer("a device that is not known", Loses.UNKNOWN, "it is not in sysfs")]
    folder = Path(os.path.realpath(folder))
    if depth == 0:
        return [Layer(folder.name, Loses.UNKNOWN, "too many layers")]
    if (folder / "partition").exists():
        folder = folder.parent
    name = folder.name
    if name.startswith(_RAM_DISKS) and not name.startswith("pmem"):
        return [Layer(f"/dev/{name}", Loses.MEMORY, "a disk in memory")]
    backing = _line(folder / "loop" / "backing_file")
    if backing:
        return [
            Layer(f"/dev/{name} on {backing}"),
            *_below_file(os.path.realpath(backing), mounts, sys, depth - 1),
        ]
    slaves = sorted((folder / "slaves").iterdir()) if (folder / "slaves").is_dir() else []
    found = [_block_device(folder)]
    for slave in slaves:
        number = _line(Path(os.path.realpath(slave)) / "dev")
        found += _below_device(number, mounts, sys, depth - 1)
    return found


def _block_device(folder: Path) -> Layer:
    name = f"/dev/{folder.name}"
    for kind in ("dm", "md"):
        if (folder / kind).is_dir():
            title = _line(folder / kind / ("name" if kind == "dm" else "level"))
            return Layer(f"{name} ({kind}{f' {title}' if title else ''})")
    cache, fua = _line(folder / "queue" / "write_cache"), _line(folder / "queue" / "fua")
    said = f"cache {cache}{', FUA' if fua == '1' else ''}" if cache else "its cache is not known"
    return Layer(name, why=said)


def _device_of(mount: _Mount) -> str:
    """`major:minor` of the block device; btrfs shows a number of its own, and names the device as its source."""
    if not mount.device.startswith("0:"):
        return mount.device
    try:
        number = os.stat(mount.source).st_rdev
    except OSError:
        return ""
    return f"{os.major(number)}:{os.minor(number)}" if number else ""


def _mount_of(path: str, mounts: list[_Mount]) -> _Mount | None:
    """The mount that a path is on: of those that cover it the longest, of several the last."""
    best: _Mount | None = None
    for mount in mounts:
        covers = mount.where in {"/", path} or path.startswith(f"{mount.where}/")
        if covers and (best is None or len(mount.where) >= len(best.where)):
            best = mount
    return best


def _mounts(table: str) -> list[_Mount]:
    found = []
    for line in table.splitlines():
        before, _, after = line.partition(" - ")
        fields, more = before.split(" "), after.split(" ")
        if len(fields) < 6 or len(more) < 3:
            continue
        options = (*fields[5].split(","), *_plain(more[2]).split(","))
        found.append(_Mount(fields[2], _plain(fields[4]), more[0], _plain(more[1]), options))
    return found


def _plain(text: str) -> str:
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), text)


def _line(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
