"""Finds what follows a DHCP lease in a capture: the phases of a network boot, of a guest or of a physical machine."""

from __future__ import annotations

from dataclasses import dataclass

from guestmark.capture.model import Exchange, Trace
from guestmark.capture.units import format_seconds, format_size
from guestmark.core.units import format_count


@dataclass(frozen=True, slots=True)
class Startup:
    """Phases of a network boot in seconds: until the address was acknowledged, until the first fetch, and fetching.

    `fetched` counts connections and transfers that delivered data; `between_s` is the time between them.
    """

    address_s: float
    waiting_s: float
    fetching_s: float
    between_s: float
    fetched: int
    bytes: int


def find_startup(trace: Trace) -> Startup | None:
    """Return the phases after the first granted lease; None without one, or if nothing was fetched after it."""
    lease = find_lease(trace, last=False)
    if lease is None:
        return None
    granted_s = lease.granted_s or 0.0
    given = lease.start_ns + round(granted_s * 1e9)
    # The connections that the trace lists may only be those that waited longest.
    fetched = [(start, duration / 1e9, amount) for start, duration, amount in trace.fetches]
    for exchange in trace.exchanges:
        if exchange.protocol == "tftp" and exchange.bytes:
            fetched.append((exchange.start_ns, exchange.duration_s, exchange.bytes))
    after = sorted(fetch for fetch in fetched if fetch[0] >= given)
    if not after:
        return None
    busy, end = 0.0, after[0][0]
    # Fetches that overlap count once.
    for start, seconds, _ in after:
        until = start + round(seconds * 1e9)
        busy += max(until - max(start, end), 0) / 1e9
        end = max(end, until)
    return Startup(
        granted_s,
        (after[0][0] - given) / 1e9,
        busy,
        (end - after[0][0]) / 1e9 - busy,
        len(after),
        sum(amount for _, _, amount in after),
    )


def find_lease(trace: Trace, *, last: bool = True) -> Exchange | None:
    """Return the first exchange that granted an address, or the `last` one; None if there is none."""
    leases = [exchange for exchange in trace.exchanges if exchange.granted_s is not None]
    if not leases:
        return None
    return leases[-1] if last else leases[0]


def describe_startup(trace: Trace) -> str | None:
    """Return the phases in one line; None if there are none."""
    found = find_startup(trace)
    if found is None:
        return None
    return (
        f"From the first DHCP message: address after {format_seconds(found.address_s)}, "
        f"then {format_seconds(found.waiting_s)} until the first connection, "
        f"{format_seconds(found.fetching_s)} in {format_count(found.fetched, 'transfer')} "
        f"({format_size(found.bytes)}), "
        f"{format_seconds(found.between_s)} between them"
    )
