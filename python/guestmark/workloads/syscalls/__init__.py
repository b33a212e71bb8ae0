"""A fixed mix of system calls, each in nanoseconds, and what the hypervisor did for each.

Times are of one operation; counts are averages over the operations of the mix.
"""

from collections.abc import Sequence

import msgspec

from guestmark.core.findings import Fact
from guestmark.core.metric import Metric
from guestmark.core.workload_kind import Topic, WorkloadKind, agent_is_enough, takes_only

GEOMEAN = Metric("geomean_ns", "ns")  # geometric mean of the operations' times
EXITS = Metric("exits/op", "")  # KVM: exits from the guest
STOPS = Metric("stops/op", "")  # UML: stops of a traced process
FLUSHES = Metric("tlb_flushes/op", "")  # TCG: flushes of an emulated TLB
BLOCKS = Metric("blocks/op", "")  # TCG: blocks of code translated
PROCESSOR = Metric(
    "host_cpu/guest_cpu", ""
)  # processor time on the host for each second that the guest accounts
WALL = Metric("wall_s", "s")  # of all timed parts together

# Which counter of the hypervisor each count is made of (`platforms.counters`).
COUNTED = {"kvm_exits": EXITS, "uml_stops": STOPS, "tcg_tlb_flushes": FLUSHES, "tcg_blocks": BLOCKS}


def of_call(name: str) -> Metric:
    """Nanoseconds of one operation of that name: the median over batches."""
    return Metric(f"{name}_ns", "ns")


def of_calls(names: Sequence[str]) -> tuple[Metric, ...]:
    """All that a mix of these operations can measure, in table order."""
    return (GEOMEAN, *map(of_call, names), *COUNTED.values(), PROCESSOR, WALL)


class Mix(msgspec.Struct, frozen=True):
    """The parameters as a stored plan has them: how often and how long each of these operations is done at least."""

    operations: int
    time: str
    calls: list[str]


class Call(msgspec.Struct, kw_only=True, omit_defaults=True):
    """How one operation was measured, and what was counted for each time it was done."""

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
    """The program that measured, and each operation by its name."""

    agent_sha256: str | None = None
    calls: dict[str, Call] | None = msgspec.field(name="syscalls", default=None)


def _label(mix: Mix) -> str:
    from guestmark.agent.wire import SYSTEM_CALLS

    return "system calls" if len(mix.calls) == len(SYSTEM_CALLS) else f"system calls: {', '.join(mix.calls)}"


WORKLOADS = (
    WorkloadKind(
        "syscalls",
        "a fixed mix of system calls, each in nanoseconds, and what the hypervisor did for each",
        params="guestmark.workloads.syscalls.workload:SyscallsParams",
        run="guestmark.workloads.syscalls.workload:SyscallsWorkload",
        metrics=lambda mix: of_calls(mix.calls),
        label=_label,
        reads=Mix,
        needs_root=agent_is_enough,
        topic=Topic.CALLS,
        sections=("guestmark.workloads.syscalls.sections:sections",),
        takes=takes_only("memory", "smp", "cpu", "machine", "kernel", "kernel_args", "placement"),
    ),
)
