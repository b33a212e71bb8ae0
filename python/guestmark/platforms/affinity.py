"""Puts machines, their emulators and this process on the processors that `core.placement` chose, and attests it.

This needs no privileges. Processes inherit the processors of the thread that starts them, so a machine runs on its
processors from its first instruction. QEMU's virtual processors, which are threads, are moved as soon as its monitor
names them.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from guestmark.core import procfs
from guestmark.core.cause import Cause
from guestmark.core.errors import AttestationError, MachineError
from guestmark.core.machine_facts import PlacementFacts
from guestmark.core.model import Cell
from guestmark.core.placement import (
    FULL_CAPACITY,
    NAME,
    Placement,
    Processor,
    Topology,
    choose_processors,
    format_processor_list,
    parse_processor_list,
)
from guestmark.disks import processes
from guestmark.platforms.qmp import require_shape

_CPUS = Path("/sys/devices/system/cpu")
# A thread that is created while others are moved inherits the old processors. QEMU soon stops creating threads, so a
# few passes move all of them; the attestation detects any that are still wrong.
_PASSES = 5


@dataclass(slots=True)
class Seat:
    """The processors of one machine.

    Without a `placement`, as in cells that are older than the factor, the kernel schedules it freely.
    """

    placement: Placement | None = None
    # Thread ids of the virtual processors, by the processor's number.
    virtual: tuple[int, ...] = field(default=())

    def count_processors(self, usable: int | None) -> int | None:
        """Returns how many processors the machine has; without a placement these are all that are `usable`."""
        if self.placement is None:
            return usable
        return self.placement.processors

    def move_threads(self, virtual: Sequence[int]) -> None:
        """Moves a hypervisor's virtual processors to their processors, and all other threads to the emulator's."""
        self.virtual = tuple(virtual)
        if self.placement is None or not virtual:
            return
        hypervisor = [_find_process(virtual[0])]
        # /proc may omit threads from a listing while others end, so virtual processors are moved by their ids first.
        for number, thread in enumerate(virtual):
            with contextlib.suppress(OSError):
                os.sched_setaffinity(thread, self._choose_wanted_processors(thread, {thread: number}))
        for _ in range(_PASSES):
            wrong = []
            for thread, asked, found, _ in self._list_threads(hypervisor):
                if asked != found:
                    wrong.append((thread, asked))
            for thread, asked in wrong:
                # If the call has no effect, `attest` raises.
                with contextlib.suppress(OSError):
                    os.sched_setaffinity(thread, asked)
            if not wrong:
                return

    def attest(self, pid: int | None) -> PlacementFacts | None:
        """Returns the processors of the machine and of this process; None without a placement.

        `pid` is the machine's first process; all its descendants are checked, too. Raises `AttestationError` if a
        thread may run on other processors.
        """
        placement = self.placement
        if placement is None:
            return None
        if pid is None:
            raise AttestationError("cannot find out where the machine runs: its process is gone")
        for _, asked, found, name in self._list_threads([pid, *processes.list_descendants(pid)]):
            _require_processors(name, asked, found)
        for thread in procfs.list_threads(os.getpid()):
            if found := _read_allowed(os.getpid(), thread):
                _require_processors("the control plane", frozenset(placement.control), found)
        return PlacementFacts(
            level=placement.level,
            processors=placement.processors,
            machine=format_processor_list(placement.machine),
            emulator=format_processor_list(placement.emulator),
            control=format_processor_list(placement.control),
            nodes=list(placement.nodes),
            remarks=list(placement.remarks) or None,
        )

    def _list_threads(self, pids: Iterable[int]) -> Iterator[tuple[int, frozenset[int], frozenset[int], str]]:
        """Yields, for each thread, its id, its intended and its actual processors, and its name for errors."""
        numbers = {thread: number for number, thread in enumerate(self.virtual)}
        for pid in pids:
            for thread in procfs.list_threads(pid):
                found = _read_allowed(pid, thread)
                # The thread has ended.
                if not found:
                    continue
                yield (
                    thread,
                    self._choose_wanted_processors(thread, numbers),
                    found,
                    _describe_thread(pid, thread, numbers.get(thread)),
                )

    def _choose_wanted_processors(self, thread: int, numbers: Mapping[int, int]) -> frozenset[int]:
        placement = self.placement
        assert placement is not None
        if thread in numbers and placement.one_each:
            return frozenset({placement.machine[numbers[thread]]})
        # Until the virtual processors are known, any thread may be one.
        if thread in numbers or not self.virtual:
            return frozenset(placement.machine)
        return frozenset(placement.emulator)


class _ActivePlacements:
    """The placements in effect in this process, the innermost last.

    The placement of an outer guest that several trials share outlasts the trials' own placements.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._active: list[Placement] = []
        # This process's processors before it was moved.
        self._own: frozenset[int] = frozenset()
        # Processes that are moved with this one.
        self._along: tuple[int, ...] = ()

    def list_usable_processors(self) -> frozenset[int]:
        """Returns the processors that this process may use: its affinity mask as its caller set it."""
        with self._lock:
            return self._own if self._active else frozenset(os.sched_getaffinity(0))

    def set_companion_processes(self, pids: Iterable[int]) -> None:
        """Keeps these processes on this one's processors from now on, so that they never run on a machine's."""
        with self._lock:
            self._along = tuple(pids)

    def enter(self, placement: Placement) -> None:
        """Moves this process to the placement's `control` processors; machines that it starts go to `machine`."""
        with self._lock:
            if not self._active:
                self._own = frozenset(os.sched_getaffinity(0))
            self._active.append(placement)
            _move_all(placement.control, self._along)

    def leave(self, placement: Placement) -> None:
        """Undoes `enter`."""
        with self._lock:
            self._active.remove(placement)
            before: Collection[int] = self._own
            if self._active:
                before = self._active[-1].control
            _move_all(before, self._along)

    @contextlib.contextmanager
    def mark_machine_start(self) -> Iterator[None]:
        """Inside the context, this thread starts processes on the processors of machines."""
        with self._lock:
            placement = self._active[-1] if self._active else None
        if placement is None:
            yield
            return
        # All threads of an emulator descend from its main thread and inherit its processors. Virtual processors are
        # moved to their own once they exist.
        os.sched_setaffinity(0, placement.emulator)
        try:
            yield
        finally:
            os.sched_setaffinity(0, placement.control)


_active = _ActivePlacements()
mark_machine_start = _active.mark_machine_start
list_usable_processors = _active.list_usable_processors
set_companion_processes = _active.set_companion_processes


@contextlib.contextmanager
def take_seat(cell: Cell, *, emulator: bool) -> Iterator[Seat]:
    """Reserves processors for a machine of `cell` inside the context; `emulator` as in `choose_processors`.

    Does nothing for a cell without the factor. Raises `UsageError` for processors that cannot be used.
    """
    level = cell.factors.get(NAME)
    if level is None:
        yield Seat()
        return
    wanted = cell.processors or 0
    if not wanted and cell.platform.is_guest:
        wanted = cell.platform.count_processors(cell.levels)
    placement = choose_processors(
        _read_cached_topology(list_usable_processors()), level, wanted, emulator=emulator
    )
    _active.enter(placement)
    try:
        yield Seat(placement)
    finally:
        _active.leave(placement)


def check_processor_lists(cells: Iterable[Cell]) -> None:
    """Raises `UsageError` if a list names processors that this process may not use."""
    for level in dict.fromkeys(cell.factors[NAME] for cell in cells if NAME in cell.factors):
        choose_processors(_read_cached_topology(list_usable_processors()), level, 1)


def find_vcpu_threads(answer: Iterable[Mapping[str, Any]], pid: int | None) -> tuple[int, ...]:
    """Returns the threads of QEMU's virtual processors, from its `answer` to `query-cpus-fast`.

    `pid` is QEMU's process id on this host. Raises `MachineError` if one of the threads is not QEMU's: a guest that
    has taken over QEMU must not make guestmark move other programs' threads.
    """
    ours = processes.map_threads(pid) if pid is not None else {}
    with require_shape():
        numbers = [int(vcpu["thread-id"]) for vcpu in sorted(answer, key=lambda vcpu: vcpu["cpu-index"])]
    if others := [number for number in numbers if number not in ours]:
        raise MachineError(f"QEMU's monitor names a thread that QEMU does not have: {others[0]}")
    return tuple(ours[number] for number in numbers)


@functools.cache
def _read_cached_topology(numbers: frozenset[int]) -> Topology:
    return read_topology(numbers)


def read_topology(numbers: Collection[int], cpus: Path = _CPUS) -> Topology:
    """Reads the topology of these processors from /sys.

    A processor that is missing in /sys counts as a separate core on node 0, as fast as the others.
    """
    node_of = {}
    for node in (cpus.parent / "node").glob("node[0-9]*"):
        for number in _read_cpu_list(node / "cpulist"):
            node_of[number] = int(node.name.removeprefix("node"))
    found = []
    for number in sorted(numbers):
        package = _read_number(cpus / f"cpu{number}/topology/physical_package_id", 0)
        core = _read_number(cpus / f"cpu{number}/topology/core_id", number)
        capacity = _read_number(cpus / f"cpu{number}/cpu_capacity", FULL_CAPACITY)
        found.append(Processor(number, (package, core), node_of.get(number, 0), capacity))
    return Topology(tuple(found))


def _read_cpu_list(file: Path) -> tuple[int, ...]:
    try:
        return parse_processor_list(file.read_text())
    # A node may have memory and no processors.
    except (OSError, ValueError):
        return ()


def _read_number(file: Path, otherwise: int) -> int:
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return otherwise


def _move_all(processors: Collection[int], others: Iterable[int]) -> None:
    """Moves all threads of this process and of `others`; threads that they create later inherit the processors."""
    for pid in (os.getpid(), *others):
        for thread in procfs.list_threads(pid):
            # The thread has ended.
            with contextlib.suppress(OSError):
                os.sched_setaffinity(thread, processors)


def _find_process(thread: int) -> int:
    """Returns the process that a thread belongs to; 0 if it has ended."""
    with contextlib.suppress(OSError):
        status = Path(f"/proc/{thread}/status").read_text(errors="replace")
        return int(processes.find_field(status, "Tgid") or 0)
    return 0


def _read_allowed(pid: int, thread: int) -> frozenset[int]:
    """Returns the processors that the kernel lets the thread run on; empty if it has ended."""
    try:
        status = Path(f"/proc/{pid}/task/{thread}/status").read_text(errors="replace")
    except OSError:
        return frozenset()
    allowed = processes.find_field(status, "Cpus_allowed_list")
    if not allowed:
        return frozenset()
    return frozenset(parse_processor_list(allowed))


def _describe_thread(pid: int, thread: int, number: int | None) -> str:
    if number is not None:
        return f"virtual processor {number}"
    try:
        name = Path(f"/proc/{pid}/task/{thread}/comm").read_text(errors="replace").strip()
    except OSError:
        name = ""
    return f"thread {name or thread}"


def _require_processors(what: str, asked: frozenset[int], found: frozenset[int]) -> None:
    if asked != found:
        raise AttestationError(
            f"{Cause.PLACEMENT.words} {what} is not what was asked for: asked for processor "
            f"{format_processor_list(asked)}, found {format_processor_list(found)}",
            cause=Cause.PLACEMENT,
        )
