"""What hypervisors count, in words; the counters are those of `platforms.counters`."""

from collections.abc import Mapping

from guestmark.page import figures

COUNTS = {  # counters of `platforms.counters`, and what their columns are called
    "kvm_exits": "exits",
    "uml_stops": "stops",
    "tcg_tlb_flushes": "flushes",
    "tcg_blocks": "blocks",
}
LEGEND = {
    "exits": "exits from the guest to KVM",
    "stops": "ptrace stops",
    "flushes": "flushes of an emulated TLB",
    "blocks": "blocks of code that TCG translated",
}
PREFIX = "kvm_"
_TOLD = 0.02  # the share of all exits above which a kind is named


def by_kind(counted: Mapping[str, float]) -> str:
    """What else KVM counted: the kinds that are a notable share of the exits, the most frequent first."""
    every = counted.get("kvm_exits", 0.0)
    told = sorted(
        (
            (value, name.removeprefix(PREFIX))
            for name, value in counted.items()
            if name.startswith(PREFIX) and name != "kvm_exits" and value >= _TOLD * every > 0
        ),
        reverse=True,
    )
    return ", ".join(f"{name} {figures.number(value, int(value < 1000))}" for value, name in told)
