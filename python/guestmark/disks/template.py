"""Formatted images kept in the cache, so that a trial's image is a copy and not another run of mkfs."""

import contextlib
import hashlib
import json
import os
import tempfile
from pathlib import Path

from guestmark.appliance.paths import cache_directory
from guestmark.core.errors import AttestationError, MachineError
from guestmark.disks import devices, programs, sparse, trees, xfs
from guestmark.disks.formats import FORMATS, VARIANTS
from guestmark.disks.spec import NO_FILESYSTEM, DiskSpec
from guestmark.disks.store import store

_KEPT = 16
_ATTEMPTS = 5
_SECTOR = 512
_QUIETLY = {"vfat": (), "exfat": (), "jfs": ("-q",)}  # others: -q -f


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
    if spec.filesystem != NO_FILESYSTEM:
        tools.append(programs.find(programs.MAKERS[spec.filesystem]))
    identities = [(tool, Path(tool).stat().st_size, Path(tool).stat().st_mtime_ns) for tool in tools]
    qcow2: tuple[object, ...] = ()
    if spec.format == "qcow2":
        variants = tuple(level for name in VARIANTS if (level := spec.switch(name)) and name != "backing")
        qcow2 = (spec.cluster_size, _preallocated(spec), *variants)
    sectors = _sectors(spec) if spec.filesystem != NO_FILESYSTEM else ()
    shape = (spec.format, spec.size, spec.filesystem, (*sectors, *spec.mkfs_options), qcow2, identities)
    parts = (3, *shape, spec.tree) if spec.tree else (2, *shape)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:20]


def _preallocated(spec: DiskSpec) -> bool:
    """Whether a qcow2 image has all of its tables from the start."""
    return spec.preallocation != "off"


def _make(spec: DiskSpec, target: Path) -> None:
    raw = target if spec.format == "raw" else target.with_suffix(".raw")
    there = [target.parent]
    form = FORMATS[spec.format]
    options = [word for option in (*form.create, *_qcow2_options(spec)) for word in ("-o", option)]
    if spec.filesystem == NO_FILESYSTEM:
        programs.run(
            "qemu-img", "create", "-q", *form.objects, "-f", spec.format, *options, str(target), str(spec.size),
            writable=there,
        )  # fmt: skip
        return
    try:
        programs.run("qemu-img", "create", "-q", "-f", "raw", str(raw), str(spec.size), writable=there)
        _format(spec, raw)
        if spec.format != "raw":
            packed = ["-c"] if spec.switch("compression") not in {"", "off"} else []
            programs.run(
                "qemu-img", "convert", *form.objects, *packed, "-f", "raw", "-O", spec.format, *options, str(raw),
                str(target), writable=there,
            )  # fmt: skip
            if spec.format == "qcow2" and _preallocated(spec):
                _check_map(target, spec)
    finally:
        if raw != target:
            raw.unlink(missing_ok=True)


def _qcow2_options(spec: DiskSpec) -> list[str]:
    if spec.format != "qcow2":
        return []
    options = [f"cluster_size={spec.cluster_size}"]
    options += ["preallocation=metadata"] if _preallocated(spec) else []
    options += ["extended_l2=on"] if spec.switch("subclusters") == "on" else []
    if (kind := spec.switch("compression")) not in {"", "off"}:
        options.append(f"compression_type={kind}")
    return options


def format_fresh(spec: DiskSpec, device: Path) -> None:
    """Makes the filesystem on a block device itself, of whatever size that is. Raises `MachineError`."""
    if spec.filesystem == NO_FILESYSTEM:
        return
    maker, options = programs.MAKERS[spec.filesystem], _known_again(spec)
    if spec.filesystem != "xfs":
        _run_maker(spec, device, maker, options, device)
        return
    with tempfile.TemporaryDirectory(
        prefix="guestmark-xfs-", dir=store().directory(devices.BESIDE)
    ) as scratch:
        image = Path(scratch, "image")
        image.touch()
        os.truncate(image, devices.size_of(str(device)))
        _run_maker(spec, image, maker, options, image.parent)
        xfs.lay(image, device)


def _known_again(spec: DiskSpec) -> tuple[str, ...]:
    """What gives a filesystem the UUID by which a later run knows that it is guestmark's."""
    options = " ".join(spec.mkfs_options)
    if spec.filesystem == "xfs":
        return () if "uuid=" in options else ("-m", f"uuid={devices.mark()}")
    if spec.filesystem.startswith("ext") or spec.filesystem in {"btrfs", "f2fs"}:
        return () if "-U" in options else ("-U", devices.mark())
    return ()


def _format(spec: DiskSpec, raw: Path) -> None:
    maker = programs.MAKERS[spec.filesystem]
    if spec.tree:
        trees.check_fits(Path(spec.tree), spec)
    with trees.populating(spec, raw) as populate:
        _run_maker(spec, raw, maker, populate, raw.parent)


def _run_maker(spec: DiskSpec, raw: Path, maker: str, populate: tuple[str, ...], writable: Path) -> None:
    if maker == "mke2fs":
        # The kernel must not have anything left to initialise during the measurement.
        lazy = () if "-E" in spec.mkfs_options else ("-E", "lazy_itable_init=0,lazy_journal_init=0")
        arguments: tuple[str, ...] = ("-q", "-F", "-t", spec.filesystem, *lazy)
    else:
        arguments = _QUIETLY.get(spec.filesystem, ("-q", "-f"))
    arguments += _sectors(spec)
    try:
        programs.run(maker, *arguments, *populate, *spec.mkfs_options, str(raw), writable=[writable])
    except MachineError as error:
        raise MachineError(
            f"{spec.filesystem} cannot be made: {error.message}",
            hint=f"check mkfs={spec.mkfs!r} and size; {error.hint}",
        ) from error


def _sectors(spec: DiskSpec) -> tuple[str, ...]:
    """Where the guest's disk has larger pieces than an image file, its maker has to be told."""
    size = int(spec.switch("logical_block") or 512)
    option = (
        "-b" if spec.filesystem.startswith("ext") else {"xfs": "-ssize=", "vfat": "-S"}.get(spec.filesystem)
    )
    if size <= _SECTOR or option is None or (option == "-b" and "-b" in spec.mkfs_options):
        return ()
    return (option + str(size),) if option.endswith("=") else (option, str(size))


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
