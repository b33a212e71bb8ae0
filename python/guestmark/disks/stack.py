"""Finds the storage layers from a file down to its devices, and which of them lose flushed data.

A path names a file only here and now: a mount may cover it, and another namespace may see another file there. So each
layer is found by what the kernel reports about the open file: its mount by `mnt_id` in /proc/self/fdinfo, its device by
number, the file of a loop device by the numbers of `LOOP_GET_STATUS64`, the upper directory of an overlay by a file
that appears in it. A layer that cannot be found in this way is unknown.

The journal or log of a filesystem may be on another device, to which the same applies: for ext3 and ext4 the kernel's
journal thread is named after that device; xfs and others name it in their mount options.

Sources: proc(5) on mountinfo and fdinfo, the kernel's documentation of overlayfs ("volatile mount"), of
`queue/write_cache` and `slaves` in sysfs, of ext4's `journal_task`, xfs(5) on `logdev` and `rtdev`, loop(4).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from guestmark.core import procfs
from guestmark.core.machine_facts import Mount, read_mounts
from guestmark.core.temporary import scratch_directory
from guestmark.disks.processes import find_field
from guestmark.setting.location import read_device_number

_IN_MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs", "hugetlbfs"})
# Kernel filesystems on block devices, whose fsync flushes the device. All others are served in other ways.
_ON_DEVICES = frozenset({
    "bcachefs", "btrfs", "exfat", "ext2", "ext3", "ext4", "f2fs", "hfsplus", "jfs", "minix", "msdos", "nilfs2",
    "ntfs3", "reiserfs", "udf", "vfat", "xfs",
})  # fmt: skip
_WITHOUT_BARRIERS = frozenset({"nobarrier", "barrier=0", "barrier=none", "fsync_mode=nobarrier"})
_WITH_JBD2 = frozenset({"ext3", "ext4"})
# Options that name a further device of a filesystem by its path, or by its number in hexadecimal.
_FURTHER_DEVICES = ("logdev", "rtdev", "journal_path", "jdev")
_JOURNAL_NUMBER = "journal_dev"
# The number of characters of a thread's name that kernels before 5.17 keep.
_COMM = 15
_MEMORY_DISKS = ("ram", "zram", "nullb")
_SERVED_DISKS = ("nbd", "ublkb", "rbd", "drbd")
_PERSISTENT = "pmem"
# UUID prefixes of device mappings that pass flushes on. Others may drop flushes (flakey) or all writes (zero).
_MAPPINGS = ("LVM-", "CRYPT-", "mpath-", "part")
_DEEPEST = 16
_ZFS_S = 5.0
# linux/loop.h, linux/btrfs.h
_LOOP_GET_STATUS64 = 0x4C05
_LOOP_INFO64 = "=QQQQQIIII64s64s32sQQ"
_BTRFS_IOC_FS_INFO = 0x8400941F
_BTRFS_FS_INFO = "=QQ16s992x"


class Loses(StrEnum):
    """Whether a layer loses flushed data."""

    NOTHING = ""
    MEMORY = "memory"  # the layer is memory
    FLUSHES = "flushes"  # it does not pass flushes on
    # The layers behind it cannot be seen from here.
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of storage below a file: its name, whether it loses flushed data, and why."""

    name: str
    loses: Loses = Loses.NOTHING
    why: str = ""

    def __str__(self) -> str:
        if self.why:
            return f"{self.name} ({self.why})"
        return self.name


def list_layers(path: str | Path) -> list[Layer]:
    """Return the layers below a file, directory or block device of this host, topmost first.

    A path that does not exist yet stands for its nearest ancestor that does.
    """
    found = Path(os.path.realpath(path))
    if device := read_device_number(str(found)):
        return list(list_layers_below_device(device))
    while not found.exists():
        found = found.parent
    return list(_list_layers_below_file(str(found), _DEEPEST))


def find_volatile_layer(found: list[Layer]) -> Layer | None:
    """Return the layer that loses the most: one in memory, else one that drops flushes; None if there is neither."""
    for loses in (Loses.MEMORY, Loses.FLUSHES):
        for layer in found:
            if layer.loses is loses:
                return layer
    return None


def find_mount(path: str | Path) -> Mount | None:
    """Return the mount that holds an existing path, found by its number; None if the path cannot be opened."""
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        said = Path(f"/proc/self/fdinfo/{descriptor}").read_text()
    finally:
        os.close(descriptor)
    number = int(find_field(said, "mnt_id") or -1)
    for mount in read_mounts("self"):
        if mount.number == number:
            return mount
    return None


def _list_layers_below_file(path: str, depth: int) -> Iterator[Layer]:
    mount = find_mount(path)
    if mount is None or depth == 0:
        yield Layer(path, Loses.UNKNOWN, "its mount is unknown")
        return
    yield from _list_layers_below_mount(mount, path, depth)


def _list_layers_below_mount(mount: Mount, path: str, depth: int) -> Iterator[Layer]:
    """Yield the layers below a mount; `path` is a file or directory on it, empty if only the filesystem is known."""
    layer = _describe_filesystem(mount)
    yield layer
    if layer.loses in {Loses.MEMORY, Loses.UNKNOWN}:
        return
    if mount.kind == "overlay":
        upper = ""
        if path:
            upper = _find_upper_directory(mount, path)
        if upper:
            yield from _list_layers_below_file(upper, depth - 1)
        else:
            yield Layer("the overlay's upper directory", Loses.UNKNOWN, "it cannot be found from here")
    elif mount.kind != "zfs":
        numbers = [mount.device]
        if mount.kind == "btrfs":
            numbers = _list_btrfs_devices(path or mount.where)
        for number in numbers or [""]:
            yield from list_layers_below_device(number, depth - 1)
        yield from _list_layers_below_journal(mount, depth - 1)
    else:
        yield Layer(mount.source, Loses.UNKNOWN, "the devices of a ZFS pool cannot be inspected")


def _list_layers_below_journal(mount: Mount, depth: int) -> Iterator[Layer]:
    """Yield the layers of a filesystem's further devices: its journal, its log, its realtime data."""
    if mount.kind in _WITH_JBD2:
        yield from _list_layers_below_jbd2(mount, depth)
        return
    for option in mount.options:
        name, _, value = option.partition("=")
        if name in _FURTHER_DEVICES:
            found = read_device_number(value) or _read_line(
                Path("/sys/class/block") / Path(value).name / "dev"
            )
            yield from list_layers_below_device(found, depth)
        elif name == _JOURNAL_NUMBER:
            number = int(value, 16)
            yield from list_layers_below_device(f"{os.major(number)}:{os.minor(number)}", depth)


def _list_layers_below_jbd2(mount: Mount, depth: int) -> Iterator[Layer]:
    """Yield the layers of a journal on a separate device, which the journal's thread is named after.

    `jbd2/sda1-8` is the thread of a journal inside the filesystem, `jbd2/sdb1` that of one on another device.
    """
    device = Path(os.path.realpath(f"/sys/dev/block/{mount.device}")).name
    task = _read_line(Path("/sys/fs/ext4") / device / "journal_task")
    if task == "<none>":
        return
    thread = ""
    if task:
        thread = procfs.read_text(procfs.PROC / task / "comm").strip().removeprefix("jbd2/")
    cut = len(thread) >= _COMM - len("jbd2/")  # before Linux 5.17
    if not thread:
        yield Layer(f"the journal of {mount.where}", Loses.UNKNOWN, "its device cannot be seen from here")
    elif not thread.startswith(f"{device}-") and not (cut and f"{device}-".startswith(thread)):
        yield from list_layers_below_device(_read_line(Path("/sys/class/block") / thread / "dev"), depth)


def _describe_filesystem(mount: Mount) -> Layer:
    name = f"{mount.kind} at {mount.where}"
    if mount.kind in _IN_MEMORY:
        return Layer(name, Loses.MEMORY, "it is in memory")
    if mount.kind not in _ON_DEVICES | {"overlay", "zfs"}:
        return Layer(name, Loses.UNKNOWN, "what serves it cannot be seen from here")
    if why := _explain_dropped_flushes(mount):
        return Layer(name, Loses.FLUSHES, why)
    return Layer(name)


def _explain_dropped_flushes(mount: Mount) -> str:
    """Return why the filesystem drops flushes; empty if it passes them on."""
    options = set(mount.options)
    if mount.kind == "overlay":
        if {"volatile", "fsync=volatile"} & options:
            return "mounted volatile: it drops every flush"
    elif mount.kind == "zfs":
        if _read_zfs_sync(mount.source) == "disabled":
            return "sync=disabled: it returns from fsync at once"
    elif _WITHOUT_BARRIERS & options:
        return "mounted without barriers: flushes are not sent to the device"
    return ""


def _find_upper_directory(mount: Mount, path: str) -> str:
    """Return the directory in which an overlay stores writes to `path`; empty if it cannot be found.

    Mount options name the directory as the mounting process saw it. So a new directory is created here and looked for
    there.
    """
    folder = Path(path) if os.path.isdir(path) else Path(path).parent
    below = os.path.relpath(folder, mount.where)
    upper = next((o.removeprefix("upperdir=") for o in mount.options if o.startswith("upperdir=")), "")
    if not upper or below.startswith(".."):
        return ""
    inside = os.path.normpath(f"{_unescape_option(upper)}/{mount.root}/{below}")
    try:
        with scratch_directory("seen", folder) as made:
            if os.path.exists(f"{inside}/{made.name}"):
                return inside
    except OSError:
        pass
    return ""


def _unescape_option(option: str) -> str:
    """Undo the escaping of commas and colons in a path among an overlay's options."""
    return re.sub(r"\\([,:\\])", r"\1", option)


def _read_zfs_sync(dataset: str) -> str:
    if shutil.which("zfs") is None:
        return ""
    command = ["zfs", "get", "-H", "-o", "value", "sync", dataset]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_ZFS_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


def _list_btrfs_devices(path: str) -> list[str]:
    """Return all devices of the filesystem as `major:minor`.

    The device number that stat(2) reports for a subvolume is not the number of a device.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return []
    try:
        answer = fcntl.ioctl(descriptor, _BTRFS_IOC_FS_INFO, bytes(struct.calcsize(_BTRFS_FS_INFO)))
    except OSError:
        return []
    finally:
        os.close(descriptor)
    raw = struct.unpack(_BTRFS_FS_INFO, answer)[2].hex()
    name = "-".join((raw[:8], raw[8:12], raw[12:16], raw[16:20], raw[20:]))
    numbers = []
    for entry in _list_entries(Path("/sys/fs/btrfs") / name / "devices"):
        if number := _read_line(Path(os.path.realpath(entry)) / "dev"):
            numbers.append(number)
    return numbers


def _list_entries(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(folder.iterdir())


def list_layers_below_device(number: str, depth: int = _DEEPEST, sys: Path = Path("/sys")) -> Iterator[Layer]:
    """Yield the layers from a block device down; `number` is `major:minor`, `sys` where sysfs is mounted."""
    folder = sys / "dev" / "block" / number
    if not number or not folder.exists():
        yield Layer("an unknown device", Loses.UNKNOWN, "it is not in sysfs")
        return
    folder = Path(os.path.realpath(folder))
    if (folder / "partition").exists():
        folder = folder.parent
    # Loop devices may form cycles, which the depth ends.
    if depth == 0:
        yield Layer(folder.name, Loses.UNKNOWN, "there are too many layers above it")
        return
    if (folder / "loop").is_dir():
        yield from _list_layers_below_loop(folder, number, depth)
        return
    layer = _describe_block_device(folder)
    yield layer
    slaves = _list_entries(folder / "slaves")
    for slave in slaves:
        yield from list_layers_below_device(_read_line(Path(os.path.realpath(slave)) / "dev"), depth - 1, sys)
    if not slaves and layer.loses is Loses.NOTHING and _is_made_of_others(folder):
        yield Layer(f"the devices below {layer.name}", Loses.UNKNOWN, "sysfs does not list them")


def _is_made_of_others(folder: Path) -> bool:
    return (folder / "dm").is_dir() or (folder / "md").is_dir()


def _describe_block_device(folder: Path) -> Layer:
    name = f"/dev/{folder.name}"
    loses, why = _classify_special_device(folder)
    if (folder / "dm").is_dir():
        return Layer(f"{name} (dm {_read_line(folder / 'dm' / 'name')})", loses, why)
    if (folder / "md").is_dir():
        return Layer(f"{name} (md {_read_line(folder / 'md' / 'level')})")
    cache, fua = _read_line(folder / "queue" / "write_cache"), _read_line(folder / "queue" / "fua")
    if not why and cache == "write through":
        own = _read_driver_caches(folder)
        if "write back" in own:
            loses, why = Loses.FLUSHES, "it caches writes, and the kernel was told that it does not"
        elif "write through" not in own:
            loses, why = (
                Loses.UNKNOWN,
                "the kernel sends it no flush; whether it caches writes cannot be seen",
            )
    if not why:
        why = "its cache mode is unknown"
        if cache:
            why = f"cache {cache}"
        # With FUA a single write can be made durable without flushing the whole cache.
        if cache and fua == "1":
            why += ", FUA"
    return Layer(name, loses, why)


def _classify_special_device(folder: Path) -> tuple[Loses, str]:
    """Return what a device that is not a plain disk does to flushed data, and why."""
    if folder.name.startswith(_MEMORY_DISKS) or _read_line(folder / "device" / "model") == "scsi_debug":
        return Loses.MEMORY, "a disk in memory"
    if folder.name.startswith(_SERVED_DISKS):
        return Loses.UNKNOWN, "what serves it cannot be seen from here"
    if folder.name.startswith(_PERSISTENT):
        return Loses.UNKNOWN, "whether this memory is persistent cannot be seen from here"
    if (folder / "dm").is_dir() and not _read_line(folder / "dm" / "uuid").startswith(_MAPPINGS):
        return Loses.UNKNOWN, "this mapping was not created by LVM, LUKS or multipath"
    return Loses.NOTHING, ""


def _read_driver_caches(folder: Path) -> set[str]:
    """Return what the drivers of a disk know about its cache, regardless of how its queue was configured."""
    own = [folder / "cache_type", *(folder / "device" / "scsi_disk").glob("*/cache_type")]
    return {_read_line(path) for path in own}


def _list_layers_below_loop(folder: Path, number: str, depth: int) -> Iterator[Layer]:
    """Yield the layers below the file of a loop device, which sysfs names as the attaching process saw it."""
    name, said = f"/dev/{folder.name}", _read_line(folder / "loop" / "backing_file")
    identity = _identify_loop_file(name, number)
    if identity is None:
        yield Layer(f"{name} on {said}", Loses.UNKNOWN, "this user may not query its file")
        return
    if _read_line(folder / "queue" / "write_cache") == "write through":
        why = "the kernel was told that it has no cache, so no flush reaches its file"
        yield Layer(f"{name} on {said}", Loses.FLUSHES, why)
    else:
        yield Layer(f"{name} on {said}")
    device, inode = identity
    with contextlib.suppress(OSError):
        status = os.stat(said)
        if (status.st_dev, status.st_ino) == identity:
            yield from _list_layers_below_file(said, depth - 1)
            return
    on = f"{os.major(device)}:{os.minor(device)}"
    mount = _find_mount_of_device(on)
    if mount is not None and mount.kind not in {"overlay", "btrfs", "zfs"}:
        yield from _list_layers_below_mount(mount, "", depth - 1)
    elif os.major(device):
        yield from list_layers_below_device(on, depth - 1)
    else:
        yield Layer(f"file {inode} on device {on}", Loses.UNKNOWN, "its path is unknown")


def _identify_loop_file(name: str, number: str) -> tuple[int, int] | None:
    """Return the device and inode of a loop device's file; None without permission to ask."""
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        node = os.fstat(descriptor).st_rdev
        if number != f"{os.major(node)}:{os.minor(node)}":
            return None
        answer = fcntl.ioctl(descriptor, _LOOP_GET_STATUS64, bytes(struct.calcsize(_LOOP_INFO64)))
    except OSError:
        return None
    finally:
        os.close(descriptor)
    device, inode, *_ = struct.unpack(_LOOP_INFO64, answer)
    return device, inode


def _find_mount_of_device(device: str) -> Mount | None:
    """Return a mount of the filesystem with that device number, in this or any other visible mount namespace."""
    looked = set()
    processes = ["self", *sorted(map(str, procfs.list_processes()))]
    for process in processes:
        with contextlib.suppress(OSError):
            namespace = os.readlink(f"/proc/{process}/ns/mnt")
            if namespace in looked:
                continue
            looked.add(namespace)
            for mount in read_mounts(process):
                if mount.device == device:
                    return mount
    return None


def _read_line(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
