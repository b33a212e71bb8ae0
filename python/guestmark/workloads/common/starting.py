"""Machines that a workload starts itself, each with the moments of its start and end on this host's monotonic clock.

Nothing that a machine reports of its own start is believed: the decision, the first answer, the touched memory and the
end are this host's. Only the first instruction is read from the machine's clock, and has to lie between two of the
others.

How many machines this host has memory for is determined before the first of them is started.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from guestmark.core import meminfo
from guestmark.core.errors import MachineError, UsageError
from guestmark.core.model import Cell
from guestmark.core.units import format_count, format_size
from guestmark.disks import processes
from guestmark.platforms.base import ListsProcesses, Machine, Platform, StartedHere
from guestmark.platforms.phases import ANSWERED
from guestmark.platforms.place import HERE
from guestmark.setting.machine import MEMORY, PLACEMENT
from guestmark.setting.memory import HUGEPAGES, HugePages

# Seconds after which nothing of an ended machine may be left.
_GONE_S = 5.0
_POLL_S = 0.001
# How far a machine's clock may be off: seconds, and a share of the start.
_APART_S, _APART = 0.01, 0.1
# The memory of guests and sandboxes where a cell does not say.
_DECLARED = "1G"
# What a machine takes besides its own memory: hypervisor, runtime, their page tables.
_OVERHEAD = 64 << 20
# One part in this many of the host's memory is always left to the host.
_SHARE = 8
_LEAST_LEFT = 512 << 20


@dataclass(frozen=True, slots=True)
class StartMoments:
    """Moments of one start in seconds after the decision to create; `ordered` and `gone` are those of its end."""

    exists: float
    program: float
    answered: float
    touched: float
    ordered: float = 0.0
    gone: float = 0.0


@dataclass(slots=True)
class StartedMachine:
    """A running machine, with moments like those of `StartMoments` but on the monotonic clock itself."""

    machine: Machine
    decided: float
    answered: float
    touched: float = 0.0
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    @classmethod
    def start(cls, platform: Platform, cell: Cell, decided: float | None = None) -> StartedMachine:
        """Starts a machine and waits for its first answer. Raises as `Platform.start`."""
        begin = time.monotonic() if decided is None else decided
        with contextlib.ExitStack() as stack:
            machine = stack.enter_context(platform.start(cell))
            # An agent that has said hello need not be able to answer yet; the start ends with an answer.
            machine.agent.ping(1)
            return cls(machine, begin, time.monotonic(), _stack=stack.pop_all())

    def touch_memory(self, size: int, timeout_s: float) -> None:
        """Has `size` bytes of its memory touched. Raises `MachineError` where fewer were."""
        done = self.machine.agent.touch_memory(size, timeout_s)
        self.touched = time.monotonic()
        # Pages have 4 KiB, or up to 64 KiB on some architectures.
        if done.pages * 4096 < size and done.pages * 65536 < size:
            raise MachineError(f"the machine touched {done.pages} pages, which are not {size} bytes")

    def compute_moments(self) -> StartMoments:
        """Returns the moments so far.

        Raises `MachineError` for a machine whose first instruction cannot have been when its clock says.
        """
        began, program = self.executed_at, self._find_program_start()
        # Clocks of machines run apart a little, the more the longer the start takes.
        allowed = _APART_S + _APART * (self.answered - began)
        if not began - allowed <= program <= self.answered + allowed:
            raise MachineError(
                f"by its clock the machine's first instruction was {(program - began) * 1e3:.0f} ms after it was "
                f"executed, and its first answer {(self.answered - began) * 1e3:.0f} ms"
            )
        program = min(max(program, began), self.answered)
        times = (began, program, self.answered, self.touched)
        return StartMoments(*(moment - self.decided for moment in times))

    @property
    def executed_at(self) -> float:
        """When the program that carries the machine was executed.

        Raises `MachineError` if that was before the decision.
        """
        if not isinstance(self.machine, StartedHere):
            raise MachineError("when the machine was executed is not known")
        if self.machine.started_at < self.decided:
            raise MachineError("the machine says that it existed before its start was decided")
        return self.machine.started_at

    def _find_program_start(self) -> float:
        """Returns when the machine's first instruction ran: of a restored guest the first one after that."""
        if ANSWERED in self.machine.phases:
            return self.executed_at + self.machine.phases[ANSWERED]
        first = next(iter(self.machine.agent.hello().phases), None)
        if first is None:
            return self.answered
        ping = self.machine.agent.ping()
        apart = ping.host_ns - ping.guest_ns
        offset = 0.0 if abs(apart) <= ping.round_trip_ns else apart  # one and the same clock
        return (first.at_ns + offset) / 1e9

    def end_machine(self) -> tuple[float, float]:
        """Ends it; when that was ordered and when nothing of it was left, in seconds after the decision.

        Raises `MachineError` for what is left.
        """
        # What has to be gone is listed while it is still there.
        pids, groups = _find_processes(self.machine), list_control_groups(self.machine)
        ordered = time.monotonic()
        self._stack.close()
        deadline = time.monotonic() + _GONE_S
        while left := _find_leftovers(pids, groups):
            if time.monotonic() > deadline:
                raise MachineError(f"the machine left {', '.join(left[:3])} behind")
            for group in (
                groups
            ):  # on a busy host the kernel may need longer with one than whoever removed it has waited
                with contextlib.suppress(OSError):
                    group.rmdir()
            time.sleep(_POLL_S)
        return ordered - self.decided, time.monotonic() - self.decided

    def close(self) -> None:
        """Ends it, if it is still there, without a look at what is left."""
        self._stack.close()


def list_control_groups(machine: Machine) -> tuple[Path, ...]:
    """Returns the machine's own control groups."""
    return machine.groups if isinstance(machine, StartedHere) else ()


def list_processes(machine: Machine) -> list[int]:
    """Returns the processes of this host that the machine consists of."""
    return list(_find_processes(machine))


def _find_processes(machine: Machine) -> dict[int, str]:
    """Returns these processes with their start times; none for a machine inside another guest."""
    if machine.place is not HERE:
        return {}
    if isinstance(machine, ListsProcesses):
        roots = machine.list_pids()
    else:
        first = getattr(machine, "pid", None) or machine.vmm_pid
        helpers = getattr(getattr(machine, "process", None), "helpers", {})
        roots = [pid for pid in (first, *(helper.pid() for helper in helpers.values())) if pid]
    found = {}
    for pid in (each for root in roots for each in (root, *processes.list_descendants(root))):
        with contextlib.suppress(OSError):
            found[pid] = processes.read_status(pid)[19]
    return found


def _find_leftovers(pids: dict[int, str], groups: Sequence[Path]) -> list[str]:
    left = [str(group) for group in groups if group.exists()]
    for pid, started in pids.items():
        with contextlib.suppress(OSError):
            fields = processes.read_status(pid)
            # A process id may have been given to another process since; its start time tells them apart.
            if fields[19] == started and fields[0] != "Z":
                left.append(f"process {pid}")
    return left


def drop_placement(cell: Cell) -> Cell:
    """Returns the cell without its placement, for machines that run where the workload has placed all of them."""
    factors = {name: level for name, level in cell.factors.items() if name != PLACEMENT.name}
    return replace(cell, factors=factors)


def run_at_once(works: Sequence[Callable[[], None]]) -> None:
    """Runs all of these at the same time and waits for them. Raises what the first failing one raised."""
    if len(works) == 1:
        works[0]()
        return
    errors: list[BaseException] = []

    def run_and_keep_error(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # raised below, in the thread that asked for it
            errors.append(error)

    threads = [threading.Thread(target=run_and_keep_error, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    finally:
        for thread in threads:  # what is interrupted ends after what it has begun
            thread.join()
    if errors:
        raise errors[0]


def declared_memory(cell: Cell) -> int:
    """Returns the bytes of memory that each machine of the cell gets; 0 for a plain process, which gets none."""
    if not cell.platform.takes_factor(MEMORY.name):
        return 0
    return cell.levels.with_defaults({MEMORY.name: _DECLARED})[MEMORY]


def spare_memory() -> int:
    """Returns the bytes that machines may take now: what is available, less what the host keeps to stay usable."""
    return meminfo.compute_spare_memory(_SHARE, _LEAST_LEFT)


def refuse_too_many(cell: Cell, machines: int, used: int) -> None:
    """Raises `UsageError` when so many machines of the cell, which use `used` bytes each, do not fit into memory.

    A machine may come to use all that it was given. Huge pages were set aside before, and are no longer available.
    """
    pages = cell.levels[HUGEPAGES]
    if pages is not HugePages.OFF:
        _refuse_too_few(pages, machines, machines * pages.count_needed(declared_memory(cell)))
    each = _OVERHEAD + (max(declared_memory(cell), used) if pages is HugePages.OFF else 0)
    room = spare_memory()
    # A single machine is let through: its own platform says what is wrong with it.
    if machines > 1 and machines * each > room:
        size = format_size(max(declared_memory(cell), used))
        raise UsageError(
            f"{machines} machines of {size} do not fit: {cell.platform} has room for {max(0, room // each)} in "
            f"the {max(0, room) / (1 << 30):.1f} GiB that this host can spare",
            hint=f"ask for fewer, or for smaller ones: --set {MEMORY.name}=256M",
        )


def _refuse_too_few(pages: HugePages, machines: int, needed: int) -> None:
    free = pages.count_free() or 0
    if free < needed:
        raise UsageError(
            f"{machines} machines need {format_count(needed, 'page')} of {pages}, and this host has {free} free",
            hint=f"ask for fewer, or: echo {needed} >{pages.folder}/nr_hugepages",
        )
