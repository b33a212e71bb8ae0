"""The common part of disk workloads: mounting, syncing, timing until data are on the host's disk, and reading back."""

from __future__ import annotations

import contextlib
import errno
import os
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from guestmark.agent.bulk import MoveResult
from guestmark.agent.client import Agent
from guestmark.agent.results import CallError
from guestmark.agent.wire import Checksum
from guestmark.core.cause import Cause
from guestmark.core.errors import UsageError, WorkloadError
from guestmark.core.findings import TARGET, Fact
from guestmark.core.metric import Measurement, Metric
from guestmark.core.model import Cell, Plan
from guestmark.core.units import parse_size
from guestmark.core.workload_kind import count_moved_bytes, workload_kind
from guestmark.disks.attached import AttachedDisk
from guestmark.disks.image import Image, make_images
from guestmark.disks.packed import FILE
from guestmark.disks.scratch import get_scratch_store
from guestmark.platforms.base import Machine
from guestmark.setting.disk import DiskSpec, Role
from guestmark.setting.drive import BUS, UML_DISK, Bus
from guestmark.setting.image import Format
from guestmark.setting.location import LOCATION, SHARED_MEMORY, parse_image_directory
from guestmark.workloads.base import Workload
from guestmark.workloads.common import metrics
from guestmark.workloads.common.factors import BLOCK_SIZE
from guestmark.workloads.common.flushes import CounterReading
from guestmark.workloads.common.moved import MovedBytes
from guestmark.workloads.common.program import warn_of_clocks

M = TypeVar("M", bound=MovedBytes)
_READ_S = 600.0
READABLE = ("ext2", "ext3", "ext4")  # filesystems that debugfs reads


def check_target(machine: Machine, disk: AttachedDisk, name: str, expected: Checksum) -> None:
    """Unmounts the target, reads its file `name` back and compares it; also checks the image.

    A raw image with an ext filesystem is read on the host with debugfs, which bypasses guest and hypervisor; others are
    read by the guest, from the disk. Raises `WorkloadError` if a byte is wrong, `MachineError` if the image is damaged.
    """
    past_guest = bool(disk.device) and is_readable_on_host(disk.image)
    disk.umount(machine.agent, drop_caches=not past_guest)
    if not disk.device or disk.spec.is_directory:
        file = Path(disk.image.path if disk.spec.is_directory else disk.directory, name)
        if file.is_symlink():  # a guest could have made it point anywhere
            raise WorkloadError(f"the data did not arrive: {name} is a symbolic link")
        found = get_scratch_store().start_agent().checksum(str(file), timeout_s=_READ_S)
        how = "on the host"
    elif past_guest:
        found = disk.image.digest_past_guest(name)
        how = "by debugfs on the host"
    else:
        directory = disk.mount(machine.agent)
        found = machine.agent.checksum(f"{directory}/{name}", timeout_s=_READ_S)
        disk.umount(machine.agent)
        how = "by the guest from the disk"
    check_checksum(found, expected, how)
    if disk.device:
        disk.image.check_filesystem()


def check_checksum(found: Checksum, expected: Checksum, how: str) -> None:
    """Raises `WorkloadError` if the checksums differ."""
    if found == expected:
        return
    if found.size != expected.size:
        what = f"{expected.size} bytes were written, but {found.size} were found"
    else:
        what = f"the checksum is {found.xxh3}, not {expected.xxh3}"
    raise WorkloadError(f"the data did not arrive intact: {what} (read {how})")


def is_readable_on_host(image: Image) -> bool:
    """Returns whether the host can read files of this image without the guest."""
    return image.spec.format is Format.RAW and image.spec.filesystem in READABLE


class Moving(Fact, kw_only=True):
    """How the disk was prepared and the bytes were moved; each workload fills in some of the fields."""

    image_prepared_s: float | None = None
    image_from_template: bool | None = None
    direct: bool | None = None  # bypassing the guest's page cache
    preallocated: bool | None = None  # the file that was written
    block_bytes: int | None = None  # of a request of a direct copy
    archive_bytes: int | None = None
    # The options with which the guest's kernel mounted the share.
    share: str | None = None


@dataclass(frozen=True, slots=True)
class TimedMove:
    """Seconds measured in the guest, including the flush. `warning` is set if the clocks could not be aligned."""

    wall_s: float
    wall_error_s: float
    guest_wall_s: float
    flush_s: float
    warning: str = ""

    @classmethod
    def from_reply(cls, moved: MoveResult) -> TimedMove:
        """Converts the agent's answer to a bulk call."""
        return cls(
            moved.wall_s,
            moved.wall_error_s,
            moved.guest_wall_s,
            moved.flush_s,
            moved.clock_warning,
        )


class MovingTrial(Workload[M]):
    """Moves bytes, flushes them in the guest and on the host, and reads back what arrived.

    A subclass defines how bytes are moved (`move_bytes`) and which must have arrived (`compute_expected_checksum`).
    """

    def __init__(self, plan: Plan, cell: Cell) -> None:
        super().__init__(plan, cell)
        self.moving = self.facts.add(Moving())
        self.amount = self.params.amount_bytes
        self.block_size = cell.levels.get(BLOCK_SIZE)
        self.location = parse_image_directory(cell.levels.get(LOCATION) or SHARED_MEMORY)
        self.over_vhost_user = is_over_vhost_user(cell)
        self._stack = contextlib.ExitStack()
        self._mounted = False

    # --- defined by each workload

    @abstractmethod
    def move_bytes(self, machine: Machine, path: str) -> TimedMove:
        """Moves the bytes into the file `path` and flushes it; timed by the agent."""

    @abstractmethod
    def compute_expected_checksum(self, machine: Machine) -> Checksum:
        """Returns the checksum that the target file must have."""

    def prepare_source(self, machine: Machine) -> None:
        """Prepares the source before the first measurement; by default nothing."""

    # --- the contract of a workload

    @classmethod
    def preflight(cls, plan: Plan, cells: Sequence[Cell]) -> Sequence[str]:
        """Raises `UsageError` for source files that are missing or too short."""
        moving = [cell for cell in plan.cells if count_moved_bytes(cell) is not None]
        if moving[0].workload.name == cells[0].workload.name:  # checked once for the whole plan
            check_sources(moving)
        return ()

    def prepare(self, machine: Machine) -> None:
        """Mounts the target and prepares the source. Raises `MachineError`, `WorkloadError`."""
        disk = find_target(machine)
        self.moving.image_prepared_s = disk.image.prepared_s
        self.moving.image_from_template = disk.image.from_template
        with explain_failed_calls(disk):
            self._mount_disk(machine, disk)
            if not disk.spec.is_packed:
                self._require_space_on_disk(machine.agent, disk)
            self.prepare_source(machine)

    def run(self, machine: Machine) -> list[Measurement]:
        """Moves the bytes once, and checks them. Raises `WorkloadError` when a byte is wrong."""
        disk = find_target(machine)
        with explain_failed_calls(disk):
            directory = self._mount_disk(machine, disk)
            path = f"{directory}/{FILE}"
            with contextlib.suppress(CallError):
                machine.agent.remove(path)
            sync_everything(machine.agent)
            below = CounterReading.read_before(machine)
            timed = self.move_bytes(machine, path)
            # The guest has flushed by now, but the image may still be in the host's cache; it is safe only after this.
            host_flush_s = disk.image.flush()
            changes = below.read_changes()
            self._note_clocks(timed)
            expected = self.compute_expected_checksum(machine)
            self._mounted = False  # the check unmounts first
            check_target(machine, disk, FILE, expected)
        wall_s = timed.wall_s + host_flush_s
        values: list[tuple[Metric, float]] = [
            (metrics.THROUGHPUT, self.amount / wall_s),
            (metrics.WALL, wall_s),
            (metrics.GUEST_WALL, timed.guest_wall_s),
            (metrics.GUEST_FLUSH, timed.flush_s),
            (metrics.HOST_FLUSH, host_flush_s),
        ]
        changes.add_facts(self.facts)
        return [*metrics.to_measurements(values), *changes.to_measurements(self.amount)]

    def cleanup(self, machine: Machine) -> None:
        """Unmounts the target, and removes files that were created on the host."""
        try:
            if self._mounted:
                self._mounted = False
                find_target(machine).umount(machine.agent, drop_caches=False)
        finally:
            self._stack.close()

    # --- for subclasses

    def find_source(self) -> Image:
        """Returns a file on the host with the content to move; a run creates it only once."""
        spec = DiskSpec.from_levels(
            Role.SOURCE, self.amount, content=self.params.source_content, location=self.location
        )
        return self._stack.enter_context(make_images([spec]))[0]

    def _mount_disk(self, machine: Machine, disk: AttachedDisk) -> str:
        if not self._mounted:
            disk.mount(machine.agent)
            self._mounted = True
            self.facts.add(disk.facts, TARGET)
        return disk.directory

    def _require_space_on_disk(self, agent: Agent, disk: AttachedDisk) -> None:
        """Raises `WorkloadError` if the disk is too small for the data, before any are moved."""
        there = agent.statfs(disk.directory)
        free = there.free * there.block_size
        if free < self.amount:
            place = f"{disk.spec.filesystem} filesystem" if disk.device else "directory"
            raise WorkloadError(
                f"{self.amount / 1e6:.0f} MB do not fit on the disk: {free / 1e6:.0f} MB are free on its {place}",
                hint="use a larger disk (--set size=4G) or less data (--scale)",
            )

    def _note_clocks(self, timed: TimedMove) -> None:
        differ = warn_of_clocks(timed.wall_s, timed.guest_wall_s, timed.wall_error_s)
        self.warnings += [warning for warning in (timed.warning, differ) if warning]


def is_over_vhost_user(cell: Cell) -> bool:
    """Returns whether a daemon serves the disks of the cell's machine."""
    return Bus.VHOST_USER in (cell.levels.get(BUS), cell.levels.get(UML_DISK))


def warn_of_caches(disk: AttachedDisk) -> list[str]:
    """Returns a warning if what is read from the disk may come from a cache that could not be emptied."""
    if not disk.facts.caches:
        return []
    return [f"what was read may have been in memory: caches were {disk.facts.caches}"]


def explain_host_cache(cell: Cell, disk: DiskSpec) -> str:
    """Returns why O_DIRECT on the machine does not bypass the host's page cache; empty if it does."""
    if disk.cache.direct or (cell.platform.is_this_host and not disk.loop):
        return ""
    if disk.is_directory:
        why = f"{disk.filesystem} is a directory of the host"
    elif cell.platform.is_nested:
        why = "the image is in the outer guest's memory"
    else:
        way = "UML has no other way" if disk.bus in {Bus.UBD, Bus.VHOST_USER} else "cache=none bypasses it"
        why = f"the image's I/O does ({way})"
    return f"despite O_DIRECT, I/O passes through the host's page cache, because {why}"


def list_remarks(found: Iterable[tuple[Cell, str]]) -> list[str]:
    """Returns each remark once, with the cells that have it; empty ones are left out."""
    remarks: dict[str, list[str]] = {}
    for cell, remark in found:
        if remark:
            remarks.setdefault(remark, []).append(cell.id)
    return [f"{_name_remarked_cells(ids)}: {remark}" for remark, ids in remarks.items()]


def _name_remarked_cells(ids: Sequence[str]) -> str:
    # The id of a null cell has a `#`; the original gets the same remark.
    own = [identifier for identifier in ids if "#" not in identifier] or list(ids)
    return own[0] if len(own) == 1 else f"{own[0]} and {len(own) - 1} more"


def find_target(machine: Machine) -> AttachedDisk:
    """Returns the disk that is written. Raises `WorkloadError` if the machine has none."""
    return _find_disk(machine, Role.TARGET)


def find_source(machine: Machine) -> AttachedDisk:
    """Returns the disk that is read. Raises `WorkloadError` if the machine has none."""
    return _find_disk(machine, Role.SOURCE)


def _find_disk(machine: Machine, role: Role) -> AttachedDisk:
    for disk in machine.disks:
        if disk.spec.role is role:
            return disk
    raise WorkloadError(f"the machine has no {role} disk", hint="this platform does not support disks")


def sync_everything(agent: Agent) -> None:
    """Syncs guest and host, so that nothing remains to be written when the timing begins."""
    agent.sync()
    os.sync()


@contextlib.contextmanager
def explain_failed_calls(disk: AttachedDisk) -> Iterator[None]:
    """Turns failed system calls in the guest into a `WorkloadError` that says what to do."""
    try:
        yield
    except CallError as error:
        hint = ""
        if error.cause is Cause.NO_ROOM:
            hint = "the guest's disk is full: use a larger one (--set size=4G) or less data (--scale)"
        elif error.cause is Cause.NO_DIRECT_IO:
            hint = (
                f"{disk.spec.location} or the filesystem does not support direct I/O: choose another directory "
                "(--set location=DIRECTORY)"
            )
        elif error.errno == errno.EIO:
            hint = "the underlying disk failed; see the console and the host's kernel log"
        raise WorkloadError(error.message, hint=hint, cause=error.cause) from error


def check_sources(cells: Iterable[Cell]) -> None:
    """Raises `UsageError` for a source file that is missing or shorter than the amount requested."""
    for cell in cells:
        source = workload_kind(cell.workload.name).params_of(cell.workload).source
        if source is None or not source.content.startswith("file:"):
            continue
        path, amount = source.content.removeprefix("file:"), parse_size(source.size)
        try:
            size = Path(path).stat().st_size
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror}", hint="give a readable file") from error
        if size < amount:
            raise UsageError(
                f"{path} has {size} bytes, but the plan needs {amount}",
                hint="reduce the amount, or give a larger file",
            )
