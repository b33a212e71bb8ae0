"""Putting machines, their emulators and this process where `core.placement` chose, and finding out where they are.

No privileges are needed: a thread's processors are inherited by what it starts, so a machine is where it belongs from
its first instruction; QEMU's virtual processors, which are threads, are moved when its monitor has told which they are.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guestmark.core import procfs
from guestmark.core.cause import Cause
from guestmark.core.errors import AttestationError, MachineError
from guestmark.core.machine_facts import Placed
from guestmark.core.placement import (
    FULL_CAPACITY,
    NAME,
    Placement,
    Processor,
    Topology,
    choose,
    read_list,
    write_list,
)
from guestmark.disks import processes
from guestmark.platforms.qmp import require_shape

if TYPE_CHECKING:
    from guestmark.core.model import Cell

_CPUS = Path("/sys/devices/system/cpu")
_PASSES = 5  # until no new thread has come up while the others were moved


@dataclass(slots=True)
class Seat:
    """The place of one machine; without a `placement` (a cell from before there were any) it is wherever it is."""

    placement: Placement | None = None
    virtual: tuple[int, ...] = field(default=())  # threads that are virtual processors, by their number

    def move_threads(self, virtual: Sequence[int]) -> None:
        """Moves the threads of a hypervisor that has started: its virtual processors, and all others."""
        self.virtual = tuple(virtual)
        if self.placement is None or not virtual:
            return
        hypervisor = [_process_of(virtual[0])]
        for number, thread in enumerate(virtual):  # a listing of threads may lack some while others end
            with contextlib.suppress(OSError):
                os.sched_setaffinity(thread, self._wanted_processors(thread, {thread: number}))
        for _ in range(_PASSES):
            wrong = [
                (thread, asked)
                for thread, asked, found, _ in self._list_threads(hypervisor)
                if asked != found
            ]
            for thread, asked in wrong:
                with contextlib.suppress(OSError):  # what did not take effect is found by `attest`
                    os.sched_setaffinity(thread, asked)
            if not wrong:
                return

    def attest(self, pid: int | None) -> Placed | None:
        """Where the machine and this process are; None without a placement.

        `pid` is the process that the machine began with: all its descendants are looked at. Raises `AttestationError`
        when that is not what was asked for.
        """
        placement = self.placement
        if placement is None:
            return None
        if pid is None:
            raise AttestationError("where the machine runs cannot be found out: its process is gone")
        for _, asked, found, name in self._list_threads([pid, *processes.list_descendants(pid)]):
            _require_processors(name, asked, found)
        for thread in _tasks(os.getpid()):
            if found := _read_allowed(os.getpid(), thread):
                _require_processors("the control plane", frozenset(placement.control), found)
        return Placed(
            level=placement.level,
            processors=placement.processors,
            machine=write_list(placement.machine),
            emulator=write_list(placement.emulator),
            control=write_list(placement.control),
            nodes=list(placement.nodes),
            remarks=list(placement.remarks) or None,
        )

    def _list_threads(self, pids: Iterable[int]) -> Iterator[tuple[int, frozenset[int], frozenset[int], str]]:
        """Every thread: its id, the processors it was given, those it has, and what it is called."""
        numbers = {thread: number for number, thread in enumerate(self.virtual)}
        for pid in pids:
            for thread in _tasks(pid):
                found = _read_allowed(pid, thread)
                if not found:
                    continue  # it has ended
                yield (
                    thread,
                    self._wanted_processors(thread, numbers),
                    found,
                    _describe_thread(pid, thread, numbers.get(thread)),
                )

    def _wanted_processors(self, thread: int, numbers: Mapping[int, int]) -> frozenset[int]:
        placement = self.placement
        assert placement is not None
        if thread in numbers and placement.one_each:
            return frozenset({placement.machine[numbers[thread]]})
        return frozenset(placement.machine if thread in numbers or not self.virtual else placement.emulator)


class _ActivePlacements:
    """The placements that are in force in this process, the innermost last.

    Those of outer guests that several trials share last longer than the trials'.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._active: list[Placement] = []
        self._own: frozenset[int] = frozenset()  # this process's processors before it was moved
        self._along: tuple[int, ...] = ()  # processes that are where this one is

    def usable_processors(self) -> frozenset[int]:
        """The processors that this process may use: its own mask, as its caller set it."""
        with self._lock:
            return self._own if self._active else frozenset(os.sched_getaffinity(0))

    def take_along(self, pids: Iterable[int]) -> None:
        """From now on these processes are kept where this one is: they serve it, and belong beside no machine."""
        with self._lock:
            self._along = tuple(pids)

    def enter(self, placement: Placement) -> None:
        """From now on this process is at the placement's `control`, and what it starts as a machine at `machine`."""
        with self._lock:
            if not self._active:
                self._own = frozenset(os.sched_getaffinity(0))
            self._active.append(placement)
            _move_all(placement.control, self._along)

    def leave(self, placement: Placement) -> None:
        """The end of what `enter` began."""
        with self._lock:
            self._active.remove(placement)
            _move_all(self._active[-1].control if self._active else self._own, self._along)

    @contextlib.contextmanager
    def starting_machine(self) -> Iterator[None]:
        """What this thread starts inside is a machine, and where machines belong."""
        with self._lock:
            placement = self._active[-1] if self._active else None
        if placement is None:
            yield
            return
        # The emulator's threads are its main thread's children; virtual processors are moved once they are there.
        os.sched_setaffinity(0, placement.emulator)
        try:
            yield
        finally:
            os.sched_setaffinity(0, placement.control)


_active = _ActivePlacements()
starting_machine = _active.starting_machine
usable_processors = _active.usable_processors
take_along = _active.take_along


@contextlib.contextmanager
def take_seat(cell: Cell, *, emulator: bool) -> Iterator[Seat]:
    """Around the whole life of a machine of `cell`; `emulator` as in `choose`.

    Nothing happens for a cell without the factor. Raises `UsageError` for a list that cannot be used.
    """
    level = cell.factors.get(NAME)
    if level is None:
        yield Seat()
        return
    wanted = cell.processors or (cell.platform.processors(cell.levels) if cell.platform.is_guest else 0)
    placement = choose(_cached_topology(usable_processors()), level, wanted, emulator=emulator)
    _active.enter(placement)
    try:
        yield Seat(placement)
    finally:
        _active.leave(placement)


def check_processor_lists(cells: Iterable[Cell]) -> None:
    """Raises `UsageError` when a list of processors names some that this process may not use."""
    for level in dict.fromkeys(cell.factors[NAME] for cell in cells if NAME in cell.factors):
        choose(_cached_topology(usable_processors()), level, 1)


def find_vcpu_threads(told: Iterable[Mapping[str, Any]], pid: int | None) -> tuple[int, ...]:
    """The threads of QEMU's virtual processors, from its answer to `query-cpus-fast`; its process here is `pid`.

    Raises `MachineError` when one of them is not among that process's: nobody else's threads are moved on its word.
    """
    ours = processes.map_threads(pid) if pid is not None else {}
    with require_shape():
        numbers = [
            int(one["thread-id"]) for one in sorted(told, key=lambda processor: processor["cpu-index"])
        ]
    if others := [number for number in numbers if number not in ours]:
        raise MachineError(f"QEMU's monitor names a thread that QEMU does not have: {others[0]}")
    return tuple(ours[number] for number in numbers)


@functools.cache
def _cached_topology(numbers: frozenset[int]) -> Topology:
    return read_topology(numbers)


def read_topology(numbers: Collection[int], cpus: Path = _CPUS) -> Topology:
    """Of these processors from /sys; what it does not say is taken to be one core each, on one node, equally fast."""
    node_of = {
        number: int(node.name.removeprefix("node"))
        for node in (cpus.parent / "node").glob("node[0-9]*")
        for number in _read_cpu_list(node / "cpulist")
    }
    return Topology(
        tuple(
            Processor(
                number,
                (
                    _read_number(cpus / f"cpu{number}/topology/physical_package_id", 0),
                    _read_number(cpus / f"cpu{number}/topology/core_id", number),
                ),
                node_of.get(number, 0),
                _read_number(cpus / f"cpu{number}/cpu_capacity", FULL_CAPACITY),
            )
            for number in sorted(numbers)
        )
    )


def _read_cpu_list(file: Path) -> tuple[int, ...]:
    try:
        return read_list(file.read_text())
    except (OSError, ValueError):  # a node may have memory only
        return ()


def _read_number(file: Path, otherwise: int) -> int:
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return otherwise


def _move_all(processors: Collection[int], others: Iterable[int]) -> None:
    """All threads of this process and of others; new ones are where their makers are."""
    for pid in (os.getpid(), *others):
        for thread in _tasks(pid):
            with contextlib.suppress(OSError):  # it has ended
                os.sched_setaffinity(thread, processors)


def _process_of(thread: int) -> int:
    """The process that a thread belongs to; 0 when it has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{thread}/status").read_text(errors="replace").splitlines():
            if line.startswith("Tgid:"):
                return int(line.split()[1])
    return 0


def _tasks(pid: int) -> list[int]:
    return procfs.list_threads(pid)


def _read_allowed(pid: int, thread: int) -> frozenset[int]:
    """Empty when the thread has ended."""
    try:
        status = Path(f"/proc/{pid}/task/{thread}/status").read_text(errors="replace")
    except OSError:
        return frozenset()
    return next(
        (
            frozenset(read_list(line.partition(":")[2]))
            for line in status.splitlines()
            if line.startswith("Cpus_allowed_list:")
        ),
        frozenset(),
    )


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
            f"{Cause.PLACEMENT.words} {what} is not what was asked for: asked processor {write_list(asked)}, "
            f"found {write_list(found)}",
            cause=Cause.PLACEMENT,
        )
