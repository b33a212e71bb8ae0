"""The workload `density`: measures one machine alone, then more and more at once, all on this host."""

from __future__ import annotations

import contextlib
import functools
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from guestmark.core import procfs
from guestmark.core.errors import WorkloadError
from guestmark.core.meminfo import read_meminfo
from guestmark.core.metric import Measurement, Metric
from guestmark.core.model import Cell, Plan
from guestmark.core.units import format_size
from guestmark.platforms.base import Machine, Platform
from guestmark.setting.memory import HugePages
from guestmark.stats.scalability import least_squares_slope
from guestmark.workloads import density
from guestmark.workloads.common.metrics import to_measurements
from guestmark.workloads.common.starting import (
    StartedMachine,
    compute_spare_memory,
    drop_placement,
    list_control_groups,
    list_processes,
    read_declared_memory,
    require_memory_for,
    run_at_once,
)
from guestmark.workloads.density import GUESTS, DensityWorkload, Fleet, HeldMemory

# Percentage of the last ten seconds in which something waited for memory; above it the host would swap or kill.
_PRESSED = 10.0
_SETTLE_S = 0.2
# Seconds in which the kernel's ten-second average decays to a fiftieth.
_PATIENCE_S = 40.0


class DensityTrial(DensityWorkload):
    """Runs one fleet: its first machine is the trial's own and measured alone; then the others join."""

    ONCE = True

    def __init__(self, plan: Plan, cell: Cell) -> None:
        super().__init__(plan, cell)
        self._number = cell.levels[GUESTS]
        self._platform: Platform | None = None
        self._fleet: list[StartedMachine] = []

    @classmethod
    def check_request(cls, plan: Plan, cells: Sequence[Cell]) -> None:
        """Raises `UsageError` if this host lacks the memory for all machines, before any is started."""
        for cell in cells:
            if cell.platform.starts_are_seen:
                touch = cls.params_of(cell.workload).touch
                require_memory_for(cell, cell.levels[GUESTS], touch)

    @classmethod
    def impossible(cls, cell: Cell) -> str:
        """Returns why the memory of a cell's machines cannot be read from this host; empty if it can."""
        if not cell.platform.starts_are_seen or cell.platform.is_nested:
            return "its machines are not processes of this host, so their memory cannot be read"
        return ""

    @contextlib.contextmanager
    def machine(self, platform: Platform) -> Iterator[Machine]:
        """Starts the first machine of the fleet, and ends all of them at the end."""
        self._platform = platform
        first = StartedMachine.start(platform, self.cell)
        self._fleet.append(first)
        try:
            yield first.machine
        finally:
            try:
                # The first machine is the trial's own and ends last.
                for each in reversed(self._fleet):
                    each.end_machine()
            finally:
                for each in self._fleet:
                    each.close()

    def prepare(self, machine: Machine) -> None:
        """Runs the command once, so that it is cached. Raises `WorkloadError` if it fails."""
        if not list_processes(machine):
            raise WorkloadError(
                f"no process on this host is known to belong to {self.cell.platform}, so its memory cannot be read",
                hint="add pid to its definition: a command that prints the process id of the machine's first process",
            )
        if not machine.agent.in_machine:
            raise WorkloadError(
                f"{self.cell.platform} is plain, so no agent can hold memory in it, and each command costs an exec",
                hint="density needs an exec that carries the standard streams",
            )
        self._fleet[0].touch_memory(self.params.touch, self.limit_s)
        self._run_once(machine)

    def run(self, machine: Machine) -> list[Measurement]:
        """Measures one machine, two, four and so on, then all.

        Raises `WorkloadError` if the host has no room for the next machine.
        """
        solo = self._measure_rates()[0]
        held = [self._measure_memory()]
        grown: list[tuple[int, float]] = []
        while (there := len(self._fleet)) < self._number:
            # Powers of two give the law enough points without measuring every number.
            if there > 1 and there.bit_count() == 1:
                grown.append((there, sum(self._measure_rates())))
            self._require_memory()
            self._add_machine()
            held.append(self._measure_memory())
        idle, wakeups = self._measure_idle()
        rates = self._measure_rates()
        starts = [each.answered - each.decided for each in self._fleet]
        self.facts.add(Fleet(held=held, starts_s=starts, solo=solo, grown=grown, rates=rates))
        each = sum(rates) / len(rates)
        values = {
            **self._compute_memory_per_machine(held),
            density.IDLE: idle,
            density.WAKEUPS: wakeups,
            density.STARTS: (len(starts) - 1) / sum(starts[1:]),
            density.LAST_START: starts[-1],
            density.EACH: each,
            density.SOLO: solo,
            density.KEPT: each / solo,
        }
        return to_measurements(values.items())

    # --- the fleet ----------------------------------------------------------------------------------------------

    def _add_machine(self) -> None:
        assert self._platform is not None
        started = StartedMachine.start(self._platform, drop_placement(self.cell))
        self._fleet.append(started)
        started.machine.attest()
        started.touch_memory(self.params.touch, self.limit_s)
        # As in the first machine, the command has run once before the memory is measured.
        self._run_once(started.machine)

    def _require_memory(self) -> None:
        """Raises `WorkloadError` unless the host has room for one more machine and no memory pressure."""
        wanted = max(read_declared_memory(self.cell), self.params.touch) // 4
        # The kernel's average still contains waits of a moment ago, which are not a reason to give up.
        patience = time.monotonic() + _PATIENCE_S
        while (
            compute_spare_memory() >= wanted
            and _read_memory_pressure() > _PRESSED
            and time.monotonic() < patience
        ):
            time.sleep(_SETTLE_S)
        if compute_spare_memory() < wanted or _read_memory_pressure() > _PRESSED:
            raise WorkloadError(
                f"this host has no memory for machine {len(self._fleet) + 1}: it can spare "
                f"{format_size(max(0, compute_spare_memory()))}, "
                f"and processes wait for memory {_read_memory_pressure():.0f} % of the time",
                hint="use fewer machines: --set guests=…",
            )

    # --- memory -------------------------------------------------------------------------------------------------

    def _measure_memory(self) -> HeldMemory:
        time.sleep(_SETTLE_S)
        groups = [_read_group_memory(each.machine) for each in self._fleet]
        shares = [_sum_process_memory(list_processes(each.machine)) for each in self._fleet]
        known = [size for size in groups if size is not None]
        huge = sum(share.huge for share in shares)
        return HeldMemory(
            machines=len(self._fleet),
            groups=sum(known) + huge if len(known) == len(groups) else None,
            pss=sum(share.pss for share in shares) + huge,
            rss=sum(share.rss for share in shares) + huge,
            available=_read_available_memory(),
        )

    def _compute_memory_per_machine(self, held: Sequence[HeldMemory]) -> dict[Metric, float]:
        """Returns the bytes that one more machine takes, as slopes over the number of machines."""
        found = {
            density.PSS: least_squares_slope([(each.machines, each.pss) for each in held]),
            density.RSS: least_squares_slope([(each.machines, each.rss) for each in held]),
            density.AVAILABLE: -least_squares_slope([(each.machines, each.available) for each in held]),
        }
        grouped = [(each.machines, each.groups) for each in held if each.groups is not None]
        if len(grouped) < len(held):
            self.warnings.append(
                "its machines have no control groups for memory, so the memory per machine is the slope of their PSS"
            )
            return {density.MEMORY: found[density.PSS], **found}
        return {density.MEMORY: least_squares_slope(grouped), **found}

    # --- processors ---------------------------------------------------------------------------------------------

    def _measure_idle(self) -> tuple[float, float]:
        """Returns processor seconds and wake-ups per second of each idle machine."""
        pids: list[int] = []
        for each in self._fleet:
            pids += list_processes(each.machine)
        before, begin = _read_thread_usage(pids), time.monotonic()
        time.sleep(self.params.idle_s)
        after, took = _read_thread_usage(pids), time.monotonic() - begin
        share = took * len(self._fleet)
        return (
            max(0.0, after.seconds - before.seconds) / share,
            max(0, after.switches - before.switches) / share,
        )

    def _measure_rates(self) -> list[float]:
        """Returns each machine's runs per second while all machines run the command."""
        end = time.monotonic() + self.params.time_s
        rates = [0.0] * len(self._fleet)

        def load(number: int) -> None:
            machine, begin, runs = self._fleet[number].machine, time.monotonic(), 0
            # A command that takes longer than the time still runs once.
            while runs == 0 or time.monotonic() < end:
                self._run_once(machine)
                runs += 1
            rates[number] = runs / (time.monotonic() - begin)

        run_at_once([functools.partial(load, number) for number in range(len(self._fleet))])
        return rates

    def _run_once(self, machine: Machine) -> None:
        done = machine.agent.exec(self.params.command, timeout_s=self.limit_s)
        if not done.ok:
            said = done.stderr.decode(errors="replace").strip()[-200:]
            how = f"failed with {done.status}"
            if done.timed_out:
                how = f"took longer than {self.limit_s:g} s"
            elif done.status is None:
                how = f"was killed by signal {done.signal}"
            if said:
                how += f": {said}"
            raise WorkloadError(f"{self.params.command[0]} {how}")


@dataclass(frozen=True, slots=True)
class _ThreadUsage:
    seconds: float
    switches: int


def _read_thread_usage(pids: Sequence[int]) -> _ThreadUsage:
    """Returns the threads' processor seconds, and how often they gave up the processor to wait."""
    ran, switches = 0, 0
    for pid in pids:
        for task in procfs.list_entries(procfs.PROC / str(pid) / "task"):
            ran += int((procfs.read_text(task / "schedstat").split() or ["0"])[0])
            for line in procfs.read_text(task / "status").splitlines():
                # Only voluntary switches lead to a wake-up; others took the processor away.
                if line.startswith("voluntary"):
                    switches += int(line.split()[1])
    return _ThreadUsage(ran / 1e9, switches)


def _read_group_memory(machine: Machine) -> int | None:
    """Returns the bytes charged to the machine's memory control group, including kernel memory; None without one."""
    for group in list_control_groups(machine):
        # Control groups of version 2, then of version 1.
        for name in ("memory.current", "memory.usage_in_bytes"):
            with contextlib.suppress(OSError, ValueError):
                return int((group / name).read_text())
    return None


@dataclass(frozen=True, slots=True)
class _ProcessMemory:
    """Memory of a machine's processes in bytes; PSS and RSS do not include reserved huge pages."""

    pss: int
    rss: int
    huge: int


def _sum_process_memory(pids: Sequence[int]) -> _ProcessMemory:
    found: Counter[str] = Counter()
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                name, *words = line.split()
                if words[1:] == ["kB"]:
                    found[name] += int(words[0]) << 10
    return _ProcessMemory(found["Pss:"], found["Rss:"], found["Private_Hugetlb:"] + found["Shared_Hugetlb:"])


def _read_available_memory() -> int:
    """Returns the bytes that this host can still provide, including free reserved huge pages."""
    free = sum(pages.bytes * (pages.count_free() or 0) for pages in HugePages if pages is not HugePages.OFF)
    return free + read_meminfo()["MemAvailable"]


def _read_memory_pressure() -> float:
    """Returns the percentage of the last ten seconds in which something waited for memory; 0 if unknown."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return float(Path("/proc/pressure/memory").read_text().split()[1].partition("=")[2])
    return 0.0
