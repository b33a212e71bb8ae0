"""What can be said of database cells before anything is measured: programs, room, who may enter which directory."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

import msgspec

from guestmark.core.errors import UsageError
from guestmark.core.model import Cell
from guestmark.core.units import format_size, parse_size
from guestmark.disks.location import in_memory
from guestmark.disks.preflight import free_bytes
from guestmark.setting.disk import DiskSpec, disks_of
from guestmark.setting.filesystem import Filesystem
from guestmark.workloads.common.factors import THREADS, crowded
from guestmark.workloads.oltp.databases.base import Account, Database, sysbench
from guestmark.workloads.oltp.databases.kinds import KINDS
from guestmark.workloads.oltp.metrics import OltpTest

_SOCKET_LIMIT = 107  # bytes of a Unix socket's path
_TRIAL = "/guestmark-disks-12345678/guestmark-trial-12345678/mounted/data"  # as long as one of ours


def check(cells: Iterable[Cell], account: Account) -> list[str]:
    """Remarks for the user.

    Raises `PlatformUnusableError` naming the package of what is missing, `UsageError` for tables that cannot fit on
    their disk, or a directory on the host that the server could not work in.
    """
    sysbench()
    remarks: dict[str, None] = {}
    for cell in cells:
        database = KINDS[_of(cell).server]()
        (disk,) = disks_of(cell)
        on_host = cell.platform.is_this_host
        if disk.filesystem is Filesystem.NONE and not on_host:
            raise UsageError(
                f"{cell.id}: a database needs a filesystem on its disk", hint="use --set filesystem=ext4"
            )
        _check_room(cell, database, disk, on_directory=on_host and not disk.loop)
        if on_host:
            _check_directory(database, disk, account)
            if not disk.loop and in_memory(disk.location):
                remarks[
                    f"{cell.id}: {disk.location} is in memory, where MariaDB does not flush its log, and a flush costs "
                    "nothing; a guest's disk has flushes in any case (--set location=DIRECTORY, on a disk)"
                ] = None
        if remark := _threads(cell):
            remarks[remark] = None
    return list(remarks)


def _check_room(cell: Cell, database: Database, disk: DiskSpec, *, on_directory: bool) -> None:
    params = _of(cell)
    needed = database.needed_bytes + parse_size(params.log) + database.row_bytes * params.tables * params.rows
    room = free_bytes(disk.location) if on_directory else disk.size
    if needed > room:
        where = f"{disk.location} has {room / 1e9:.1f} GB free" if on_directory else (
            f"its disk has {format_size(room)}"
        )  # fmt: skip
        raise UsageError(
            f"{cell.id}: {params.tables} tables of {params.rows} rows need at least {needed / 1e6:.0f} MB, "
            f"{where}",
            hint="use a larger disk (--set size=8G), another directory (--set location=DIRECTORY), or --scale",
        )


def _check_directory(database: Database, disk: DiskSpec, account: Account) -> None:
    socket = database.socket(disk.location.rstrip("/") + _TRIAL)
    if len(os.fsencode(socket)) > _SOCKET_LIMIT:
        raise UsageError(
            f"{disk.location} is too long for the path of the server's socket",
            hint="choose a directory with a shorter path with --set location=DIRECTORY",
        )
    for folder in (Path(disk.location), *Path(disk.location).parents):
        if os.geteuid() == 0 and not _may_enter(folder, account):
            raise UsageError(
                f"{folder} cannot be entered by the user {account.uid}, whom the server runs as",
                hint="choose another directory with --set location=DIRECTORY",
            )


def _may_enter(folder: Path, account: Account) -> bool:
    status = folder.stat()
    if status.st_uid == account.uid:
        return bool(status.st_mode & stat.S_IXUSR)
    return bool(status.st_mode & (stat.S_IXGRP if status.st_gid == account.gid else stat.S_IXOTH))


def _threads(cell: Cell) -> str:
    said = crowded(cell, THREADS.of(cell.factors) or int(_of(cell).threads))
    return f"{cell.id}: {said}" if said else ""


def _of(cell: Cell) -> OltpTest:
    return msgspec.convert(cell.workload.params, OltpTest)
