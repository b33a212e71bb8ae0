"""Builds capture files byte by byte, so that every field of every format can be set, rightly or wrongly."""

from __future__ import annotations

import ipaddress
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

FIN, SYN, RST, PSH, ACK = 1, 2, 4, 8, 16
NULL, ETHERNET, RAW, LOOP, SLL, SLL2 = 0, 1, 101, 108, 113, 276


@dataclass(frozen=True)
class Packet:
    """One frame: time in nanoseconds, bytes captured, length on the wire."""

    ns: int
    data: bytes
    wire: int | None = None

    @property
    def length(self) -> int:
        return len(self.data) if self.wire is None else self.wire


def tcp(  # noqa: PLR0917 - the header's fields in order
    src: tuple[str, int],
    dst: tuple[str, int],
    flags: int,
    seq: int = 0,
    ack: int = 0,
    payload: bytes = b"",
    window: int = 8192,
    options: bytes = b"",
) -> bytes:
    options += b"\0" * (-len(options) % 4)
    head = struct.pack(
        ">HHIIBBHHH",
        src[1],
        dst[1],
        seq % 2**32,
        ack % 2**32,
        (5 + len(options) // 4) << 4,
        flags,
        window,
        0,
        0,
    )
    return ip(src[0], dst[0], 6, head + options + payload)


def udp(src: tuple[str, int], dst: tuple[str, int], payload: bytes, checksum: int = 0) -> bytes:
    return ip(src[0], dst[0], 17, struct.pack(">HHHH", src[1], dst[1], 8 + len(payload), checksum) + payload)


def unfinished_checksum(src: str, dst: str, payload: bytes) -> int:
    """Return what a system leaves in a datagram whose checksum its network card completes."""
    length = 8 + len(payload)
    parts = ipaddress.ip_address(src).packed + ipaddress.ip_address(dst).packed
    total = 17 + length + sum(int.from_bytes(parts[at : at + 2]) for at in range(0, len(parts), 2))
    while total > 0xFFFF:
        total = (total >> 16) + (total & 0xFFFF)
    return total


def numbered(packet: bytes, number: int) -> bytes:
    """Return the IPv4 packet with this identification."""
    return packet[:4] + struct.pack(">H", number) + packet[6:]


def ip(src: str, dst: str, protocol: int, body: bytes, extensions: Sequence[tuple[int, bytes]] = ()) -> bytes:
    """Return an IPv4 or IPv6 packet; `extensions` are (type, bytes after the next-header field) of IPv6 headers."""
    if ":" not in src:
        addresses = ipaddress.IPv4Address(src).packed + ipaddress.IPv4Address(dst).packed
        return struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(body), 1, 0, 64, protocol, 0) + addresses + body
    chain = b""
    types = [kind for kind, _ in extensions] + [protocol]
    for (_, rest), following in zip(extensions, types[1:], strict=True):
        chain += bytes([following]) + rest
    addresses = ipaddress.IPv6Address(src).packed + ipaddress.IPv6Address(dst).packed
    return struct.pack(">IHBB", 6 << 28, len(chain + body), types[0], 64) + addresses + chain + body


def link(kind: int, packet: bytes, tags: Iterable[int] = ()) -> bytes:
    """Put a link header before an IP packet; `tags` are VLAN tag types, outermost first."""
    v6 = packet[0] >> 4 == 6
    ethertype = struct.pack(">H", 0x86DD if v6 else 0x0800)
    for tag in reversed(list(tags)):
        ethertype = struct.pack(">HH", tag, 7) + ethertype
    if kind == ETHERNET:
        return bytes(range(12)) + ethertype + packet
    if kind == SLL:
        return struct.pack(">HHHQ", 4, 1, 6, 0) + ethertype + packet
    if kind == SLL2:
        return ethertype[:2] + struct.pack(">HIHBBQ", 0, 2, 1, 4, 6, 0) + ethertype[2:] + packet
    if kind == NULL:
        return struct.pack("<I", 30 if v6 else 2) + packet
    if kind == LOOP:
        return struct.pack(">I", 24 if v6 else 2) + packet
    return packet


def pcap(packets: Iterable[Packet], kind: int = ETHERNET, order: str = "<", nanos: bool = False) -> bytes:
    magic = 0xA1B23C4D if nanos else 0xA1B2C3D4
    out = [struct.pack(order + "IHHiIII", magic, 2, 4, 0, 0, 262144, kind)]
    for packet in packets:
        fraction = packet.ns % 10**9 // (1 if nanos else 1000)
        out.append(struct.pack(order + "IIII", packet.ns // 10**9, fraction, len(packet.data), packet.length))
        out.append(packet.data)
    return b"".join(out)


def block(kind: int, body: bytes, order: str = "<") -> bytes:
    body += b"\0" * (-len(body) % 4)
    size = struct.pack(order + "I", 12 + len(body))
    return struct.pack(order + "I", kind) + size + body + size


def option(code: int, value: bytes, order: str = "<") -> bytes:
    return struct.pack(order + "HH", code, len(value)) + value + b"\0" * (-len(value) % 4)


def section(order: str = "<") -> bytes:
    return block(0x0A0D0D0A, struct.pack(order + "IHHq", 0x1A2B3C4D, 1, 0, -1), order)


def interface(
    kind: int = ETHERNET, tsresol: int | None = None, tsoffset: int | None = None, order: str = "<"
) -> bytes:
    options = b""
    if tsresol is not None:
        options += option(9, bytes([tsresol]), order)
    if tsoffset is not None:
        options += option(14, struct.pack(order + "q", tsoffset), order)
    if options:
        options += option(0, b"", order)
    return block(1, struct.pack(order + "HHI", kind, 0, 262144) + options, order)


def enhanced(packet: Packet, ticks: int, number: int = 0, order: str = "<", options: bytes = b"") -> bytes:
    data = packet.data + b"\0" * (-len(packet.data) % 4)
    head = struct.pack(
        order + "IIIII", number, ticks >> 32, ticks & 0xFFFFFFFF, len(packet.data), packet.length
    )
    return block(6, head + data + options, order)


CLIENT, SERVER = ("10.0.6.2", 1028), ("10.0.6.1", 8000)


def conversation(
    client: tuple[str, int] = CLIENT,
    server: tuple[str, int] = SERVER,
    start: int = 1_272_975_194_000_000_000,
    isn: int = 1000,
) -> list[tuple[int, bytes]]:
    """Return (time, IP packet) of a whole connection; the client answers after 300 µs, the server after 20 µs.

    The client sends one request of 100 bytes, the server answers with two segments of 1000 bytes, 5 µs apart; then
    both finish.
    """
    c, s, mss = isn, 2 * isn, b"\x02\x04\x05\xb4"
    steps: list[tuple[int, bytes]] = [
        (0, tcp(client, server, SYN, c, 0, options=mss)),
        (20, tcp(server, client, SYN | ACK, s, c + 1, options=mss)),
        (300, tcp(client, server, ACK, c + 1, s + 1)),
        (5, tcp(client, server, PSH | ACK, c + 1, s + 1, b"q" * 100)),
        (20, tcp(server, client, ACK, s + 1, c + 101, b"a" * 1000)),
        (5, tcp(server, client, ACK, s + 1001, c + 101, b"b" * 1000)),
        (300, tcp(client, server, ACK, c + 101, s + 2001)),
        (5, tcp(client, server, FIN | ACK, c + 101, s + 2001)),
        (20, tcp(server, client, FIN | ACK, s + 2001, c + 102)),
        (300, tcp(client, server, ACK, c + 102, s + 2002)),
    ]
    now, out = start, []
    for micros, packet in steps:
        now += micros * 1000
        out.append((now, packet))
    return out


def packets_of(path: Path) -> Iterator[Packet]:
    """Yield the packets of a pcap file with nanoseconds in this machine's byte order."""
    data = path.read_bytes()
    assert struct.unpack_from("<I", data) == (0xA1B23C4D,)
    at = 24
    while at < len(data):
        seconds, nanos, captured, wire = struct.unpack_from("<IIII", data, at)
        at += 16
        yield Packet(seconds * 10**9 + nanos, data[at : at + captured], wire)
        at += captured


def enhanced_in(data: bytes) -> list[tuple[int, bytes]]:
    """Return time in nanoseconds and bytes of each packet of a little-endian pcapng file with nanosecond times."""
    found, at = [], 0
    while at < len(data):
        kind, length = struct.unpack_from("<II", data, at)
        if kind == 6:
            high, low, captured = struct.unpack_from("<III", data, at + 12)
            found.append((high << 32 | low, data[at + 28 : at + 28 + captured]))
        at += length
    return found


def doubled(packets: Sequence[Packet], kind: int, interfaces: int = 1, alone: int = 0) -> bytes:
    """Return a pcapng file in which every packet passes twice, 200 ns apart.

    With two interfaces each packet passes once on each. The second copies of packets that are in flight at the same
    time are in another order. The first packets of each connection, `alone` of them, pass only once.
    """
    out = [section(), *(interface(kind, tsresol=9) for _ in range(interfaces))]
    counts: Counter[frozenset[int]] = Counter()
    waiting: list[Packet] = []

    def pass_again() -> None:
        out.extend(enhanced(copy, copy.ns + 200, interfaces - 1) for copy in waiting)
        waiting.clear()

    for packet in packets:
        if waiting and (packet.ns - waiting[-1].ns > 1_000_000 or len(waiting) == 3):
            pass_again()
        out.append(enhanced(packet, packet.ns))
        counts[frozenset(ports(packet))] += 1
        if counts[frozenset(ports(packet))] > alone:
            waiting.insert(0, packet)
    pass_again()
    return b"".join(out)


def ports(packet: Packet) -> tuple[int, int]:
    """Return source and destination port of an IPv4 packet without a link header."""
    source, destination = struct.unpack_from(">HH", packet.data, (packet.data[0] & 15) * 4)
    return source, destination


def repeats(packets: Iterable[Packet]) -> Counter[int]:
    """Count, by source port, the IP packets whose bytes equal those of a packet at most 10 ms before."""
    seen: dict[bytes, int] = {}
    found: Counter[int] = Counter()
    for packet in packets:
        before = seen.get(packet.data)
        if before is not None and abs(packet.ns - before) <= 10_000_000:
            found[ports(packet)[0]] += 1
        else:
            seen[packet.data] = packet.ns
    return found


def unnumbered(packets: Iterable[Packet]) -> Counter[int]:
    """Count, by source port, the IPv4 packets whose identification is 0, as if the system sets none."""
    return Counter(ports(packet)[0] for packet in packets if packet.data[4:6] == b"\0\0")


def frames(
    steps: Iterable[tuple[int, bytes]], kind: int = ETHERNET, tags: Iterable[int] = ()
) -> list[Packet]:
    tags = list(tags)
    return [Packet(ns, link(kind, packet, tags)) for ns, packet in steps]
