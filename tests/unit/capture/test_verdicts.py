"""Accusations that were wrong once, on real traffic through a relay that is captured at both ends.

The exact captures of the same are in test_capture_model.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from guestmark.capture import verdict
from guestmark.capture.binary import Selection, Wanted, analyse_capture, analyse_file
from guestmark.capture.model import Connection, Trace
from guestmark.capture.points import join_points
from guestmark.capture.startup import find_startup
from guestmark.core.errors import GuestmarkError
from tests.framework import captures as cf
from tests.framework import disturbed
from tests.framework import traffic as ct
from tests.framework.command_line import CommandLine
from tests.framework.known import known
from tests.framework.scenarios import VERDICTS
from tests.unit.capture.test_exchanges import ACK, DISCOVER, OFFER, REQUEST, lease

PORTS = {scenario.name: scenario.port for scenario in VERDICTS}
POINTS = ("client", "server")
TRUTH = {
    "slow reader": "client",
    "slow upload reader": "server",
    "small receive buffer": "client_receive_buffer",
    "small send buffer": "server_send_buffer",
    "jitter without loss": "latency",
    "Nagle": "nagle",
    "Nagle, jitter": "nagle",
    "very far": "latency",
    "thinking": "server",
    "pause in an answer": "server",
    "pause in a request": "client",
    "first request after a while": "client",
    "swallowed answer": "recovery",
    "swallowed upload": "recovery",
}


@pytest.fixture(scope="module")
def relayed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    ct.need("dumpcap", "tshark", "editcap")
    folder = tmp_path_factory.mktemp("verdicts")
    ct.relayed(folder, *PORTS)
    for point in POINTS:
        ct.run("editcap", "-F", "nsecpcap", str(folder / f"{point}.pcapng"), str(folder / f"{point}.pcap"))
    return folder


@pytest.fixture(scope="module")
def points(relayed: Path) -> dict[str, Trace]:
    return {point: analyse_file(relayed / f"{point}.pcap") for point in POINTS}


def packets(relayed: Path, point: str, name: str) -> list[cf.Packet]:
    """What one connection's packets are at one point."""
    there = cf.packets_of(relayed / f"{point}.pcap")
    return [packet for packet in there if PORTS[name] in cf.ports(packet)]


def judged(found: list[cf.Packet], folder: Path) -> Trace:
    path = folder / "suffered.pcap"
    path.write_bytes(disturbed.written(found))
    return analyse_file(path)


def connection(trace: Trace, name: str) -> Connection:
    def is_it(known: Connection) -> bool:
        return PORTS[name] in {known.server.port, known.client.port}

    # Of a crowd it is the one that has said something.
    return max(filter(is_it, trace.connections), key=lambda known: known.client.unique_bytes)


def shares(trace: Trace, name: str) -> dict[str, float]:
    return {part.cause: part.share for part in verdict.list_cause_shares(connection(trace, name).causes)}


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("name", TRUTH)
def test_time_belongs_to_whoever_would_have_had_to_act(
    name: str, point: str, points: dict[str, Trace]
) -> None:
    found = shares(points[point], name)
    assert max(found, key=lambda cause: found[cause]) == TRUTH[name], found
    others = sum(found[end] for end in ("client", "server") if end != TRUTH[name])
    assert others < 0.1, found


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("name", [name for name in TRUTH if "small" not in name and "swallow" not in name])
def test_nothing_is_recovered_where_nothing_was_lost(name: str, point: str, points: dict[str, Trace]) -> None:
    assert shares(points[point], name)["recovery"] < 0.03


def test_both_ends_of_a_path_that_loses_tell_the_same(points: dict[str, Trace]) -> None:
    near, far = (shares(points[point], "loss 3 %") for point in POINTS)
    assert near["recovery"] > 0.2
    assert max(abs(share - far[cause]) for cause, share in near.items()) < 0.1, (near, far)


def test_a_connection_whose_first_packet_was_lost_is_longer_for_the_client(points: dict[str, Trace]) -> None:
    """It waits for its second attempt, a second later; the server never sees the first."""
    near, far = (connection(points[point], "lost SYN") for point in POINTS)
    assert near.causes.recovery_s == pytest.approx(1.0, abs=0.2)
    assert far.causes.recovery_s == 0
    assert near.duration_s - known(near.causes.recovery_s) == pytest.approx(far.duration_s, abs=0.2)


@pytest.mark.parametrize("name", ["very far", "thinking", "loss 3 %"])
def test_captures_of_both_ends_in_one_file_get_no_verdict(name: str, relayed: Path, tmp_path: Path) -> None:
    both = disturbed.together(*(packets(relayed, point, name) for point in POINTS))
    trace = judged(both, tmp_path)
    doubt = verdict.find_doubt(trace)
    assert doubt is not None
    assert doubt.refused
    assert "merged" in doubt.reason
    assert trace.causes.recovery_s == 0


def test_a_path_that_dies_is_nobodys_idleness(points: dict[str, Trace]) -> None:
    """The server repeats what it sent. The client cannot tell a path that died from a server that stopped."""
    near, far = (shares(points[point], "dying path") for point in POINTS)
    assert near["unknown"] > 0.7, near
    assert far["recovery"] > 0.7, far
    assert connection(points["client"], "dying path").confidence == "low"


def test_a_full_accept_queue_is_the_servers(points: dict[str, Trace], relayed: Path) -> None:
    """At the server it is seen that nothing was lost; at the client, whether something was cannot be told."""
    near, far = (shares(points[point], "full accept queue") for point in POINTS)
    assert far["server"] > 0.9, far
    assert near["unknown"] > 0.5, near
    files = tuple(str(relayed / f"{point}.pcap") for point in POINTS)
    (trace,) = join_points(Selection(files), 100).document.files
    both = shares(trace, "full accept queue")
    assert both["server"] > 0.9, both
    assert both["recovery"] == 0, both


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("others", [2, 50, 1000])
def test_what_a_host_sends_elsewhere_is_no_loss(
    others: float, swapped: bool, point: str, relayed: Path, tmp_path: Path
) -> None:
    whole = packets(relayed, point, "thinking")
    trace = judged(disturbed.counted_by_host(whole, others, swapped), tmp_path)
    found = shares(trace, "thinking")
    assert found["recovery"] == 0, found
    assert max(found, key=lambda cause: found[cause]) == "server", found


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("name", ["thinking", "slow reader", "very far", "small receive buffer"])
def test_what_a_capture_lost_is_never_recovery(name: str, point: str, relayed: Path, tmp_path: Path) -> None:
    whole = packets(relayed, point, name)
    for kept in (
        disturbed.thinned(whole, 0.05),
        disturbed.thinned(whole, 0.2),
        disturbed.with_holes(whole, 0.1),
        disturbed.with_holes(whole, 0.3),
    ):
        trace = judged(kept, tmp_path)
        found = shares(trace, name)
        assert found["recovery"] < 0.02, found
        assert verdict.find_doubt(trace) is not None
        main = max(found, key=lambda cause: found[cause])
        doubt = verdict.find_doubt(trace)
        assert main in {TRUTH[name], "unknown"} or (doubt and doubt.refused), found


def test_packets_that_the_capture_dropped_lower_the_confidence(
    relayed: Path, tmp_path: Path, guestmark: CommandLine
) -> None:
    """The same packets without and with the count that dumpcap would have written."""
    found = packets(relayed, "client", "thinking")
    blocks = [cf.section(), cf.interface(cf.RAW, 9), *(cf.enhanced(packet, packet.ns) for packet in found)]
    said = []
    for dropped in (0, 7):
        count = cf.option(5, dropped.to_bytes(8, "little")) + cf.option(0, b"")
        path = tmp_path / f"{dropped}.pcapng"
        path.write_bytes(b"".join([*blocks, cf.block(5, bytes(12) + count)]))
        said.append(guestmark("capture", str(path)).stdout)
    assert "low confidence" not in said[0]
    assert "low confidence: the capture dropped 7 packets" in said[1]


def test_fields_that_tshark_writes_are_refused(relayed: Path, tmp_path: Path) -> None:
    names = ["frame.time_epoch", "ip.src", "tcp.srcport", "ip.dst", "tcp.dstport", "tcp.len", "tcp.flags"]
    words = [word for name in names for word in ("-e", name)]
    header = ["-T", "fields", "-E", "header=y", "-E", "separator=,", "-E", "quote=d"]
    path = tmp_path / "fields.csv"
    path.write_text(ct.run("tshark", "-r", str(relayed / "client.pcap"), "-c", "200", *header, *words))
    with pytest.raises(GuestmarkError, match="no column Info"):
        analyse_file(path)


def test_cells_are_inert_in_a_terminal_and_in_a_spreadsheet(tmp_path: Path, guestmark: CommandLine) -> None:
    head = '"No.","Time","Source","Destination","Protocol","Length","Info"\n'
    path = tmp_path / "list.csv"
    evil = ("=cmd|' /C calc'!A0", "+1", "\x1b]0;owned\x07")
    rows = [
        f'"{at}","0.{at}","{name}","s","TCP","60","1{at} > 80 [SYN] Seq=0 Win=9 Len=0"'
        for at, name in enumerate(evil)
    ]
    path.write_text(head + "\n".join(rows) + "\n")
    written = guestmark("capture", path, "-f", "csv").stdout
    assert "\x1b" not in written
    assert "'=cmd" in written
    assert "'+1" in written
    assert "\x1b" not in guestmark("capture", path, "-f", "json").stdout


def test_a_capture_that_was_joined_with_itself_lost_nothing(tmp_path: Path) -> None:
    """Every packet is there again, at the same times: what looked like repeats at first were copies."""
    start, way = 1_272_975_194_000_000_000, 30_000_000
    client, server = cf.CLIENT, cf.SERVER
    steps = [
        (0, cf.tcp(client, server, cf.SYN, 0, 0)),
        (way, cf.tcp(server, client, cf.SYN | cf.ACK, 0, 1)),
        (way + 1_000_000, cf.tcp(client, server, cf.ACK, 1, 1)),
        (way + 4_000_000, cf.tcp(client, server, cf.ACK | cf.PSH, 1, 1, b"hello")),
        (2 * way, cf.tcp(server, client, cf.ACK | cf.PSH, 1, 6, b"answer")),
        (2 * way + 1_000_000, cf.tcp(client, server, cf.ACK | cf.PSH, 6, 7, b"thanks")),
        (3 * way, cf.tcp(server, client, cf.ACK, 7, 12)),
    ]
    once = cf.frames([(start + at, packet) for at, packet in steps])
    path = tmp_path / "joined.pcap"
    path.write_bytes(cf.pcap([*once, *once], nanos=True))
    (found,) = analyse_file(path).connections
    assert found.causes.recovery_s == 0
    assert found.confidence == "low"


LISTED = pytest.mark.parametrize("top", [1, 20, None])


def listed(packets: list[cf.Packet], folder: Path, top: int | None) -> Trace:
    """What is found where only some connections are listed."""
    path = folder / "many.pcap"
    path.write_bytes(cf.pcap(sorted(packets, key=lambda packet: packet.ns), nanos=True))
    trace = analyse_capture(Selection((str(path),)), Wanted(top=top))[0].files[0]
    assert len(trace.connections) == min(top or 99, trace.connection_count)
    return trace


def forty_conversations() -> list[list[cf.Packet]]:
    """Some milliseconds each; the first ten are shorter than the others."""
    starts = [1_272_975_194_000_000_000 + at * 10**8 for at in range(40)]
    every = [
        cf.frames(cf.conversation((cf.CLIENT[0], 2000 + at), start=at_ns)) for at, at_ns in enumerate(starts)
    ]
    slower = [
        [cf.Packet(one.ns + at * 300_000, one.data) for at, one in enumerate(two)] for two in every[10:]
    ]
    return every[:10] + slower


@LISTED
def test_bytes_are_missing_whichever_connections_are_listed(top: int | None, tmp_path: Path) -> None:
    """The ten that waited least lack half of their data."""
    every = forty_conversations()
    packets = [one for two in every[:10] for at, one in enumerate(two) if at != 4]
    doubt = verdict.find_doubt(listed(packets + [one for two in every[10:] for one in two], tmp_path, top))
    assert doubt is not None
    assert doubt.refused
    assert "lost 11.90 % of the bytes" in doubt.reason


@LISTED
def test_what_began_before_counts_whichever_connections_are_listed(top: int | None, tmp_path: Path) -> None:
    every = forty_conversations()
    packets = [one for two in every[:10] for one in two[3:]]
    packets += [one for at, two in enumerate(every[10:]) for one in (two[3:] if at >= 20 else two)]
    doubt = verdict.find_doubt(listed(packets, tmp_path, top))
    assert doubt is not None
    assert not doubt.refused
    assert "belongs to connections that began before the capture" in doubt.reason


@LISTED
def test_a_boot_has_all_its_fetches_whichever_connections_are_listed(top: int | None, tmp_path: Path) -> None:
    every = forty_conversations()
    granted = every[0][0].ns - 10**9
    steps = lease(9, (0.0, True, DISCOVER), (20.0, False, OFFER), (21.0, True, REQUEST), (30.0, False, ACK))
    frames = [cf.Packet(granted + round(ms * 1e6), cf.link(cf.ETHERNET, packet)) for ms, packet in steps]
    found = find_startup(listed(frames + [one for two in every for one in two], tmp_path, top))
    assert known(found).fetched == 40
    assert known(found).bytes == 40 * 2000
