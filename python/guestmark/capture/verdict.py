"""What a connection's time was spent on, in words: `network 81 %, server 18 %, client 1 %`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from guestmark.capture.model import Causes, Connection, Ended, Trace
from guestmark.capture.units import format_seconds
from guestmark.core.units import format_share

CAUSE_NAMES = {
    "client": "client",
    "server": "server",
    "client_receive_buffer": "client's receive buffer",
    "server_receive_buffer": "server's receive buffer",
    "client_send_buffer": "client's send buffer",
    "server_send_buffer": "server's send buffer",
    "latency": "path latency",
    "bandwidth": "path bandwidth",
    "nagle": "Nagle and delayed ACK",
    "recovery": "loss recovery",
    "idle": "idle",
    "unknown": "unknown",
    # Causes in documents of earlier versions.
    "network": "network",
    "window": "receive window closed",
}
# Causes that are named even if they took no time: who is slow is the question.
_ALWAYS = ("client", "server")
# No packet is to blame for these.
_NO_PACKETS = {"idle", "unknown"}
_TOLD = 3  # longest waits that are named


@dataclass(frozen=True, slots=True)
class CauseShare:
    """One cause and its share of the time, from 0 to 1."""

    cause: str
    share: float

    @property
    def name(self) -> str:
        """The name of the cause, as it is printed."""
        return CAUSE_NAMES[self.cause]


def list_cause_shares(causes: Causes) -> tuple[CauseShare, ...]:
    """Return every cause with its share, in the order of `CAUSE_NAMES`; empty if causes or time are unknown."""
    seconds = {cause: getattr(causes, f"{cause}_s") or 0.0 for cause in CAUSE_NAMES}
    whole = sum(seconds.values())
    if causes.client_s is None or not whole:
        return ()
    return tuple(CauseShare(cause, value / whole) for cause, value in seconds.items())


def list_cause_percents(causes: Causes) -> tuple[tuple[str, int], ...]:
    """Return the causes in percent, which add up to 100, largest first; empty if they are unknown."""
    known = list_cause_shares(causes)
    if not known:
        return ()
    exact = {part.cause: 100 * part.share for part in known}
    whole = {cause: int(percent) for cause, percent in exact.items()}
    # The missing percents go to the causes that lost most by rounding down, so that the sum is 100.
    for cause in sorted(exact, key=lambda cause: whole[cause] - exact[cause])[: 100 - sum(whole.values())]:
        whole[cause] += 1
    shown = [cause for cause in exact if cause in _ALWAYS or whole[cause]]
    shown.sort(key=lambda cause: -exact[cause])
    return tuple((cause, whole[cause]) for cause in shown)


def describe_causes(causes: Causes) -> str | None:
    """Describe all causes in a sentence, largest first; None if they are unknown."""
    return (
        ", ".join(f"{CAUSE_NAMES[cause]} {percent} %" for cause, percent in list_cause_percents(causes))
        or None
    )


def find_main_cause(causes: Causes) -> CauseShare | None:
    """Return the cause that took most time; None if unknown."""
    return max(list_cause_shares(causes), key=lambda part: part.share, default=None)


def find_guilty_packets(trace: Trace) -> list[Ended]:
    """Return the packets that ended the longest waits for the main cause of the whole trace, longest first."""
    main = find_main_cause(trace.causes)
    if main is None:
        return []
    return [ended for ended in trace.guilty if ended.cause == main.cause]


def make_display_filter(packets: Sequence[Ended]) -> str:
    """Return a display filter of Wireshark that shows these packets."""
    frames = sorted(packet.frame for packet in packets)
    return f"frame.number in {{{', '.join(map(str, frames))}}}"


def describe_longest_waits(trace: Trace) -> str | None:
    """Describe the longest waits for the main cause with the frames that ended them; None if no cause is to blame."""
    main, packets = find_main_cause(trace.causes), find_guilty_packets(trace)
    found = find_doubt(trace)
    if main is None or not packets or main.cause in _NO_PACKETS or (found is not None and found.refused):
        return None
    waits = []
    for packet in packets[:_TOLD]:
        waits.append(f"frame {packet.frame} ({format_seconds(packet.waited_s)})")
    return f"longest waits for {main.name}: {', '.join(waits)}"


@dataclass(frozen=True, slots=True)
class Doubt:
    """The reason why a verdict is weak; with `refused`, no verdict is given."""

    reason: str
    refused: bool


_BEGUN_BEFORE = {"no-start", "middle"}
# At or above these shares of the time or of the bytes a verdict is refused; at or above the last one it is doubtful.
_REFUSED_UNKNOWN, _REFUSED_MISSING, _REFUSED_MERGED, _DOUBTED = 1 / 3, 0.1, 1 / 3, 0.05


def count_totals(connections: Sequence[Connection]) -> dict[str, int]:
    """Return those counters of a trace that are sums over its connections."""
    totals = {"missing_bytes": 0, "unique_bytes": 0, "tcp_ns": 0, "begun_before_ns": 0, "merged_ns": 0}
    for connection in connections:
        for side in connection.sides:
            totals["missing_bytes"] += side.missing_bytes
            totals["unique_bytes"] += side.unique_bytes
        if connection.protocol != "tcp":
            continue
        totals["tcp_ns"] += connection.duration_ns
        if connection.captured in _BEGUN_BEFORE:
            totals["begun_before_ns"] += connection.duration_ns
        if "merged" in connection.marks:
            totals["merged_ns"] += connection.duration_ns
    return totals


def find_doubt(trace: Trace) -> Doubt | None:
    """Return what casts doubt on the verdict of a whole trace; None if nothing does."""
    unknown = _find_unknown_share(trace.causes)
    # A trace may list only the connections that waited longest; documents of earlier versions lack these counters.
    totals = trace.counters if "tcp_ns" in trace.counters else count_totals(trace.connections)
    missing = totals["missing_bytes"]
    share = missing / max(missing + totals["unique_bytes"], 1)
    lost = format_share(share, 2) if share >= 0.0001 else "less than 0.01 %"
    names = ("merged", "dropped", "overlapping")
    merged, dropped, overlapping = (trace.counters.get(name, 0) for name in names)
    whole = max(totals["tcp_ns"], 1)
    late, twice = totals["begun_before_ns"] / whole, totals["merged_ns"] / whole
    merging = (
        f"captures of two points were merged ({merged:,} connections, {format_share(twice)} of the time)"
    )
    # The first reason that holds counts; those that refuse a verdict come first.
    found = (
        (overlapping, "the files overlap in time", True),
        (merged and twice >= _REFUSED_MERGED, merging, True),
        (
            unknown >= _REFUSED_UNKNOWN,
            f"the capture does not explain {format_share(unknown)} of the time",
            True,
        ),
        (share >= _REFUSED_MISSING, f"the capture lost {lost} of the bytes", True),
        (missing, f"the capture lost {lost} of the bytes", False),
        (dropped, f"the capture dropped {dropped:,} packets", False),
        (
            late >= _DOUBTED,
            f"{format_share(late)} of the time belongs to connections that began before the capture",
            False,
        ),
        (merged, merging, False),
        (unknown >= _DOUBTED, f"{format_share(unknown)} of the time is not explained", False),
    )
    for holds, reason, refused in found:
        if holds:
            return Doubt(reason, refused)
    return None


def _find_unknown_share(causes: Causes) -> float:
    for part in list_cause_shares(causes):
        if part.cause == "unknown":
            return part.share
    return 0.0
