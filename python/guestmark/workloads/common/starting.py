"""Starts machines for a workload, and times their starts and ends on this host's monotonic clock.

No time that a machine reports about its own start is trusted: the decision, the first answer, the touched memory and
the end are observed here. Only the first instruction is read from the machine's clock, and has to lie between two of
the observed times.

Whether this host has memory for all machines is checked before the first one starts.
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
from guestmark.platforms.base import ListsProcesses, Machine, Platform, StartedHere, TimesAnswer
from guestmark.platforms.phases import ANSWERED
from guestmark.platforms.place import HERE
from guestmark.setting.machine import MEMORY, PLACEMENT
from guestmark.setting.memory import HUGEPAGES, HugePages

# Seconds after which an ended machine must have left nothing behind.
_GONE_S = 5.0
_POLL_S = 0.001
# How far a machine's clock may be off: seconds, and a share of the start.
_APART_S, _APART = 0.01, 0.1
# The memory of guests and sandboxes whose cell does not set it.
_DECLARED = "1G"
# Bytes that a machine takes in addition to its own memory: hypervisor, runtime, their page tables.
_OVERHEAD = 64 << 20
# The host always keeps one eighth of its memory, and never less than _LEAST_LEFT bytes.
_SHARE = 8
_LEAST_LEFT = 512 << 20


@dataclass(frozen=True, slots=True)
class StartMoments:
    """Moments of one start in seconds after the decision to create it; `ordered` and `gone` belong to its end."""

    exists: float
    program: float
    answered: float
    touched: float
    ordered: float = 0.0
    gone: float = 0.0


@dataclass(slots=True)
class StartedMachine:
    """A running machine, with the moments of `StartMoments` as times on the monotonic clock."""

    machine: Machine
    decided: float
    answered: float
    touched: float = 0.0
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    @classmethod
    def start(cls, platform: Platform, cell: Cell, decided: float | None = None) -> StartedMachine:
        """Starts a machine and waits for its first answer. Raises what `Platform.start` raises."""
        begin = time.monotonic() if decided is None else decided
        with contextlib.ExitStack() as stack:
            machine = stack.enter_context(platform.start(cell))
            # An agent that has said hello may not be able to answer yet, so a start ends with its first answer.
            machine.agent.ping(1)
            answered = machine.answered_at if isinstance(machine, TimesAnswer) else time.monotonic()
            return cls(machine, begin, answered, _stack=stack.pop_all())

    def touch_memory(self, size: int, timeout_s: float) -> None:
        """Makes the machine touch `size` bytes of its memory. Raises `MachineError` if it touched fewer."""
        done = self.machine.agent.touch_memory(size, timeout_s)
        self.touched = time.monotonic()
        # Pages have 4 KiB, or up to 64 KiB on some architectures.
        if done.pages * 4096 < size and done.pages * 65536 < size:
            raise MachineError(f"the machine touched {done.pages} pages, which is less than {size} bytes")

    def compute_moments(self) -> StartMoments:
        """Returns the moments so far.

        Raises `MachineError` if the time of the first instruction, by the machine's clock, is impossible.
        """
        began, program = self.executed_at, self._find_program_start()
        # Clocks of machines drift apart, by more the longer a start takes.
        allowed = _APART_S + _APART * (self.answered - began)
        if not began - allowed <= program <= self.answered + allowed:
            raise MachineError(
                f"by the machine's clock, its first instruction ran {(program - began) * 1e3:.0f} ms after its start, "
                f"but its first answer came after {(self.answered - began) * 1e3:.0f} ms"
            )
        program = min(max(program, began), self.answered)
        times = (began, program, self.answered, self.touched)
        return StartMoments(*(moment - self.decided for moment in times))

    @property
    def executed_at(self) -> float:
        """The time at which the program that runs the machine, such as its hypervisor, was executed.

        Raises `MachineError` if that was before the decision.
        """
        if not isinstance(self.machine, StartedHere):
            raise MachineError("the time at which the machine was started is unknown")
        if self.machine.started_at < self.decided:
            raise MachineError("the machine's process is older than the decision to start it")
        return self.machine.started_at

    def _find_program_start(self) -> float:
        """Returns the time of the machine's first instruction; for a restored guest, the first one after restoring."""
        if ANSWERED in self.machine.phases:
            return self.executed_at + self.machine.phases[ANSWERED]
        first = next(iter(self.machine.agent.hello().phases), None)
        if first is None:
            return self.answered
        ping = self.machine.agent.ping()
        apart = ping.host_ns - ping.guest_ns
        offset = 0.0 if abs(apart) <= ping.round_trip_ns else apart  # both have the same clock
        return (first.at_ns + offset) / 1e9

    def end_machine(self) -> tuple[float, float]:
        """Ends the machine; returns when this was ordered and when nothing was left, in seconds after the decision.

        Raises `MachineError` if something is left.
        """
        # Processes and groups are listed while they still exist.
        pids, groups = _find_processes(self.machine), list_control_groups(self.machine)
        ordered = time.monotonic()
        self._stack.close()
        deadline = time.monotonic() + _GONE_S
        while left := _find_leftovers(pids, groups):
            if time.monotonic() > deadline:
                raise MachineError(f"the machine left {', '.join(left[:3])} behind")
            for group in (
                groups
            ):  # on a busy host the kernel may take longer to remove a group than its remover waited
                with contextlib.suppress(OSError):
                    group.rmdir()
            time.sleep(_POLL_S)
        return ordered - self.decided, time.monotonic() - self.decided

    def close(self) -> None:
        """Ends the machine if it still runs, without checking for leftovers."""
        self._stack.close()


def list_control_groups(machine: Machine) -> tuple[Path, ...]:
    """Returns the machine's own control groups."""
    return machine.groups if isinstance(machine, StartedHere) else ()


def list_processes(machine: Machine) -> list[int]:
    """Returns the ids of this host's processes that the machine consists of."""
    return list(_find_processes(machine))


def _find_processes(machine: Machine) -> dict[int, str]:
    """Returns the machine's processes with their start times; none for a machine inside another guest."""
    if machine.place is not HERE:
        return {}
    if isinstance(machine, ListsProcesses):
        roots = machine.list_pids()
    else:
        pids = [getattr(machine, "pid", None) or machine.vmm_pid]
        helpers = getattr(getattr(machine, "process", None), "helpers", {})
        for helper in helpers.values():
            pids.append(helper.pid())
        roots = [pid for pid in pids if pid]
    found = {}
    for root in roots:
        for pid in (root, *processes.list_descendants(root)):
            with contextlib.suppress(OSError):
                found[pid] = processes.read_status(pid)[19]
    return found


def _find_leftovers(pids: dict[int, str], groups: Sequence[Path]) -> list[str]:
    left = [str(group) for group in groups if group.exists()]
    for pid, started in pids.items():
        with contextlib.suppress(OSError):
            fields = processes.read_status(pid)
            # The kernel may have reused a process id; the start time tells the processes apart.
            if fields[19] == started and fields[0] != "Z":
                left.append(f"process {pid}")
    return left


def drop_placement(cell: Cell) -> Cell:
    """Returns the cell without its placement, for machines that the workload places together."""
    factors = {name: level for name, level in cell.factors.items() if name != PLACEMENT.name}
    return replace(cell, factors=factors)


def run_at_once(works: Sequence[Callable[[], None]]) -> None:
    """Runs all functions at the same time and waits for them. Raises the error of the first one that failed."""
    if len(works) == 1:
        works[0]()
        return
    errors: list[BaseException] = []

    def run_and_keep_error(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # raised below, in the calling thread
            errors.append(error)

    threads = [threading.Thread(target=run_and_keep_error, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    finally:
        for thread in threads:  # an interrupted run still ends what it has begun
            thread.join()
    if errors:
        raise errors[0]


def read_declared_memory(cell: Cell) -> int:
    """Returns the bytes of memory that each machine of the cell gets; 0 for a plain process."""
    if not cell.platform.takes_factor(MEMORY.name):
        return 0
    return cell.levels.with_defaults({MEMORY.name: _DECLARED})[MEMORY]


def compute_spare_memory() -> int:
    """Returns the bytes that machines may take now: available memory less the host's reserve."""
    return meminfo.compute_spare_memory(_SHARE, _LEAST_LEFT)


def require_memory_for(cell: Cell, machines: int, used: int) -> None:
    """Raises `UsageError` if this many machines of the cell, using `used` bytes each, do not fit into memory.

    A guest may come to use all memory that it was given. Huge pages were set aside before, and are no longer available.
    """
    pages = cell.levels[HUGEPAGES]
    each = _OVERHEAD
    if pages is HugePages.OFF:
        each += max(read_declared_memory(cell), used)
    else:
        _require_huge_pages(pages, machines, machines * pages.count_needed(read_declared_memory(cell)))
    room = compute_spare_memory()
    # A single machine is allowed: its own platform explains best what is wrong with it.
    if machines > 1 and machines * each > room:
        size = format_size(max(read_declared_memory(cell), used))
        raise UsageError(
            f"{machines} machines of {size} do not fit: {cell.platform} has room for {max(0, room // each)} in "
            f"the {max(0, room) / (1 << 30):.1f} GiB that this host can spare",
            hint=f"use fewer machines, or smaller ones: --set {MEMORY.name}=256M",
        )


def _require_huge_pages(pages: HugePages, machines: int, needed: int) -> None:
    free = pages.count_free() or 0
    if free < needed:
        raise UsageError(
            f"{machines} machines need {format_count(needed, 'page')} of {pages}, but this host has {free} free",
            hint=f"use fewer machines, or run: echo {needed} >{pages.folder}/nr_hugepages",
        )
