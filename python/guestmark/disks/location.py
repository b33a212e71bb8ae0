"""Whether a directory's files are on a disk or in memory, and where images go by default."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from guestmark.core.findings import Storage, StoredDisk
from guestmark.core.home import find_default_ledger
from guestmark.core.model import Cell
from guestmark.core.workload_kind import index_workload_kinds
from guestmark.disks import stack
from guestmark.setting.disk import Disks, has_disks, read_disk_requests
from guestmark.setting.location import LOCATION, SHARED_MEMORY

_IN_MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs"})
_DEVICE = "block device"
_FALLBACK = "/var/tmp"


def read_filesystem_type(directory: str, mounts: str | None = None) -> str:
    """Return Linux's name for the type of the filesystem that holds the directory.

    `mounts` is the text of another machine's /proc/mounts; None stands for this host.
    """
    if mounts is None:
        mount = stack.find_mount(_find_nearest_existing(Path(directory)))
        return mount.kind if mount else ""
    best, kind = "", ""
    for line in mounts.splitlines():
        _, escaped, filesystem, *_ = line.split(" ")
        where = escaped.replace("\\040", " ")
        if os.path.commonpath([where, directory]) == where and len(where) >= len(best):
            best, kind = where, filesystem
    return kind


def is_in_memory(directory: str, mounts: str | None = None) -> bool:
    """Return whether files in the directory are lost when the host loses power, flushed or not.

    `mounts` is the text of another machine's /proc/mounts. For this host (None) a loop device whose file is in memory
    counts as memory too.
    """
    if mounts is None:
        return any(layer.loses is stack.Loses.MEMORY for layer in stack.list_layers(directory))
    return read_filesystem_type(directory, mounts) in _IN_MEMORY


def choose_default_location(
    environment: Mapping[str, str] = os.environ,
    mounts: str | None = None,
    others: Sequence[str] | None = None,
) -> str:
    """Return the first directory that is on a disk: TMPDIR, /var/tmp, the ledger's; memory if there is no other.

    `others` are the directories tried after TMPDIR.
    """
    if others is None:
        others = (_FALLBACK, str(_find_nearest_existing(find_default_ledger().parent)))
    usable = []
    for named in filter(None, (environment.get("TMPDIR", ""), *others)):
        directory = os.path.realpath(named)
        if os.access(directory, os.W_OK | os.X_OK):
            usable.append(directory)
    on_disk = [directory for directory in usable if not is_in_memory(directory, mounts)]
    return (on_disk or usable or [SHARED_MEMORY])[0]


def add_locations(cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells with the location of their disks among their factors, so that it is stored with the plan.

    A location that the cell or its workload names is kept. The images of guests inside guests are in the outer guest's
    memory. A cell of this host that is compared with machines that have disks is given a directory instead.
    """
    found = ""
    result = []
    compared = [cell for cell in cells if not cell.platform.is_this_host and has_disks(cell)]
    for cell in cells:
        beside = _may_have_directory(cell) and any(map(cell.compares_with, compared))
        if beside or _lacks_location(cell):
            # All cells of a plan share one location, so that they are compared on the same disk.
            found = found or choose_default_location()
            level = found
            # The image of a logged disk stays on this host even for a nested guest.
            if cell.platform.is_nested and not cell.view(Disks).any_logged:
                level = SHARED_MEMORY
            cell = replace(cell, factors={**cell.factors, LOCATION.name: level})  # noqa: PLW2901
        result.append(cell)
    return result


def describe_storage(cell: Cell, mounts: str | None) -> Storage:
    """Return where each disk of the cell lies; `mounts` is the text of another machine's mounts, None for this host."""
    stored = {}
    for disk in cell.view(Disks):
        kind = _DEVICE
        if not disk.is_device:
            kind = read_filesystem_type(disk.location, mounts)
        stored[disk.name] = StoredDisk(
            location=disk.location, filesystem=kind, in_memory=is_in_memory(disk.location, mounts)
        )
    return Storage(disks=stored)


def _lacks_location(cell: Cell) -> bool:
    if LOCATION in cell.levels or any(LOCATION.name in need for need in read_disk_requests(cell) or ()):
        return False
    return has_disks(cell)


def _may_have_directory(cell: Cell) -> bool:
    """Return whether the cell can run in any directory of this host and has not been given one."""
    kind = index_workload_kinds().get(cell.workload.name)
    here = cell.platform.is_this_host and cell.platform.takes_factor(LOCATION.name)
    return here and LOCATION.name not in cell.factors and kind is not None and kind.runs_on_disk


def _find_nearest_existing(path: Path) -> Path:
    """Return the directory, or its nearest ancestor that exists."""
    for folder in (path, *path.parents):
        if folder.is_dir():
            return folder
    return path
