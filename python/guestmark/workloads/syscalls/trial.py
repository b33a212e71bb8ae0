"""The trial of `syscalls`: the agent times a fixed mix of system calls; hypervisor events are counted for each."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from guestmark import __version__
from guestmark.agent.binary import NAME, PROGRAM
from guestmark.agent.syscalls import Section, measure_syscalls
from guestmark.core.errors import AttestationError
from guestmark.core.findings import Build
from guestmark.core.metric import Measurement, Metric
from guestmark.core.model import Cell, Plan
from guestmark.core.own_program import find_agent_binary
from guestmark.core.units import parse_duration
from guestmark.foreign import agents
from guestmark.platforms import counters
from guestmark.platforms.base import Machine
from guestmark.platforms.counters import read_processor_s
from guestmark.workloads import syscalls
from guestmark.workloads.common.metrics import to_measurements
from guestmark.workloads.common.program import compute_sha256, warn_of_clocks_between
from guestmark.workloads.syscalls import Call, Syscalls, SyscallsWorkload

_HOST_CPU = "host_cpu_s"
# Nanoseconds; replaces times below the clock's resolution, whose logarithm does not exist.
_LEAST = 0.01


class SyscallsTrial(SyscallsWorkload):
    """Lets the agent time every operation, and counts hypervisor events meanwhile."""

    def __init__(self, plan: Plan, cell: Cell) -> None:
        super().__init__(plan, cell)
        self._found = self.facts.add(Syscalls())
        self._architecture = cell.platform.foreign_architecture
        self._counter = cell.platform.inner.description.counter

    def prepare(self, machine: Machine) -> None:
        """Checks that the agent on the machine is the expected program. Raises `AttestationError` if it is not.

        It is the same program as on this host, except on other architectures.
        """
        row = self._architecture
        given = agents.find_agent(row) if row else None
        found, here = machine.agent.sha256(PROGRAM).sha256, compute_sha256(str(given or find_agent_binary()))
        if row is not None:
            said = f"another build: {NAME} {__version__}, {row.name}"
            self.facts.add(Build(said=said, architecture=row.name, same_source=True))
        self._found.agent_sha256 = found
        if found != here:
            raise AttestationError(
                f"the agent is not the same program: SHA-256 {here} on the host, {found} on the machine"
            )
        if (counter := self._counter) and counter not in machine.counters():
            self.warnings.append(
                f"{syscalls.COUNTED[counter].name} is unknown: this hypervisor does not report it, "
                "and the kernel's statistics cannot be read"
            )

    def run(self, machine: Machine) -> list[Measurement]:
        """Runs the whole mix once. Raises `WorkloadError` if the agent cannot execute a call, or at the time limit."""
        before = machine.agent.ping()
        found = measure_syscalls(
            machine.agent,
            operations=self.params.operations,
            time_s=parse_duration(self.params.time),
            names=self.params.calls,
            counters=functools.partial(_count_with_host_cpu, machine),
            timeout_s=self.limit_s,
        )
        nothing, *sections = [replace(each, counted=counters.drop_restarted(each.counted)) for each in found]
        if warning := warn_of_clocks_between(before, machine.agent.ping()):
            self.warnings.append(warning)
        self._found.calls = {section.measured.name: _describe_call(section, nothing) for section in sections}
        # A geometric mean gives a call of 50 ns the same weight as one of 500 µs.
        times = [max(section.measured.median_ns, _LEAST) for section in sections]
        values: list[tuple[Metric, float]] = [
            (syscalls.GEOMEAN, math.exp(math.fsum(map(math.log, times)) / len(times)))
        ]
        for section, time in zip(sections, times, strict=True):
            values.append((syscalls.make_call_metric(section.measured.name), time))
        for counter, metric in syscalls.COUNTED.items():
            if all(counter in section.counted for section in sections):
                each = [count_per_operation(section, nothing, counter) for section in sections]
                values.append((metric, math.fsum(each) / len(each)))
        values += _compute_processor_ratio(sections)
        values.append((syscalls.WALL, math.fsum(section.measured.elapsed_ns for section in sections) / 1e9))
        return to_measurements(values)


def count_per_operation(section: Section, nothing: Section, counter: str) -> float:
    """Returns how far a counter advanced per operation, less its advance in an empty part."""
    counted = section.counted[counter] - nothing.counted.get(counter, 0.0)
    return max(0.0, counted / section.measured.operations)


def _count_with_host_cpu(machine: Machine) -> Mapping[str, float]:
    spent = read_processor_s(machine.vmm_pid)
    counted = dict(machine.counters())
    if spent is not None:
        counted[_HOST_CPU] = spent
    return counted


def _describe_call(section: Section, nothing: Section) -> Call:
    measured = section.measured
    counted = {}
    for counter in section.counted:
        if counter != _HOST_CPU:
            counted[counter] = count_per_operation(section, nothing, counter)
    return Call(
        operations=measured.operations,
        batches=measured.batches,
        elapsed_s=measured.elapsed_ns / 1e9,
        guest_cpu_s=measured.cpu_ns / 1e9,
        host_cpu_s=section.counted.get(_HOST_CPU),
        median_ns=measured.median_ns,
        lowest_ns=measured.lowest_ns,
        loop_ns=measured.loop_ns,
        clock_ns=measured.clock_ns,
        per_operation=counted,
    )


def _compute_processor_ratio(sections: Sequence[Section]) -> list[tuple[Metric, float]]:
    guest_s = math.fsum(section.measured.cpu_ns for section in sections) / 1e9
    if guest_s <= 0 or not all(_HOST_CPU in section.counted for section in sections):
        return []
    return [(syscalls.PROCESSOR, math.fsum(section.counted[_HOST_CPU] for section in sections) / guest_s)]
