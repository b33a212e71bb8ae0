"""The workload `syscalls`: times a fixed mix of system calls, and counts what the hypervisor did for each.

Times are per operation; counts are averages over the operations of the mix.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

from guestmark.agent.wire import SYSTEM_CALLS
from guestmark.core.findings import Fact
from guestmark.core.metric import Metric
from guestmark.core.params import Params, param
from guestmark.core.workload_kind import Topic
from guestmark.workloads.base import Sections, Workload
from guestmark.workloads.common.parsers import check_duration, order_names

_SHORTEST_S, _LONGEST_S = 0.001, 60.0

GEOMEAN = Metric("geomean_ns", "ns")  # geometric mean of the operations' times
EXITS = Metric("exits/op", "")  # KVM: exits from the guest
STOPS = Metric("stops/op", "")  # UML: stops of a traced process
FLUSHES = Metric("tlb_flushes/op", "")  # TCG: flushes of an emulated TLB
BLOCKS = Metric("blocks/op", "")  # TCG: translated blocks of code
# Processor time on the host for each second of it that the guest accounts.
PROCESSOR = Metric("host_cpu/guest_cpu", "")
WALL = Metric("wall_s", "s")  # duration of all timed parts together

# The hypervisor's counter behind each count (`platforms.counters`).
COUNTED = {"kvm_exits": EXITS, "uml_stops": STOPS, "tcg_tlb_flushes": FLUSHES, "tcg_blocks": BLOCKS}


def make_call_metric(name: str) -> Metric:
    """Returns the metric of one operation: nanoseconds, the median over batches."""
    return Metric(f"{name}_ns", "ns")


def list_call_metrics(names: Sequence[str]) -> tuple[Metric, ...]:
    """Returns all metrics of a mix of these operations, in table order."""
    return (GEOMEAN, *map(make_call_metric, names), *COUNTED.values(), PROCESSOR, WALL)


def _check_time(time: str) -> str:
    return check_duration(time, _SHORTEST_S, _LONGEST_S)


def _order_calls(calls: list[str]) -> list[str]:
    return order_names("call", calls, SYSTEM_CALLS)


class SyscallsParams(Params, frozen=True, kw_only=True):
    """Each operation is executed at least `operations` times and for `time`; `calls` selects some of them."""

    operations: Annotated[int, param("minimum executions of each call", ge=1, le=10_000_000)] = 50
    time: Annotated[str, param("minimum time for each call", "duration", parse=_check_time)] = "50ms"
    calls: Annotated[list[str], param("calls to measure", "names", parse=_order_calls)] = msgspec.field(
        default_factory=lambda: [*SYSTEM_CALLS]
    )


class Call(msgspec.Struct, kw_only=True, omit_defaults=True):
    """How one operation was measured, and what was counted per execution."""

    operations: int
    batches: int
    elapsed_s: float
    guest_cpu_s: float
    host_cpu_s: float | None = None  # of the hypervisor
    median_ns: float
    lowest_ns: float
    loop_ns: float
    clock_ns: float
    per_operation: dict[str, float]  # by the names of `platforms.counters`


class Syscalls(Fact, kw_only=True):
    """The program that measured, and the results of each operation by name."""

    agent_sha256: str | None = None
    calls: dict[str, Call] | None = msgspec.field(name="syscalls", default=None)


class SyscallsWorkload(Workload[SyscallsParams]):
    """Measures nanoseconds of each operation, their geometric mean, and exits, stops or flushes per operation."""

    name = "syscalls"
    help = (
        "times a fixed mix of system calls, each in nanoseconds, and counts what the hypervisor did for each"
    )
    topic = Topic.CALLS
    shares_machine = True
    agent_is_enough = True
    only_factors = frozenset({"memory", "smp", "cpu", "machine", "kernel", "kernel_args", "placement"})

    @classmethod
    def list_metrics(cls, params: SyscallsParams) -> tuple[Metric, ...]:
        """Returns one metric for each selected call, and the metrics of all calls together."""
        return list_call_metrics(params.calls)

    @classmethod
    def describe_params(cls, params: SyscallsParams) -> str:
        """Names the calls, unless all are measured."""
        if len(params.calls) == len(SYSTEM_CALLS):
            return "system calls"
        return f"system calls: {', '.join(params.calls)}"

    @classmethod
    def trial_class(cls) -> type[Workload[SyscallsParams]]:
        """Imports and returns the class of its trials; done late because it imports the agent's client."""
        from guestmark.workloads.syscalls.trial import SyscallsTrial

        return SyscallsTrial

    @classmethod
    def report_sections(cls) -> tuple[Sections, ...]:
        """Adds a row for each call."""
        from guestmark.workloads.syscalls.sections import render_calls

        return (render_calls,)
