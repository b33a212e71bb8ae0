"""How a hypervisor attaches a disk, moves its data and limits it."""

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
    Check,
    Disk,
    DiskSetting,
    Drive,
    On,
    Refusal,
    Served,
    option,
    switch,
)

_MOST = 1_000_000
_SECTORS = (512, 1024, 2048, 4096)


class CacheMode(StrEnum):
    """QEMU's cache modes, and what each stands for (qemu-system's manual, -drive cache=)."""

    NONE = "none"
    WRITEBACK = "writeback"
    WRITETHROUGH = "writethrough"
    DIRECTSYNC = "directsync"
    UNSAFE = "unsafe"

    @property
    def direct(self) -> bool:
        """Whether the image is opened past the host's page cache."""
        return self in {CacheMode.NONE, CacheMode.DIRECTSYNC}

    @property
    def writethrough(self) -> bool:
        """Whether every write is flushed, so that the guest sees a disk without a cache."""
        return self in {CacheMode.WRITETHROUGH, CacheMode.DIRECTSYNC}

    @property
    def no_flush(self) -> bool:
        """Whether flushes are dropped."""
        return self is CacheMode.UNSAFE

    @property
    def write_cache(self) -> str:
        """What the guest's kernel knows of such a disk's cache (`queue/write_cache` in sysfs)."""
        return "write through" if self.writethrough else "write back"


def _cache_of_qemu(mode: CacheMode, drive: Drive) -> Iterator[Check]:
    asked = {"writeback": not mode.writethrough, "direct": mode.direct, "no-flush": mode.no_flush}
    yield Check(f"cache ({mode})", asked, drive.inserted["cache"])


def _cache_of_daemon(mode: CacheMode, disk: Served) -> Iterator[Check]:
    yield Check("cache in the guest", mode.write_cache, disk.write_cache)
    words = {True: "direct", False: "through the page cache"}
    yield Check("image", words[mode.direct], words[bool(disk.flags & os.O_DIRECT)])


def _cache_on_loop(mode: CacheMode, disk: Disk, _cell: Cell) -> Refusal | None:
    if disk[BUS] is not Bus.LOOP or mode in {CacheMode.WRITEBACK, CacheMode.NONE}:
        return None
    return Refusal(
        "a loop device on the host has cache=writeback or cache=none", f"use one of these, {EXCLUDE}"
    )


CACHE = DiskSetting(
    "cache",
    "QEMU's cache mode",
    one_of(*CacheMode),
    tuple(CacheMode),
    read=CacheMode,
    machines=Machine.QEMU,
    default=CacheMode.WRITEBACK,
    on=On.ATTACHED | On.LOOP | On.SOURCE,
    drive=option("cache"),
    blockdev=lambda mode, _disk: (
        f"cache.direct={switch(mode.direct)}",
        f"cache.no-flush={switch(mode.no_flush)}",
    ),
    export=lambda mode, _disk: (f"writethrough={switch(mode.writethrough)}",),
    refuse=_cache_on_loop,
    attest=_cache_of_qemu,
    attest_served=_cache_of_daemon,
)


class Aio(StrEnum):
    """How QEMU does I/O on an image."""

    THREADS = "threads"
    NATIVE = "native"
    IO_URING = "io_uring"


def _said(engines: frozenset[str]) -> str:
    return ", ".join(sorted(engines)) or Aio.THREADS


def _aio_of_qemu(aio: Aio, drive: Drive) -> Iterator[Check]:
    """QEMU does not report it, but its process shows it. (It also has rings for other purposes.)"""
    native = (aio is Aio.NATIVE) == (Aio.NATIVE in drive.engines)
    if not native or (aio is Aio.IO_URING and aio not in drive.engines):
        yield Check("aio", str(aio), _said(drive.engines))


def _aio_of_daemon(aio: Aio, disk: Served) -> Iterator[Check]:
    if aio is not Aio.THREADS and aio not in disk.engines:
        yield Check("aio", str(aio), _said(disk.engines))


AIO = DiskSetting(
    "aio",
    "how QEMU does the image's I/O",
    one_of(*Aio),
    tuple(Aio),
    read=Aio,
    machines=Machine.QEMU,
    default=Aio.THREADS,
    on=On.ATTACHED | On.SOURCE,
    drive=option("aio"),
    blockdev=option("aio"),
    attest=_aio_of_qemu,
    attest_served=_aio_of_daemon,
)


class Bus(StrEnum):
    """What a disk is attached by, with the guest's modules for it and the names of its devices there.

    `prefix` is what their names begin with, `serial` the file that has the serial number; one without is known by its
    position. Directories of the host are called as what they are mounted with.
    """

    modules: tuple[str, ...]
    prefix: str
    serial: str
    without_pci: frozenset[MachineBus]  # machines without PCI that have it all the same

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
        """A member with what is known of it."""
        made = str.__new__(cls, name)
        made._value_ = name
        made.modules, made.prefix, made.serial = modules, prefix, serial
        made.without_pci = frozenset(without_pci)
        return made

    def device(self, index: int) -> str:
        """The path of the disk at that position, from 0."""
        if self is Bus.NVME:
            return f"/dev/nvme{index}n1"
        return f"/dev/{self.prefix}{chr(ord('a') + index)}"


_OF_QEMU = (Bus.VIRTIO_BLK, Bus.VIRTIO_SCSI, Bus.NVME, Bus.IDE, Bus.VHOST_USER)
_OF_UML = (Bus.UBD, Bus.VHOST_USER)
BUS = DiskSetting(
    "bus",
    "what the disk is attached by (vhost-user: virtio-blk served by qemu-storage-daemon; UML: see uml_disk)",
    one_of(*_OF_QEMU),
    tuple(_OF_QEMU),
    read=Bus,
    machines=Machine.QEMU,
    default=Bus.VIRTIO_BLK,
    on=On.ATTACHED | On.SOURCE,
)
UML_DISK = DiskSetting(
    "uml_disk",
    "the kind of disk in UML: its own ubd, or virtio-blk served by qemu-storage-daemon over vhost-user",
    one_of(*_OF_UML),
    tuple(_OF_UML),
    read=Bus,
    machines=Machine.UML,
    on=On.ATTACHED | On.SOURCE,
)


def _count(text: str) -> str:
    if not text.isdigit() or not 1 <= int(text) <= _MOST:
        raise ValueError(f"{text!r} is not a number from 1 to {_MOST}")
    return str(int(text))


def _rate(text: str) -> str:
    size = parse_size(text)
    if not size:
        raise ValueError(f"{text!r} would let nothing through")
    return format_size(size)


def _sector(text: str) -> str:
    size = parse_size(text)
    if size not in _SECTORS:
        raise ValueError(f"{text!r} is none of {', '.join(map(str, _SECTORS))} bytes")
    return str(size)


def _is_on(text: str) -> bool:
    return text == "on"


DISCARD = DiskSetting(
    "discard",
    "what QEMU does with discards: ignore, or unmap (a hole in the image); QEMU does not say which, so not attested",
    one_of("ignore", "unmap"),
    ("ignore", "unmap"),
    read=str,
    machines=Machine.QEMU,
    drive=option("discard"),
)


def _zeroes(level: str, drive: Drive) -> Iterator[Check]:
    if "detect_zeroes" in drive.inserted:
        yield Check("detect_zeroes", level, drive.inserted["detect_zeroes"])


DETECT_ZEROES = DiskSetting(
    "detect_zeroes",
    "whether QEMU looks for writes of zeroes: off, on, unmap (with discard=unmap)",
    one_of("off", "on", "unmap"),
    ("off", "on"),
    read=str,
    machines=Machine.QEMU,
    drive=option("detect-zeroes"),
    attest=_zeroes,
)
_THREAD = "disks"


def _threads(on: bool, drive: Drive) -> Iterator[Check]:
    found = any(thread["id"] == _THREAD for thread in drive.query("query-iothreads"))
    yield Check("iothread", switch(on), switch(found))


def _thread_needs(on: bool, disk: Disk, _cell: Cell) -> Refusal | None:
    if not on or disk[BUS] in {Bus.VIRTIO_BLK, Bus.VIRTIO_SCSI}:
        return None
    return Refusal(
        f"a disk on {disk[BUS]} cannot have an I/O thread",
        f"use bus=virtio-blk or virtio-scsi, {EXCLUDE}",
    )


def _thread_of(bus: Bus) -> Callable[[bool, Disk], Sequence[str]]:
    return lambda on, disk: (f"iothread={_THREAD}",) if on and disk[BUS] is bus else ()


IOTHREAD = DiskSetting(
    "iothread",
    "whether QEMU's disks have an I/O thread (virtio-blk, virtio-scsi)",
    one_of("off", "on"),
    ("off", "on"),
    read=_is_on,
    machines=Machine.QEMU,
    device=_thread_of(Bus.VIRTIO_BLK),
    controller=_thread_of(Bus.VIRTIO_SCSI),
    objects=lambda on, _disk: (f"iothread,id={_THREAD}",) if on else (),
    refuse=_thread_needs,
    attest=_threads,
)


def _queues(asked: int, drive: Drive) -> Iterator[Check]:
    """The guest takes no more queues than it has processors."""
    found = 0
    while found <= asked and drive.in_guest(f"mq/{found}/nr_tags"):
        found += 1
    yield Check("queues", min(asked, drive.processors), found)


def _queues_need(_asked: int, disk: Disk, _cell: Cell) -> Refusal | None:
    if disk[BUS] is Bus.VIRTIO_BLK:
        return None
    return Refusal("queues are counted on virtio-blk", f"use bus=virtio-blk, {EXCLUDE}")


QUEUES = DiskSetting(
    "queues",
    "queues of a virtio-blk disk",
    _count,
    ("1", "2"),
    read=int,
    machines=Machine.QEMU,
    device=option("num-queues"),
    refuse=_queues_need,
    attest=_queues,
)


def _logical(size: int, disk: Disk) -> Sequence[str]:
    """A sector is not smaller than what may be written."""
    alone = disk.level(PHYSICAL_BLOCK) is None
    return (f"logical_block_size={size}", *([f"physical_block_size={size}"] if alone else []))


def _logical_fits(size: int, disk: Disk, _cell: Cell) -> Refusal | None:
    physical = disk.level(PHYSICAL_BLOCK) or _SECTORS[-1]
    if size <= physical:
        return None
    return Refusal(
        f"logical_block={size} is more than physical_block={physical}",
        f"use a larger physical_block, {EXCLUDE}",
    )


def _in_queue(name: str) -> Callable[[int, Drive], Iterator[Check]]:
    """Held against the file that the guest's kernel has for it."""

    def attest(size: int, drive: Drive) -> Iterator[Check]:
        yield Check(name, str(size), drive.in_guest(f"queue/{name}_size"))

    return attest


LOGICAL_BLOCK = DiskSetting(
    "logical_block",
    "bytes of the smallest piece that the guest may read or write",
    _sector,
    ("512", "4096"),
    read=int,
    machines=Machine.QEMU,
    device=_logical,
    refuse=_logical_fits,
    attest=_in_queue("logical_block"),
)
PHYSICAL_BLOCK = DiskSetting(
    "physical_block",
    "bytes of a sector, as the disk reports it to the guest",
    _sector,
    ("512", "4096"),
    read=int,
    machines=Machine.QEMU,
    device=option("physical_block_size"),
    attest=_in_queue("physical_block"),
)


def _limit(name: str, of_qemu: str) -> Callable[[int, Drive], Iterator[Check]]:
    """Held against what QEMU says it lets through."""

    def attest(limit: int, drive: Drive) -> Iterator[Check]:
        yield Check(name, limit, drive.inserted[of_qemu])

    return attest


BANDWIDTH = DiskSetting(
    "bandwidth",
    "bytes that QEMU lets through in a second, e.g. 100M",
    _rate,
    ("50M", "500M"),
    read=parse_size,
    machines=Machine.QEMU,
    drive=option("throttling.bps-total"),
    attest=_limit("bandwidth", "bps"),
)
IOPS = DiskSetting(
    "iops",
    "requests that QEMU lets through in a second",
    _count,
    ("100", "1000"),
    read=int,
    machines=Machine.QEMU,
    drive=option("throttling.iops-total"),
    attest=_limit("iops", "iops"),
)
