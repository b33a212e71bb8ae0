"""Checks before the first trial whether the disks of a whole plan can be created on this host."""

import contextlib
import errno
import os
from collections.abc import Sequence
from pathlib import Path

from guestmark.core.errors import PlatformUnusableError, UsageError
from guestmark.core.keeper import keeper
from guestmark.core.meminfo import read_meminfo
from guestmark.core.model import Cell, LeftOut
from guestmark.core.platform_spec import PlatformSpec
from guestmark.core.workload_kind import count_moved_bytes, index_workload_kinds, list_host_files
from guestmark.disks import daemon, devices, loop
from guestmark.disks.location import is_in_memory
from guestmark.setting.disk import Disks, DiskSpec, Role, explain_unshareable, has_disks, read_disk_requests
from guestmark.setting.drive import Bus
from guestmark.setting.filesystem import Filesystem
from guestmark.setting.location import LOCATION, SHARED_MEMORY, parse_image_directory

# The largest share of a filesystem that its tables and its journal take.
_METADATA = 0.05


def check_disks(cells: Sequence[Cell]) -> None:
    """Check the room for the largest trial and all sources, the programs, and direct I/O where a cache mode needs it.

    Raises `UsageError` for contradictory levels, for images that do not fit and where direct I/O is refused, and
    `PlatformUnusableError` naming the package of a missing program.
    """
    by_cell: list[tuple[Cell, Sequence[DiskSpec]]] = [(cell, cell.view(Disks)) for cell in cells]
    files: list[tuple[Cell, Sequence[DiskSpec]]] = []
    disks: list[DiskSpec] = []
    for cell, specs in by_cell:
        stored = [*specs, *_list_host_files(cell)]
        files.append((cell, stored))
        disks += stored
    for device in dict.fromkeys(spec.location for spec in disks if spec.is_device):
        devices.check_device(device)
    locations = dict.fromkeys(spec.location for spec in disks if not spec.is_device)
    for location in locations:
        here = []
        for cell, specs in files:
            here.append((cell, [spec for spec in specs if spec.location == location]))
        _require_disk_space(location, here)
    for cell, specs in by_cell:
        # The host's own disk is a directory, for which nothing is made, unless it is mounted from an image.
        if cell.platform.is_this_host:
            specs = [spec for spec in specs if spec.loop]  # noqa: PLW2901
        for spec in specs:
            _check_image(spec)


def _list_host_files(cell: Cell) -> list[DiskSpec]:
    """Return the files that the cell's trials make on this host beside their disks, as sources that need room."""
    where = parse_image_directory(cell.levels.get(LOCATION) or SHARED_MEMORY)
    files = []
    for content, size in list_host_files(cell):
        files.append(DiskSpec.from_levels(Role.SOURCE, size, content=content, location=where))
    return files


def _check_image(spec: DiskSpec) -> None:
    """Raises `PlatformUnusableError` for a missing program, `UsageError` for direct I/O that is refused."""
    daemon.find_program("qemu-img")
    if spec.filesystem.maker:
        daemon.find_program(spec.filesystem.maker)
    if spec.cache.direct and not spec.is_device and not supports_direct_io(spec.location):
        remark = ""
        if is_in_memory(spec.location):
            remark = " (shared memory supports it since Linux 6.6)"
        raise UsageError(
            f"cache={spec.cache} needs O_DIRECT, which {spec.location} does not support{remark}",
            hint="choose a directory on a disk with --set location=DIRECTORY, or cache=writeback",
        )


def check_filesystems(cells: Sequence[Cell]) -> None:
    """Raises `UsageError` for a workload that writes files to a disk without a filesystem."""
    for cell in cells:
        if not any(need.get("role") == Role.TARGET for need in read_disk_requests(cell) or ()):
            # A command may use a bare disk in any way.
            continue
        for spec in cell.view(Disks):
            formatted = cell.platform.is_guest or spec.loop
            if formatted and spec.role is Role.TARGET and spec.filesystem is Filesystem.NONE:
                raise UsageError(
                    f"{cell.id}: {cell.workload.name} writes files, so its disk needs a filesystem",
                    hint="choose a filesystem other than none",
                )


def leave_out_diskless(cells: Sequence[Cell]) -> tuple[LeftOut, ...]:
    """Return the cells that need a disk on platforms that cannot have one; no machine is started for this.

    A command without a disk is left out as well if it is compared with one that runs on a disk.
    """
    on_disk = [cell for cell in cells if has_disks(cell)]
    left_out = []
    for cell in cells:
        if cell.null_of is not None or not _is_diskless(cell.platform):
            continue
        reason = f"{cell.platform} cannot be given a disk"
        if cell not in on_disk:
            if not (_runs_anywhere(cell) and any(map(cell.compares_with, on_disk))):
                continue
            reason += ", and the cell that it is compared with has one"
        hint = "leave out this platform, or the factors of the disk"
        left_out.append(LeftOut(str(cell.platform), reason, hint, cell=cell.id))
    return tuple(left_out)


def _is_diskless(platform: PlatformSpec) -> bool:
    return platform.is_elsewhere or platform.inner.description.only_programs


def _runs_anywhere(cell: Cell) -> bool:
    kind = index_workload_kinds().get(cell.workload.name)
    return kind is not None and kind.runs_on_disk


def explain_impossible_disk(cell: Cell) -> str:
    """Return in one line why a disk of the cell can never be created or mounted on this host; else empty.

    Mistakes in what the cell asks for are reported by `check_disks`.
    """
    with contextlib.suppress(UsageError):
        for spec in cell.view(Disks):
            if spec.is_device and not cell.platform.is_guest:
                return f"only guests can use the device {spec.location}"
            reason = explain_unshareable(spec, cell)
            if not reason and spec.loop:
                reason = loop.explain_no_loop()
            if reason:
                return reason
            try:
                if spec.bus is Bus.VHOST_USER:
                    daemon.find_program("qemu-storage-daemon")
                if spec.filesystem.maker and (not cell.platform.is_this_host or spec.loop):
                    daemon.find_program(spec.filesystem.maker)
            except PlatformUnusableError as error:
                return f"its {spec.name} disk cannot be created: {error.message} ({error.hint})"
    return ""


def count_needed_bytes(trials: Sequence[tuple[Cell, Sequence[DiskSpec]]]) -> int:
    """Return the most bytes that images take at any time: the largest target plus all sources of the run."""
    largest = 0
    sources = set()
    for cell, specs in trials:
        for spec in specs:
            if spec.role is Role.TARGET:
                largest = max(largest, _count_occupied_bytes(cell, spec))
            elif spec.role is Role.SOURCE:
                sources.add((spec.content, spec.size))
    return largest + sum(size for _, size in sources)


def _count_occupied_bytes(cell: Cell, spec: DiskSpec) -> int:
    """Return the bytes that a target occupies at the end; for a sparse image the bytes written to it, if known."""
    tables = spec.format.growth
    moved = count_moved_bytes(cell)
    if not spec.preallocation.is_sparse or moved is None or spec.tree:
        return round(spec.size * tables)
    written = moved + round(spec.size * _METADATA)
    return round(min(spec.size, written) * tables)


def count_free_bytes(location: str) -> int:
    """Return the bytes that can be written there; a filesystem in memory is also limited by free memory."""
    stats = os.statvfs(location)
    free = stats.f_bavail * stats.f_frsize
    # A filesystem without a size of its own, such as ramfs, reports 0.
    if not stats.f_blocks:
        free = 1 << 63
    if is_in_memory(location):
        free = min(free, read_meminfo()["MemAvailable"])
    return free


def supports_direct_io(location: str) -> bool:
    """Return whether a file there can be opened with O_DIRECT, by trying it."""
    directory = keeper().directory("direct", Path(location).resolve())
    try:
        os.close(os.open(directory / "file", os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o600))
    except OSError as error:
        # This is how a filesystem refuses O_DIRECT (open(2)); other errors are real ones.
        if error.errno == errno.EINVAL:
            return False
        raise
    finally:
        keeper().remove(directory)
    return True


def _require_disk_space(location: str, trials: Sequence[tuple[Cell, Sequence[DiskSpec]]]) -> None:
    if not Path(location).is_dir():
        raise UsageError(
            f"the directory for the images does not exist: {location}",
            hint="choose another one with --set location=DIRECTORY",
        )
    needed, free = count_needed_bytes(trials), count_free_bytes(location)
    if needed > free:
        raise UsageError(
            f"{location} is too small: the plan's images take up to {needed / 1e9:.1f} GB, "
            f"{free / 1e9:.1f} GB are free",
            hint="choose another directory with --set location=DIRECTORY, smaller disks with --set size=…, or --scale",
        )
