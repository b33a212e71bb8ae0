"""Before the first trial: is there room for the images, are the sources long enough, are the programs there?"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from guestmark.disks import programs
from guestmark.disks.below import in_memory
from guestmark.disks.spec import NO_FILESYSTEM, SHARED_MEMORY, Role, disks_of
from guestmark.errors import PlatformUnusableError, UsageError
from guestmark.plan.model import Cell
from guestmark.plan.units import parse_size

_METADATA = 1.05  # what a filesystem and an image's tables add to the content, about
_ALLOCATED = ("falloc", "full")


def needed(cells: Iterable[Cell]) -> dict[str, int]:
    """Bytes by location: every source, which the run makes once, and the largest target, one of which exists at a time."""
    sources: dict[tuple[str, str, int], int] = {}
    targets: dict[str, int] = {}
    for cell in cells:
        params = cell.workload.params
        if "amount" not in params:
            continue
        amount = parse_size(params["amount"])
        location = cell.factors.get("location", SHARED_MEMORY)
        if "source" in params:
            copies = 2 if cell.workload.name == "tar" or params.get("method") == "tgz-in" else 1
            key = (location, params["source"]["content"], amount)
            sources[key] = max(sources.get(key, 0), copies * amount)
        for disk in disks_of(cell):
            if disk.role is Role.TARGET:
                size = (
                    disk.size if disk.preallocation in _ALLOCATED else min(disk.size, int(amount * _METADATA))
                )
                targets[disk.location] = max(targets.get(disk.location, 0), size)
    total = dict(targets)
    for (location, _, _), size in sources.items():
        total[location] = total.get(location, 0) + size
    return total


def check_room(cells: Iterable[Cell]) -> None:
    """Raises `UsageError` when a location cannot hold what the cells need."""
    for location, size in needed(cells).items():
        free = free_bytes(location)
        if size > free:
            raise UsageError(
                f"the images need up to {size / 1e6:.0f} MB in {location}, where {free / 1e6:.0f} MB are free",
                hint="choose another directory with --set location=DIRECTORY, or less data with --scale",
            )


def free_bytes(location: str) -> int:
    """What can be written there; where that is memory, no more than there is."""
    there = os.statvfs(location)
    free = there.f_bavail * there.f_frsize
    if in_memory(location):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                free = min(free, int(line.split()[1]) * 1024)
    return free


def check_sources(cells: Iterable[Cell]) -> None:
    """Raises `UsageError` for a source file that is shorter than the amount asked for, or has gone."""
    for cell in cells:
        source = cell.workload.params.get("source")
        if source is None or not source["content"].startswith("file:"):
            continue
        path, amount = source["content"].removeprefix("file:"), parse_size(source["size"])
        try:
            size = Path(path).stat().st_size
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror}", hint="give a file that can be read") from error
        if size < amount:
            raise UsageError(
                f"{path} has {size} bytes, but {amount} are asked for",
                hint="ask for less, or give a longer file",
            )


def missing_tools(cells: Iterable[Cell]) -> list[str]:
    """A remark for every filesystem that cannot be made here; its cells will fail, the others go on."""
    remarks = {}
    for cell in cells:
        for disk in disks_of(cell) if cell.platform != "host" else ():
            if disk.filesystem == NO_FILESYSTEM or disk.filesystem in remarks:
                continue
            try:
                programs.find(programs.MAKERS[disk.filesystem])
            except PlatformUnusableError as error:
                remarks[disk.filesystem] = f"{disk.filesystem} cannot be made: {error.message} ({error.hint})"
    return list(remarks.values())
