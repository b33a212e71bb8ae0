"""Who is slow, by cause: real traffic through a relay, captured at both of its ends."""

from __future__ import annotations

import csv
import io
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from guestmark.capture import verdict
from guestmark.capture.binary import analyse_file
from guestmark.capture.model import Connection, Side, Trace
from guestmark.capture.table import render
from tests.framework import IMPORTABLE
from tests.framework import captures as cf
from tests.framework import traffic as ct
from tests.framework.scenarios import SCENARIOS, Scenario

# The cause that takes most of the time, and at least how much of it.
TRUTH = {
    "far": ("latency", 0.9),
    "slow client": ("client", 0.5),
    "slow server": ("server", 0.5),
    "deaf client": ("client", 0.6),
    "losing ends": ("recovery", 0.4),
    "mixing link": ("latency", 0.6),
    "idle": ("idle", 0.8),
    "narrow link": ("bandwidth", 0.8),
    "narrow upload": ("bandwidth", 0.8),
    "slow stream": ("server", 0.8),
    "tftp": ("server", 0.8),
    "dhcp": ("client", 0.8),
}
BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
TCP = [scenario for scenario in SCENARIOS if not scenario.udp]


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with client.pcapng and server.pcapng: every scenario, at the same time."""
    ct.need("dumpcap", "tshark")
    folder = tmp_path_factory.mktemp("two-points")
    done = subprocess.run(
        [sys.executable, "-m", "tests.framework.relay", str(folder), *BY_NAME],
        env={**os.environ, "PYTHONPATH": IMPORTABLE},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, f"the relay needs root and /dev/net/tun: {done.stderr}"
    return folder


@pytest.fixture(scope="module")
def points(captures: Path) -> tuple[Trace, Trace]:
    return analyse_file(captures / "client.pcapng"), analyse_file(captures / "server.pcapng")


def connection_of(trace: Trace, scenario: Scenario) -> Connection:
    (connection,) = [known for known in trace.connections if known.server.port == scenario.port]
    return connection


def shares(connection: Connection) -> dict[str, float]:
    return {part.cause: part.share for part in verdict.parts(connection.causes)}


@pytest.mark.parametrize("name", TRUTH)
def test_the_cause_is_found_at_both_ends(name: str, points: tuple[Trace, Trace]) -> None:
    cause, least = TRUTH[name]
    for trace in points:
        connection = connection_of(trace, BY_NAME[name])
        found = shares(connection)
        assert max(found, key=lambda part: found[part]) == cause, found
        assert found[cause] >= least, (found, trace.file)


@pytest.mark.parametrize("scenario", TCP, ids=lambda scenario: str(scenario.name))
def test_both_ends_tell_the_same_story(scenario: Scenario, points: tuple[Trace, Trace]) -> None:
    near, far = (shares(connection_of(trace, scenario)) for trace in points)
    for cause, share in near.items():
        assert share == pytest.approx(far[cause], abs=0.05), (cause, near, far)


def test_the_causes_add_up_to_the_duration(points: tuple[Trace, Trace]) -> None:
    for trace in points:
        for connection in trace.connections:
            causes = connection.causes
            total = sum(getattr(causes, f"{cause}_s") or 0.0 for cause in verdict.NAMES)
            assert total == pytest.approx(connection.duration_s, abs=1e-6)


def test_a_transfer_is_one_flow_however_its_server_answers(points: tuple[Trace, Trace]) -> None:
    for trace in points:
        connection = connection_of(trace, BY_NAME["tftp"])
        assert (connection.client.address, connection.server.address) == ("10.9.1.1", "10.9.1.2")
        (transfer,) = [exchange for exchange in trace.exchanges if exchange.protocol == "tftp"]
        assert (transfer.name, transfer.bytes, transfer.count) == ("pxelinux.0", 60_000, 118)
        assert transfer.server_s > 10 * transfer.client_s
        assert transfer.answers.p50_s is not None
        assert transfer.answers.p50_s >= 0.01


def test_a_lease_shows_who_waited(points: tuple[Trace, Trace]) -> None:
    for trace in points:
        (lease,) = [exchange for exchange in trace.exchanges if exchange.protocol == "dhcp"]
        assert [message.kind for message in lease.messages] == ["discover", "offer", "request", "ack"]
        assert (lease.client, lease.server) == ("52-54-00-12-34-56", "10.9.1.2")
        assert lease.client_s == pytest.approx(1.0, abs=0.2)
        assert lease.server_s == pytest.approx(0.04, abs=0.1)


def test_questions_are_told_from_their_repeats(points: tuple[Trace, Trace]) -> None:
    turns = BY_NAME["dns"].turns
    for trace in points:
        (names,) = [exchange for exchange in trace.exchanges if exchange.protocol == "dns"]
        assert (names.server, names.count, names.repeated, names.unanswered) == ("10.9.1.2", turns + 2, 2, 1)
        assert names.answers.count == turns + 1
        # The one that was asked twice took as long as its first asking.
        assert names.answers.min_s is not None
        assert names.answers.max_s is not None
        assert names.answers.min_s >= 0.015
        assert names.answers.max_s >= 0.2 + 0.015


class Fields:
    """What tshark's analysis says of the packets one end sent."""

    def __init__(self) -> None:
        self.trips: list[float] = []
        self.windows: list[int] = []
        self.in_flight: list[int] = []
        self.sacks = 0


def by_tshark(path: Path) -> dict[tuple[str, str], Fields]:
    """By source and destination port."""
    names = ["tcp.srcport", "tcp.dstport", "tcp.analysis.ack_rtt", "tcp.window_size", "tcp.flags.syn"]
    names += ["tcp.flags.reset", "tcp.analysis.bytes_in_flight", "tcp.options.sack.count"]
    options = [word for name in names for word in ("-e", name)]
    text = ct.run("tshark", "-r", str(path), "-Y", "tcp", "-T", "fields", "-E", "separator=;", *options)
    found: dict[tuple[str, str], Fields] = defaultdict(Fields)
    for source, target, trip, window, syn, reset, flight, sacks in csv.reader(
        io.StringIO(text), delimiter=";"
    ):
        fields = found[source, target]
        fields.trips += [float(trip)] if trip else []
        fields.windows += [int(window)] if syn == reset == "0" else []
        fields.in_flight += [int(flight)] if flight else []
        fields.sacks += bool(sacks)
    return found


@pytest.mark.parametrize("end", ["client", "server"])
def test_round_trips_windows_and_flights_are_those_of_tshark(
    end: str, captures: Path, points: tuple[Trace, Trace]
) -> None:
    theirs = by_tshark(captures / f"{end}.pcapng")
    trace = points[0] if end == "client" else points[1]
    for scenario in TCP:
        connection = connection_of(trace, scenario)
        pairs = ((connection.client, connection.server), (connection.server, connection.client))
        for side, other in pairs:
            fields = theirs[str(side.port), str(other.port)]
            _assert_same(side, fields, scenario.name)
            # Wireshark takes off what was selectively acknowledged.
            if fields.in_flight and not other.sacks:
                assert side.in_flight_max == max(fields.in_flight), scenario.name


def _assert_same(side: Side, fields: Fields, name: str) -> None:
    assert side.rtt.count == len(fields.trips), name
    assert side.rtt.min_s == pytest.approx(min(fields.trips), abs=2e-9), name
    assert side.rtt.max_s == pytest.approx(max(fields.trips), abs=2e-9), name
    assert side.rtt.mean_s == pytest.approx(sum(fields.trips) / len(fields.trips), abs=2e-9), name
    ranked = sorted(fields.trips)
    assert side.rtt.p99_s == pytest.approx(ranked[-(-99 * len(ranked) // 100) - 1], rel=0.008), name
    assert (side.window_min, side.window_max) == (min(fields.windows), max(fields.windows)), name
    assert side.sacks == fields.sacks, name


@pytest.mark.parametrize(("interfaces", "alone"), [(1, 0), (2, 0), (1, 3)])
def test_packets_captured_twice_are_counted_once(
    interfaces: int, alone: int, captures: Path, points: tuple[Trace, Trace], tmp_path: Path
) -> None:
    ct.need("editcap")
    plain, twice = tmp_path / "plain.pcap", tmp_path / "twice.pcapng"
    ct.run("editcap", "-F", "nsecpcap", str(captures / "client.pcapng"), str(plain))
    once = list(cf.packets_of(plain))
    twice.write_bytes(cf.doubled(once, cf.RAW, interfaces, alone))
    single, double, repeated = points[0], analyse_file(twice), cf.repeats(once)
    unnumbered = cf.unnumbered(once)
    assert "copies" in {limit.kind for limit in double.limits}
    assert "copies" not in {limit.kind for limit in single.limits}
    for scenario in TCP:
        whole, doubled = connection_of(single, scenario), connection_of(double, scenario)
        sides = ((whole.client, doubled.client), (whole.server, doubled.server))
        there = 2 * sum(side.packets for side, _ in sides) - alone
        assert sum(its.packets + its.copies for _, its in sides) == there, scenario.name
        for side, its in sides:
            # On one interface, what the network doubled may be taken for one more copy.
            again = side.packets - its.packets
            # So may one that says nothing of its number (which wraps around) and that others came in between.
            if interfaces == 1 and again < 0:
                assert -again <= unnumbered[side.port], scenario.name
                continue
            most = repeated[side.port] if interfaces == 1 and scenario.link.double else 0
            assert 0 <= again <= most, scenario.name
            assert its.unique_bytes == side.unique_bytes, scenario.name
            assert its.retransmissions == side.retransmissions - again, scenario.name
            assert its.missing_bytes == side.missing_bytes, scenario.name
            assert its.out_of_order == side.out_of_order, scenario.name


def test_an_unanswered_syn_is_told_with_its_repeats(tmp_path: Path) -> None:
    from rich.console import Console

    syn = cf.tcp(cf.CLIENT, cf.SERVER, cf.SYN, 1000)
    steps = [(second * 10**9, syn) for second in (0, 1, 3, 7)]
    path = tmp_path / "unanswered.pcap"
    path.write_bytes(cf.pcap(cf.frames(steps)))
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(render(analyse_file(path), "connection", named=False, width=200))
    assert "SYN not answered, sent 4 times" in console.export_text()
