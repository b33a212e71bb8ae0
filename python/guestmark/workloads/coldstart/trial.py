"""The workload `coldstart`: starts and ends many machines within one trial; each start is one value."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import signal
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from guestmark.appliance.paths import choose_scratch_parent
from guestmark.core.errors import MachineError, UsageError, WorkloadError
from guestmark.core.keeper import keeper
from guestmark.core.metric import Measurement, Metric
from guestmark.core.model import Cell, Plan
from guestmark.core.units import format_size
from guestmark.disks import processes
from guestmark.platforms.affinity import take_seat
from guestmark.platforms.base import Machine, Platform
from guestmark.setting.machine import MEMORY
from guestmark.workloads import coldstart
from guestmark.workloads.coldstart import (
    PAGE_CACHE,
    CacheState,
    ColdstartWorkload,
    OneStart,
    StartKind,
    Starts,
    read_start_pattern,
)
from guestmark.workloads.common.metrics import to_measurements
from guestmark.workloads.common.starting import (
    StartedMachine,
    StartMoments,
    drop_placement,
    list_processes,
    read_declared_memory,
    require_memory_for,
    run_at_once,
)

_DROP = Path("/proc/sys/vm/drop_caches")
_PAUSE_S = 0.02  # seconds for which a machine is stopped
_STOPPED_S = 2.0
_PROBED = 1 << 16
_DROPS = 3


class ColdstartTrial(ColdstartWorkload):
    """Starts machines in one way; the first machine, which is the trial's own, is not counted."""

    ONCE = True

    def __init__(self, plan: Plan, cell: Cell) -> None:
        super().__init__(plan, cell)
        self._pattern = read_start_pattern(cell.levels)
        self._caches = cell.levels[PAGE_CACHE]
        self._first: StartedMachine | None = None
        self._platform: Platform | None = None

    @classmethod
    def check_request(cls, plan: Plan, cells: Sequence[Cell]) -> None:
        """Raises `UsageError` if the host has too little memory for a burst, or a machine for its working set."""
        for cell in cells:
            params, at_a_time = cls.params_of(cell.workload), read_start_pattern(cell.levels).burst
            require_memory_for(cell, at_a_time, params.touch)
            given = read_declared_memory(cell)
            # A guest's kernel and agent need the rest of its memory.
            if given and params.touch > given // 2:
                raise UsageError(
                    f"a machine with {format_size(given)} of memory cannot touch {format_size(params.touch)}",
                    hint=f"touch less, or give it more memory: --set {MEMORY.name}=…",
                )

    @classmethod
    def impossible(cls, cell: Cell) -> str:
        """Returns why its machines cannot be started this way, or why the page cache cannot be dropped; else empty."""
        if not cell.platform.starts_are_seen:
            return "its machines run on another host, so their starts cannot be timed from here"
        launch = cls.params_of(cell.workload).launch
        kind = cell.platform.inner.description
        if launch is StartKind.RESUMED and (cell.platform.is_nested or (kind.own_kernel and not kind.guest)):
            return "its processes trace each other, so they cannot be stopped from outside"
        if launch is StartKind.RESUMED and kind.guest and not kind.boots_firmware:
            return "it has no monitor that could stop it, and its processes trace each other"
        if cell.levels[PAGE_CACHE] is CacheState.DROPPED and not os.access(_DROP, os.W_OK):
            return "the page cache cannot be dropped without root"
        return ""

    @contextlib.contextmanager
    def machine(self, platform: Platform) -> Iterator[Machine]:
        """Starts the first machine of the trial, which fills caches and shows how long a start takes."""
        self._platform = platform
        first = self._first = StartedMachine.start(platform, self.cell)
        try:
            yield first.machine
        finally:
            first.close()

    def run(self, machine: Machine) -> list[Measurement]:
        """Performs all starts of the trial. Raises `MachineError` if one fails or leaves something behind."""
        ways: dict[StartKind, Callable[[], list[OneStart]]] = {
            StartKind.NEW: self._start_machines,
            StartKind.FORK: lambda: self._repeat_start(self._fork_agent),
            StartKind.RESUMED: lambda: self._repeat_start(self._stop_and_resume),
        }
        starts = ways[self.params.launch]()
        self.facts.add(Starts(starts=starts))
        medians = []
        for metric, values in _collect_series(starts).items():
            # A resumed machine has neither a first instruction nor a shutdown.
            if any(values):
                medians.append((metric, statistics.median(values)))
        return to_measurements(medians)

    # --- new machines -------------------------------------------------------------------------------------------

    def _start_machines(self) -> list[OneStart]:
        first, platform = self._first, self._platform
        assert first is not None
        assert platform is not None
        begin = time.monotonic()
        first.touch_memory(self.params.touch, self.limit_s)
        # The first start is not counted: it fills the caches for all others.
        first.end_machine()
        took = first.answered - first.decided + time.monotonic() - begin
        count = self._count_starts(took)
        with take_seat(self.cell, emulator=False), self._provide_cache_dropper() as drop_cache:
            # Starts that overlap share one cache, which can be emptied only before the first of them.
            if self._pattern.every_s:
                drop_cache()
                return self._start_staggered(platform, count)
            found: list[OneStart] = []
            while len(found) < count:
                drop_cache()
                found += self._start_burst(platform, self._pattern.burst)
            return found

    def _count_starts(self, took_s: float) -> int:
        """Returns how many starts fit into the time, in whole bursts, of which there is at least one.

        This is decided beforehand, so that a slow start cannot end the series and bias it.
        """
        burst = self._pattern.burst
        fitting = min(self.params.starts, int(self.params.time_s / max(took_s, 1e-6)))
        return max(fitting // burst, 1) * burst

    def _start_burst(self, platform: Platform, number: int) -> list[OneStart]:
        """Starts this many machines at the same moment, and ends them only once all of them run."""
        there: list[StartedMachine] = []
        decided = time.monotonic()
        try:
            run_at_once([lambda: there.append(self._start_timed_machine(platform, decided))] * number)
            moments = [each.compute_moments() for each in there]
            for each in there:
                each.machine.attest()
            found = []
            for moment, each in zip(moments, there, strict=True):
                found.append(_split_phases(moment, each.end_machine()))
            return found
        finally:
            for each in there:
                each.close()

    def _start_staggered(self, platform: Platform, count: int) -> list[OneStart]:
        """Starts machines at fixed intervals, however long earlier ones take; each ends once it has been measured."""
        found: list[OneStart] = []
        begin = time.monotonic()

        def start_numbered(number: int) -> None:
            decided = begin + number * self._pattern.every_s
            time.sleep(max(0.0, decided - time.monotonic()))
            started = self._start_timed_machine(platform, decided)
            try:
                moments = started.compute_moments()
                found.append(_split_phases(moments, started.end_machine()))
            finally:
                started.close()

        run_at_once([functools.partial(start_numbered, number) for number in range(count)])
        return found

    def _start_timed_machine(self, platform: Platform, decided: float) -> StartedMachine:
        started = StartedMachine.start(platform, drop_placement(self.cell), decided)
        try:
            started.touch_memory(self.params.touch, self.limit_s)
        except BaseException:
            started.close()
            raise
        return started

    @contextlib.contextmanager
    def _provide_cache_dropper(self) -> Iterator[Callable[[], None]]:
        """Yields a function that empties the page cache, if the cell requests it, and tests that with a file."""
        if self._caches is CacheState.WARM:
            yield lambda: None
            return
        scratch = keeper().directory("cache", choose_scratch_parent())
        probe = scratch / "probe"
        try:
            yield lambda: _drop_page_cache(probe)
        finally:
            keeper().remove(scratch)

    # --- machines that already exist
    # -----------------------------------------------------------------------------------

    def _repeat_start(self, once: Callable[[Machine], OneStart]) -> list[OneStart]:
        assert self._first is not None
        machine = self._first.machine
        begin = time.monotonic()
        # The first one is not counted; it shows how many fit into the time.
        once(machine)
        count = self._count_starts(time.monotonic() - begin)
        return [once(machine) for _ in range(count)]

    def _fork_agent(self, machine: Machine) -> OneStart:
        """Forks the agent; timed by the machine's clock."""
        found = machine.agent.fork_child(self.params.touch, self.limit_s)
        exists = min(found.made_ns, found.first_ns)
        steps = (found.asked_ns, exists, found.first_ns, found.answered_ns, found.touched_ns, found.gone_ns)
        return OneStart(*((later - before) / 1e9 for before, later in itertools.pairwise(steps)))

    def _stop_and_resume(self, machine: Machine) -> OneStart:
        """Stops the machine and continues it; it keeps the working set that it touched before."""
        machine.agent.touch_memory(self.params.touch, self.limit_s)
        go_on = _stop_machine(machine)
        time.sleep(_PAUSE_S)
        decided = time.monotonic()
        go_on()
        exists = time.monotonic()
        machine.agent.ping(1)
        answered = time.monotonic()
        machine.agent.touch_memory(self.params.touch, self.limit_s)
        return OneStart(exists - decided, 0.0, answered - exists, time.monotonic() - answered, 0.0)


def _split_phases(moments: StartMoments, ends: tuple[float, float]) -> OneStart:
    ordered, gone = ends
    return OneStart(
        moments.exists,
        moments.program - moments.exists,
        moments.answered - moments.program,
        moments.touched - moments.answered,
        gone - ordered,
    )


def _collect_series(starts: Sequence[OneStart]) -> dict[Metric, list[float]]:
    """Returns the values of each metric, start by start."""
    return {
        coldstart.START: [each.start_s for each in starts],
        coldstart.PREPARE: [each.prepare for each in starts],
        coldstart.CREATE: [each.create for each in starts],
        coldstart.ANSWER: [each.answer for each in starts],
        coldstart.TOUCH: [each.touch for each in starts],
        coldstart.END: [each.end for each in starts],
    }


def _stop_machine(machine: Machine) -> Callable[[], None]:
    """Stops a machine, verifies that, and returns a function that resumes it. Raises `MachineError`."""
    if (ask := machine.query) is not None:
        ask("stop")
        if ask("query-status").get("status") != "paused":
            raise MachineError("the guest did not stop when QEMU's monitor was told to stop it")
        return lambda: ask("cont")
    pids = list_processes(machine)
    if not pids:
        raise MachineError(
            "no process on this host is known to belong to the machine, so it cannot be stopped",
            hint="add pid to its definition: a command that prints the process id of the machine's first process",
        )
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + _STOPPED_S
    while not all(processes.is_stopped(pid) for pid in pids):
        if time.monotonic() > deadline:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
            raise MachineError("the machine did not stop when its processes were sent SIGSTOP")
        time.sleep(0.001)

    def resume_machine() -> None:
        for pid in reversed(pids):
            os.kill(pid, signal.SIGCONT)

    return resume_machine


def _drop_page_cache(probe: Path) -> None:
    """Empties the page cache. Raises `WorkloadError` if a test file is still cached afterwards.

    The kernel skips pages that are in use at the moment, so several attempts are made.
    """
    probe.write_bytes(os.urandom(_PROBED))
    for _ in range(_DROPS):
        os.sync()
        try:
            _DROP.write_text("3\n")
        except OSError as error:
            raise WorkloadError(f"the page cache cannot be dropped: {error.strerror}") from error
        if not _is_cached(probe):
            return
    raise WorkloadError("the page cache was not dropped: a test file is still cached")


def _is_cached(probe: Path) -> bool:
    """Returns whether a file's first page is in memory."""
    descriptor = os.open(probe, os.O_RDONLY)
    try:
        # preadv2(2): with this flag the read fails if the page is not in memory, instead of fetching it.
        os.preadv(descriptor, [bytearray(4096)], 0, os.RWF_NOWAIT)
    except BlockingIOError:
        return False
    except OSError as error:  # a filesystem in memory, or without support for the flag
        raise WorkloadError(f"cannot tell whether the page cache was dropped: {error.strerror}") from error
    finally:
        os.close(descriptor)
    return True
