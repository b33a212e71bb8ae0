"""Relates a machine's clock to the host's by pings."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

# A clock that NTP disciplines is never this much too fast.
_OWN_TOLERANCE = 500e-6


@functools.cache
def read_host_boot_id() -> str:
    """Returns the id of the running boot of the host's kernel; a machine with the same id shares the host's clock."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


@dataclass(frozen=True, slots=True)
class Ping:
    """The machine's monotonic clock, read between two readings of the host's, all in nanoseconds."""

    sent_ns: int
    guest_ns: int
    received_ns: int

    @classmethod
    def from_call(cls, span_ns: tuple[int, int], bracket_ns: tuple[int, int]) -> Ping:
        """Creates a reading from a call whose span on the machine's clock lies within a bracket on the host's.

        The round trip is the difference of the two lengths; the reading is at the middle of both.
        """
        (started_ns, ended_ns), (sent_ns, received_ns) = span_ns, bracket_ns
        half = (ended_ns - started_ns) // 2
        return cls(sent_ns + half, started_ns + half, received_ns - half)

    @property
    def round_trip_ns(self) -> int:
        """Time between the host's two readings."""
        return self.received_ns - self.sent_ns

    @property
    def host_ns(self) -> float:
        """The host's clock at the reading, accurate to half the round trip (Cristian 1989)."""
        return (self.sent_ns + self.received_ns) / 2


@dataclass(frozen=True, slots=True)
class HostWall:
    """A duration on the host's clock in seconds, its maximum error, and a warning if the clocks disagree."""

    seconds: float
    error_s: float
    warning: str


def convert_to_host_clock(
    span_ns: tuple[int, int], pings: tuple[Ping | None, Ping | None], bracket_ns: tuple[int, int]
) -> HostWall:
    """Converts `span_ns` (start and end on the machine's clock) to a duration on the host's clock.

    Each end is mapped by the ping nearest to it, at the rate of the machine's clock between the two pings: a clock that
    was calibrated badly on a busy host runs ten times too fast, and the time between ping and end would count tenfold.
    The result must lie within `bracket_ns`, between sending the request and receiving the reply; otherwise it is
    clamped to that, with a warning. Without pings the two clocks are the same.
    """
    (started_ns, ended_ns), (before, after), (sent_ns, received_ns) = span_ns, pings, bracket_ns
    slack_before = slack_after = 0.0
    start, end = float(started_ns), float(ended_ns)
    rate = _estimate_rate(before, after)
    if before:
        slack_before = before.round_trip_ns / 2
        start = before.host_ns + (started_ns - before.guest_ns) * rate
    if after:
        slack_after = after.round_trip_ns / 2
        end = after.host_ns - (after.guest_ns - ended_ns) * rate
    warning = ""
    if (
        start < sent_ns - slack_before
        or end > received_ns + slack_after
        or end < start - slack_before - slack_after
    ):
        warning = (
            f"by the machine's clock it ran for {(ended_ns - started_ns) / 1e9:.6f} s, which does not fit into the "
            f"{(received_ns - sent_ns) / 1e9:.6f} s measured by the host's clock"
        )
    start = min(max(start, sent_ns), received_ns)
    end = max(min(end, received_ns), start)
    return HostWall((end - start) / 1e9, (slack_before + slack_after) / 1e9, warning)


def measure_on_own_clock(span_ns: tuple[int, int], bracket_ns: tuple[int, int]) -> HostWall:
    """Returns the duration of `span_ns` on the clock of a far machine whose clock is as good as the host's.

    The host's `bracket_ns` contains all of it and the round trip; a duration that is longer than that gets a warning.
    """
    (started_ns, ended_ns), (sent_ns, received_ns) = span_ns, bracket_ns
    duration_ns, bracket = max(0, ended_ns - started_ns), received_ns - sent_ns
    warning = ""
    if duration_ns > bracket * (1 + _OWN_TOLERANCE):
        warning = (
            f"by the machine's clock it ran for {duration_ns / 1e9:.6f} s, which does not fit into the "
            f"{bracket / 1e9:.6f} s measured by this host's clock"
        )
    return HostWall(duration_ns / 1e9, 0.0, warning)


def _estimate_rate(before: Ping | None, after: Ping | None) -> float:
    """Returns host nanoseconds per nanosecond of the machine's clock; 1 if unknown."""
    if before is None or after is None or after.guest_ns <= before.guest_ns:
        return 1.0
    return max(0.0, after.host_ns - before.host_ns) / (after.guest_ns - before.guest_ns)
