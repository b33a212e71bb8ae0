"""The properties of an image: its format, size, allocation, and how QEMU's programs open it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

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
    format_switch,
    pass_words_at,
    quote_qemu_value,
    repeat_option,
)

KEY_ID = "image-key"
# The key is not a secret, as command lines contain it: LUKS images serve only to measure the cost of encryption.
_LUKS_KEY = "guestmark"
_SMALLEST_SUBCLUSTERED_BYTES = 16 << 10


class Format(StrEnum):
    """Image formats by QEMU's names.

    `growth`: the largest ratio of the image's size to the disk's; `checked`: whether `qemu-img check` supports it;
    `create`: options of `qemu-img create` and `convert`.
    """

    help: str
    growth: float
    checked: bool
    encrypted: bool
    create: tuple[str, ...]

    RAW = "raw", "the disk's bytes", 1.0, False
    QCOW2 = "qcow2", "QEMU's own"
    VMDK = "vmdk", "VMware's, sparse"
    VDI = "vdi", "VirtualBox's"
    VHDX = "vhdx", "Hyper-V's", 1.05, True, False, ("subformat=dynamic",)  # blocks of several megabytes
    # The default key derivation (PBKDF2, 2 s) would delay every start.
    LUKS = "luks", "encrypted", 1.01, False, True, (f"key-secret={KEY_ID}", "iter-time=10")

    def __new__(  # noqa: PLR0917 (a row of the table above)
        cls,
        name: str,
        text: str = "",
        tables: float = 1.01,
        checked: bool = True,
        encrypted: bool = False,
        create: tuple[str, ...] = (),
    ) -> Format:
        """Create a member with its properties."""
        made = str.__new__(cls, name)
        made._value_ = name
        made.help, made.growth, made.checked, made.encrypted, made.create = (
            text,
            tables,
            checked,
            encrypted,
            create,
        )
        return made

    @property
    def always_grows(self) -> bool:
        """Whether blocks get their place in the file only when they are written, so that none can be preallocated."""
        return self in {Format.VMDK, Format.VDI, Format.VHDX}

    @property
    def secret_objects(self) -> tuple[str, ...]:
        """The `-object` arguments that QEMU and its tools need to open such an image."""
        if not self.encrypted:
            return ()
        return (f"secret,id={KEY_ID},data={_LUKS_KEY}",)

    @property
    def object_arguments(self) -> tuple[str, ...]:
        """The same objects as arguments of `qemu-img`."""
        return tuple(repeat_option("--object", self.secret_objects))

    def name_image(self, image: Path) -> tuple[str, ...]:
        """Return the arguments that name the image to `qemu-img`."""
        if not self.encrypted:
            return "-f", self, str(image)
        path = quote_qemu_value(image)
        return (
            *self.object_arguments,
            "--image-opts",
            f"driver={self},key-secret={KEY_ID},file.filename={path}",
        )


def _list_format_options(form: Format, _disk: Disk) -> Sequence[str]:
    if form.encrypted:
        return f"format={form}", f"key-secret={KEY_ID}"
    return (f"format={form}",)


FORMAT = DiskSetting(
    "format",
    f"the image's format: {', '.join(f'{form} ({form.help})' for form in Format)}",
    one_of(*Format),
    tuple(Format),
    read=Format,
    machines=Machine.QEMU,
    default=Format.RAW,
    on=DiskKind.ATTACHED,
    drive=_list_format_options,
    objects=lambda form, _disk: form.secret_objects,
    attest=lambda form, drive: [Check("format", form, drive.inserted["drv"])],
)


class Preallocation(StrEnum):
    """How much of an image is allocated before it is written."""

    OFF = "off"
    METADATA = "metadata"
    FALLOC = "falloc"
    FULL = "full"

    @property
    def is_sparse(self) -> bool:
        """Whether blocks are allocated only when they are written."""
        return self in {Preallocation.OFF, Preallocation.METADATA}


def _refuse_preallocation(how: Preallocation, disk: Disk, _cell: Cell) -> Refusal | None:
    if how is Preallocation.METADATA and disk[FORMAT] is Format.RAW:
        return Refusal(
            "preallocation=metadata needs format=qcow2, because a raw image has no metadata",
            f"use preallocation=off (sparse), falloc or full, {EXCLUDE}",
        )
    if how is Preallocation.METADATA and disk[FORMAT] is not Format.QCOW2:
        return Refusal("only qcow2 supports preallocation=metadata", f"use format=qcow2, {EXCLUDE}")
    if how is not Preallocation.OFF and disk[FORMAT].always_grows:
        return Refusal(
            f"a {disk[FORMAT]} image grows as it is written, so it cannot be preallocated",
            f"use format=raw, qcow2 or luks, or preallocation=off, {EXCLUDE}",
        )
    if how is not Preallocation.OFF and (disk.level(BACKING) or disk.level(COMPRESSION)):
        return Refusal(
            "a compressed image, or one on a backing image, cannot be preallocated",
            f"use preallocation=off, {EXCLUDE}",
        )
    return None


def _make_qcow2_options(make: Callable[[Any], Sequence[str]]) -> Callable[[Any, Disk], Sequence[str]]:
    """Return a function that returns options of `qemu-img create` for qcow2 images, and none for others."""

    def make_for_disk(level: Any, disk: Disk) -> Sequence[str]:
        if disk[FORMAT] is Format.QCOW2:
            return make(level)
        return ()

    return make_for_disk


def _make_preallocation_options(how: Preallocation) -> Sequence[str]:
    if how is Preallocation.OFF:
        return ()
    # A qcow2 image whose data is preallocated needs all of its tables from the start as well.
    return ("preallocation=metadata",)


PREALLOCATION = DiskSetting(
    "preallocation",
    "what is allocated in advance: off (sparse), metadata (qcow2), falloc, full (written)",
    one_of(*Preallocation, aliases={"sparse": "off", "prealloc": "falloc"}),
    tuple(Preallocation),
    read=Preallocation,
    machines=Machine.GUEST,
    default=Preallocation.OFF,
    on=DiskKind.IMAGE | DiskKind.DAEMON | DiskKind.LOOP,
    create=_make_qcow2_options(_make_preallocation_options),
    refuse=_refuse_preallocation,
)


def _parse_cluster_size(text: str) -> str:
    size = parse_size(text)
    if size & (size - 1) or not 512 <= size <= 2 << 20:
        raise ValueError(f"{text!r} is not a power of two between 512 and 2M")
    return format_size(size)


def _attest_cluster_size(size: int, drive: AttestedDrive) -> Iterator[Check]:
    if drive.disk[FORMAT] is Format.QCOW2:
        yield Check("cluster size", size, drive.image["cluster-size"])


CLUSTER_SIZE = DiskSetting(
    "cluster_size",
    "qcow2's cluster size, e.g. 64K",
    _parse_cluster_size,
    ("64K", "2M"),
    read=parse_size,
    machines=Machine.QEMU,
    default="64K",
    on=DiskKind.ATTACHED,
    create=_make_qcow2_options(lambda size: (f"cluster_size={size}",)),
    attest=_attest_cluster_size,
)


def _make_qcow2_refusal(name: str) -> Callable[[Any, Disk, Cell], Refusal | None]:
    def refuse(level: Any, disk: Disk, _cell: Cell) -> Refusal | None:
        if not level or disk[FORMAT] is Format.QCOW2:
            return None
        return Refusal(f"{name} needs format=qcow2", f"use format=qcow2, {EXCLUDE}")

    return refuse


def _read_switch(text: str) -> bool:
    return text == "on"


def _read_qcow2_details(drive: AttestedDrive) -> Any:
    """Return the qcow2-specific part of QEMU's report about an image."""
    return drive.image.get("format-specific", {}).get("data", {})


def _refuse_subclusters(on: bool, disk: Disk, cell: Cell) -> Refusal | None:
    if on and disk[FORMAT] is Format.QCOW2 and disk[CLUSTER_SIZE] < _SMALLEST_SUBCLUSTERED_BYTES:
        return Refusal(
            f"clusters of {disk[CLUSTER_SIZE]} bytes cannot be divided", "use cluster_size=16K or larger"
        )
    return _make_qcow2_refusal("subclusters")(on, disk, cell)


SUBCLUSTERS = DiskSetting(
    "subclusters",
    "whether qcow2's clusters are divided into 32 subclusters (extended_l2)",
    one_of("off", "on"),
    ("off", "on"),
    read=_read_switch,
    machines=Machine.QEMU,
    create=_make_qcow2_options(pass_words_at(True, "extended_l2=on")),
    refuse=_refuse_subclusters,
    attest=lambda on, drive: [
        Check(
            "subclusters",
            format_switch(on),
            format_switch(bool(_read_qcow2_details(drive).get("extended-l2"))),
        )
    ],
)


def _attest_compression(kind: str, drive: AttestedDrive) -> Iterator[Check]:
    if kind:
        yield Check("compression", kind, _read_qcow2_details(drive).get("compression-type", "zlib"))


COMPRESSION = DiskSetting(
    "compression",
    "compression of a qcow2 image's initial content; later writes are not compressed",
    one_of("off", "zlib", "zstd"),
    ("off", "zlib", "zstd"),
    read=lambda text: "" if text == "off" else text,
    machines=Machine.QEMU,
    create=_make_qcow2_options(lambda kind: (f"compression_type={kind}",) if kind else ()),
    refuse=_make_qcow2_refusal("compression"),
    attest=_attest_compression,
)


def _refuse_backing(on: bool, disk: Disk, cell: Cell) -> Refusal | None:
    if on and cell.platform.is_nested:
        return Refusal(
            "images inside an outer guest have no backing image",
            f"use backing=off for nested platforms, {EXCLUDE}",
        )
    return _make_qcow2_refusal("backing")(on, disk, cell)


BACKING = DiskSetting(
    "backing",
    "whether a qcow2 image starts empty, on a backing image that holds the filesystem",
    one_of("off", "on"),
    ("off", "on"),
    read=_read_switch,
    machines=Machine.QEMU,
    on=DiskKind.IMAGE,
    refuse=_refuse_backing,
    attest=lambda on, drive: [
        Check("backing", format_switch(on), format_switch("backing-filename" in drive.image))
    ],
)


def _parse_disk_size(text: str) -> str:
    size = parse_size(text)
    if size < 1 << 20 or size % 4096:
        raise ValueError(f"{text!r} is not a disk size (at least 1M, a multiple of 4K)")
    return format_size(size)


SIZE = DiskSetting(
    "size",
    "the disk's size, e.g. 2G",
    _parse_disk_size,
    ("1G", "2G"),
    read=parse_size,
    machines=Machine.GUEST,
    default="2G",
    on=DiskKind.IMAGE | DiskKind.DAEMON | DiskKind.LOOP | DiskKind.DIRECTORY,
    keeps=False,
    attest=lambda size, drive: [Check("size", size, drive.image["virtual-size"])],
)


class Protocol(StrEnum):
    """How QEMU accesses an image."""

    FILE = "file"
    NBD = "nbd"


def _refuse_nbd(protocol: Protocol, disk: Disk, cell: Cell) -> Refusal | None:
    if protocol is not Protocol.NBD:
        return None
    if cell.platform.is_nested:
        return Refusal(
            "images inside an outer guest cannot be served over NBD",
            "use disk_protocol=file for nested platforms",
        )
    # The server exports the image file itself with a fixed size.
    if disk[FORMAT] is not Format.RAW:
        return Refusal(
            f"a {disk[FORMAT]} image grows, but an NBD export cannot", f"use format=raw, {EXCLUDE}"
        )
    return None


PROTOCOL = DiskSetting(
    "disk_protocol",
    "how QEMU accesses the image: as a file, or over NBD from qemu-storage-daemon at a local socket",
    one_of(*Protocol),
    tuple(Protocol),
    read=Protocol,
    machines=Machine.QEMU,
    on=DiskKind.IMAGE,
    refuse=_refuse_nbd,
)
