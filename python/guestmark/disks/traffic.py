"""Counts what reached the disk under test while a workload ran, by the kernel that has the disk."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from guestmark.agent.client import Agent
from guestmark.agent.results import CallError
from guestmark.core.errors import AgentError
from guestmark.core.findings import Traffic
from guestmark.disks.attached import AttachedDisk
from guestmark.setting.disk import Role

# The unit of the kernel's statistics, whatever sectors the disk has (Documentation/block/stat.rst).
_SECTOR = 512
_READ, _WRITTEN = 2, 6  # columns


class MachineWithDisks(Protocol):
    """The part of a running machine that this module needs."""

    @property
    def agent(self) -> Agent:
        """The agent on the machine."""

    @property
    def disks(self) -> Sequence[AttachedDisk]:
        """The machine's disks."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Bytes that a disk has read and written since it appeared; for a directory, the identity of its files."""

    read: int = 0
    written: int = 0
    files: frozenset[tuple[object, ...]] = frozenset()
    device: str = ""


class DiskWatch:
    """Watches the disk under test from its construction until `read_since`."""

    def __init__(self, machine: MachineWithDisks) -> None:
        self._machine = machine
        self._disk = next((disk for disk in machine.disks if disk.spec.role is Role.TARGET), None)
        self._before = self._read_settled()

    def read_since(self, *, reads: bool = False) -> Traffic | None:
        """Return what reached the disk meanwhile, after a sync if nothing has.

        `reads` tells that the workload reads the disk; reads from a directory are not counted. Returns None without a
        disk, if the kernel does not count, for a directory that was only read, and when the machine has ended.
        """
        before, now = self._before, self._read_written()
        if before is None or now is None or now.device != before.device:
            return None
        # A sync takes time, and is only needed if nothing has reached the disk by itself.
        if now.written == before.written:
            now = self._read_settled() or now
        if not now.device:
            wrote = now.files != before.files
            # Nothing counts what is read from a directory, so that nothing is known of a workload that only reads.
            if reads and not wrote:
                return None
            return Traffic(wrote=wrote)
        written = now.written - before.written
        return Traffic(wrote=written > 0, written=written, read=now.read - before.read)

    @property
    def _device(self) -> str:
        if self._disk is None or self._disk.spec.is_directory:
            return ""
        return self._disk.device

    def _read_settled(self) -> Reading | None:
        """Return the counters once nothing is left in caches."""
        if self._disk is None:
            return None
        with contextlib.suppress(AgentError):
            # On the host, a sync of everything would include what other programs write.
            if self._disk.spec.loop:
                self._machine.agent.flush(self._disk.directory)
            elif self._device:
                self._machine.agent.sync()
        return self._read_written()

    def _read_written(self) -> Reading | None:
        if self._disk is None:
            return None
        if not self._device:
            return Reading(files=_list_files(str(self._disk.image.path)))
        try:
            columns = read_block_columns(self._machine, self._disk)
        except AgentError:
            return None
        if len(columns) <= _WRITTEN:
            return None
        return Reading(columns[_READ] * _SECTOR, columns[_WRITTEN] * _SECTOR, device=self._device)


def read_block_columns(machine: MachineWithDisks, disk: AttachedDisk) -> list[int]:
    """Return the numbers of `/sys/block/*/stat` of a machine's disk; empty if the file does not exist."""
    name = disk.device.removeprefix("/dev/")
    try:
        return [int(word) for word in machine.agent.read_file(f"/sys/block/{name}/stat").split()]
    except CallError:
        return []


def _list_files(directory: str) -> frozenset[tuple[object, ...]]:
    """Return everything in a host directory with its time stamps: any write changes one of them."""
    found = set()
    for folder, _, names in os.walk(directory):
        for path in (folder, *(os.path.join(folder, name) for name in names)):
            with contextlib.suppress(OSError):
                status = os.lstat(path)
                found.add((path, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
    return frozenset(found)
