"""Checks of sysbench's cells before anything is measured: files that do not fit, misleading figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from guestmark.core.errors import UsageError
from guestmark.core.model import Cell
from guestmark.core.units import format_size, parse_size
from guestmark.disks.preflight import free_bytes
from guestmark.setting.disk import DiskSpec, Role, disks_of
from guestmark.setting.drive import Bus
from guestmark.setting.filesystem import Filesystem
from guestmark.setting.machine import MEMORY
from guestmark.workloads.common.factors import crowded

_DEFAULT_MEMORY = "1G"  # of QEMU's and UML's guests


def check_cells(cells: Iterable[tuple[Cell, Mapping[str, str]]]) -> list[str]:
    """Remarks for the user about cells with their options. Raises `UsageError` for files larger than their disk."""
    remarks: dict[str, list[str]] = {}
    for cell, options in cells:
        found = [crowded(cell, int(options["threads"]))]
        if "file_total_size" in options:
            disk = next(spec for spec in disks_of(cell) if spec.role is Role.TARGET)
            _check_size(cell, options, disk)
            found += [
                lies_of_memory(options, _memory_of(cell)),
                _lies_of_host_cache(cell, options, disk),
            ]
        for remark in filter(None, found):
            remarks.setdefault(remark, []).append(cell.id)
    return [f"{_named(ids)}: {remark}" for remark, ids in remarks.items()]


def lies_of_memory(options: Mapping[str, str], memory: int) -> str:
    """Why the figure would mislead, or empty: the files fit into the machine's memory (bytes), whose cache is used."""
    size = parse_size(options["file_total_size"])
    if size >= memory or "direct" in options["file_extra_flags"]:
        return ""
    return (
        f"the files ({format_size(size)}) are smaller than the machine's memory ({memory / 2**20:.0f}M) and O_DIRECT "
        "is not used: the page cache is measured, not the disk (larger file_total_size, or file_extra_flags=direct)"
    )


def _lies_of_host_cache(cell: Cell, options: Mapping[str, str], disk: DiskSpec) -> str:
    """A guest's O_DIRECT that ends in the host's page cache."""
    if "direct" not in options["file_extra_flags"] or disk.cache.direct:
        return ""
    if cell.platform.is_this_host and not disk.loop:
        return ""
    way = "UML has no other way" if disk.bus in {Bus.UBD, Bus.VHOST_USER} else "cache=none goes past it"
    return f"O_DIRECT ends in the host's page cache, as the image is read and written through it ({way})"


def _check_size(cell: Cell, options: Mapping[str, str], disk: DiskSpec) -> None:
    size = parse_size(options["file_total_size"])
    if disk.filesystem is Filesystem.NONE and not cell.platform.is_this_host:
        raise UsageError(
            f"{cell.id}: fileio makes files, so its disk needs a filesystem", hint="e.g. filesystem=ext4"
        )
    on_directory = cell.platform.is_this_host and not disk.loop
    room = free_bytes(disk.location) if on_directory else disk.size
    if size < room:
        return
    where = f"of which {disk.location} has {room / 1e9:.1f} GB free" if on_directory else (
        f"but its disk has {format_size(room)}"
    )  # fmt: skip
    raise UsageError(
        f"{cell.id}: the files need {format_size(size)}, {where}",
        hint="use a larger disk (--set size=8G), another directory (--set location=DIRECTORY), or --scale",
    )


def _memory_of(cell: Cell) -> int:
    if cell.platform.is_guest:
        return MEMORY.of(cell.factors) or parse_size(_DEFAULT_MEMORY)
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    return 0


def _named(ids: Sequence[str]) -> str:
    own = [identifier for identifier in ids if "#" not in identifier] or list(ids)
    return own[0] if len(own) == 1 else f"{own[0]} and {len(own) - 1} more"
