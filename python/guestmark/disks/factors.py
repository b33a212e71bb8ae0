"""The disk factors. Importing this module is cheap: it imports nothing heavy."""

import os
import shlex

from guestmark.core.factor import Factor, one_of
from guestmark.core.units import format_size, parse_size
from guestmark.disks import devices, programs, shares
from guestmark.disks.formats import FORMATS

FILESYSTEMS = (*programs.MAKERS, *shares.SHARES, "none")
_MOST = 1_000_000
_SECTORS = (512, 1024, 2048, 4096)
_PREALLOCATIONS = {"sparse": "off", "prealloc": "falloc"}


def _cluster_size(text: str) -> str:
    size = parse_size(text)
    if size & (size - 1) or not 512 <= size <= 2 << 20:
        raise ValueError(f"{text!r} is not a power of two between 512 and 2M")
    return format_size(size)


def _block_size(text: str) -> str:
    size = parse_size(text)
    if not 4096 <= size <= 64 << 20 or size % 4096:
        raise ValueError(f"{text!r} is not a multiple of 4K of at most 64M")
    return format_size(size)


def _size(text: str) -> str:
    size = parse_size(text)
    if size < 1 << 20 or size % 4096:
        raise ValueError(f"{text!r} is not a disk size (at least 1M, a multiple of 4K)")
    return format_size(size)


def _location(text: str) -> str:
    if device := devices.level_of(text):
        return device
    path = os.path.abspath(os.path.expanduser(text.strip()))
    if not text.strip() or not os.path.isdir(path):
        raise ValueError(f"there is no directory {text!r}")
    if not os.access(path, os.W_OK | os.X_OK):
        raise ValueError(f"files cannot be created in {path}")
    return path


def _options(text: str) -> str:
    stripped = text.strip()
    if any(ord(character) < 32 or ord(character) == 127 for character in stripped):
        raise ValueError(f"{text!r} contains control characters")
    try:
        shlex.split(stripped)
    except ValueError as error:
        raise ValueError(f"{text!r}: {error}") from None
    return stripped or "defaults"


def _rate(text: str) -> str:
    size = parse_size(text)
    if not size:
        raise ValueError(f"{text!r} would let nothing through")
    return format_size(size)


def _count(text: str) -> str:
    if not text.isdigit() or not 1 <= int(text) <= _MOST:
        raise ValueError(f"{text!r} is not a number from 1 to {_MOST}")
    return str(int(text))


def _sector(text: str) -> str:
    size = parse_size(text)
    if size not in _SECTORS:
        raise ValueError(f"{text!r} is none of {', '.join(map(str, _SECTORS))} bytes")
    return str(size)


FORMAT = Factor(
    "format",
    f"the image's format: {', '.join(f'{each.name} ({each.help})' for each in FORMATS.values())}",
    one_of(*FORMATS),
    tuple(FORMATS),
)
SUBCLUSTERS = Factor(
    "subclusters",
    "whether qcow2's clusters are divided in 32 (extended_l2)",
    one_of("off", "on"),
    ("off", "on"),
)
COMPRESSION = Factor(
    "compression",
    "how a qcow2 image is compressed at first; what is written to it is not",
    one_of("off", "zlib", "zstd"),
    ("off", "zlib", "zstd"),
)
BACKING = Factor(
    "backing",
    "whether a qcow2 image is empty at first, on top of another one with the filesystem",
    one_of("off", "on"),
    ("off", "on"),
)
PREALLOCATION = Factor(
    "preallocation",
    "what is allocated in advance: off (sparse), metadata (qcow2), falloc, full (written)",
    one_of("off", "metadata", "falloc", "full", aliases=_PREALLOCATIONS),
    ("off", "metadata", "falloc", "full"),
)
CLUSTER_SIZE = Factor("cluster_size", "qcow2's cluster size, e.g. 64K", _cluster_size, ("64K", "2M"))
_AIOS = ("threads", "native", "io_uring")
AIO = Factor("aio", "how QEMU does the image's I/O", one_of(*_AIOS), _AIOS)
_BUSES = ("virtio-blk", "virtio-scsi", "nvme", "ide", "vhost-user")
BUS = Factor(
    "bus",
    "what the disk is attached by (vhost-user: virtio-blk served by qemu-storage-daemon; UML: see uml_disk)",
    one_of(*_BUSES),
    _BUSES,
)
_UML_DISKS = ("ubd", "vhost-user")
UML_DISK = Factor(
    "uml_disk",
    "the kind of disk in UML: its own ubd, or virtio-blk served by qemu-storage-daemon over vhost-user",
    one_of(*_UML_DISKS),
    _UML_DISKS,
)
LOCATION = Factor(
    "location",
    "directory of the images (default: TMPDIR if that is on a disk, else /var/tmp; never memory where there is a "
    "disk), or overwrite:DEVICE, a block device in place of an image",
    _location,
    ("/var/tmp", "/dev/shm"),
)
SIZE = Factor("size", "the disk's size, e.g. 2G", _size, ("1G", "2G"))
FILESYSTEM = Factor(
    "filesystem",
    "what the disk is formatted with; virtiofs, 9p (QEMU) and hostfs (UML): a directory of the host in its place",
    one_of(*FILESYSTEMS),
    FILESYSTEMS,
)
MKFS = Factor("mkfs", "options for mkfs, e.g. '-b 1024'", _options, ("defaults",))
MOUNT = Factor(
    "mount",
    r"mount options of the disk in the guest, e.g. sync (write a comma inside as \,)",
    _options,
    ("defaults", "sync", "barrier=0"),
)
BLOCK_SIZE = Factor(
    "block_size", "bytes that the workload moves at a time, e.g. 4K or 1M", _block_size, ("64K", "1M")
)
DISCARD = Factor(
    "discard",
    "what QEMU does with discards: ignore, or unmap (a hole in the image); QEMU does not say which, so not attested",
    one_of("ignore", "unmap"),
    ("ignore", "unmap"),
)
DETECT_ZEROES = Factor(
    "detect_zeroes",
    "whether QEMU looks for writes of zeroes: off, on, unmap (with discard=unmap)",
    one_of("off", "on", "unmap"),
    ("off", "on"),
)
IOTHREAD = Factor(
    "iothread",
    "whether QEMU's disks have a thread of their own (virtio-blk, virtio-scsi)",
    one_of("off", "on"),
    ("off", "on"),
)
QUEUES = Factor("queues", "queues of a virtio-blk disk", _count, ("1", "2"))
LOGICAL_BLOCK = Factor(
    "logical_block", "bytes of the smallest piece that the guest may read or write", _sector, ("512", "4096")
)
PHYSICAL_BLOCK = Factor(
    "physical_block", "bytes of a sector, as the disk tells the guest", _sector, ("512", "4096")
)
PROTOCOL = Factor(
    "disk_protocol",
    "how QEMU gets at the image: as a file, or over NBD from qemu-storage-daemon at a local socket",
    one_of("file", "nbd"),
    ("file", "nbd"),
)
BANDWIDTH = Factor("bandwidth", "bytes that QEMU lets through in a second, e.g. 100M", _rate, ("50M", "500M"))
IOPS = Factor("iops", "requests that QEMU lets through in a second", _count, ("100", "1000"))
_SHARE_CACHES = tuple(dict.fromkeys(level for levels in shares.CACHES.values() for level in levels))
SHARE_CACHE = Factor(
    shares.CACHE,
    "how a directory of the host is cached: virtiofsd's auto, never, always; 9p's none, loose, mmap",
    one_of(*_SHARE_CACHES),
    _SHARE_CACHES,
)
SECURITY_MODEL = Factor(
    shares.SECURITY_MODEL,
    "how QEMU's 9p keeps owners and modes of files in a directory of the host",
    one_of(*shares.SECURITY_MODELS),
    shares.SECURITY_MODELS,
)
# With no level there is QEMU's default.
SWITCHES = (
    DISCARD, DETECT_ZEROES, IOTHREAD, QUEUES, LOGICAL_BLOCK, PHYSICAL_BLOCK, BANDWIDTH, IOPS, PROTOCOL, SUBCLUSTERS,
    COMPRESSION, BACKING, SHARE_CACHE, SECURITY_MODEL,
)  # fmt: skip
# What every guest's disk can be given, what only QEMU's can, and what of it is left where the disk is a directory.
EVERY_GUEST = (PREALLOCATION, LOCATION, SIZE, FILESYSTEM, MKFS, MOUNT)
QEMU = (FORMAT, CLUSTER_SIZE, AIO, BUS, *SWITCHES)
DIRECTORY = (LOCATION,)
