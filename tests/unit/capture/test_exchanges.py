"""Exchanges over UDP, message by message: what is sent again, what is captured twice, and what is granted."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from guestmark.capture.binary import Selection, Wanted, analyse_capture, analyse_file
from guestmark.capture.model import Exchange, Trace
from guestmark.capture.startup import find_lease, find_startup
from guestmark.capture.table import describe_exchange
from tests.framework import captures as cf
from tests.framework.known import known

BEGUN = 10**18
CLIENT, ASKED, SERVER = ("10.0.6.2", 3000), ("10.0.6.1", 69), ("10.0.6.1", 4000)
BOTH_FAMILIES = pytest.mark.parametrize(
    "hosts", [("10.0.6.2", "10.0.6.1"), ("2001:db8::2", "2001:db8::1")], ids=["IPv4", "IPv6"]
)

Step = tuple[float, bytes]  # milliseconds, IP packet


def look(folder: Path, steps: Iterable[Step], snaplen: int | None = None) -> Trace:
    frames = [(BEGUN + round(ms * 1e6), cf.link(cf.ETHERNET, packet)) for ms, packet in steps]
    path = folder / "exchange.pcap"
    path.write_bytes(cf.pcap([cf.Packet(ns, data[:snaplen], len(data)) for ns, data in frames], nanos=True))
    return analyse_file(path)


def look_twice(folder: Path, steps: Iterable[Step]) -> Trace:
    """The same on a bridge and, 50 µs later, on one of its ports."""
    out = cf.section() + cf.interface(cf.RAW, tsresol=9) + cf.interface(cf.RAW, tsresol=9)
    seen = [
        (BEGUN + round(ms * 1e6) + place * 50_000, place, packet) for ms, packet in steps for place in (0, 1)
    ]
    for ns, place, packet in sorted(seen):
        out += cf.enhanced(cf.Packet(ns, packet), ns, place)
    path = folder / "twice.pcapng"
    path.write_bytes(out)
    return analyse_capture(Selection((str(path),)), Wanted(requests=True))[0].files[0]


def asked(write: bool = False) -> bytes:
    return struct.pack(">H", 2 if write else 1) + b"kernel\0octet\0"


def block(number: int, size: int = 512) -> bytes:
    return struct.pack(">HH", 3, number) + bytes(size)


def acked(number: int) -> bytes:
    return struct.pack(">HH", 4, number)


def transfer(*said: tuple[float, bool, bytes]) -> list[Step]:
    """What passes after the request at 0 ms: (milliseconds, sent by the client, message)."""
    steps = [(0.0, cf.udp(CLIENT, ASKED, asked()))]
    for ms, by_client, message in said:
        server = ASKED if message == asked() else SERVER
        ends = (CLIENT, server) if by_client else (server, CLIENT)
        steps.append((ms, cf.udp(*ends, message)))
    return [(ms, cf.numbered(packet, number)) for number, (ms, packet) in enumerate(steps, 1)]


def lease(number: int, *said: tuple[float, bool, int], given: bytes = b"\n\0\6\2") -> list[Step]:
    """What passes of the DHCP exchange `number`: (milliseconds, sent by the client, type of the message)."""
    steps: list[Step] = []
    for ms, by_client, kind in said:
        head = struct.pack(">BBBBI", 1 if by_client else 2, 1, 6, 0, number) + bytes(8)
        head += (bytes(4) if by_client else given) + bytes(8) + bytes.fromhex("525400123456")
        message = head.ljust(236, b"\0") + b"\x63\x82\x53\x63" + bytes([53, 1, kind, 255])
        ends = ("0.0.0.0", 68), ("255.255.255.255", 67)
        if not by_client:
            ends = ("10.0.6.1", 67), ("255.255.255.255", 68)
        steps.append((ms, cf.numbered(cf.udp(*ends, message), 1 + len(steps))))
    return steps


DISCOVER, OFFER, REQUEST, ACK, NAK, INFORM = 1, 2, 3, 5, 6, 8
GRANTED = ((0.0, True, DISCOVER), (20.0, False, OFFER), (21.0, True, REQUEST), (30.0, False, ACK))


def only(trace: Trace, protocol: str) -> Exchange:
    (found,) = [exchange for exchange in trace.exchanges if exchange.protocol == protocol]
    return found


# ---- contents ------------------------------------------------------------------------------------------------


@BOTH_FAMILIES
@pytest.mark.parametrize("checksum", [cf.unfinished_checksum, lambda *_: 0], ids=["unfinished", "none"])
def test_datagrams_differ_by_contents_where_no_checksum_tells(
    checksum: Callable[[str, str, bytes], int], hosts: tuple[str, str], tmp_path: Path
) -> None:
    """A system whose network card completes checksums leaves the same one in datagrams of the same length."""
    ends = (hosts[0], 4000), (hosts[1], 5000)
    beats = [f"heartbeat {at:22}".encode() for at in range(20)]
    steps = [(300.0 * at, cf.udp(*ends, text, checksum(*hosts, text))) for at, text in enumerate(beats)]
    answer = cf.udp(*ends[::-1], b"seen", checksum(*hosts[::-1], b"seen"))
    steps.append((6000.0, answer))
    (found,) = look(tmp_path, steps).connections
    assert (found.client.packets, found.client.retransmissions, found.causes.recovery_s) == (20, 0, 0)
    # One that is sent again is known all the same.
    again = [(300.0, steps[0][1]), (600.0, steps[0][1]), (900.0, answer)]
    (found,) = look(tmp_path, again).connections
    assert found.client.retransmissions == 1
    assert found.causes.recovery_s == pytest.approx(0.3)
    # Nothing is known of contents that were cut.
    (found,) = look(tmp_path, again, snaplen=70).connections
    assert found.client.retransmissions == 0


@BOTH_FAMILIES
def test_two_first_packets_of_quic_differ_by_contents(hosts: tuple[str, str], tmp_path: Path) -> None:
    ends = (hosts[0], 50_443), (hosts[1], 443)
    head = bytes.fromhex("c000000001088394c8f03e5157080000449e")
    texts = [head + bytes([at]) * (1200 - len(head)) for at in (1, 2, 2)]
    steps = [
        (float(ms), cf.udp(*ends, text, cf.unfinished_checksum(*hosts, text)))
        for ms, text in zip((0, 1, 300), texts, strict=True)
    ]
    found = only(look(tmp_path, steps), "quic")
    assert found.repeated == 1
    assert found.recovery_s == pytest.approx(0.299)


# ---- copies --------------------------------------------------------------------------------------------------


def test_copies_are_no_repeated_messages(tmp_path: Path) -> None:
    said = [
        (10.0, False, block(1)),
        (11.0, True, acked(1)),
        (20.0, False, block(2, 100)),
        (21.0, True, acked(2)),
    ]
    head = bytes.fromhex("c000000001088394c8f03e5157080000449e")
    initial = cf.udp(("10.0.6.2", 50_443), ("10.0.6.1", 443), head.ljust(1200, b"i"), 7)
    query = struct.pack(">HHHHHH", 7, 0x0100, 1, 0, 0, 0) + b"\1a\4test\0\0\1\0\1"
    name = cf.udp(("10.0.6.2", 4001), ("10.0.6.1", 53), query, 8)
    steps = [*transfer(*said), *((1000 + ms, packet) for ms, packet in lease(9, *GRANTED))]
    trace = look_twice(tmp_path, [*steps, (2000.0, initial), (2001.0, name)])
    counts = {exchange.protocol: (exchange.repeated, len(exchange.messages)) for exchange in trace.exchanges}
    assert counts == {"tftp": (0, 5), "dhcp": (0, 4), "quic": (0, 1), "dns": (0, 0)}
    sent = only(trace, "tftp")
    assert (sent.count, sent.bytes, sent.recovery_s) == (2, 612, 0)
    assert [served.repeated for served in trace.requests] == [0]
    # Copies go to the flow that their messages belong to, and are counted once there.
    assert len(trace.connections) == 4
    assert sorted(found.client.packets + found.server.packets for found in trace.connections) == [1, 1, 4, 5]
    assert trace.counters["copies"] == len(steps) + 2


# ---- repeats -------------------------------------------------------------------------------------------------


def test_a_block_that_is_sent_again_after_a_lost_acknowledgement_counts_once(tmp_path: Path) -> None:
    found = only(
        look(
            tmp_path,
            transfer(
                (10.0, False, block(1)),
                (11.0, True, acked(1)),  # lost behind the point of capture
                (1010.0, False, block(1)),
                (1011.0, True, acked(1)),
                (1015.0, False, block(2, 100)),
                (1016.0, True, acked(2)),
            ),
        ),
        "tftp",
    )
    assert (found.count, found.bytes, found.repeated) == (2, 612, 2)
    assert found.recovery_s == pytest.approx(1.0)
    assert found.server_s == pytest.approx(0.014)
    assert found.answers.max_s == pytest.approx(0.010)


def test_blocks_that_are_sent_again_together_count_once(tmp_path: Path) -> None:
    """The server sends four blocks at once (RFC 7440), and the acknowledgement of the last one is lost."""
    four = [(number, block(number)) for number in range(1, 5)]
    said = [(10.0 + number, False, data) for number, data in four]
    said += [(15.0, True, acked(4))]
    said += [(1015.0 + number, False, data) for number, data in four]
    said += [(1020.0, True, acked(4)), (1021.0, False, block(5, 1))]
    found = only(look(tmp_path, transfer(*said)), "tftp")
    assert (found.count, found.bytes, found.repeated) == (5, 4 * 512 + 1, 5)
    assert found.recovery_s == pytest.approx(1.005)


@pytest.mark.parametrize("lost", ["acknowledgement", "data", "request"])
def test_a_connection_loses_its_time_to_what_its_transfer_does(lost: str, tmp_path: Path) -> None:
    """Whoever waits for its timer, the time is the loss's, also where the other end spoke last."""
    said = {
        "acknowledgement": [(10.0, False, block(1)), (11.0, True, acked(1)), (1010.0, False, block(1))],
        "data": [(10.0, False, block(1)), (1010.0, False, block(1))],
        "request": [(1000.0, True, asked()), (1010.0, False, block(1))],
    }[lost]
    trace = look(tmp_path, transfer(*said, (1011.0, True, acked(1)), (1012.0, False, block(2, 9))))
    found = only(trace, "tftp")
    (connection,) = trace.connections
    causes = connection.causes
    assert found.recovery_s == pytest.approx(1.0, abs=0.02)
    assert causes.recovery_s == pytest.approx(found.recovery_s)
    assert (causes.client_s, causes.server_s) == pytest.approx((found.client_s, found.server_s))


@st.composite
def lossy_transfers(draw: st.DrawFn) -> list[tuple[float, bool, bytes]]:
    """Blocks and acknowledgements in turns; either may be lost beyond the capture, and is sent again after a timer."""
    said: list[tuple[float, bool, bytes]] = []
    now_ms = 0.0
    for number in range(1, draw(st.integers(2, 6))):
        for by_client, message in ((False, block(number)), (True, acked(number))):
            now_ms += draw(st.floats(0.1, 40))
            said.append((now_ms, by_client, message))
            for _ in range(draw(st.integers(0, 2))):
                # An acknowledgement that was lost is sent again after the block that its server sends again.
                now_ms += draw(st.floats(200, 3000))
                if by_client:
                    said.append((now_ms, False, block(number)))
                    now_ms += draw(st.floats(0.1, 40))
                said.append((now_ms, by_client, message))
    return said


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lossy_transfers())
def test_causes_and_exchange_agree_about_every_loss(
    tmp_path: Path, said: list[tuple[float, bool, bytes]]
) -> None:
    trace = look(tmp_path, transfer(*said))
    found = only(trace, "tftp")
    (connection,) = trace.connections
    causes = connection.causes
    own = (found.client_s, found.server_s, found.recovery_s)
    assert (causes.client_s, causes.server_s, causes.recovery_s) == pytest.approx(own, abs=1e-6)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(st.sampled_from((DISCOVER, OFFER, REQUEST, ACK)), st.floats(0.1, 9000)),
        min_size=1,
        max_size=9,
    )
)
def test_causes_and_exchange_agree_about_every_lease(tmp_path: Path, rest: list[tuple[int, float]]) -> None:
    said, now_ms = [(0.0, True, DISCOVER), (20.0, False, OFFER)], 20.0
    for kind, gap_ms in rest:
        now_ms += gap_ms
        said.append((now_ms, kind in {DISCOVER, REQUEST}, kind))
    trace = look(tmp_path, lease(9, *said))
    found = only(trace, "dhcp")
    (connection,) = trace.connections
    causes = connection.causes
    own = (found.client_s, found.server_s, found.recovery_s)
    assert (causes.client_s, causes.server_s, causes.recovery_s) == pytest.approx(own, abs=1e-6)


def test_a_lease_that_is_renewed_repeats_nothing(tmp_path: Path) -> None:
    hours = 3_600_000.0
    renewed = [(hours, True, REQUEST), (hours + 5, False, ACK)]
    found = only(look(tmp_path, lease(9, *GRANTED, *renewed)), "dhcp")
    assert (found.repeated, found.recovery_s) == (0, 0)
    lost = [(21.0 + 4000, True, REQUEST), (30.0 + 4000, False, ACK)]
    found = only(look(tmp_path, lease(9, *GRANTED, *lost)), "dhcp")
    assert found.repeated == 2
    assert found.client_s < 0.1


def test_who_asks_for_further_offers_waits_by_choice(tmp_path: Path) -> None:
    """As iPXE does; an offer that nobody answers is asked for again."""
    chosen = [(0.0, True, DISCOVER), (1.0, False, OFFER), (1000.0, True, DISCOVER), (1001.0, False, OFFER)]
    found = only(look(tmp_path, lease(9, *chosen, (3000.0, True, REQUEST), (3001.0, False, ACK))), "dhcp")
    assert (found.repeated, found.recovery_s) == (0, 0)
    assert found.client_s > 2.9
    found = only(
        look(tmp_path, lease(9, (0.0, True, DISCOVER), (1000.0, True, DISCOVER), (1001.0, False, OFFER))),
        "dhcp",
    )
    assert found.repeated == 1


# ---- what is said --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "last", [(OFFER,), (OFFER, NAK), (INFORM, ACK)], ids=["offer", "refusal", "information"]
)
def test_only_an_acknowledgement_grants_an_address(last: tuple[int, ...], tmp_path: Path) -> None:
    said = [(0.0, True, DISCOVER)]
    said += [(10.0 * at, kind in {REQUEST, INFORM}, kind) for at, kind in enumerate(last, 1)]
    given = bytes(4) if INFORM in last else b"\n\0\6\2"
    fetched = [(ns / 1e6 - BEGUN / 1e6, packet) for ns, packet in cf.conversation(start=BEGUN + 10**9)]
    trace = look(tmp_path, [*lease(9, *said, given=given), *fetched])
    assert only(trace, "dhcp").server
    assert find_lease(trace) is None
    assert find_startup(trace) is None


def test_an_address_is_granted_when_it_is_acknowledged(tmp_path: Path) -> None:
    """The lease is renewed after the fetch."""
    fetched = [(ns / 1e6 - BEGUN / 1e6, packet) for ns, packet in cf.conversation(start=BEGUN + 10**9)]
    renewed = [(90_000.0, True, REQUEST), (90_005.0, False, ACK)]
    found = known(find_startup(look(tmp_path, [*lease(9, *GRANTED, *renewed), *fetched])))
    assert found.fetched == 1
    assert found.address_s == pytest.approx(0.030)
    assert found.waiting_s == pytest.approx(0.970)


def test_an_upload_goes_to_the_server(tmp_path: Path) -> None:
    steps = [(0.0, cf.udp(CLIENT, ASKED, asked(write=True)))]
    for ms, by_client, message in ((1.0, False, acked(0)), (2.0, True, block(1, 9)), (3.0, False, acked(1))):
        ends = (CLIENT, SERVER) if by_client else (SERVER, CLIENT)
        steps.append((ms, cf.udp(*ends, message)))
    line = describe_exchange(only(look(tmp_path, steps), "tftp"))
    assert line.startswith("TFTP kernel from 10.0.6.2 to 10.0.6.1, 1 blocks, 9 B")
