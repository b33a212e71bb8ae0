"""Combines captures at several points of a path into one answer: each host's own time as seen next to that host.

The engine matches the packets by content and aligns the clocks (`guestmark-capture --points`). Here, the causes of a
connection at its two outer points become one, and what happened between the points becomes text.
"""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Iterator, Sequence
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
    first, last = traces[0], traces[-1]
    connections, apart = _merge_connections(traces, points)
    if not connections:
        raise GuestmarkError(
            "no connection appears in all captures", hint="capture the same connections at each point"
        )
    connections.sort(key=lambda connection: -(connection.waited_s or 0.0))
    counters = _join_counters(traces) | {"one_sided": 0} | verdict.count_totals(connections)
    trace = msgspec.structs.replace(
        first,
        file=" ⇄ ".join(files),
        connections=connections[:top],
        connection_count=len(connections),
        causes=_sum_causes([connection.causes for connection in connections]),
        counters=counters,
        limits=list(itertools.chain.from_iterable(known.limits for known in traces)),
        error=first.error or last.error,
    )
    lines = []
    for number, pair in enumerate(points.pairs):
        lines += _describe_pair(files[number : number + 2], pair)
    far = [difference for difference in apart if difference > _TELLING]
    if far:
        lines.append(
            f"{len(far):,} of {len(apart):,} connections look different from the two ends"
            f" (by up to {format_percent(max(far))} of their time)"
        )
    return JoinedAnswer(msgspec.structs.replace(document, files=[trace]), tuple(lines), status)


def _merge_connections(traces: Sequence[Trace], points: Points) -> tuple[list[Connection], list[float]]:
    """Merge the connections that all points saw; also return how much the shares differ between each one's ends."""
    known = [_index_connections(trace) for trace in traces]
    everywhere = set(known[0]).intersection(*known)
    connections, apart = [], []
    for name, connection in known[0].items():
        if name not in everywhere:
            continue
        client, server = connection, known[-1][name]
        if not _is_client_first(connection, points):
            client, server = server, client
        merged, difference = _merge_ends(client, server, lost=_count_lost(connection, points))
        connections.append(merged)
        apart.append(difference)
    return connections, apart


def _join_counters(traces: Sequence[Trace]) -> dict[str, int]:
    """Return the counters of the first trace, each with its largest value in any trace."""
    counters = {}
    for name in traces[0].counters:
        counters[name] = max(trace.counters.get(name, 0) for trace in traces)
    return counters


_Ends = frozenset[tuple[str, int]]
_Name = tuple[str, _Ends, int]


def _index_connections(trace: Trace) -> dict[_Name, Connection]:
    """Return connections by what identifies them at every point: protocol, ends, and number between these ends."""
    named: dict[_Name, Connection] = {}
    counts: dict[tuple[str, _Ends], int] = {}
    for connection in sorted(trace.connections, key=lambda connection: connection.start_ns):
        ends = _collect_ends(connection)
        number = counts[connection.protocol, ends] = counts.get((connection.protocol, ends), 0) + 1
        named[connection.protocol, ends, number] = connection
    return named


def _is_client_first(connection: Connection, points: Points) -> bool:
    """Return True if the first file's point is nearer to the client than the last one's."""
    client = (connection.client.address, connection.client.port)
    for flow in _list_flows(connection, points):
        if flow.nearer is not None:
            return (flow.nearer == 0) == (flow.ends[0] == client)
    return True


def _count_lost(connection: Connection, points: Points) -> int:
    """Return how many packets of the connection were lost between all points."""
    lost = 0
    for flow in _list_flows(connection, points):
        lost += sum(way.lost for way in flow.ways)
    return lost


def _list_flows(connection: Connection, points: Points) -> Iterator[Flow]:
    """Yield how the packets of a connection went between each two points."""
    ends = _collect_ends(connection)
    for pair in points.pairs:
        for flow in pair.flows:
            if set(flow.ends) == ends:
                yield flow


def _collect_ends(connection: Connection) -> _Ends:
    return frozenset((side.address, side.port) for side in connection.sides)


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
    apart = _compare_shares(near, far)
    causes = _merge_causes(near, far, client.duration_s, lost)
    # The answer is no better than the less certain of the two.
    confidence = _find_least_confidence(client, server)
    if apart > _TELLING and confidence == "high":
        confidence = "medium"
    joined = msgspec.structs.replace(
        client,
        causes=causes,
        confidence=confidence,
        waited_s=client.duration_s - (causes.idle_s or 0.0),
    )
    return joined, apart


def _compare_shares(near: Causes, far: Causes) -> float:
    """Return the largest difference between the shares of a cause; 0 if those of `near` are unknown."""
    far_shares = {part.cause: part.share for part in verdict.list_cause_shares(far)}
    largest = 0.0
    for part in verdict.list_cause_shares(near):
        largest = max(largest, abs(part.share - far_shares.get(part.cause, 0.0)))
    return largest


def _merge_causes(near: Causes, far: Causes, whole: float, lost: int) -> Causes:
    """Merge what the points next to the client and next to the server saw of a connection of `whole` seconds."""
    # Each end's own time is only seen without the path's delay at the point next to it.
    own = _collect_cause_seconds(near, _OF_CLIENT) | _collect_cause_seconds(far, _OF_SERVER)
    # Both ends may work at the same time, but together they cannot take longer than the connection lasted.
    shrink = min(1.0, whole / (sum(own.values()) or 1.0))
    own = {name: value * shrink for name, value in own.items()}
    # Both points see the whole path, so neither counts more.
    path = {}
    for name in _OF_PATH:
        path[name] = (_compute_cause_seconds(near, name) + _compute_cause_seconds(far, name)) / 2
    if not lost:
        path["unknown_s"] += path["recovery_s"]
        path["recovery_s"] = 0.0
    left = max(whole - sum(own.values()), 0.0)
    between = sum(path.values())
    if between:
        path = {name: value * left / between for name, value in path.items()}
    else:
        path["unknown_s"] = left
    return Causes(**own, **path)


def _find_least_confidence(client: Connection, server: Connection) -> str | None:
    for confidence in ("low", "medium", "high"):
        if confidence in {client.confidence, server.confidence}:
            return confidence
    return None


def _collect_cause_seconds(causes: Causes, names: Sequence[str]) -> dict[str, float]:
    return {name: _compute_cause_seconds(causes, name) for name in names}


def _compute_cause_seconds(causes: Causes, name: str) -> float:
    value: float | None = getattr(causes, name)
    return value or 0.0


def _sum_causes(causes: Sequence[Causes]) -> Causes:
    known = [part for part in causes if part.client_s is not None]
    if not known:
        return Causes()
    seconds = {}
    for name in (*_OF_CLIENT, *_OF_SERVER, *_OF_PATH):
        seconds[name] = sum(_compute_cause_seconds(part, name) for part in known)
    return Causes(**seconds)


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
