"""How a hypervisor attaches a disk, transfers its data and limits its rate."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum

from guestmark.core.architectures import Bus as MachineBus
from guestmark.core.factor import Machine, one_of
from guestmark.core.model import Cell
from guestmark.core.units import format_size, parse_size
from guestmark.setting.base import (
    EXCLUDE,
    AttestedDrive,
    Check,
    Disk,
    DiskKind,
    DiskSetting,
    Refusal,
    ServedDisk,
    format_switch,
    pass_level_as,
    pass_words_at,
)

_LARGEST_COUNT = 1_000_000
# The sizes that QEMU accepts for logical_block_size and physical_block_size.
_SECTOR_SIZES = (512, 1024, 2048, 4096)


class CacheMode(StrEnum):
    """QEMU's cache modes and their meanings; see `-drive cache=` in qemu-system's manual."""

    NONE = "none"
    WRITEBACK = "writeback"
    WRITETHROUGH = "writethrough"
    DIRECTSYNC = "directsync"
    UNSAFE = "unsafe"

    @property
    def direct(self) -> bool:
        """True if the image is opened with O_DIRECT, bypassing the host's page cache."""
        return self in {CacheMode.NONE, CacheMode.DIRECTSYNC}

    @property
    def writethrough(self) -> bool:
        """True if every write is flushed, so that the guest sees a disk without a write cache."""
        return self in {CacheMode.WRITETHROUGH, CacheMode.DIRECTSYNC}

    @property
    def no_flush(self) -> bool:
        """True if flushes are dropped."""
        return self is CacheMode.UNSAFE

    @property
    def write_cache(self) -> str:
        """The value of `queue/write_cache` in the guest's sysfs for this mode."""
        return "write through" if self.writethrough else "write back"


def _attest_qemu_cache(mode: CacheMode, drive: AttestedDrive) -> Iterator[Check]:
    asked = {"writeback": not mode.writethrough, "direct": mode.direct, "no-flush": mode.no_flush}
    yield Check(f"cache ({mode})", asked, drive.inserted["cache"])


def _attest_daemon_cache(mode: CacheMode, disk: ServedDisk) -> Iterator[Check]:
    yield Check("cache in the guest", mode.write_cache, disk.write_cache)
    words = {True: "direct", False: "through the page cache"}
    yield Check("access to the image", words[mode.direct], words[bool(disk.flags & os.O_DIRECT)])


def _refuse_loop_cache(mode: CacheMode, disk: Disk, _cell: Cell) -> Refusal | None:
    if disk[BUS] is not Bus.LOOP or mode in {CacheMode.WRITEBACK, CacheMode.NONE}:
        return None
    return Refusal(
        "a loop device on the host supports cache=writeback and cache=none", f"use one of these, {EXCLUDE}"
    )


CACHE = DiskSetting(
    "cache",
    "QEMU's cache mode, as in -drive cache=: whether it uses the host's page cache, and when it flushes",
    one_of(*CacheMode),
    tuple(CacheMode),
    read=CacheMode,
    machines=Machine.QEMU,
    default=CacheMode.WRITEBACK,
    on=DiskKind.ATTACHED | DiskKind.LOOP | DiskKind.SOURCE,
    drive=pass_level_as("cache"),
    blockdev=lambda mode, _disk: (
        f"cache.direct={format_switch(mode.direct)}",
        f"cache.no-flush={format_switch(mode.no_flush)}",
    ),
    export=lambda mode, _disk: (f"writethrough={format_switch(mode.writethrough)}",),
    refuse=_refuse_loop_cache,
    attest=_attest_qemu_cache,
    attest_served=_attest_daemon_cache,
)


class Aio(StrEnum):
    """The interface that QEMU uses for I/O on an image."""

    THREADS = "threads"
    NATIVE = "native"
    IO_URING = "io_uring"


def _format_engines(engines: frozenset[str]) -> str:
    return ", ".join(sorted(engines)) or Aio.THREADS


def _attest_qemu_aio(aio: Aio, drive: AttestedDrive) -> Iterator[Check]:
    """Compare the engine with the files that QEMU has open, because QEMU does not report it.

    QEMU also uses io_uring for other purposes, so a ring alone proves nothing.
    """
    # QEMU opens an AIO context only for native, so it must exist if and only if native was requested.
    native = (aio is Aio.NATIVE) == (Aio.NATIVE in drive.engines)
    if not native or (aio is Aio.IO_URING and aio not in drive.engines):
        yield Check("aio", str(aio), _format_engines(drive.engines))


def _attest_daemon_aio(aio: Aio, disk: ServedDisk) -> Iterator[Check]:
    if aio is not Aio.THREADS and aio not in disk.engines:
        yield Check("aio", str(aio), _format_engines(disk.engines))


AIO = DiskSetting(
    "aio",
    "how QEMU performs the image's I/O",
    one_of(*Aio),
    tuple(Aio),
    read=Aio,
    machines=Machine.QEMU,
    default=Aio.THREADS,
    on=DiskKind.ATTACHED | DiskKind.SOURCE,
    drive=pass_level_as("aio"),
    blockdev=pass_level_as("aio"),
    attest=_attest_qemu_aio,
    attest_served=_attest_daemon_aio,
)


class Bus(StrEnum):
    """How a disk is attached, with the guest's kernel modules for it and the names of its device files.

    Device names begin with `prefix`; `serial` is the sysfs file with the serial number. A disk without one is
    identified by its position. A directory of the host is named after the filesystem type that mounts it.
    """

    modules: tuple[str, ...]
    prefix: str
    serial: str
    # The buses of machines without PCI on which this disk is available too.
    without_pci: frozenset[MachineBus]

    VIRTIO_BLK = "virtio-blk", ("virtio_blk",), "vd", "serial", (MachineBus.MMIO, MachineBus.CCW)
    VIRTIO_SCSI = "virtio-scsi", ("virtio_scsi", "sd_mod"), "sd", "device/vpd_pg80", (MachineBus.CCW,)
    NVME = "nvme", ("nvme",), "nvme", "device/serial"
    IDE = "ide", ("sd_mod",), "sd", "device/vpd_pg80"
    VHOST_USER = "vhost-user", ("virtio_blk",), "vd"
    UBD = "ubd", (), "ubd"
    LOOP = "loop"
    VIRTIOFS = "virtiofs", ("virtiofs",)
    NINE_P = "9p", ("9p", "9pnet_virtio")
    HOSTFS = "hostfs"

    def __new__(
        cls,
        name: str,
        modules: tuple[str, ...] = (),
        prefix: str = "",
        serial: str = "",
        without_pci: Sequence[MachineBus] = (),
    ) -> Bus:
        """Create a member with its properties."""
        made = str.__new__(cls, name)
        made._value_ = name
        made.modules, made.prefix, made.serial = modules, prefix, serial
        made.without_pci = frozenset(without_pci)
        return made

    def locate_device(self, index: int) -> str:
        """Return the device path of the disk at position `index`, counted from 0."""
        if self is Bus.NVME:
            return f"/dev/nvme{index}n1"
        return f"/dev/{self.prefix}{chr(ord('a') + index)}"


_OF_QEMU = (Bus.VIRTIO_BLK, Bus.VIRTIO_SCSI, Bus.NVME, Bus.IDE, Bus.VHOST_USER)
_OF_UML = (Bus.UBD, Bus.VHOST_USER)
BUS = DiskSetting(
    "bus",
    "the bus to which the disk is attached (vhost-user: virtio-blk served by qemu-storage-daemon; UML: see uml_disk)",
    one_of(*_OF_QEMU),
    tuple(_OF_QEMU),
    read=Bus,
    machines=Machine.QEMU,
    default=Bus.VIRTIO_BLK,
    on=DiskKind.ATTACHED | DiskKind.SOURCE,
)
UML_DISK = DiskSetting(
    "uml_disk",
    "the kind of disk in UML: UML's own ubd, or virtio-blk served by qemu-storage-daemon over vhost-user",
    one_of(*_OF_UML),
    tuple(_OF_UML),
    read=Bus,
    machines=Machine.UML,
    on=DiskKind.ATTACHED | DiskKind.SOURCE,
)


def _parse_count(text: str) -> str:
    if not text.isdigit() or not 1 <= int(text) <= _LARGEST_COUNT:
        raise ValueError(f"{text!r} is not a number from 1 to {_LARGEST_COUNT}")
    return str(int(text))


def _parse_rate(text: str) -> str:
    size = parse_size(text)
    if not size:
        raise ValueError(f"{text!r} would block all I/O")
    return format_size(size)


def _parse_sector_size(text: str) -> str:
    size = parse_size(text)
    if size not in _SECTOR_SIZES:
        raise ValueError(f"{text!r} is not one of {', '.join(map(str, _SECTOR_SIZES))} bytes")
    return str(size)


def _read_switch(text: str) -> bool:
    return text == "on"


DISCARD = DiskSetting(
    "discard",
    "what QEMU does with discards: ignore, or unmap (a hole in the image); not attested, as QEMU does not report it",
    one_of("ignore", "unmap"),
    ("ignore", "unmap"),
    read=str,
    machines=Machine.QEMU,
    drive=pass_level_as("discard"),
)


def _attest_detect_zeroes(level: str, drive: AttestedDrive) -> Iterator[Check]:
    if "detect_zeroes" in drive.inserted:
        yield Check("detect_zeroes", level, drive.inserted["detect_zeroes"])


DETECT_ZEROES = DiskSetting(
    "detect_zeroes",
    "whether QEMU detects writes of zeroes: off, on, or unmap (with discard=unmap)",
    one_of("off", "on", "unmap"),
    ("off", "on"),
    read=str,
    machines=Machine.QEMU,
    drive=pass_level_as("detect-zeroes"),
    attest=_attest_detect_zeroes,
)
# All disks share one I/O thread, so its name can be fixed.
_IOTHREAD_ID = "disks"


def _attest_iothread(on: bool, drive: AttestedDrive) -> Iterator[Check]:
    found = any(thread["id"] == _IOTHREAD_ID for thread in drive.query("query-iothreads"))
    yield Check("iothread", format_switch(on), format_switch(found))


def _refuse_iothread(on: bool, disk: Disk, _cell: Cell) -> Refusal | None:
    if not on or disk[BUS] in {Bus.VIRTIO_BLK, Bus.VIRTIO_SCSI}:
        return None
    return Refusal(
        f"a disk on {disk[BUS]} cannot have an I/O thread",
        f"use bus=virtio-blk or virtio-scsi, {EXCLUDE}",
    )


def _make_iothread_option(bus: Bus) -> Callable[[bool, Disk], Sequence[str]]:
    def make_option(on: bool, disk: Disk) -> Sequence[str]:
        if on and disk[BUS] is bus:
            return (f"iothread={_IOTHREAD_ID}",)
        return ()

    return make_option


IOTHREAD = DiskSetting(
    "iothread",
    "whether QEMU's disks have an I/O thread (virtio-blk, virtio-scsi)",
    one_of("off", "on"),
    ("off", "on"),
    read=_read_switch,
    machines=Machine.QEMU,
    device=_make_iothread_option(Bus.VIRTIO_BLK),
    controller=_make_iothread_option(Bus.VIRTIO_SCSI),
    objects=pass_words_at(True, f"iothread,id={_IOTHREAD_ID}"),
    refuse=_refuse_iothread,
    attest=_attest_iothread,
)


def _attest_queues(asked: int, drive: AttestedDrive) -> Iterator[Check]:
    """Count the queues; the guest uses at most as many as it has processors."""
    # sysfs has a directory for each hardware queue, but no count of them.
    found = 0
    while found <= asked and drive.in_guest(f"mq/{found}/nr_tags"):
        found += 1
    yield Check("queues", min(asked, drive.processors), found)


def _refuse_queues(_asked: int, disk: Disk, _cell: Cell) -> Refusal | None:
    if disk[BUS] is Bus.VIRTIO_BLK:
        return None
    return Refusal(
        "queues applies only to virtio-blk, because the queues of other devices cannot be counted",
        f"use bus=virtio-blk, {EXCLUDE}",
    )


QUEUES = DiskSetting(
    "queues",
    "number of queues of a virtio-blk disk",
    _parse_count,
    ("1", "2"),
    read=int,
    machines=Machine.QEMU,
    device=pass_level_as("num-queues"),
    refuse=_refuse_queues,
    attest=_attest_queues,
)


def _make_logical_block_options(size: int, disk: Disk) -> Sequence[str]:
    """Return the options for the logical block size, which must not exceed the physical block size."""
    if disk.level(PHYSICAL_BLOCK) is not None:
        return (f"logical_block_size={size}",)
    # QEMU's default physical block of 512 bytes would be smaller than a logical block of 4096.
    return f"logical_block_size={size}", f"physical_block_size={size}"


def _refuse_logical_block(size: int, disk: Disk, _cell: Cell) -> Refusal | None:
    physical = disk.level(PHYSICAL_BLOCK) or _SECTOR_SIZES[-1]
    if size <= physical:
        return None
    return Refusal(
        f"logical_block={size} is larger than physical_block={physical}",
        f"use a larger physical_block, {EXCLUDE}",
    )


def _attest_block_size(name: str) -> Callable[[int, AttestedDrive], Iterator[Check]]:
    """Return an attestation against the size that the guest's kernel reports."""

    def attest(size: int, drive: AttestedDrive) -> Iterator[Check]:
        yield Check(name, str(size), drive.in_guest(f"queue/{name}_size"))

    return attest


LOGICAL_BLOCK = DiskSetting(
    "logical_block",
    "size in bytes of the smallest unit that the guest may read or write",
    _parse_sector_size,
    ("512", "4096"),
    read=int,
    machines=Machine.QEMU,
    device=_make_logical_block_options,
    refuse=_refuse_logical_block,
    attest=_attest_block_size("logical_block"),
)
PHYSICAL_BLOCK = DiskSetting(
    "physical_block",
    "size in bytes of a physical sector, as the disk reports it to the guest",
    _parse_sector_size,
    ("512", "4096"),
    read=int,
    machines=Machine.QEMU,
    device=pass_level_as("physical_block_size"),
    attest=_attest_block_size("physical_block"),
)


def _attest_limit(name: str, of_qemu: str) -> Callable[[int, AttestedDrive], Iterator[Check]]:
    """Return an attestation against the limit that QEMU reports."""

    def attest(limit: int, drive: AttestedDrive) -> Iterator[Check]:
        yield Check(name, limit, drive.inserted[of_qemu])

    return attest


BANDWIDTH = DiskSetting(
    "bandwidth",
    "QEMU's limit for the disk in bytes per second, e.g. 100M",
    _parse_rate,
    ("50M", "500M"),
    read=parse_size,
    machines=Machine.QEMU,
    drive=pass_level_as("throttling.bps-total"),
    attest=_attest_limit("bandwidth", "bps"),
)
IOPS = DiskSetting(
    "iops",
    "QEMU's limit for the disk in requests per second",
    _parse_count,
    ("100", "1000"),
    read=int,
    machines=Machine.QEMU,
    drive=pass_level_as("throttling.iops-total"),
    attest=_attest_limit("iops", "iops"),
)
