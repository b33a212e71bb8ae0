"""The content of a disk: a filesystem, how it is created and mounted, or a host directory in its place.

For the mount options of such directories see Linux's Documentation/filesystems/{9p,virtiofs}.rst, QEMU's manual
(`-fsdev`), and `virtiofsd --help`.
"""

from __future__ import annotations

import shlex
from enum import StrEnum

from guestmark.core.factor import Machine, one_of
from guestmark.core.model import Cell
from guestmark.setting.base import EXCLUDE, Disk, DiskKind, DiskSetting, Refusal, has_control_characters
from guestmark.setting.location import LOCATION

# The level for no options, both of mkfs and of mount.
NO_OPTIONS = "defaults"


class Filesystem(StrEnum):
    """The filesystems of disks, and the properties of each.

    `maker`: the program that creates it. `modules`: modules of the guest's kernel, in case they are not built in; some
    need a checksum module that has to be loaded first and that no dependency names. `logged_size`: the default size of
    a disk whose writes are logged. `quiet` and `sector`: options of that program. `caches`: the cache modes of a
    directory, the default first; for 9p a mount option, for virtiofs an option of the daemon.
    """

    maker: str
    modules: tuple[str, ...]
    logged_size: str
    quiet: tuple[str, ...]
    sector: str
    caches: tuple[str, ...]

    # Depending on the distribution, ext2 and ext3 are mounted by the module ext2 or by ext4.
    EXT2 = "ext2", "mke2fs", ("crc32c_generic", "ext2", "ext4"), "64M", ("-q", "-F", "-t", "ext2"), "-b "
    EXT3 = "ext3", "mke2fs", ("crc32c_generic", "ext4"), "64M", ("-q", "-F", "-t", "ext3"), "-b "
    EXT4 = "ext4", "mke2fs", ("crc32c_generic", "ext4"), "64M", ("-q", "-F", "-t", "ext4"), "-b "
    XFS = "xfs", "mkfs.xfs", ("crc32c_generic", "xfs"), "320M", ("-q", "-f"), "-ssize="
    BTRFS = "btrfs", "mkfs.btrfs", ("crc32c_generic", "btrfs"), "128M", ("-q", "-f")
    F2FS = "f2fs", "mkfs.f2fs", ("crc32_generic", "f2fs"), "128M", ("-q", "-f")
    VFAT = "vfat", "mkfs.vfat", ("nls_cp437", "nls_iso8859-1", "nls_ascii", "vfat"), "64M", (), "-S "
    EXFAT = "exfat", "mkfs.exfat", ("exfat",)
    NILFS2 = "nilfs2", "mkfs.nilfs2", ("nilfs2",), "256M", ("-q", "-f")
    JFS = "jfs", "mkfs.jfs", ("jfs",), "64M", ("-q",)
    EROFS = "erofs", "mkfs.erofs", ("crc32c_generic", "erofs")
    SQUASHFS = "squashfs", "mksquashfs", ("squashfs",)
    VIRTIOFS = "virtiofs", "", (), "64M", (), "", ("auto", "never", "always")
    NINE_P = "9p", "", (), "64M", (), "", ("none", "loose", "mmap")
    HOSTFS = "hostfs"
    NONE = "none"

    def __new__(  # noqa: PLR0917 (a row of the table above)
        cls,
        name: str,
        maker: str = "",
        modules: tuple[str, ...] = (),
        logged: str = "64M",
        quiet: tuple[str, ...] = (),
        sector: str = "",
        caches: tuple[str, ...] = (),
    ) -> Filesystem:
        """Create a member with its properties."""
        made = str.__new__(cls, name)
        made._value_ = name
        made.maker, made.modules, made.logged_size = maker, modules, logged
        made.quiet, made.sector, made.caches = quiet, sector, caches
        return made

    @property
    def is_directory(self) -> bool:
        """Whether it is a directory of this host that the guest mounts."""
        return self in {Filesystem.VIRTIOFS, Filesystem.NINE_P, Filesystem.HOSTFS}

    @property
    def is_packed(self) -> bool:
        """Whether it is created together with its content and never written to."""
        return self in {Filesystem.EROFS, Filesystem.SQUASHFS}

    @property
    def is_ext(self) -> bool:
        """Whether the tools of ext4 handle it."""
        return self.maker == "mke2fs"


def _refuse_comma_in_location(filesystem: Filesystem, disk: Disk, _cell: Cell) -> Refusal | None:
    # UML passes the location to the kernel as a mount option, and the kernel splits options at commas.
    if filesystem is Filesystem.HOSTFS and "," in disk[LOCATION]:
        return Refusal(
            f"the kernel would read the text after the comma in {disk[LOCATION]} as mount options",
            "choose another directory with --set location=DIRECTORY",
        )
    return None


FILESYSTEM = DiskSetting(
    "filesystem",
    "the disk's filesystem; virtiofs, 9p (QEMU) and hostfs (UML) mount a directory of the host instead of a disk",
    one_of(*Filesystem),
    tuple(Filesystem),
    read=Filesystem,
    machines=Machine.GUEST,
    default=Filesystem.EXT4,
    on=DiskKind.TARGET,
    refuse=_refuse_comma_in_location,
)


def _parse_options(text: str) -> str:
    stripped = text.strip()
    if has_control_characters(stripped):
        raise ValueError(f"{text!r} contains control characters")
    try:
        # Splitting reports an unmatched quote now, not when mkfs runs.
        shlex.split(stripped)
    except ValueError as error:
        raise ValueError(f"{text!r}: {error}") from None
    return stripped or NO_OPTIONS


def _split_options(text: str) -> tuple[str, ...]:
    return () if text == NO_OPTIONS else tuple(shlex.split(text))


MKFS = DiskSetting(
    "mkfs",
    "options for mkfs, e.g. '-b 1024'",
    _parse_options,
    (NO_OPTIONS,),
    read=_split_options,
    machines=Machine.GUEST,
    default=NO_OPTIONS,
    on=DiskKind.ATTACHED | DiskKind.LOOP,
)
MOUNT = DiskSetting(
    "mount",
    r"mount options of the disk in the guest, e.g. sync (write a comma inside as \,)",
    _parse_options,
    (NO_OPTIONS, "sync", "barrier=0"),
    read=lambda text: "" if text == NO_OPTIONS else text,
    machines=Machine.GUEST,
    default=NO_OPTIONS,
    on=DiskKind.TARGET,
)
_SHARE_CACHES = tuple(dict.fromkeys(level for filesystem in Filesystem for level in filesystem.caches))


def _refuse_share_cache(cache: str, disk: Disk, _cell: Cell) -> Refusal | None:
    filesystem = disk[FILESYSTEM]
    if cache in filesystem.caches:
        return None
    known = "leave share_cache out"
    if filesystem.caches:
        known = f"use {', '.join(filesystem.caches)}"
    return Refusal(f"{filesystem} does not support share_cache={cache}", f"{known}, {EXCLUDE}")


SHARE_CACHE = DiskSetting(
    "share_cache",
    "how a directory of the host is cached: virtiofsd's auto, never, always; 9p's none, loose, mmap",
    one_of(*_SHARE_CACHES),
    _SHARE_CACHES,
    read=str,
    machines=Machine.QEMU,
    on=DiskKind.DIRECTORY,
    refuse=_refuse_share_cache,
)


class SecurityModel(StrEnum):
    """How QEMU's 9p stores owners and modes of files."""

    NONE = "none"
    PASSTHROUGH = "passthrough"
    MAPPED_XATTR = "mapped-xattr"
    MAPPED_FILE = "mapped-file"


def _refuse_security_model(_model: SecurityModel, disk: Disk, _cell: Cell) -> Refusal | None:
    if disk[FILESYSTEM] is Filesystem.NINE_P:
        return None
    return Refusal(f"security_model applies to 9p, not to {disk[FILESYSTEM]}", f"leave it out, {EXCLUDE}")


SECURITY_MODEL = DiskSetting(
    "security_model",
    "how QEMU's 9p stores owners and modes of files in a directory of the host",
    one_of(*SecurityModel),
    tuple(SecurityModel),
    read=SecurityModel,
    machines=Machine.QEMU,
    on=DiskKind.DIRECTORY,
    refuse=_refuse_security_model,
)


def choose_share_cache(disk: Disk) -> str:
    """Return the cache mode for a directory of the host: the level, or else the filesystem's default."""
    return disk.level(SHARE_CACHE) or next(iter(disk[FILESYSTEM].caches), "")


def choose_security_model(disk: Disk) -> SecurityModel:
    """Return how 9p stores owners and modes: the level, or else `none`."""
    return disk.level(SECURITY_MODEL) or SecurityModel.NONE


def format_share_mount_options(disk: Disk, directory: str) -> str:
    """Return the options with which a guest mounts a directory of the host; `directory` is its path on the host."""
    match disk[FILESYSTEM]:
        case Filesystem.NINE_P:
            own = ["trans=virtio", "version=9p2000.L", f"cache={choose_share_cache(disk)}"]
        case Filesystem.HOSTFS:
            own = [directory]
        case _:
            own = []
    return ",".join(filter(None, [*own, disk[MOUNT]]))


def list_attested_options(disk: Disk) -> str:
    """Return the mount options that must be in effect: those of the level `mount`, and those that factors imply."""
    if disk[FILESYSTEM] is not Filesystem.NINE_P:
        return disk[MOUNT]
    return ",".join(filter(None, [f"cache={choose_share_cache(disk)}", disk[MOUNT]]))
