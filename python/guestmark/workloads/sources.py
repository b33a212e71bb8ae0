"""Before the first trial: are the sources long enough, are the programs there?"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from guestmark.disks import programs
from guestmark.disks.spec import NO_FILESYSTEM, disks_of
from guestmark.errors import PlatformUnusableError, UsageError
from guestmark.plan.model import Cell
from guestmark.plan.units import parse_size


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
