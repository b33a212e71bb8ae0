"""Formatted images kept in the cache, so that a trial's image is a copy and not another run of mkfs.

A filesystem with initial content is created by mkfs from a directory. mke2fs turns every zero block into a hole, but a
log that a server has filled with zeroes has no holes, and a later write to it would then behave differently in guest
and host. So mke2fs is given marked blocks instead, and in the finished image the marks become zeroes.

`mkfs.xfs` sets the device's block size, for which it lacks the privileges here. So it makes a sparse image of the same
size, which is then copied to the device.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shlex
import stat
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from guestmark.appliance.paths import locate_cache, remove_least_used
from guestmark.core.errors import AttestationError, MachineError
from guestmark.core.keeper import keeper
from guestmark.core.temporary import replace_file, scratch_directory
from guestmark.core.units import format_size
from guestmark.disks import daemon, devices, sparse
from guestmark.disks.scratch import get_scratch_store
from guestmark.setting.base import collect_options, repeat_option
from guestmark.setting.disk import DiskSpec
from guestmark.setting.drive import LOGICAL_BLOCK
from guestmark.setting.filesystem import Filesystem
from guestmark.setting.image import COMPRESSION, Format, Preallocation
from guestmark.setting.location import DIRECTORY_BESIDE_DEVICE, read_device_size

# QEMU measures how fast a key is derived, which fails now and then beside other programs.
_LUKS_ATTEMPTS = 3
# The smallest block size of ext2 to ext4.
_BLOCK = 1024
_ZERO = bytes(_BLOCK)
_MARK = hashlib.sha256(b"a block of zeroes that is not a hole").digest() * (_BLOCK // 32)
_PIECE = 4 << 20
_KINDS = ((stat.S_ISDIR, "d"), (stat.S_ISREG, "-"), (stat.S_ISLNK, "l"))


def measure_tree_size(tree: Path) -> int:
    """Return the bytes that the files of a tree occupy."""
    return sum(file.lstat().st_blocks for file in tree.rglob("*")) * 512


def check_fits(tree: Path, spec: DiskSpec) -> None:
    """Raises `MachineError` when the files alone are larger than the disk."""
    size = measure_tree_size(tree)
    if size >= spec.size:
        raise MachineError(
            f"{size / 1e6:.0f} MB of prepared files do not fit on a disk of {format_size(spec.size)}",
            hint="use a larger disk (--set size=4G) or less data",
        )


@contextmanager
def prepare_population(spec: DiskSpec, raw: Path) -> Iterator[tuple[str, ...]]:
    """Yield arguments with which mkfs fills the image `raw` from the tree; empty without a tree.

    mkfs has to run inside the context. Owners and permissions are kept.
    """
    if not spec.tree:
        yield ()
    elif spec.filesystem.is_ext:
        with _make_temporary_directory("tree", raw.parent) as marked:
            sparse.copy_tree(Path(spec.tree), marked)
            for file in marked.rglob("*"):
                if file.is_file() and not file.is_symlink():
                    _replace_blocks(file, _ZERO, _MARK)
            yield "-d", str(marked)
        _replace_blocks(raw, _MARK, _ZERO)
    elif spec.filesystem is Filesystem.BTRFS:
        yield "--rootdir", spec.tree
    else:
        with _make_temporary_directory("proto", raw.parent) as directory:
            listing = directory / "prototype"
            listing.write_text(
                "\n".join(["/", "0 0", *_make_prototype(Path(spec.tree), Path(spec.tree)), "$", ""])
            )
            yield "-p", str(listing)


@contextmanager
def _make_temporary_directory(name: str, parent: Path) -> Iterator[Path]:
    """Yield a directory that is removed at the end, even if this process is killed."""
    path = keeper().directory(name, parent.resolve())
    try:
        yield path
    finally:
        keeper().remove(path)


def _replace_blocks(path: Path, old: bytes, new: bytes) -> None:
    """Overwrite every block of the file that equals `old` with `new`; holes stay holes."""
    with path.open("r+b") as file:
        size = file.seek(0, 2)
        for start, end in list(sparse.iterate_data_ranges(file.fileno(), size)):
            for position in range(start - start % _BLOCK, end, _PIECE):
                file.seek(position)
                found = file.read(min(_PIECE, end - position))
                if old not in found:
                    continue
                changed = bytearray(found)
                for at in range(0, len(found) - _BLOCK + 1, _BLOCK):
                    if found[at : at + _BLOCK] == old:
                        changed[at : at + _BLOCK] = new
                file.seek(position)
                file.write(changed)


def _make_prototype(path: Path, tree: Path) -> list[str]:
    """Return the lines of mkfs.xfs's prototype file (its manual, option -p) for a file or directory."""
    status = path.lstat()
    kind = _find_prototype_kind(path, status.st_mode)
    setuid = setgid = "-"
    if status.st_mode & stat.S_ISUID:
        setuid = "u"
    if status.st_mode & stat.S_ISGID:
        setgid = "g"
    mode = f"{kind}{setuid}{setgid}"
    own = f"{mode}{status.st_mode & 0o777:03o} {status.st_uid} {status.st_gid}"
    name = f"{path.name} "
    if path == tree:
        name = ""
    if kind == "-":
        return [f"{name}{own} {path}"]
    if kind == "l":
        return [f"{name}{own} {path.readlink()}"]
    lines = [f"{name}{own}"]
    for entry in sorted(path.iterdir()):
        lines += _make_prototype(entry, tree)
    # A directory ends with this line; the caller ends the root.
    if path != tree:
        lines.append("$")
    return lines


def _find_prototype_kind(path: Path, mode: int) -> str:
    for matches, letter in _KINDS:
        if matches(mode):
            return letter
    raise MachineError(f"{path} is neither a file nor a directory, so it cannot be copied to a disk")


_BLKZEROOUT = 0x127F  # linux/fs.h
_SUPERBLOCK = 512
_MAGIC = b"XFSB"


def copy_image_to_device(image: Path, device: Path) -> None:
    """Copy the content of an image with a new filesystem to a device of the same size. Raises `OSError`."""
    with image.open("rb") as read, device.open("r+b", buffering=0) as write:
        start, length = locate_xfs_log(read.read(_SUPERBLOCK))
        # The image's log consists of holes, which are not copied; without zeroing, old data on the device would be
        # replayed.
        fcntl.ioctl(write.fileno(), _BLKZEROOUT, struct.pack("=QQ", start, length))
        sparse.copy_data(read.fileno(), write.fileno())
        os.fsync(write.fileno())


def locate_xfs_log(superblock: bytes) -> tuple[int, int]:
    """Return offset and length of the internal log in bytes. Raises `ValueError` if this is not an XFS superblock.

    The fields are those of `struct xfs_dsb` (xfs_format.h); the upper bits of a block number select its group.
    """
    if superblock[: len(_MAGIC)] != _MAGIC:
        raise ValueError("this is not an XFS superblock")
    (size,) = struct.unpack_from(">I", superblock, 4)
    (first,) = struct.unpack_from(">Q", superblock, 48)
    group_blocks, _, _, blocks = struct.unpack_from(">IIII", superblock, 84)
    bits = superblock[124]
    block = (first >> bits) * group_blocks + (first & (1 << bits) - 1)
    return block * size, blocks * size


_KEPT = 16
_ATTEMPTS = 5
_SECTOR = 512


def find_template(spec: DiskSpec) -> tuple[Path, bool]:
    """Return the image that `spec`'s images are copies of, and whether it existed already.

    Its name is the hash of everything that shapes it. `falloc` and `full` preallocation are applied to each copy.
    """
    directory = locate_cache() / "disks"
    directory.mkdir(exist_ok=True)
    target = directory / f"{_make_template_key(spec)}.{spec.format}"
    with contextlib.suppress(FileNotFoundError):
        # Mark the template as recently used, so that it is not removed.
        os.utime(target)
        return target, True
    with replace_file(target) as part:
        part.unlink()
        _make_template(spec, part)
    remove_least_used(directory.iterdir(), _KEPT)
    return target, False


def copy_template(spec: DiskSpec, path: Path) -> bool:
    """Make `path` a copy of the template; return whether the template existed already.

    Another run may remove a template at any time.
    """
    for _ in range(_ATTEMPTS):
        original, was_there = find_template(spec)
        try:
            sparse.copy_file(original, path)
        except FileNotFoundError:
            if original.exists():
                raise
            continue
        return was_there
    raise MachineError(f"the template of an image was removed {_ATTEMPTS} times while it was being copied")


def _make_template_key(spec: DiskSpec) -> str:
    # Another version of a tool may create a different image, so its size and time are part of the key.
    tools = [daemon.find_program("qemu-img")]
    sectors: tuple[str, ...] = ()
    if spec.filesystem is not Filesystem.NONE:
        tools.append(daemon.find_program(spec.filesystem.maker))
        sectors = _build_sector_options(spec)
    identities = [(tool, Path(tool).stat().st_size, Path(tool).stat().st_mtime_ns) for tool in tools]
    created = tuple(collect_options(spec, lambda factor: factor.create))
    shape = (spec.format, spec.size, spec.filesystem, (*sectors, *spec.mkfs_options), created, identities)
    # The leading number changes whenever templates are created in another way.
    parts = (5, *shape, spec.tree) if spec.tree else (4, *shape)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:20]


def _make_template(spec: DiskSpec, target: Path) -> None:
    form = spec.format
    raw = target
    if form is not Format.RAW:
        raw = target.with_suffix(".raw")
    writable = [target.parent]
    created = [*form.create, *collect_options(spec, lambda factor: factor.create)]
    arguments = list(repeat_option("-o", created))
    if spec.filesystem is Filesystem.NONE:
        daemon.run_program(
            "qemu-img", "create", "-q", *form.object_arguments, "-f", form, *arguments, str(target), str(spec.size),
            writable=writable,
        )  # fmt: skip
        return
    try:
        daemon.run_program(
            "qemu-img", "create", "-q", "-f", "raw", str(raw), str(spec.size), writable=writable
        )
        _format_image(spec, raw)
        if form is not Format.RAW:
            packed = ["-c"] if spec.level(COMPRESSION) else []
            words = (
                *form.object_arguments, *packed, "-f", "raw", "-O", form, *arguments, str(raw), str(target)
            )  # fmt: skip
            _convert_image(words, writable, attempts=_LUKS_ATTEMPTS if form is Format.LUKS else 1)
            if form is Format.QCOW2 and spec.preallocation is not Preallocation.OFF:
                _check_preallocated(target, spec)
    finally:
        if raw != target:
            raw.unlink(missing_ok=True)


def _convert_image(words: Sequence[str], writable: Sequence[Path], attempts: int) -> None:
    for _ in range(attempts - 1):
        with contextlib.suppress(MachineError):
            daemon.run_program("qemu-img", "convert", *words, writable=writable)
            return
    daemon.run_program("qemu-img", "convert", *words, writable=writable)


def format_fresh(spec: DiskSpec, device: Path) -> None:
    """Create the filesystem directly on a block device of any size. Raises `MachineError`."""
    if spec.filesystem is Filesystem.NONE:
        return
    known = _build_mark_options(spec)
    if spec.filesystem is not Filesystem.XFS:
        _run_maker(spec, device, known, device)
        return
    with scratch_directory("xfs", get_scratch_store().directory(DIRECTORY_BESIDE_DEVICE)) as scratch:
        image = scratch / "image"
        image.touch()
        os.truncate(image, read_device_size(str(device)))
        _run_maker(spec, image, known, image.parent)
        copy_image_to_device(image, device)


def _build_mark_options(spec: DiskSpec) -> tuple[str, ...]:
    """Return the options that give a filesystem the UUID by which a later run recognises it as guestmark's."""
    given = " ".join(spec.mkfs_options)
    is_xfs = spec.filesystem is Filesystem.XFS
    takes_uuid = spec.filesystem.is_ext or spec.filesystem in {Filesystem.BTRFS, Filesystem.F2FS}
    # A UUID among the user's own options takes precedence; the device is then theirs to wipe.
    if is_xfs and "uuid=" not in given:
        return "-m", f"uuid={devices.make_mark()}"
    if takes_uuid and "-U" not in given:
        return "-U", devices.make_mark()
    return ()


def _format_image(spec: DiskSpec, raw: Path) -> None:
    if spec.tree:
        check_fits(Path(spec.tree), spec)
    with prepare_population(spec, raw) as populate:
        _run_maker(spec, raw, populate, raw.parent)


def _run_maker(spec: DiskSpec, raw: Path, populate: tuple[str, ...], writable: Path) -> None:
    arguments = spec.filesystem.quiet
    if spec.filesystem.is_ext and "-E" not in spec.mkfs_options:
        # The kernel must not have anything left to initialise during the measurement.
        arguments += ("-E", "lazy_itable_init=0,lazy_journal_init=0")
    arguments += _build_sector_options(spec)
    maker = spec.filesystem.maker
    try:
        daemon.run_program(maker, *arguments, *populate, *spec.mkfs_options, str(raw), writable=[writable])
    except MachineError as error:
        raise MachineError(
            f"the {spec.filesystem} filesystem cannot be created: {error.message}",
            hint=f"check mkfs={shlex.join(spec.mkfs_options)!r} and size; {error.hint}",
            cause=error.cause,
        ) from error


def _build_sector_options(spec: DiskSpec) -> tuple[str, ...]:
    """Return the maker's option for sectors larger than those of an image file."""
    size, option = spec.level(LOGICAL_BLOCK) or _SECTOR, spec.filesystem.sector
    if size <= _SECTOR or not option or option.strip() in spec.mkfs_options:
        return ()
    return tuple(f"{option}{size}".split())


def _check_preallocated(image: Path, spec: DiskSpec) -> None:
    """Raises `AttestationError` unless every cluster is allocated in the file."""
    extents = json.loads(daemon.run_program("qemu-img", "map", "--output=json", str(image)))
    mapped = sum(extent["length"] for extent in extents if "offset" in extent)
    if mapped != spec.size:
        raise AttestationError(
            f"preallocation=metadata did not take effect: {mapped} of {spec.size} bytes are mapped"
        )
