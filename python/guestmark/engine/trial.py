"""One trial: start a fresh machine, attest it, run the workload, and record everything known about it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from guestmark.core.cause import Cause
from guestmark.core.derived import add_derived
from guestmark.core.errors import (
    AgentError,
    GuestmarkError,
    MachineError,
    PlatformUnusableError,
    WorkloadError,
)
from guestmark.core.findings import Counted, FailedRuns, Findings
from guestmark.core.machine_facts import find_placement
from guestmark.core.metric import Measurement, Metric, can_be_compared
from guestmark.core.metric_spec import SYSTEM, USER
from guestmark.core.model import Cell, Plan, Trial, TrialStatus
from guestmark.core.platform_spec import PlatformSpec
from guestmark.disks import location
from guestmark.disks.scratch import get_scratch_store
from guestmark.disks.traffic import DiskWatch
from guestmark.engine.hooks import HookRunner
from guestmark.engine.interrupt import Interruption
from guestmark.engine.noise import NoiseRecorder
from guestmark.engine.progress import Observer
from guestmark.engine.shared_machine import BlockMachines
from guestmark.platforms import confinement, counters
from guestmark.platforms.base import Machine, MakesRemarks, Platform, find_innermost
from guestmark.platforms.place import HERE
from guestmark.stats import reduce_iterations
from guestmark.workloads import base as workloads

# Only the last characters of a good trial's console are kept.
_CONSOLE_TAIL = 4096
# Failures of the measured program alone; they say nothing about its machine or about later iterations.
_PROGRAM_FAILURES = frozenset({Cause.STATUS, Cause.SIGNAL})
_TRIAL_FAULTS = (MachineError, WorkloadError, PlatformUnusableError)


@dataclass(frozen=True, slots=True)
class TrialSlot:
    """A trial's place in the run: cell, block and position inside the block, with its number of iterations.

    `warmups` unmeasured runs come first; None means as many as the plan says. `left_s` seconds are left of the run's
    budget; None without one.
    """

    cell: Cell
    block: int
    order: int
    iterations: int = 1
    warmups: int | None = None
    left_s: float | None = None


@dataclass(slots=True)
class _TrialRecord:
    """The results of a trial, collected while it runs, so that a failed trial keeps what it had."""

    measurements: tuple[Measurement, ...] = ()
    warmups: tuple[Measurement, ...] = ()
    run_s: list[float] = field(default_factory=list)
    phases: Mapping[str, float] = field(default_factory=dict)
    findings: Findings = field(default_factory=Findings)
    noise: Mapping[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    command_line: tuple[str, ...] = ()
    console: str = ""
    start_shift_s: float = 0.0

    def drop_unstored(self, *, failed: bool) -> None:
        """Drop what the trial is stored without: measurements if it failed, else all but the console's end."""
        if failed:
            self.measurements = self.warmups = ()
        else:
            self.console = self.console[-_CONSOLE_TAIL:]


def run_trial(
    plan: Plan,
    slot: TrialSlot,
    platform: Platform,
    interruption: Interruption,
    observer: Observer,
    *,
    machines: BlockMachines | None = None,
) -> Trial:
    """Run one trial, on one of `machines` if the cell shares one, and return it, failed or not.

    The start of a shared machine is divided among its trials.

    `MachineError`, `WorkloadError` and `PlatformUnusableError` make a failed trial, and so does the removal
    of a directory with disks. Raises `Interrupted` when the user stops (the machine is gone by then, and there is no
    trial); anything else is a bug and is not caught.
    """
    started_at, begin = time.time(), time.monotonic()
    record = _TrialRecord()
    reason, cause = "", None
    try:
        with HookRunner(plan).run_trial_hooks(interruption, record.findings), ExitStack() as stack:
            _measure_on_machine(
                plan,
                slot,
                platform=platform,
                record=record,
                stack=stack,
                interruption=interruption,
                observer=observer,
                machines=machines or BlockMachines(),
            )
    except _TRIAL_FAULTS as error:
        reason, cause = _join_error_lines(error), error.cause
        if isinstance(error, MachineError):
            record.console = error.console or record.console
            record.phases = record.phases or error.phases
    except OSError:
        gone = get_scratch_store().find_missing_directory()
        if gone is None:
            raise
        cause = Cause.DISKS_GONE
        reason = f"{cause.words}: {gone}"
    failed = bool(reason)
    record.drop_unstored(failed=failed)
    return Trial(
        cell_id=slot.cell.id,
        block=slot.block,
        order=slot.order,
        status=TrialStatus.FAILED if failed else TrialStatus.OK,
        reason=reason,
        measurements=record.measurements,
        warmups=record.warmups,
        run_s=tuple(record.run_s),
        started_at=started_at,
        duration_s=max(time.monotonic() - begin + record.start_shift_s, 0.0),
        phases=dict(record.phases),
        facts=record.findings.facts(),
        noise=dict(record.noise),
        warnings=tuple(dict.fromkeys(record.warnings)),
        command_line=record.command_line,
        console=record.console,
        cause=cause,
    )


def _measure_on_machine(
    plan: Plan,
    slot: TrialSlot,
    *,
    platform: Platform,
    record: _TrialRecord,
    stack: ExitStack,
    interruption: Interruption,
    observer: Observer,
    machines: BlockMachines,
) -> None:
    # `interruptible` is left before the machine is, because stopping a machine must not be interrupted.
    with interruption.interruptible():
        started = workloads.choose_started_cell(slot.cell)
        observer.phase(_name_first_phase(started.platform))
        workload = workloads.create_trial(plan, slot.cell)
        workload.tell, workload.note = observer.phase, observer.note
        workload.share_s = _compute_time_share_s(plan, slot)
        lease = stack.enter_context(machines.take_machine(workload, platform, slot.cell))
        machine = lease.machine
        record.start_shift_s = lease.start_shift_s
        if lease.shared is not None:
            record.findings.add(lease.shared)
        recorder = NoiseRecorder(machine)
        try:
            _attest_machine(machine, started, recorder, record)
            try:
                observer.phase("preparing")
                workload.prepare(machine)
                traffic = DiskWatch(machine)
                with recorder:
                    counting = CounterRecorder(machine, apart=slot.cell.platform.is_nested)
                    _run_iterations(
                        plan, slot, workload, machine, record=record, observer=observer, counting=counting
                    )
                    if started.platform.is_this_host:
                        recorder.add_reported_time(_sum_processor_s(record))
                if (reached := traffic.read_since(reads=workload.READS)) is not None:
                    record.findings.add(reached)
                counting.measure_ticks()
                if counted := counting.compute_averages():
                    record.findings.add(Counted(each=counted))
            finally:
                record.warnings += workload.warnings
                _clean_up_workload(workload, machine, record)
                # Facts are added last, as the run and its clean-up find some of them out.
                record.findings.add_all(workload.facts)
        finally:
            record.noise = recorder.result()
            record.console = machine.console()[lease.console_start :]
            if workload.printed:
                record.console = f"{record.console.rstrip()}\n{workload.printed}".lstrip("\n")
            if isinstance(machine, MakesRemarks):
                record.warnings += machine.remarks()


def _attest_machine(machine: Machine, started: Cell, recorder: NoiseRecorder, record: _TrialRecord) -> None:
    """Record what the machine really is. Raises `AttestationError` if the cell asked for something else."""
    record.command_line = machine.command_line
    record.phases = machine.phases
    attested = machine.attest()
    recorder.place_machine(find_placement(attested))
    record.findings.add(attested)
    record.warnings += confinement.list_remarks(attested)
    if machine.disks:
        place = find_innermost(machine).place
        here = place is HERE or any(disk.image.logged for disk in machine.disks)
        mounts = None if here else place.read("/proc/self/mounts")
        record.findings.add(location.describe_storage(started, mounts))


def _compute_time_share_s(plan: Plan, slot: TrialSlot) -> float | None:
    """Return this cell's share of the seconds left of the budget; None without a budget.

    The last cell gets all of it, and others twice an equal share, as most cells need less: with equal shares, a plan of
    42 programs ended with two fifths of its time unused, although the slowest programs did not have enough.
    """
    if slot.left_s is None:
        return None
    return max(slot.left_s, 0.0) * 2 / (max(len(plan.cells) - slot.order, 1) + 1)


def _name_first_phase(platform: PlatformSpec) -> str:
    """Return the name of the first phase, for the progress display."""
    if platform.is_guest:
        return "booting"
    if platform.is_elsewhere:
        return "connecting"
    return "starting"


def _sum_processor_s(record: _TrialRecord) -> float:
    """Return the processor time of all iterations in seconds, as the workload measured it."""
    times = []
    for measurement in (*record.warmups, *record.measurements):
        if measurement.metric in {USER, SYSTEM}:
            times.append(sum(measurement.iterations))
    return sum(times)


def _run_iterations(
    plan: Plan,
    slot: TrialSlot,
    workload: workloads.Workload[Any],
    machine: Machine,
    *,
    record: _TrialRecord,
    observer: Observer,
    counting: CounterRecorder,
) -> None:
    once = workload.ONCE
    before_each = plan.policy.warmup if slot.warmups is None else slot.warmups
    warmups, wanted = (0, 1) if once else (before_each, slot.iterations)
    derived = plan.context.derived

    failures: list[WorkloadError] = []

    def run() -> Iterator[list[Measurement]]:
        """Yield the measurements of one iteration; nothing if its program failed."""
        begin = time.monotonic()
        try:
            measured = workload.run(machine)
        except WorkloadError as error:
            if error.cause not in _PROGRAM_FAILURES:
                raise
            failures.append(error)
            return
        record.run_s.append(time.monotonic() - begin)
        yield add_derived(derived, measured, slot.cell.factors)

    before: list[list[Measurement]] = []
    rounds: list[list[Measurement]] = []
    for number in range(warmups):
        observer.phase(f"warming up {number + 1}/{warmups}")
        before += run()
    # Warm-up runs are not measured, so their failures do not count.
    failures.clear()
    for number in range(wanted):
        observer.phase(f"measuring {number + 1}/{wanted}")
        counting.begin()
        rounds += run()
        counting.end()
    if not rounds:
        raise failures[0]
    if failures:
        said = FailedRuns(failed=len(failures), tried=wanted, reason=_join_error_lines(failures[0]))
        record.findings.add(said)
    record.warmups, record.measurements = merge_iterations(before), merge_iterations(rounds)


def merge_iterations(rounds: list[list[Measurement]]) -> tuple[Measurement, ...]:
    """Return one measurement for each metric, reduced from those of every iteration.

    Raises `WorkloadError` if an iteration lacks a metric, or its value is not a number.
    """
    values: dict[str, list[float]] = {}
    metrics: dict[str, Metric] = {}
    for measured in rounds:
        for measurement in measured:
            metrics[measurement.metric.name] = measurement.metric
            values.setdefault(measurement.metric.name, []).append(measurement.value)
    for name, series in values.items():
        if len(series) != len(rounds):
            raise WorkloadError(
                f"metric {name} was measured in only {len(series)} of {len(rounds)} iterations"
            )
        if not all(map(can_be_compared, series)):
            raise WorkloadError(f"metric {name} is not a usable number in one of {len(rounds)} iterations")
    merged = []
    for name, metric in metrics.items():
        series = values[name]
        merged.append(Measurement(metric, reduce_iterations(series), tuple(series)))
    return tuple(merged)


def _clean_up_workload(workload: workloads.Workload[Any], machine: Machine, record: _TrialRecord) -> None:
    """Clean up; a failure is only a warning, so that it does not hide why the trial failed."""
    try:
        workload.cleanup(machine)
    except (AgentError, WorkloadError) as error:
        record.warnings.append(f"cleaning up: {_join_error_lines(error)}")


def _join_error_lines(error: GuestmarkError) -> str:
    line = " ".join(error.message.split())
    if error.hint:
        line += f" ({' '.join(error.hint.split())})"
    return line


class CounterRecorder:
    """Records by how much a hypervisor's counters advance in each iteration.

    If a reading fails, because the guest was shut down, its iteration is left out. With `apart`, for a guest inside
    another, events caused by clock ticks are counted separately and subtracted: the inner guest runs so slowly that
    they are several percent of those that a program causes.
    """

    def __init__(self, machine: Machine, *, apart: bool) -> None:
        self._machine = machine
        self._apart = apart
        self._before: Mapping[str, float] = {}
        self._each: dict[str, list[float]] = {}
        self._per_tick: Mapping[str, float] = {}

    def begin(self) -> None:
        """Read the counters before an iteration."""
        self._before = self._count_machine()

    def end(self) -> None:
        """Read the counters after the iteration."""
        after = self._count_machine()
        advanced = {name: after[name] - value for name, value in self._before.items() if name in after}
        for name, value in counters.drop_restarted(advanced).items():
            self._each.setdefault(name, []).append(value)

    def measure_ticks(self) -> None:
        """Measure the events that each tick causes, if they are counted apart; call this after the last iteration."""
        if self._apart and self._each:
            with contextlib.suppress(GuestmarkError):
                self._per_tick = counters.measure_per_tick(self._machine)

    def compute_averages(self) -> dict[str, float]:
        """Return averages over the iterations, by the names of `platforms.counters`; empty without counters."""
        averages = {name: fmean(values) for name, values in self._each.items()}
        if not self._apart:
            return averages
        if not self._per_tick:
            return {}
        return counters.subtract_ticks(averages, self._per_tick)

    def _count_machine(self) -> Mapping[str, float]:
        with contextlib.suppress(GuestmarkError):
            if self._apart:
                return counters.count_with_ticks(self._machine)
            return self._machine.counters()
        return {}
