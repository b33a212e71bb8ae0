"""What is in tunnels, compressed, or timed from row to row has the figures of the plain capture."""

from __future__ import annotations

import bz2
import lzma
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from guestmark.capture.binary import analyse_file
from guestmark.capture.model import Trace
from tests.framework import captures as cf
from tests.unit.capture.test_formats import LIST_HEADER, check

OUTER = ("192.0.2.1", "192.0.2.2")


def look(tmp_path: Path, data: bytes, name: str = "trace") -> Trace:
    path = tmp_path / name
    path.write_bytes(data)
    return analyse_file(path)


def gre(packet: bytes) -> bytes:
    """With a checksum, a key and a sequence number."""
    header = struct.pack(">HHIII", 0xB000, 0x0800, 0, 7, 9)
    return cf.link(cf.ETHERNET, cf.ip(*OUTER, 47, header + packet))


def ethernet_gre(packet: bytes) -> bytes:
    frame = cf.link(cf.ETHERNET, packet)
    return cf.link(cf.ETHERNET, cf.ip(*OUTER, 47, struct.pack(">HH", 0, 0x6558) + frame))


def ip_in_ip(packet: bytes) -> bytes:
    return cf.link(cf.ETHERNET, cf.ip(*OUTER, 4, packet))


def ip_in_ipv6(packet: bytes) -> bytes:
    return cf.link(cf.ETHERNET, cf.ip("2001:db8::1", "2001:db8::2", 4, packet))


def vxlan(packet: bytes) -> bytes:
    frame = cf.link(cf.ETHERNET, packet)
    header = struct.pack(">II", 0x08000000, 42 << 8)
    return cf.link(cf.ETHERNET, cf.udp((OUTER[0], 50_000), (OUTER[1], 4789), header + frame))


def geneve(packet: bytes) -> bytes:
    """With eight bytes of options."""
    frame = cf.link(cf.ETHERNET, packet)
    header = struct.pack(">BBHI", 2, 0, 0x6558, 42 << 8) + bytes(8)
    return cf.link(cf.ETHERNET, cf.udp((OUTER[0], 50_000), (OUTER[1], 6081), header + frame))


def vxlan_over_gre(packet: bytes) -> bytes:
    return gre(vxlan(packet)[14:])


def mpls(packet: bytes) -> bytes:
    labels = struct.pack(">II", 17 << 12 | 64, 18 << 12 | 0x100 | 64)
    return bytes(12) + struct.pack(">H", 0x8847) + labels + packet


def pppoe(packet: bytes) -> bytes:
    header = struct.pack(">BBHHH", 0x11, 0, 1, len(packet) + 2, 0x0021)
    return bytes(12) + struct.pack(">H", 0x8864) + header + packet


@pytest.mark.parametrize(
    "wrap", [gre, ethernet_gre, ip_in_ip, ip_in_ipv6, vxlan, geneve, vxlan_over_gre, mpls, pppoe]
)
def test_tunnels_are_looked_through(tmp_path: Path, wrap: Callable[[bytes], bytes]) -> None:
    packets = [cf.Packet(ns, wrap(packet)) for ns, packet in cf.conversation()]
    trace = look(tmp_path, cf.pcap(packets))
    (connection,) = trace.connections
    check(connection)
    assert connection.client.address == cf.CLIENT[0]
    tunnelled = wrap not in {mpls, pppoe}
    assert trace.counters["tunnelled"] == (len(packets) if tunnelled else 0)


@pytest.mark.parametrize("snaplen", [46, 52, 62, 80, 96])
@pytest.mark.parametrize("wrap", [vxlan, geneve])
def test_what_was_cut_inside_a_tunnel_is_no_flow_of_the_tunnel(
    tmp_path: Path, wrap: Callable[[bytes], bytes], snaplen: int
) -> None:
    frames = [wrap(packet) for _, packet in cf.conversation()]
    trace = look(tmp_path, cf.pcap([cf.Packet(1, frame[:snaplen], len(frame)) for frame in frames]))
    assert (trace.connections, trace.counters["cut_headers"]) == ([], len(frames))


@pytest.mark.parametrize(
    ("kind", "head"), [(9, b"\xff\x03\x00\x21"), (9, b"\x00\x21"), (50, b"\xff\x03\x00\x21")]
)
def test_ppp(tmp_path: Path, kind: int, head: bytes) -> None:
    packets = [cf.Packet(ns, head + packet) for ns, packet in cf.conversation()]
    (connection,) = look(tmp_path, cf.pcap(packets, kind)).connections
    check(connection)


def test_what_cannot_be_looked_through_is_said(tmp_path: Path) -> None:
    secret = cf.link(cf.ETHERNET, cf.ip(*OUTER, 50, bytes(60)))
    trace = look(tmp_path, cf.pcap([cf.Packet(1, secret)]))
    assert [(limit.kind, limit.count) for limit in trace.limits] == [("opaque", 1)]


def test_a_datagram_that_only_has_the_port_is_a_datagram(tmp_path: Path) -> None:
    frame = cf.link(cf.ETHERNET, cf.udp((OUTER[0], 50_000), (OUTER[1], 4789), b"no tunnel at all" * 4))
    (connection,) = look(tmp_path, cf.pcap([cf.Packet(1, frame)])).connections
    assert (connection.server.port, connection.client.payload_bytes) == (4789, 64)


@pytest.mark.parametrize(("name", "compress"), [("xz", lzma.compress), ("bzip2", bz2.compress)])
def test_compressed_captures(tmp_path: Path, name: str, compress: Callable[[bytes], bytes]) -> None:
    plain = cf.pcap(cf.frames(cf.conversation()))
    # Two streams one after the other, as parallel compressors write.
    trace = look(tmp_path, compress(plain[:500]) + compress(plain[500:]))
    check(trace.connections[0])
    assert trace.compression == name


@pytest.mark.parametrize("compress", [lzma.compress, bz2.compress])
def test_a_compressed_capture_that_breaks_off_is_an_error(
    tmp_path: Path, compress: Callable[[bytes], bytes]
) -> None:
    from guestmark.core.errors import GuestmarkError

    whole = compress(cf.pcap(cf.frames(cf.conversation())))
    with pytest.raises(GuestmarkError, match="at byte"):
        look(tmp_path, whole[:-20])


@pytest.mark.parametrize("heading", ["Time", "Delta time"])
def test_times_between_rows_are_added_up(tmp_path: Path, heading: str) -> None:
    text = LIST_HEADER.replace("Time", heading)
    rows = [
        (0, "2", "1", "1028 > 8000 [SYN] Seq=0 Win=65535 Len=0 MSS=1460"),
        (20, "1", "2", "8000 > 1028 [SYN, ACK] Seq=0 Ack=1 Win=5840 Len=0 MSS=1460"),
        (300, "2", "1", "1028 > 8000 [ACK] Seq=1 Ack=1 Win=65535 Len=0"),
        (5, "2", "1", "1028 > 8000 [PSH, ACK] Seq=1 Ack=1 Win=65535 Len=100"),
        (20, "1", "2", "8000 > 1028 [ACK] Seq=1 Ack=101 Win=5840 Len=1000"),
        (5, "1", "2", "8000 > 1028 [ACK] Seq=1001 Ack=101 Win=5840 Len=1000"),
        (300, "2", "1", "1028 > 8000 [ACK] Seq=101 Ack=2001 Win=65535 Len=0"),
        (5, "2", "1", "1028 > 8000 [FIN, ACK] Seq=101 Ack=2001 Win=65535 Len=0"),
        (20, "1", "2", "8000 > 1028 [FIN, ACK] Seq=2001 Ack=102 Win=5840 Len=0"),
        (300, "2", "1", "1028 > 8000 [ACK] Seq=102 Ack=2002 Win=65535 Len=0"),
    ]
    for number, (micros, source, target, info) in enumerate(rows, 1):
        cells = [number, f"0.{micros:06}", f"10.0.6.{source}", f"10.0.6.{target}", "TCP", 66, info]
        text += ",".join(f'"{cell}"' for cell in cells) + "\n"
    check(look(tmp_path, text.encode()).connections[0])
