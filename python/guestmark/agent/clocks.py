"""Bringing a machine's clock and the host's together by pings."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path


@functools.cache
def host_boot_id() -> str:
    """Identifies the running boot of the host's kernel; equal on a machine that shares the host's clock."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


@dataclass(frozen=True, slots=True)
class Ping:
    """The machine's monotonic clock read somewhere between two readings of the host's, all in nanoseconds."""

    sent_ns: int
    guest_ns: int
    received_ns: int

    @property
    def round_trip_ns(self) -> int:
        """Time between the host's two readings."""
        return self.received_ns - self.sent_ns

    @property
    def offset_ns(self) -> float:
        """Guest clock minus host clock, wrong by at most half the round trip (Cristian 1989)."""
        return self.guest_ns - (self.sent_ns + self.received_ns) / 2


@dataclass(frozen=True, slots=True)
class HostWall:
    """A duration on the host's clock in seconds, its largest error, and what was wrong with the clocks, if anything."""

    seconds: float
    error_s: float
    warning: str


def on_host_clock(
    span_ns: tuple[int, int], pings: tuple[Ping | None, Ping | None], bracket_ns: tuple[int, int]
) -> HostWall:
    """Duration of `span_ns` (start and end on the machine's clock) on the host's.

    Each end is mapped by the ping nearest to it, so a guest clock that runs at another speed does not matter. The
    result must lie in `bracket_ns`, the request's sending and the reply's arrival on the host; else it is cut to that
    and says so. Without pings the two clocks are the same one.
    """
    (started_ns, ended_ns), (before, after), (sent_ns, received_ns) = span_ns, pings, bracket_ns
    offset_before = before.offset_ns if before else 0.0
    offset_after = after.offset_ns if after else 0.0
    slack_before = before.round_trip_ns / 2 if before else 0.0
    slack_after = after.round_trip_ns / 2 if after else 0.0
    start, end = started_ns - offset_before, ended_ns - offset_after
    warning = ""
    if (
        start < sent_ns - slack_before
        or end > received_ns + slack_after
        or end < start - slack_before - slack_after
    ):
        warning = (
            f"the machine's clock says it ran {(ended_ns - started_ns) / 1e9:.6f} s, which does not fit into the "
            f"{(received_ns - sent_ns) / 1e9:.6f} s on the host's clock"
        )
    start = min(max(start, sent_ns), received_ns)
    end = max(min(end, received_ns), start)
    return HostWall((end - start) / 1e9, (slack_before + slack_after) / 1e9, warning)
