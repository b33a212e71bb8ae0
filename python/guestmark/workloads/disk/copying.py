"""Moves bytes without the channel: copies inside the guest, writes a pattern there, or reads a file."""

from __future__ import annotations

import contextlib
from typing import TypeVar

from guestmark.agent.wire import Checksum, Pattern
from guestmark.core.errors import AgentError, WorkloadError
from guestmark.core.metric import Measurement
from guestmark.core.model import Cell, Plan
from guestmark.core.units import format_size
from guestmark.disks.image import Image
from guestmark.disks.packed import FILE
from guestmark.disks.scratch import get_scratch_store
from guestmark.platforms.base import Machine
from guestmark.setting.machine import MEMORY
from guestmark.workloads.common import metrics
from guestmark.workloads.common.factors import BLOCK_SIZE
from guestmark.workloads.common.flushes import CounterReading
from guestmark.workloads.common.moved import CopiedBytes, DirectBytes, MovedBytes, ReadBytes, SourcedBytes
from guestmark.workloads.common.moving import (
    M,
    MovingTrial,
    TimedMove,
    check_target,
    explain_failed_calls,
    find_source,
    find_target,
    is_over_vhost_user,
    sync_everything,
    warn_of_caches,
)

C = TypeVar("C", bound=CopiedBytes)
_BLOCKS = (32 << 20, 16 << 20, 8 << 20, 1 << 20)


# With blocks four times as large, the vhost-user daemon was half as fast.
_VHOST_USER_MOST = 8 << 20


def choose_largest_block(memory: int, in_flight: int, most: int = _BLOCKS[0]) -> int:
    """Returns the size of a request in bytes: the largest that fits.

    Each request costs an emulated processor milliseconds, whatever its size. All requests in flight together leave the
    machine two thirds of its memory.
    """
    for size in _BLOCKS:
        if size <= most and 3 * size * in_flight <= memory:
            return size
    return _BLOCKS[-1]


class CopyTrial(MovingTrial[C]):
    """Copies from the source disk; `direct` bypasses the guest's page cache."""

    direct = False

    @property
    def in_flight(self) -> int:
        """The number of requests at once."""
        return 1

    def prepare_source(self, machine: Machine) -> None:
        """Computes the source's digest, and has the host cache it."""
        source = find_source(machine).image
        source.checksum()
        source.read_into_cache()

    def move_bytes(self, machine: Machine, path: str) -> TimedMove:
        """Copies the source disk's bytes and flushes."""
        in_flight = self.in_flight
        block_size = self.choose_block(machine)
        moved = machine.agent.copy(
            find_source(machine).read_path,
            path,
            direct=self.direct,
            block_size=block_size,
            in_flight=in_flight,
            length=self.amount,
            # Several direct writes at once need it; the other ways to write a file do not allocate it first.
            preallocate=self.direct,
            timeout_s=self.limit_s,
        )
        self.moving.direct, self.moving.preallocated = moved.direct, moved.preallocated
        return TimedMove.from_reply(moved)

    def choose_block(self, machine: Machine) -> int | None:
        """Returns the size of a request in bytes; None for the agent's default."""
        return self.block_size

    def compute_expected_checksum(self, machine: Machine) -> Checksum:
        """Returns the source's checksum."""
        return find_source(machine).image.checksum()


class DdTrial(CopyTrial[CopiedBytes]):
    """The trial of `dd`."""


class DirectTrial(CopyTrial[DirectBytes]):
    """The trial of `direct`, which copies with O_DIRECT."""

    direct = True

    def __init__(self, plan: Plan, cell: Cell) -> None:
        super().__init__(plan, cell)
        others = [other for other in plan.cells if other.workload.name == cell.workload.name]
        self._rows_may_differ = len({_list_limits(other) for other in others}) > 1

    @property
    def in_flight(self) -> int:
        """The number that the plan sets."""
        return self.params.in_flight

    def choose_block(self, machine: Machine) -> int | None:
        """Returns the plan's size, else the largest for this machine; warns if that is less than in other rows."""
        size = self.block_size
        if size is None:
            most = _VHOST_USER_MOST if self.over_vhost_user else _BLOCKS[0]
            size = choose_largest_block(machine.agent.read_facts().mem_total_kib << 10, self.in_flight, most)
            told = (
                f"a request is of {format_size(size)}, in rows with more memory or another bus of up to "
                f"{format_size(_BLOCKS[0])}: block_size={format_size(size)} makes them equal"
            )
            if size < _BLOCKS[0] and self._rows_may_differ and told not in self.warnings:
                self.warnings.append(told)
        self.moving.block_bytes = size
        return size


def _list_limits(cell: Cell) -> tuple[object, ...]:
    """Returns what decides the size of a cell's requests, unless a factor does."""
    levels = cell.levels
    return (
        levels.get(BLOCK_SIZE),
        cell.platform.is_guest,
        levels.get(MEMORY),
        is_over_vhost_user(cell),
        cell.workload.read_params(DirectBytes).in_flight,
    )


_MOUNTED_AT = "/run/guestmark/share"


class ShareTrial(MovingTrial[SourcedBytes]):
    """The trial of `share`. The share is the guest's root; it is mounted again where no `/dev` hides its files."""

    def __init__(self, plan: Plan, cell: Cell) -> None:
        super().__init__(plan, cell)
        self._image: Image | None = None
        self._at = ""

    def prepare_source(self, machine: Machine) -> None:
        """Creates the file on the host and mounts the share in the guest."""
        self._image = self.find_source()
        self._image.checksum()
        self._image.read_into_cache()
        if machine.vmm_pid is None:
            return  # on the host the file is simply there
        machine.agent.mkdir(_MOUNTED_AT, parents=True)
        done = machine.agent.exec(["mount", "--bind", "/", _MOUNTED_AT], timeout_s=60)
        if not done.ok:
            raise WorkloadError(
                f"the share cannot be mounted: {done.stderr.decode(errors='replace').strip()}"
            )
        self._at = _MOUNTED_AT
        self.moving.share = _read_root_option(machine.agent.read_facts().cmdline)

    def move_bytes(self, machine: Machine, path: str) -> TimedMove:
        """Copies the file and flushes."""
        assert self._image is not None
        return TimedMove.from_reply(
            machine.agent.copy(
                f"{self._at}{self._image.path}",
                path,
                block_size=self.block_size,
                length=self.amount,
                preallocate=False,
                timeout_s=self.limit_s,
            )
        )

    def compute_expected_checksum(self, machine: Machine) -> Checksum:
        """Returns the file's checksum."""
        assert self._image is not None
        return self._image.checksum()

    def cleanup(self, machine: Machine) -> None:
        """Unmounts the target, then the share."""
        try:
            super().cleanup(machine)
        finally:
            if self._at:
                with contextlib.suppress(AgentError):
                    machine.agent.umount(self._at)


def _read_root_option(command_line: str) -> str:
    """Returns the share from which a guest's kernel was told to mount its root."""
    for word in command_line.split():
        if word.startswith("guestmark.root="):
            return word.partition("=")[2]
    return "unknown"


class _PatternTrial(MovingTrial[M]):
    """Writes zeros, ones or random bytes, which shows whether the content matters to the image's format."""

    def move_bytes(self, machine: Machine, path: str) -> TimedMove:
        """Writes the pattern and flushes."""
        return TimedMove.from_reply(
            machine.agent.fill(
                path,
                self.amount,
                Pattern(self.params.content),
                block_size=self.block_size,
                timeout_s=self.limit_s,
            )
        )

    def compute_expected_checksum(self, machine: Machine) -> Checksum:
        """Returns the checksum of the pattern, computed without any disk."""
        return (
            get_scratch_store()
            .start_agent()
            .compute_pattern_checksum(Pattern(self.params.content), self.amount)
        )


class FillTrial(_PatternTrial[MovedBytes]):
    """The trial of `fill`."""


class FilewriteTrial(_PatternTrial[MovedBytes]):
    """The trial of `filewrite`: the same as `dd if=/dev/zero bs=1024k` and a flush."""


class FilereadTrial(_PatternTrial[ReadBytes]):
    """The trial of `fileread`: reads a file that was written untimed, or with which the disk was created.

    Read-only filesystems (erofs, squashfs) are created with the file. The bytes come from the host's disk, unless the
    image is in memory.
    """

    READS = True

    def prepare_source(self, machine: Machine) -> None:
        """Writes the file, unless the disk was created with it."""
        disk = find_target(machine)
        if disk.spec.is_packed:
            return
        self.move_bytes(machine, f"{disk.directory}/{FILE}")
        disk.image.flush()

    def run(self, machine: Machine) -> list[Measurement]:
        """Unmounts, mounts again and reads the file; then checks its content."""
        disk = find_target(machine)
        with explain_failed_calls(disk):
            if self._mounted:
                disk.umount(machine.agent)
            # The host has cached what it wrote to the image, and what an earlier check read from it.
            disk.evict_from_cache()
            self.warnings += [warning for warning in warn_of_caches(disk) if warning not in self.warnings]
            disk.mount(machine.agent)
            self._mounted = True
            sync_everything(machine.agent)
            below = CounterReading.read_before(machine)
            moved = machine.agent.read_back(
                f"{disk.directory}/{FILE}",
                block_size=self.block_size,
                length=self.amount,
                timeout_s=self.limit_s,
            )
            changes = below.read_changes(flushed=False)
            timed = TimedMove.from_reply(moved)
            self._note_clocks(timed)
            expected = self.compute_expected_checksum(machine)
            self._mounted = False  # the check unmounts first
            check_target(machine, disk, FILE, expected)
        values = [
            (metrics.THROUGHPUT, self.amount / timed.wall_s),
            (metrics.WALL, timed.wall_s),
            (metrics.GUEST_WALL, timed.guest_wall_s),
        ]
        return [*metrics.to_measurements(values), *changes.to_measurements(self.amount)]
