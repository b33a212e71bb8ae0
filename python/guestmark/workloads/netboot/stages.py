"""Where the time of a boot goes until iPXE does what it is told: from QEMU's trace, and from the packets.

Packets carry QEMU's clock, which starts with the machine. The control server saw the same connections arrive on this
host's clock, and the least difference of the two (the others waited for the server) sets one against the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from guestmark.capture.startup import lease_of
from guestmark.core.errors import GuestmarkError
from guestmark.core.model import Measurement
from guestmark.workloads.netboot import metrics
from guestmark.workloads.netboot.facts import Lease, LeaseStep

if TYPE_CHECKING:
    from guestmark.capture.model import Exchange, Trace

# In the phases of a machine, in order: seconds since QEMU was started at which each of them ended.
CARD, LINK, ADDRESS, READY = "card", "link", "address", "ready"
_ENDS = ((metrics.ROM, CARD), (metrics.LINK, LINK), (metrics.DHCP, ADDRESS), (metrics.SCRIPT, READY))


def analysed(capture: Path) -> Trace | None:
    """The packets of a boot; None when they cannot be read, which is no reason to fail a boot that worked."""
    from guestmark.capture.binary import analyse_file

    try:
        return analyse_file(capture)
    except GuestmarkError:
        return None


def seen(trace: Trace, control_port: int, accepted: Sequence[float]) -> dict[str, float]:
    """When the first packet left and when the address was there, on this host's clock.

    `accepted` is when the control server got its connections. Without a lease the first packet is all there is; nothing
    where both clocks have no connection in common.
    """
    asked = sorted(
        connection.start_ns for connection in trace.connections if connection.server.port == control_port
    )
    late = [at - start / 1e9 for at, start in zip(accepted, asked, strict=False)]
    if not late:
        return {}
    ahead = min(late)
    lease = lease_of(trace)
    if lease is None:
        return {LINK: ahead + min(asked) / 1e9}
    begun = ahead + lease.start_ns / 1e9
    return {LINK: begun, ADDRESS: begun + lease.duration_s}


def told(lease: Exchange | None) -> Lease | None:
    """The lease's messages, as a trial keeps them."""
    if lease is None:
        return None
    steps = [LeaseStep(message.at_s, message.kind, message.client) for message in lease.messages]
    return Lease(lease.duration_s, lease.client_s, lease.server_s, lease.recovery_s, steps)


def measured(phases: Mapping[str, float]) -> list[Measurement]:
    """The phases of the start as measurements, which add up to `ready`; one whose end is unknown is in the next."""
    found, before = [], 0.0
    for metric, end in _ENDS:
        if end in phases:
            at = min(max(phases[end], before), phases[READY])
            found.append(Measurement(metric, at - before, (at - before,)))
            before = at
    return found
