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
from guestmark.capture.binary import Selection, Wanted, analyse_capture, analyse_file
from guestmark.capture.model import Connection, Side, Trace
from guestmark.capture.table import render_trace
from tests.framework import IMPORTABLE
from tests.framework import captures as cf
from tests.framework import traffic as ct
from tests.framework.marks import long
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
    ct.relayed(folder, *BY_NAME)
    return folder


@pytest.fixture(scope="module")
def points(captures: Path) -> tuple[Trace, Trace]:
    return analyse_file(captures / "client.pcapng"), analyse_file(captures / "server.pcapng")


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    main = "import sys; from guestmark.cli import main; sys.exit(main())"
    words = [sys.executable, "-c", main, "capture", *arguments]
    environment = {**os.environ, "PYTHONPATH": IMPORTABLE}
    return subprocess.run(
        words, env=environment, input="", capture_output=True, text=True, timeout=60, check=False
    )


def connection_of(trace: Trace, scenario: Scenario) -> Connection:
    (connection,) = [known for known in trace.connections if known.server.port == scenario.port]
    return connection


def shares(connection: Connection) -> dict[str, float]:
    return {part.cause: part.share for part in verdict.list_cause_shares(connection.causes)}


@pytest.mark.parametrize("name", TRUTH)
def test_the_cause_is_found_at_both_ends(name: str, points: tuple[Trace, Trace]) -> None:
    cause, least = TRUTH[name]
    for trace in points:
        connection = connection_of(trace, BY_NAME[name])
        found = shares(connection)
        assert max(found, key=lambda part: found[part]) == cause, found
        assert found[cause] >= least, (found, trace.file)


def test_both_ends_find_the_same_causes(points: tuple[Trace, Trace]) -> None:
    """What a busy machine does to one end of some connections leaves most of them alone (exact: test_capture_model)."""
    apart = {}
    for scenario in TCP:
        near, far = (shares(connection_of(trace, scenario)) for trace in points)
        apart[str(scenario.name)] = max(abs(share - far[cause]) for cause, share in near.items())
    assert sorted(apart.values())[len(apart) // 2] < 0.05, apart


def test_the_causes_add_up_to_the_duration(points: tuple[Trace, Trace]) -> None:
    for trace in points:
        for connection in trace.connections:
            causes = connection.causes
            total = sum(getattr(causes, f"{cause}_s") or 0.0 for cause in verdict.CAUSE_NAMES)
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


def picked(path: Path, *options: str) -> list[list[str]]:
    """Time, lengths, sender and number of each packet, as tshark reads them."""
    names = ["frame.time_epoch", "frame.len", "frame.cap_len", "tcp.srcport", "tcp.seq_raw", "tcp.ack_raw"]
    words = [word for name in names for word in ("-e", name)]
    text = ct.run("tshark", "-r", str(path), *options, "-T", "fields", *words)
    return [line.split("\t") for line in text.splitlines()]


@pytest.mark.parametrize(("name", "end"), [("slow server", "server"), ("slow client", "client")])
@pytest.mark.parametrize("point", [long("client"), "server"])
def test_the_guilty_packets_are_those_of_the_slow_end(
    name: str, end: str, point: str, captures: Path, tmp_path: Path
) -> None:
    port, source, out = BY_NAME[name].port, captures / f"{point}.pcapng", tmp_path / "guilty.pcapng"
    done = command("--filter", str(port), "--extract", str(out), str(source))
    assert done.returncode == 0, done.stderr
    taken = picked(out)
    assert taken
    assert taken == picked(source, "-Y", done.stderr.strip().split("for Wireshark: ")[1])
    assert {int(sender) == port for _, _, _, sender, _, _ in taken} == {end == "server"}


def test_the_packets_that_ended_the_longest_waits_are_named(tmp_path: Path) -> None:
    q, a = cf.CLIENT, cf.SERVER
    steps = [
        (0, cf.tcp(q, a, cf.SYN, 1000)),
        (20_000, cf.tcp(a, q, cf.SYN | cf.ACK, 5000, 1001)),
        (20_300, cf.tcp(q, a, cf.ACK, 1001, 5001)),
    ]
    now = 20_300
    for turn, think in enumerate((300_000, 700_000, 1_000)):  # µs; the answers are frames 5, 7 and 9
        c, s = 1001 + 10 * turn, 5001 + 20 * turn
        steps.append((now + 400, cf.tcp(q, a, cf.PSH | cf.ACK, c, s, b"q" * 10)))
        now += 400 + 20_000 + think
        steps.append((now, cf.tcp(a, q, cf.PSH | cf.ACK, s, c + 10, b"a" * 20)))
    path, out = tmp_path / "thinks.pcap", tmp_path / "guilty.pcapng"
    path.write_bytes(
        cf.pcap(cf.frames([(10**18 + 1000 * micros, packet) for micros, packet in steps]), nanos=True)
    )
    (trace,) = analyse_capture(Selection((str(path),)), Wanted(guilty=True))[0].files
    packets = verdict.find_guilty_packets(trace)
    assert [packet.frame for packet in packets][:2] == [7, 5]
    assert [packet.waited_s for packet in packets][:2] == pytest.approx([0.7, 0.3], abs=0.001)
    done = command("--extract", str(out), str(path))
    assert done.returncode == 0, done.stderr
    whole, blocks = list(cf.packets_of(path)), cf.enhanced_in(out.read_bytes())
    assert blocks == [
        (whole[frame - 1].ns, whole[frame - 1].data) for frame in sorted(p.frame for p in packets)
    ]
    assert verdict.make_display_filter(packets) in done.stderr


def test_packets_are_taken_out_of_one_capture_only(captures: Path, tmp_path: Path) -> None:
    one, two, out = captures / "client.pcapng", captures / "server.pcapng", tmp_path / "out.pcapng"
    for arguments in ((str(one), str(two)), (str(one), "--format", "json"), ("-",)):
        done = command(*arguments, "--extract", str(out))
        assert (done.returncode, out.exists()) == (2, False)
        assert "Traceback" not in done.stderr
    before = one.read_bytes()
    done = command(str(one), "--extract", str(one))
    assert done.returncode == 2
    assert one.read_bytes() == before


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
    assert side.rtt.min_s == pytest.approx(max(min(fields.trips), 0.0), abs=2e-9), name
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
    console.print(render_trace(analyse_file(path), "connection", named=False, width=200))
    assert "SYN not answered, sent 4 times" in console.export_text()
