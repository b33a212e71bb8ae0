"""Captures at several points of a path, and one answer of them: exact models, and real traffic through a relay."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from guestmark.capture import verdict
from guestmark.capture.binary import Selection
from guestmark.capture.points import join_points, match_packets
from guestmark.core.errors import GuestmarkError
from tests.framework import IMPORTABLE
from tests.framework import captures as cf
from tests.framework import traffic as ct
from tests.framework.tcp_model import MSS, Model, conversations

MAIN = "import sys; from guestmark.cli import main; sys.exit(main())"


def written(model: Model, folder: Path, ahead_ms: float = 0.0, gained: float = 0.0) -> tuple[str, str]:
    """The captures at both ends; the server's clock is `ahead_ms` at first and gains so many seconds each second."""
    names = (folder / "client.pcap", folder / "server.pcap")
    for name, at_client in zip(names, (True, False), strict=True):
        name.write_bytes(model.seen_at(at_client))
    there = list(cf.packets_of(names[1]))
    first = there[0].ns
    moved = [
        cf.Packet(round(packet.ns + ahead_ms * 1e6 + (packet.ns - first) * gained), packet.data)
        for packet in there
    ]
    names[1].write_bytes(cf.pcap(moved, nanos=True))
    return str(names[0]), str(names[1])


@pytest.mark.parametrize(("ahead_ms", "gained"), [(0, 0.0), (5_000, 0.0), (-3_600_000, 50e-6), (7, -20e-6)])
def test_clocks_are_aligned_within_their_error(ahead_ms: float, gained: float, tmp_path: Path) -> None:
    model = conversations(400, 10)
    (pair,) = match_packets(Selection(written(model, tmp_path, ahead_ms, gained))).pairs
    assert pair.clock is not None
    half = (model.sent[-1][0] - model.sent[0][0]) / 2e3
    expected = ahead_ms / 1e3 + half * gained
    assert abs(pair.clock.offset_s - expected) <= min(pair.clock.offset_error_s, 0.001), pair.clock
    assert abs(pair.clock.skew - gained) <= 5e-6, pair.clock
    for way in pair.ways:
        assert way.lost == way.uncaptured == 0
        assert way.delay.min_s == pytest.approx(0.010, abs=0.0005)
        assert way.delay.max_s == pytest.approx(0.012, abs=0.0007)


def test_what_was_lost_on_the_path_is_told_from_what_a_capture_lost(tmp_path: Path) -> None:
    model = conversations(100, 10, lose=frozenset({5, 20, 77}))
    files = written(model, tmp_path)
    (pair,) = match_packets(Selection(files)).pairs
    there, back = pair.ways
    assert (there.lost, there.uncaptured, back.lost, back.uncaptured) == (0, 0, 3, 0)
    # The client's capture loses four answers that arrived.
    seen = list(cf.packets_of(Path(files[0])))
    answers = [at for at, packet in enumerate(seen) if len(packet.data) > MSS]
    kept = [packet for at, packet in enumerate(seen) if at not in answers[30:70:10]]
    Path(files[0]).write_bytes(cf.pcap(kept, nanos=True))
    (pair,) = match_packets(Selection(files)).pairs
    assert (pair.ways[1].lost, pair.ways[1].uncaptured) == (3, 4)


def test_acknowledgements_are_lost_only_where_the_other_capture_is_complete(tmp_path: Path) -> None:
    files = written(conversations(100, 10), tmp_path)
    seen = list(cf.packets_of(Path(files[1])))
    bare = [at for at, packet in enumerate(seen) if len(packet.data) == 54 and packet.data[47] == cf.ACK][
        20:60:10
    ]
    asked = next(at for at, packet in enumerate(seen) if at > bare[0] and len(packet.data) == 154)
    for missing, counts in ((bare, (4, 0)), ([*bare, asked], (0, 1))):
        kept = [packet for at, packet in enumerate(seen) if at not in missing]
        Path(files[1]).write_bytes(cf.pcap(kept, nanos=True))
        (pair,) = match_packets(Selection(files)).pairs
        assert (pair.ways[0].lost, pair.ways[0].uncaptured) == counts
        assert (pair.ways[1].lost, pair.ways[1].uncaptured) == (0, 0)


@pytest.mark.parametrize("order", [1, -1], ids=["client first", "server first"])
def test_each_hosts_time_is_measured_next_to_it(order: int, tmp_path: Path) -> None:
    files = written(conversations(60, 25), tmp_path, ahead_ms=900)
    found = join_points(Selection(files[::order]), 20)
    (trace,) = found.document.files
    shares = {part.cause: part.share for part in verdict.list_cause_shares(trace.causes)}
    # Of 30 + 2 × 27 + 1 ms a turn.
    assert shares["server"] == pytest.approx(30 / 85, abs=0.03), shares
    assert shares["latency"] == pytest.approx(54 / 85, abs=0.04), shares
    assert shares["client"] < 0.03, shares
    assert any("900 ms" in line for line in found.lines), found.lines


def test_a_third_point_in_between_is_compared_with_its_neighbours(tmp_path: Path) -> None:
    model = conversations(80, 10, lose=frozenset({7}))
    client, server = written(model, tmp_path)
    between = tmp_path / "between.pcap"
    middle = sorted(
        (at + 4 if by_client else at + way - 4, data)
        for at, by_client, way, data in model.sent
        if not math.isinf(way)
    )
    steps = [(10**18 + round(ms * 1e6), data) for ms, data in middle]
    between.write_bytes(cf.pcap(cf.frames(steps), nanos=True))
    points = match_packets(Selection((client, str(between), server)))
    assert len(points.pairs) == 2
    assert points.pairs[0].ways[1].lost == 0
    assert points.pairs[1].ways[1].lost == 1


def test_captures_without_a_common_connection_are_refused(tmp_path: Path) -> None:
    one, _ = written(conversations(5, 10), tmp_path)
    other = tmp_path / "other.pcap"
    conversation = cf.conversation(client=("10.1.1.1", 999))
    other.write_bytes(cf.pcap(cf.frames(conversation), nanos=True))
    with pytest.raises(GuestmarkError, match="no connection in common"):
        join_points(Selection((one, str(other))), 20)
    done = subprocess.run(
        [sys.executable, "-c", MAIN, "capture", "--both", one],
        env={**os.environ, "PYTHONPATH": IMPORTABLE},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "at least two points" in done.stderr


def test_real_traffic_through_a_relay_is_matched(tmp_path: Path) -> None:
    ct.need("dumpcap")
    ct.relayed(tmp_path, "losing link", "far", "slow server")
    files = (str(tmp_path / "client.pcapng"), str(tmp_path / "server.pcapng"))
    (pair,) = match_packets(Selection(files)).pairs
    assert pair.clock is not None
    # One machine has one clock; the relay delays both ways alike, but for what holds it up.
    assert abs(pair.clock.offset_s) <= pair.clock.offset_error_s
    flows = {max(end[1] for end in flow.ends if end[1] < 8000): flow for flow in pair.flows}
    lost = {port: flow.ways[0].lost + flow.ways[1].lost for port, flow in flows.items()}
    assert lost[7001] == lost[7003] == 0
    assert lost[7005] >= 720_000 // 1448 // 37 - 2
    for port, way_s in ((7001, 0.015), (7003, 0.01), (7005, 0.02)):
        for way in flows[port].ways:
            assert way.delay.min_s == pytest.approx(way_s, abs=0.002)
