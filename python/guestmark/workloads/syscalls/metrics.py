"""What the system-call mix measures. Times are of one operation; counts are averages over the mix's operations."""

from collections.abc import Sequence

import msgspec

from guestmark.core.metric import Metric

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
