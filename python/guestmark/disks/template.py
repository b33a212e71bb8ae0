"""Formatted images kept in the cache, so that a trial's image is a copy and not another run of mkfs."""

import contextlib
import hashlib
import json
import os
import shlex
import tempfile
from pathlib import Path

from guestmark.appliance.paths import cache_directory
from guestmark.core.errors import AttestationError, MachineError
from guestmark.disks import devices, programs, sparse, trees, xfs
from guestmark.disks.store import store
from guestmark.setting.base import options
from guestmark.setting.disk import DiskSpec
from guestmark.setting.drive import LOGICAL_BLOCK
from guestmark.setting.filesystem import Filesystem
from guestmark.setting.image import COMPRESSION, Format, Preallocation
from guestmark.setting.location import BESIDE, size_of

_KEPT = 16
_ATTEMPTS = 5
_SECTOR = 512


def template(spec: DiskSpec) -> tuple[Path, bool]:
    """The image that `spec`'s images are copies of, and whether it was there already.

    The file's name is the hash of all that shapes it. What `falloc` and `full` mean is done to each copy.
    """
    directory = cache_directory() / "disks"
    directory.mkdir(exist_ok=True)
    target = directory / f"{_key(spec)}.{spec.format}"
    with contextlib.suppress(FileNotFoundError):
        os.utime(target)
        return target, True
    part = directory / f"{target.name}.{os.getpid()}.part"
    try:
        _make(spec, part)
        part.rename(target)
    finally:
        part.unlink(missing_ok=True)
    _forget_old(directory)
    return target, False


def copied(spec: DiskSpec, path: Path) -> bool:
    """Makes `path` a copy of the template; whether that was there already. Another run may forget one any time."""
    for _ in range(_ATTEMPTS):
        original, was_there = template(spec)
        try:
            sparse.copy(original, path)
        except FileNotFoundError:
            if original.exists():
                raise
            continue
        return was_there
    raise MachineError(f"the template of an image was removed {_ATTEMPTS} times while it was copied")


def _key(spec: DiskSpec) -> str:
    tools = [programs.find("qemu-img")]
    if spec.filesystem is not Filesystem.NONE:
        tools.append(programs.find(spec.filesystem.maker))
    identities = [(tool, Path(tool).stat().st_size, Path(tool).stat().st_mtime_ns) for tool in tools]
    created = tuple(options(spec, lambda factor: factor.create))
    sectors = _sectors(spec) if spec.filesystem is not Filesystem.NONE else ()
    shape = (spec.format, spec.size, spec.filesystem, (*sectors, *spec.mkfs_options), created, identities)
    parts = (5, *shape, spec.tree) if spec.tree else (4, *shape)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:20]


def _make(spec: DiskSpec, target: Path) -> None:
    raw = target if spec.format is Format.RAW else target.with_suffix(".raw")
    there = [target.parent]
    form = spec.format
    created = [*form.create, *options(spec, lambda factor: factor.create)]
    arguments = [word for option in created for word in ("-o", option)]
    if spec.filesystem is Filesystem.NONE:
        programs.run(
            "qemu-img", "create", "-q", *form.objects, "-f", form, *arguments, str(target), str(spec.size),
            writable=there,
        )  # fmt: skip
        return
    try:
        programs.run("qemu-img", "create", "-q", "-f", "raw", str(raw), str(spec.size), writable=there)
        _format(spec, raw)
        if form is not Format.RAW:
            packed = ["-c"] if spec.level(COMPRESSION) else []
            programs.run(
                "qemu-img", "convert", *form.objects, *packed, "-f", "raw", "-O", form, *arguments, str(raw),
                str(target), writable=there,
            )  # fmt: skip
            if form is Format.QCOW2 and spec.preallocation is not Preallocation.OFF:
                _check_map(target, spec)
    finally:
        if raw != target:
            raw.unlink(missing_ok=True)


def format_fresh(spec: DiskSpec, device: Path) -> None:
    """Makes the filesystem on a block device itself, of whatever size that is. Raises `MachineError`."""
    if spec.filesystem is Filesystem.NONE:
        return
    known = _known_again(spec)
    if spec.filesystem is not Filesystem.XFS:
        _run_maker(spec, device, known, device)
        return
    with tempfile.TemporaryDirectory(prefix="guestmark-xfs-", dir=store().directory(BESIDE)) as scratch:
        image = Path(scratch, "image")
        image.touch()
        os.truncate(image, size_of(str(device)))
        _run_maker(spec, image, known, image.parent)
        xfs.lay(image, device)


def _known_again(spec: DiskSpec) -> tuple[str, ...]:
    """What gives a filesystem the UUID by which a later run knows that it is guestmark's."""
    given = " ".join(spec.mkfs_options)
    if spec.filesystem is Filesystem.XFS:
        return () if "uuid=" in given else ("-m", f"uuid={devices.mark()}")
    if spec.filesystem.is_ext or spec.filesystem in {Filesystem.BTRFS, Filesystem.F2FS}:
        return () if "-U" in given else ("-U", devices.mark())
    return ()


def _format(spec: DiskSpec, raw: Path) -> None:
    if spec.tree:
        trees.check_fits(Path(spec.tree), spec)
    with trees.populating(spec, raw) as populate:
        _run_maker(spec, raw, populate, raw.parent)


def _run_maker(spec: DiskSpec, raw: Path, populate: tuple[str, ...], writable: Path) -> None:
    arguments = spec.filesystem.quiet
    if spec.filesystem.is_ext and "-E" not in spec.mkfs_options:
        # The kernel must not have anything left to initialise during the measurement.
        arguments += ("-E", "lazy_itable_init=0,lazy_journal_init=0")
    arguments += _sectors(spec)
    maker = spec.filesystem.maker
    try:
        programs.run(maker, *arguments, *populate, *spec.mkfs_options, str(raw), writable=[writable])
    except MachineError as error:
        raise MachineError(
            f"{spec.filesystem} cannot be made: {error.message}",
            hint=f"check mkfs={shlex.join(spec.mkfs_options)!r} and size; {error.hint}",
            cause=error.cause,
        ) from error


def _sectors(spec: DiskSpec) -> tuple[str, ...]:
    """Where the guest's disk has larger pieces than an image file, its maker has to be told."""
    size, option = spec.level(LOGICAL_BLOCK) or _SECTOR, spec.filesystem.sector
    if size <= _SECTOR or not option or option.strip() in spec.mkfs_options:
        return ()
    return tuple(f"{option}{size}".split())


def _check_map(image: Path, spec: DiskSpec) -> None:
    """Checks that every cluster is allocated in the file. Raises `AttestationError` otherwise."""
    extents = json.loads(programs.run("qemu-img", "map", "--output=json", str(image)))
    mapped = sum(extent["length"] for extent in extents if "offset" in extent)
    if mapped != spec.size:
        raise AttestationError(
            f"preallocation=metadata did not take effect: {mapped} of {spec.size} bytes are mapped"
        )


def _forget_old(directory: Path) -> None:
    """Keeps only the most recently used ones. Other runs make and forget some at the same time."""
    used: list[tuple[float, Path]] = []
    for path in directory.iterdir():
        with contextlib.suppress(FileNotFoundError):
            used.append((path.stat().st_mtime, path))
    for _, path in sorted(used, reverse=True)[_KEPT:]:
        path.unlink(missing_ok=True)
