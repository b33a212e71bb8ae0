"""Every format, link type and byte order gives the same figures, which are known because the files are made here."""

from __future__ import annotations

import gzip
import io
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console

from guestmark.capture import picture, table
from guestmark.capture.binary import Selection, Wanted, analyse_capture, analyse_file, find_capture_binary
from guestmark.capture.model import Connection, Trace
from tests.framework import captures as cf
from tests.framework.traffic import need, run

V6 = ("2001:db8::2", 1028), ("2001:db8::1", 8000)


def look(tmp_path: Path, data: bytes, name: str = "trace") -> Trace:
    path = tmp_path / name
    path.write_bytes(data)
    return analyse_file(path)


def check(connection: Connection, nanos: int = 1000) -> None:
    """The figures of `capture_files.conversation`; `nanos` is the clock's resolution."""
    c, s = connection.client, connection.server
    assert (c.port, s.port, connection.captured, connection.roles) == (1028, 8000, "whole", "handshake")
    assert (c.packets, c.payload_bytes, c.unique_bytes) == (6, 100, 100)
    assert (s.packets, s.payload_bytes, s.unique_bytes) == (4, 2000, 2000)
    # Gaps: 20+300+5+20+5+300+5+20+300 microseconds; those between packets of the same side are nobody's.
    assert connection.duration_ns == 975_000
    assert (c.response.count, s.response.count) == (3, 3)
    assert c.response.mean_s == pytest.approx(300e-6, abs=1e-15)
    assert s.response.mean_s == pytest.approx(20e-6, abs=1e-15)
    assert (c.response.min_s, c.response.max_s) == (300e-6, 300e-6)
    assert connection.unknown_share == pytest.approx(15 / 975)
    assert connection.handshake_s == 320e-6
    assert (c.mss, s.mss) == (1460, 1460)
    assert connection.start_ns % nanos == 0


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("nanos", [False, True])
@pytest.mark.parametrize("ends", [(cf.CLIENT, cf.SERVER), V6])
def test_pcap(tmp_path: Path, order: str, nanos: bool, ends: tuple[tuple[str, int], tuple[str, int]]) -> None:
    trace = look(tmp_path, cf.pcap(cf.frames(cf.conversation(*ends)), order=order, nanos=nanos))
    (connection,) = trace.connections
    check(connection)
    assert trace.format == "pcap"
    assert connection.client.address == ends[0][0]
    assert trace.limits[0].kind == "near_server"


@pytest.mark.parametrize("kind", [cf.NULL, cf.ETHERNET, cf.RAW, cf.LOOP, cf.SLL, cf.SLL2, 228, 12])
@pytest.mark.parametrize("ends", [(cf.CLIENT, cf.SERVER), V6])
def test_link_types(tmp_path: Path, kind: int, ends: tuple[tuple[str, int], tuple[str, int]]) -> None:
    (connection,) = look(tmp_path, cf.pcap(cf.frames(cf.conversation(*ends), kind), kind)).connections
    check(connection)


@pytest.mark.parametrize("tags", [[0x8100], [0x88A8, 0x8100], [0x9100, 0x8100, 0x8100]])
@pytest.mark.parametrize("kind", [cf.ETHERNET, cf.SLL, cf.SLL2])
def test_vlan_and_qinq(tmp_path: Path, kind: int, tags: Sequence[int]) -> None:
    (connection,) = look(tmp_path, cf.pcap(cf.frames(cf.conversation(), kind, tags), kind)).connections
    check(connection)


def test_ipv6_extension_headers(tmp_path: Path) -> None:
    eight = bytes(6)
    extensions = [
        (0, b"\0" + eight),
        (60, b"\0" + eight),
        (43, b"\0" + eight),
        (44, bytes(7)),
        (51, b"\4" + bytes(22)),
    ]
    steps = [
        (ns, cf.ip(V6[0][0], V6[1][0], 6, p[40:], extensions) if p[8:24] == cf_source(V6[0][0]) else p)
        for ns, p in cf.conversation(*V6)
    ]
    (connection,) = look(tmp_path, cf.pcap(cf.frames(steps))).connections
    check(connection)


def cf_source(address: str) -> bytes:
    import ipaddress

    return ipaddress.ip_address(address).packed


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(
    ("tsresol", "per_second"),
    [(None, 10**6), (6, 10**6), (9, 10**9), (12, 10**12), (3, 10**3), (0x94, 2**20), (0xA0, 2**32)],
)
def test_pcapng_clocks(tmp_path: Path, order: str, tsresol: int | None, per_second: int) -> None:
    """Each interface's resolution; the offset moves the start and nothing else."""
    offset = 1_272_975_190
    out = cf.section(order) + cf.interface(cf.ETHERNET, tsresol, offset, order)
    for packet in cf.frames(cf.conversation()):
        ticks = (packet.ns - offset * 10**9) * per_second // 10**9
        out += cf.enhanced(packet, ticks, order=order)
    (connection,) = look(tmp_path, out).connections
    assert connection.duration_s == pytest.approx(975e-6, abs=2 / per_second + 1e-9)
    assert connection.start_ns == pytest.approx(1_272_975_194_000_000_000, abs=1)
    if per_second >= 10**6 and not (tsresol or 0) & 0x80:
        check(connection)


def test_pcapng_sections_and_interfaces(tmp_path: Path) -> None:
    """Two sections of different byte order; the second one's packets come over two interfaces of two link types."""
    first = cf.section("<") + cf.interface(cf.RAW, 9)
    for ns, packet in cf.conversation():
        first += cf.enhanced(cf.Packet(ns, packet), ns)
    second = cf.section(">") + cf.interface(cf.ETHERNET, 9, order=">") + cf.interface(cf.SLL, 6, order=">")
    for at, (ns, packet) in enumerate(cf.conversation(*V6)):
        kind = (cf.ETHERNET, cf.SLL)[at % 2]
        ticks = (ns, ns // 1000)[at % 2]
        second += cf.enhanced(cf.Packet(ns, cf.link(kind, packet)), ticks, at % 2, ">")
    trace = look(tmp_path, first + cf.block(0xBAD, b"ignored?") + second)
    for connection in trace.connections:
        check(connection)
    assert [connection.client.address for connection in trace.connections] == ["10.0.6.2", "2001:db8::2"]
    assert trace.counters["clock_backwards"] == 0


@pytest.mark.parametrize(("by_packets", "by_statistics"), [(10, 0), (0, 10), (10, 10), (4, 10), (10, 4)])
def test_packets_that_were_dropped_count_once(tmp_path: Path, by_packets: int, by_statistics: int) -> None:
    """A packet says how many were dropped before it; the statistics count the same ones."""
    import struct

    out = cf.section() + cf.interface(cf.ETHERNET, 9)
    for at, packet in enumerate(cf.frames(cf.conversation())):
        dropped = {3: by_packets // 2, 7: by_packets - by_packets // 2}.get(at, 0)
        options = cf.option(4, struct.pack("<Q", dropped)) + cf.option(0, b"")
        out += cf.enhanced(packet, packet.ns, options=options)
    options = cf.option(5, struct.pack("<Q", by_statistics)) + cf.option(0, b"")
    out += cf.block(5, struct.pack("<III", 0, 0, 0) + options)
    assert look(tmp_path, out).counters["dropped"] == 10


def test_pcapng_directions_drops_and_simple_packets(tmp_path: Path) -> None:
    import struct

    out = cf.section() + cf.interface(cf.ETHERNET, 9)
    for packet in cf.frames(cf.conversation()):
        sent = packet.data[26:30] == bytes([10, 0, 6, 2])
        out += cf.enhanced(
            packet, packet.ns, options=cf.option(2, struct.pack("<I", 2 if sent else 1)) + cf.option(0, b"")
        )
    frame = cf.frames(cf.conversation())[0].data
    out += cf.block(3, struct.pack("<I", len(frame)) + frame)
    out += cf.block(5, struct.pack("<III", 0, 0, 0) + cf.option(5, struct.pack("<Q", 7)) + cf.option(0, b""))
    trace = look(tmp_path, out)
    assert trace.connections[0].capture_point == "client"
    assert trace.counters["dropped"] == 7
    assert trace.counters["untimed"] == 1
    assert {"dropped", "untimed", "near_client"} <= {limit.kind for limit in trace.limits}


@pytest.mark.parametrize("how", ["gzip", "gzip twice", "zstd"])
def test_compressed(tmp_path: Path, how: str) -> None:
    data = cf.pcap(cf.frames(cf.conversation()))
    if how == "zstd":
        need("zstd")
        packed = subprocess.run(["zstd", "-c"], input=data, capture_output=True, check=True).stdout
    else:
        half = len(data) // 2 if how == "gzip twice" else len(data)
        packed = gzip.compress(data[:half]) + (gzip.compress(data[half:]) if how == "gzip twice" else b"")
    trace = look(tmp_path, packed)
    check(trace.connections[0])
    assert trace.compression == how.removesuffix(" twice")


def test_standard_input(tmp_path: Path) -> None:
    data = cf.pcap(cf.frames(cf.conversation()))
    line = run(str(find_capture_binary()), "--format=tcp-stats", "-", stdin=data)
    assert line.startswith("10.0.6.1:irdmi-10.0.6.2:1028 duration=0.000975")


@pytest.mark.parametrize("form", ["pcap", "pcapng"])
def test_a_large_file_is_read_as_a_pipe_is_read(tmp_path: Path, form: str) -> None:
    """Files from a megabyte on are read and counted by two threads: the same document, to the last figure."""
    steps = [
        step
        for number in range(500)
        for step in cf.conversation(
            ("10.0.6.2", 2000 + number), start=1_272_975_194_000_000_000 + number * 1_000_000
        )
    ]
    packets = cf.frames(steps)
    if form == "pcap":
        data = cf.pcap(packets)
    else:
        blocks = [cf.enhanced(packet, packet.ns // 1000) for packet in packets]
        data = cf.section() + cf.interface() + b"".join(blocks)
    path = tmp_path / "trace"
    path.write_bytes(data)
    assert len(data) > 1 << 20
    apart = run(str(find_capture_binary()), "--format=csv", str(path))
    piped = run(str(find_capture_binary()), "--format=csv", "-", stdin=data)
    assert apart.replace(str(path), "-") == piped
    assert apart.count("\n") == 501
    assert analyse_file(path).connections[-1].duration_ns == 975_000


LIST_HEADER = '"No.","Time","Source","Destination","Protocol","Length","Info"\n'


def test_the_exported_packet_list(tmp_path: Path) -> None:
    """As old and new Wireshark write it: service names, both arrows, rows of HTTP without ports, UDP, ARP."""
    rows = [
        ("0.000000", "c", "s", "TCP", 74, "1028 > irdmi [SYN] Seq=0 Win=65535 Len=0 MSS=1460"),
        ("0.000020", "s", "c", "TCP", 74, "irdmi > 1028 [SYN, ACK] Seq=0 Ack=1 Win=5840 Len=0 MSS=1460"),
        ("0.000320", "c", "s", "TCP", 66, "1028  →  8000 [ACK] Seq=1 Ack=1 Win=65535 Len=0"),
        ("0.000325", "c", "s", "HTTP", 166, "GET /100m, please HTTP/1.1 "),
        ("0.000330", "x", "y", "ARP", 60, "Who has 10.0.6.1? Tell 10.0.6.2"),
        ("0.000345", "s", "c", "TCP", 1066, "irdmi > 1028 [ACK] Seq=1 Ack=101 Win=5840 Len=1000"),
        ("0.000350", "s", "c", "TCP", 1066, "[TCP segment of a reassembled PDU]"),
        ("0.000650", "c", "s", "TCP", 66, "1028 > irdmi [ACK] Seq=101 Ack=2001 Win=65535 Len=0"),
        ("0.000655", "c", "s", "TCP", 66, "1028 > irdmi [FIN, ACK] Seq=101 Ack=2001 Win=65535 Len=0"),
        ("0.000675", "s", "c", "TCP", 66, "irdmi > 1028 [FIN, ACK] Seq=2001 Ack=102 Win=5840 Len=0"),
        (
            "0.000975",
            "c",
            "s",
            "TCP",
            66,
            "[TCP Keep-Alive ACK] 1028 > irdmi [ACK] Seq=102 Ack=2002 Win=65535 Len=0",
        ),
    ]
    names = {"c": "10.0.6.2", "s": "10.0.6.1"}
    text = LIST_HEADER
    for number, (time, src, dst, *rest) in enumerate(rows, 1):
        cells = [number, time, names.get(src, src), names.get(dst, dst), *rest]
        text += ",".join('"' + str(cell).replace('"', '""') + '"' for cell in cells) + "\n"
    trace = look(tmp_path, text.encode())
    check(trace.connections[0])
    assert trace.format == "csv"
    assert trace.counters["inferred"] == 2
    assert trace.counters["other"] == 1


def test_names_of_hosts_in_an_export_are_inert(tmp_path: Path) -> None:
    """A name may be any text: a terminal must not obey it, nor a page hold it as markup."""
    evil = "\x1b]0;owned\x07[bold]\u202e<b>x</b>"
    rows = [
        (evil, "s", "1028 > 80 [SYN] Seq=0 Win=65535 Len=0 MSS=1460"),
        ("s", evil, "80 > 1028 [SYN, ACK] Seq=0 Ack=1 Win=5840 Len=0 MSS=1460"),
        (evil, "s", "1028 > 80 [ACK] Seq=1 Ack=1 Win=65535 Len=100"),
        ("s", evil, "80 > 1028 [ACK] Seq=1 Ack=101 Win=5840 Len=1000"),
    ]
    text = LIST_HEADER
    for number, (source, target, info) in enumerate(rows, 1):
        text += f'"{number}","0.00{number}","{source}","{target}","TCP","1200","{info}"\n'
    path = tmp_path / "trace.csv"
    path.write_text(text)
    document, _ = analyse_capture(Selection((str(path),)), Wanted(histograms=True, sequences=1))
    out = io.StringIO()
    console = Console(file=out, width=160, force_terminal=True, color_system=None)
    for by in ("connection", "endpoint"):
        console.print(table.render_trace(document.files[0], by, named=True, width=160))
    assert out.getvalue().count("[bold]") == 2
    page = picture.render_picture(document)
    for shown in (out.getvalue(), page):
        assert "\\x1b]0;owned\\x07[bold]\\u202e" in shown
        assert not re.search("[\x1b\x07\u202e]", shown)
    assert "<b>x</b>" not in page


def test_the_packet_list_of_real_wireshark_code(tmp_path: Path) -> None:
    """tshark writes the very columns that Wireshark exports; the figures are those of the capture itself."""
    need("tshark")
    capture = tmp_path / "trace.pcap"
    capture.write_bytes(cf.pcap(cf.frames(cf.conversation())))
    names = ["No.", "Time", "Source", "Destination", "Protocol", "Length", "Info"]
    fields = [word for name in names for word in ("-e", f"_ws.col.{name}")]
    # A dissector for the port would hide the numbers, as it does in an export.
    text = run("tshark", "-r", str(capture), "-T", "fields", "-E", "separator=,", "-E", "quote=d", *fields)
    check(look(tmp_path, (LIST_HEADER + text).encode(), "trace.csv").connections[0])


def test_the_published_line(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(cf.pcap(cf.frames(cf.conversation())))
    assert run(str(find_capture_binary()), "--format=tcp-stats", str(path)) == (
        "10.0.6.1:irdmi-10.0.6.2:1028 duration=0.000975 bytes_transferred=2100 "
        "[10.0.6.2: avg=0.000300 min=0.000300 max=0.000300] [10.0.6.1: avg=0.000020 min=0.000020 max=0.000020]\n"
    )


def test_udp_flows(tmp_path: Path) -> None:
    steps = []
    for turn in range(5):
        steps.append((turn * 10**6, cf.udp(("10.0.0.9", 5353), ("10.0.0.1", 53), b"q" * 20)))
        steps.append((turn * 10**6 + 30_000, cf.udp(("10.0.0.1", 53), ("10.0.0.9", 5353), b"a" * 80)))
    (connection,) = look(tmp_path, cf.pcap(cf.frames(steps), nanos=True)).connections
    assert (connection.protocol, connection.captured, connection.roles) == ("udp", "flow", "first")
    assert (connection.client.payload_bytes, connection.server.payload_bytes) == (100, 400)
    assert (connection.server.response.count, connection.server.response.mean_s) == (5, 30e-6)
    assert (connection.client.response.count, connection.client.response.mean_s) == (4, 970e-6)


def test_several_files_are_separate_unless_merged(tmp_path: Path) -> None:
    frames = cf.frames(cf.conversation())
    parts = [tmp_path / "a", tmp_path / "b"]
    parts[0].write_bytes(cf.pcap(frames[:5]))
    parts[1].write_bytes(cf.pcap(frames[5:]))
    files = tuple(map(str, parts))
    apart, _ = analyse_capture(Selection(files))
    assert [trace.connections[0].captured for trace in apart.files] == ["no-end", "no-start"]
    merged, _ = analyse_capture(Selection(files, merge=True))
    check(merged.files[0].connections[0])


@pytest.mark.parametrize(
    ("text", "ports"),
    [
        ("10.0.6.2", {1028, 1029}),
        ("10.0.0.0/8", {1028, 1029, 2000}),
        ("1028", {1028}),
        ("irdmi", {1028, 1029, 2000}),
        ("10.0.6.2:1029", {1029}),
        ("10.0.6.1:8000-10.0.6.2:1029", {1029}),
        ("10.0.6.2:1028-10.0.6.1", {1028}),
        ("::1", set()),
    ],
)
def test_filters(tmp_path: Path, text: str, ports: set[int]) -> None:
    steps = cf.conversation() + cf.conversation(("10.0.6.2", 1029)) + cf.conversation(("10.0.6.3", 2000))
    path = tmp_path / "trace"
    path.write_bytes(cf.pcap(cf.frames(sorted(steps))))
    trace = analyse_file(path, filter_by=text)
    assert {connection.client.port for connection in trace.connections} == ports
