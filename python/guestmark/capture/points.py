"""Combines captures at several points of a path into one answer: each host's own time as seen next to that host.

The engine matches the packets by content and aligns the clocks (`guestmark-capture --points`). Here, the causes of a
connection at its two outer points become one, and what happened between the points becomes text.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

import msgspec

from guestmark.capture import verdict
from guestmark.capture.binary import (
    BUILD,
    Selection,
    Wanted,
    analyse_capture,
    check_status,
    find_capture_binary,
)
from guestmark.capture.model import Causes, Connection, Document, Trace
from guestmark.capture.table import format_host_port
from guestmark.capture.units import format_percent, format_seconds
from guestmark.core.errors import GuestmarkError, UsageError
from guestmark.core.units import format_share

SCHEMA = "guestmark-capture-points/1"
# Two points that attribute more than this share of the duration differently contradict each other.
_TELLING = 0.05
_MOST_LINES = 12


class Clock(msgspec.Struct, frozen=True):
    """The second point's clock relative to the first one's, in seconds; `skew` in seconds per second."""

    offset_s: float
    offset_error_s: float
    skew: float
    skew_error: float


class DelayStats(msgspec.Struct, frozen=True):
    """One-way delays of matched packets, by aligned clocks."""

    count: int
    min_s: float | None
    p50_s: float | None
    p95_s: float | None
    max_s: float | None


class Direction(msgspec.Struct, frozen=True):
    """One direction of a connection between two points; `uncaptured` packets arrived, but are not in the capture."""

    sent: int
    lost: int
    uncaptured: int
    delay: DelayStats


class Flow(msgspec.Struct, frozen=True):
    """A connection between two points; `nearer` is the point (0 or 1) nearer to the first of its ends."""

    ends: tuple[tuple[str, int], tuple[str, int]]
    nearer: int | None
    ways: tuple[Direction, Direction]


class Pair(msgspec.Struct, frozen=True):
    """Two successive points; `ways` is everything from the first to the second, and back.

    There is no clock if no connection was seen in both directions at both points.
    """

    clock: Clock | None
    matched: int
    ways: tuple[Direction, Direction]
    flows: list[Flow]


class Points(msgspec.Struct, frozen=True):
    """The engine's answer: one pair for every two successive files."""

    schema: str
    pairs: list[Pair]


@dataclass(frozen=True, slots=True)
class JoinedAnswer:
    """The traces of all capture points joined into one, and what happened between the points as lines of text."""

    document: Document
    lines: tuple[str, ...]
    status: int


def match_packets(selection: Selection) -> Points:
    """Return how packets went from each file's point to the next one's.

    Raises `GuestmarkError` for an unreadable file.
    """
    command = [str(find_capture_binary()), "--points", *selection.to_arguments()]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if check_status(done.returncode):
        raise GuestmarkError("the captures were not compared", hint="see the message above")
    points = msgspec.json.decode(done.stdout, type=Points)
    if points.schema != SCHEMA:
        raise GuestmarkError(f"guestmark-capture uses the schema {points.schema}, not {SCHEMA}", hint=BUILD)
    return points


def join_points(selection: Selection, top: int, sequences: int = 0) -> JoinedAnswer:
    """Return one answer from all files of `selection`, with the `top` connections that waited longest.

    Raises `GuestmarkError` if the files have no connection in common.
    """
    points = match_packets(selection)
    files = [PurePath(file).name for file in selection.files]
    for number, pair in enumerate(points.pairs):
        if pair.clock is None:
            raise GuestmarkError(
                f"{files[number]} and {files[number + 1]} have no connection in common in both directions"
                f" ({pair.matched:,} packets match)",
                hint="capture the same connections at both points, at the same time; addresses must not be translated",
            )
    document, status = analyse_capture(selection, Wanted(histograms=sequences > 0, sequences=sequences))
    traces = document.files
    known = [_index_connections(trace) for trace in traces]
    first, last = traces[0], traces[-1]
    connections, apart = [], []
    for name, connection in known[0].items():
        if any(name not in at for at in known):
            continue
        ends = (connection, known[-1][name])
        client, server = ends if _is_client_first(connection, points) else ends[::-1]
        merged, difference = _merge_ends(client, server, lost=_count_lost(connection, points))
        connections.append(merged)
        apart.append(difference)
    if not connections:
        raise GuestmarkError(
            "no connection appears in all captures", hint="capture the same connections at each point"
        )
    connections.sort(key=lambda connection: -(connection.waited_s or 0.0))
    counters = {name: max(trace.counters.get(name, 0) for trace in traces) for name in first.counters}
    counters |= {"one_sided": 0} | verdict.count_totals(connections)
    trace = msgspec.structs.replace(
        first,
        file=" ⇄ ".join(files),
        connections=connections[:top],
        connection_count=len(connections),
        causes=_sum_causes([connection.causes for connection in connections]),
        counters=counters,
        limits=[limit for known_trace in traces for limit in known_trace.limits],
        error=first.error or last.error,
    )
    lines = []
    for number, pair in enumerate(points.pairs):
        lines += _describe_pair(files[number : number + 2], pair)
    far = sum(difference > _TELLING for difference in apart)
    if far:
        lines.append(
            f"{far:,} of {len(apart):,} connections look different from the two ends"
            f" (by up to {format_percent(max(apart))} of their time)"
        )
    return JoinedAnswer(msgspec.structs.replace(document, files=[trace]), tuple(lines), status)


_Name = tuple[str, frozenset[tuple[str, int]], int]


def _index_connections(trace: Trace) -> dict[_Name, Connection]:
    """Return connections by what identifies them at every point: protocol, ends, and number between these ends."""
    named: dict[_Name, Connection] = {}
    counts: dict[tuple[str, frozenset[tuple[str, int]]], int] = {}
    for connection in sorted(trace.connections, key=lambda connection: connection.start_ns):
        ends = frozenset((side.address, side.port) for side in (connection.client, connection.server))
        number = counts[connection.protocol, ends] = counts.get((connection.protocol, ends), 0) + 1
        named[connection.protocol, ends, number] = connection
    return named


def _is_client_first(connection: Connection, points: Points) -> bool:
    """Return True if the first file's point is nearer to the client than the last one's."""
    client = (connection.client.address, connection.client.port)
    ends = {client, (connection.server.address, connection.server.port)}
    for pair in points.pairs:
        for flow in pair.flows:
            if set(flow.ends) == ends and flow.nearer is not None:
                return (flow.nearer == 0) == (flow.ends[0] == client)
    return True


def _count_lost(connection: Connection, points: Points) -> int:
    """Return how many packets of the connection were lost between all points."""
    ends = {(side.address, side.port) for side in (connection.client, connection.server)}
    flows = (flow for pair in points.pairs for flow in pair.flows if set(flow.ends) == ends)
    return sum(way.lost for flow in flows for way in flow.ways)


_OF_CLIENT = ("client_s", "client_receive_buffer_s", "client_send_buffer_s")
_OF_SERVER = ("server_s", "server_receive_buffer_s", "server_send_buffer_s")
_OF_PATH = ("latency_s", "bandwidth_s", "nagle_s", "recovery_s", "idle_s", "unknown_s")


def _merge_ends(client: Connection, server: Connection, lost: int) -> tuple[Connection, float]:
    """Merge a connection as captured next to its client and next to its server.

    Also return the largest difference between the shares of a cause. If nothing was `lost` between the points, no time
    went to recovery: why something was sent again is unknown.
    """
    near, far = client.causes, server.causes
    if near.client_s is None or far.client_s is None:
        return client, 0.0
    shares = [
        {part.cause: part.share for part in verdict.list_cause_shares(causes)} for causes in (near, far)
    ]
    apart = max((abs(share - shares[1].get(cause, 0.0)) for cause, share in shares[0].items()), default=0.0)
    whole = client.duration_s
    # Each end's own time is only seen without the path's delay at the point next to it.
    own = {name: _compute_cause_seconds(near, name) for name in _OF_CLIENT} | {
        name: _compute_cause_seconds(far, name) for name in _OF_SERVER
    }
    # Both ends may work at the same time, but together they cannot take longer than the connection lasted.
    shrink = min(1.0, whole / (sum(own.values()) or 1.0))
    own = {name: value * shrink for name, value in own.items()}
    # Both points see the whole path, so neither counts more.
    path = {
        name: (_compute_cause_seconds(near, name) + _compute_cause_seconds(far, name)) / 2
        for name in _OF_PATH
    }
    if not lost:
        path["unknown_s"] += path["recovery_s"]
        path["recovery_s"] = 0.0
    left = max(whole - sum(own.values()), 0.0)
    between = sum(path.values())
    if between:
        path = {name: value * left / between for name, value in path.items()}
    else:
        path["unknown_s"] = left
    confidences = {client.confidence, server.confidence}
    # The answer is no better than the less certain of the two.
    confidence = next((known for known in ("low", "medium", "high") if known in confidences), None)
    if apart > _TELLING and confidence == "high":
        confidence = "medium"
    causes = Causes(**own, **path)
    joined = msgspec.structs.replace(
        client, causes=causes, confidence=confidence, waited_s=whole - (causes.idle_s or 0.0)
    )
    return joined, apart


def _compute_cause_seconds(causes: Causes, name: str) -> float:
    value: float | None = getattr(causes, name)
    return value or 0.0


def _sum_causes(causes: Sequence[Causes]) -> Causes:
    known = [part for part in causes if part.client_s is not None]
    if not known:
        return Causes()
    return Causes(
        **{
            name: sum(_compute_cause_seconds(part, name) for part in known)
            for name in (*_OF_CLIENT, *_OF_SERVER, *_OF_PATH)
        }
    )


def _describe_pair(files: Sequence[str], pair: Pair) -> list[str]:
    """Return lines on what happened between two points."""
    assert pair.clock is not None
    clock = pair.clock
    ahead = "ahead of" if clock.offset_s >= 0 else "behind"
    skew = ""
    if clock.skew:
        skew = f", gaining {clock.skew * 1e6:+.1f} ± {clock.skew_error * 1e6:.1f} µs per second"
    offset = f"{format_seconds(abs(clock.offset_s))} ± {format_seconds(clock.offset_error_s)}"
    lines = [f"clocks: {files[1]} is {offset} {ahead} {files[0]}{skew} ({pair.matched:,} packets at both)"]
    for way, origin, target in zip(pair.ways, files, reversed(files), strict=True):
        if way.sent:
            lines.append(f"{origin} → {target}: {_describe_direction(way)}")
    losing = []
    for flow in pair.flows:
        for end in (0, 1):
            if flow.ways[end].lost or flow.ways[end].uncaptured:
                losing.append((flow.ends[end], flow.ends[1 - end], flow.ways[end]))
    losing.sort(key=lambda one: -one[2].lost)
    if len(pair.flows) > 1:
        for sender, receiver, way in losing[:_MOST_LINES]:
            lines.append(
                f"{format_host_port(*sender)} → {format_host_port(*receiver)}: {_describe_direction(way)}"
            )
        if len(losing) > _MOST_LINES:
            lines.append(f"… and {len(losing) - _MOST_LINES:,} more that lost packets")
    return lines


def _describe_direction(way: Direction) -> str:
    delay = way.delay
    facts = [
        f"{way.sent:,} packets",
        f"{way.lost:,} lost between the points ({format_share(way.lost / way.sent, 2)})",
    ]
    if way.uncaptured:
        facts.append(f"{way.uncaptured:,} arrived but were not captured")
    if delay.count:
        facts.append(
            f"one-way delay min {format_seconds(delay.min_s)}, median {format_seconds(delay.p50_s)},"
            f" p95 {format_seconds(delay.p95_s)}, max {format_seconds(delay.max_s)}"
        )
    return ", ".join(facts)


def check_several_files(files: Sequence[str]) -> None:
    """Refuse files that cannot be compared. Raises `UsageError`."""
    if len(files) < 2 or "-" in files or len(set(files)) < len(files):
        raise UsageError(
            "--both needs captures from at least two points, each in its own file",
            hint="guestmark capture --both CLIENT.pcapng SERVER.pcapng",
        )
