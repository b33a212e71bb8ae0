"""Machines that several cells of a block share: which cells share one, and one trial's lease of it.

Cells that ask for the same machine share a fresh one in each block, in random order, if the plan says so
(`Policy.share_machine`) and their workloads allow it. It has the disks of all of them at once. A null copy has its own
machine, so that it also shows whether sharing makes a difference.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from guestmark.core.factor import Machine as MachineKind
from guestmark.core.findings import SharedMachine
from guestmark.core.meminfo import read_meminfo
from guestmark.core.model import Cell, Plan, WorkloadSpec
from guestmark.core.workload_kind import count_moved_bytes, find_packages, watches_initcalls, workload_kind
from guestmark.platforms.base import Machine, Platform
from guestmark.platforms.guest import narrow_machine
from guestmark.setting.base import is_disk_setting, list_machine_options
from guestmark.setting.disk import Disks, DiskSpec, Role
from guestmark.setting.drive import Bus
from guestmark.setting.image import Preallocation
from guestmark.setting.machine import IMAGE, START, Start
from guestmark.setting.network import NETWORK, Network
from guestmark.workloads import base as workloads

# Buses on which a machine can have many disks.
_BUSES = frozenset({Bus.VIRTIO_BLK, Bus.UBD, Bus.NINE_P, Bus.HOSTFS})
_MOST_DISKS = 16
# Disks of one machine may use this share of the free space in their location.
_SHARE_OF_ROOM = 0.4


@dataclass(frozen=True, slots=True)
class SharedStart:
    """The start of one machine for several cells: a `carrier` cell with all their disks, and each cell's disk names."""

    cells: tuple[Cell, ...]
    carrier: Cell
    names: Mapping[str, frozenset[str]]


@dataclass(slots=True)
class _Running:
    """A running machine that trials share until the last of them has ended."""

    start: SharedStart
    machine: Machine
    stack: ExitStack
    number: int
    took_s: float
    trials: int
    position: int = 0


@dataclass(slots=True)
class Lease:
    """One trial's use of a machine, with corrections for what belongs to other trials."""

    machine: Machine
    shared: SharedMachine | None = None
    # Seconds to add to the trial's duration, so that each trial has an equal part of the machine's start.
    start_shift_s: float = 0.0
    # Characters of console output from earlier trials.
    console_start: int = 0


def group_cells(plan: Plan, cells: Iterable[Cell]) -> list[tuple[Cell, ...]]:
    """Return the cells in groups that can share one machine each, in the order of their first cells."""
    groups: dict[object, list[list[Cell]]] = {}
    ordered: list[list[Cell]] = []
    for cell in cells:
        if not can_share(plan, cell):
            ordered.append([cell])
            continue
        same = groups.setdefault(_make_machine_key(cell), [])
        group = _find_group_with_room(same, cell)
        if group is None:
            group = []
            same.append(group)
            ordered.append(group)
        group.append(cell)
    return [tuple(group) for group in ordered]


def can_share(plan: Plan, cell: Cell) -> bool:
    """Return whether the cell may run on a machine on which other cells run before or after it."""
    if not plan.policy.share_machine or cell.null_of is not None or cell.platform.is_elsewhere:
        return False
    if not cell.platform.is_guest or cell.platform.inner.description.machine not in {
        MachineKind.QEMU,
        MachineKind.UML,
    }:
        return False
    if not workload_kind(cell.workload.name).shares_machine or watches_initcalls(cell) is not None:
        return False
    if (
        cell.levels.get(START) is Start.RESTORED
        or IMAGE in cell.levels
        or cell.levels[NETWORK] is not Network.NONE
    ):
        return False
    return all(map(_is_shareable_disk, cell.view(Disks)))


def _is_shareable_disk(disk: DiskSpec) -> bool:
    """Return whether a machine can have the disk beside others without any other change to the machine."""
    return not disk.logged and not disk.is_device and disk.bus in _BUSES and not list_machine_options(disk)


def _find_group_with_room(groups: Iterable[list[Cell]], cell: Cell) -> list[Cell] | None:
    for group in groups:
        if _has_room_for_disks([*group, cell]):
            return group
    return None


def _name_workload_factors(cell: Cell) -> set[str]:
    return {factor.name for factor in workload_kind(cell.workload.name).factors}


def _select_machine_levels(cell: Cell, own: Collection[str]) -> dict[str, str]:
    """Return the cell's levels that its machine is started with: neither of its disks, nor of its workload's `own`."""
    levels = {}
    for name, level in cell.factors.items():
        if name not in own and not is_disk_setting(name):
            levels[name] = level
    return levels


def _make_machine_key(cell: Cell) -> object:
    """Return a key that is equal for cells that ask for the same machine."""
    own = _name_workload_factors(cell)
    settings = frozenset(_select_machine_levels(cell, own).items())
    packages = find_packages(cell) if cell.platform.foreign_architecture is not None else ()
    return str(cell.platform), cell.processors, settings, packages


def _has_room_for_disks(cells: Sequence[Cell]) -> bool:
    """Return whether the disks of all these cells can exist at once."""
    disks: dict[DiskSpec, int] = {}
    for cell in cells:
        for number, spec in enumerate(cell.view(Disks)):
            key = spec if spec.role is Role.SOURCE else replace(spec, alias=f"{cell.id} {number}")
            disks[key] = spec.size if cell.platform.is_nested else _estimate_bytes(spec, cell)
    if len(disks) > _MOST_DISKS:
        return False
    if cells[0].platform.is_nested:
        # The outer guest has memory for all images in full.
        return sum(disks.values()) <= _SHARE_OF_ROOM * read_meminfo()["MemAvailable"]
    needed: dict[str, int] = {}
    for spec, size in disks.items():
        needed[spec.location] = needed.get(spec.location, 0) + size
    return all(size <= _SHARE_OF_ROOM * _read_free_bytes(location) for location, size in needed.items())


def _estimate_bytes(spec: DiskSpec, cell: Cell) -> int:
    moved = count_moved_bytes(cell)
    if moved is None or spec.preallocation in {Preallocation.FALLOC, Preallocation.FULL}:
        return spec.size
    return min(moved, spec.size)


def _read_free_bytes(directory: str) -> int:
    try:
        found = os.statvfs(directory)
    except OSError:
        return 0
    return found.f_bavail * found.f_frsize


def make_shared_start(cells: Sequence[Cell]) -> SharedStart:
    """Return the start of a machine for these cells."""
    first = cells[0]
    requests: list[Mapping[str, Any]] = []
    sources: dict[DiskSpec, str] = {}
    names: dict[str, frozenset[str]] = {}
    own: set[str] = set()
    for cell in cells:
        own |= _name_workload_factors(cell)
        of_cell = set()
        for spec in cell.view(Disks):
            if spec.role is Role.SOURCE and spec in sources:
                of_cell.add(sources[spec])
                continue
            name = f"{spec.role}{len(requests)}"
            sources[spec] = name
            of_cell.add(name)
            requests.append(_request_disk(spec, name))
        names[cell.id] = frozenset(of_cell)
    factors = _select_machine_levels(first, own)
    params = {**first.workload.params, "disks": requests}
    workload = WorkloadSpec(first.workload.name, params)
    carrier = Cell(
        " + ".join(cell.id for cell in cells),
        workload,
        first.platform,
        factors,
        processors=first.processors,
    )
    return SharedStart(tuple(cells), carrier, names)


def _request_disk(spec: DiskSpec, name: str) -> Mapping[str, Any]:
    """Return the request for this disk under another name."""
    request = {
        **spec.levels.texts,
        "role": str(spec.role),
        "alias": name,
        "content": spec.content,
        "tree": spec.tree,
    }
    if spec.holds:
        request["holds"] = str(spec.holds)
    return request


@dataclass(slots=True)
class BlockMachines:
    """The machines of one block: each is started by the first of its cells that runs, and ended after the last.

    After a trial that failed, for whatever reason, the remaining cells get another machine; if none can be started
    for all of them, each gets its own.
    """

    due: dict[str, tuple[Cell, ...]] = field(default_factory=dict)
    _running: _Running | None = None
    _apart: set[str] = field(default_factory=set)
    _ended: set[str] = field(default_factory=set)
    _number: int = 0

    @classmethod
    def make_for_block(cls, groups: Iterable[Sequence[Cell]], due: Collection[str]) -> BlockMachines:
        """Return the machines for the cells that are due, by id."""
        found: dict[str, tuple[Cell, ...]] = {}
        for group in groups:
            wanted = tuple(cell for cell in group if cell.id in due)
            if len(wanted) > 1:
                found |= dict.fromkeys((cell.id for cell in wanted), wanted)
        return cls(found)

    def list_carriers(self) -> list[Cell]:
        """Return the cells by which shared machines are started."""
        groups = {group[0].id: group for group in self.due.values()}
        return [make_shared_start(group).carrier for group in groups.values()]

    @contextmanager
    def take_machine(
        self, workload: workloads.Workload[Any], platform: Platform, cell: Cell
    ) -> Iterator[Lease]:
        """Yield a machine for one trial: a shared one, or one of its own. Raises what starting or using it raises."""
        group = tuple(other for other in self.due.get(cell.id, ()) if other.id not in self._ended)
        self._ended.add(cell.id)
        if cell.id in self._apart or (self._running is None and len(group) < 2):
            with workloads.start_machine(workload, platform, cell) as machine:
                yield Lease(machine)
            return
        begin = time.monotonic()
        running = self._running or self._start(platform, group)
        spent = time.monotonic() - begin
        running.position += 1
        share_s = running.took_s / running.trials
        shared = SharedMachine(
            number=running.number, position=running.position, trials=running.trials, start_s=share_s
        )
        try:
            machine = narrow_machine(running.machine, cell, running.start.names[cell.id])
            first = running.position == 1
            yield Lease(machine, shared, share_s - spent, 0 if first else len(running.machine.console()))
        except BaseException:
            # The machine itself may have failed, so nothing else is measured on it; its context may replace the error.
            self._running = None
            if not running.stack.__exit__(*sys.exc_info()):
                raise
        else:
            if running.position == running.trials:
                self._running = None
                running.stack.close()

    def _start(self, platform: Platform, group: Sequence[Cell]) -> _Running:
        start = make_shared_start(group)
        with ExitStack() as stack:
            begin = time.monotonic()
            try:
                machine = stack.enter_context(platform.start(start.carrier))
            except BaseException:
                self._apart |= {cell.id for cell in group}
                raise
            self._number += 1
            self._running = _Running(
                start, machine, stack.pop_all(), self._number, time.monotonic() - begin, len(group)
            )
        return self._running

    def end(self) -> None:
        """End the machine that further trials would share, if there is one."""
        running, self._running = self._running, None
        if running is not None:
            running.stack.close()
