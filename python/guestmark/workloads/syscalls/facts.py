"""What the workload `syscalls` finds out besides its metrics."""

import msgspec

from guestmark.core.findings import Fact


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
