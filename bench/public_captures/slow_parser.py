"""A second, slow and simple parser of captures: what each TCP tuple sent, and which signs of loss there are.

It shares no code with the engine. It does not look into tunnels; a file with any is compared with tshark only.
"""

from __future__ import annotations

import gzip
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

End = tuple[bytes, int]
Tuple = tuple[End, End]  # sorted

_PCAP = {0xA1B2C3D4: 10**3, 0xA1B23C4D: 1, 0xA1B2CD34: 10**3}
_SECTION, _INTERFACE, _OLD, _SIMPLE, _ENHANCED = 0x0A0D0D0A, 1, 2, 3, 6
_FIN, _SYN, _RST, _PSH, _ACK = 1, 2, 4, 8, 16
_VLAN = {0x8100, 0x88A8, 0x9100, 0x9200}
_MPLS, _PPPOE = {0x8847, 0x8848}, 0x8864
_PPP = {b"\0\x21": 4, b"\0\x57": 6}
_EXTENSIONS = {0, 43, 60, 135, 139, 140}
_HALF = 1 << 31
_ALTERNATED = 4


@dataclass
class Sent:
    """What one end of a tuple sent, and the signs of loss in its packets."""

    packets: int = 0
    payload: int = 0
    next: int | None = None
    numbers: Counter[tuple[int, int, int, int]] = field(default_factory=Counter)
    last_number: int | None = None


@dataclass
class Talk:
    """All packets of one TCP tuple: what each end sent, and the signs that something was lost."""

    sent: dict[End, Sent] = field(default_factory=dict)
    repeated: int = 0
    overtaken: int = 0
    selective: int = 0
    duplicates: int = 0
    skipped: int = 0  # numbers that were left out by a host that counts each connection
    last_ack: dict[End, tuple[int, int]] = field(default_factory=dict)

    @property
    def evidence(self) -> int:
        """The number of signs of loss that need no knowledge of the host.

        Duplicate acknowledgements count from the third one of the tuple on.
        """
        return self.repeated + self.overtaken + self.selective + max(self.duplicates - 2, 0)

    @property
    def twice(self) -> float:
        """The share of numbered packets whose number, place and flags occurred before."""
        numbered = sum(count for sent in self.sent.values() for count in sent.numbers.values())
        again = sum(count - 1 for sent in self.sent.values() for count in sent.numbers.values())
        return 2 * again / numbered if numbered else 0.0


@dataclass(frozen=True)
class Segment:
    """One TCP segment of a capture."""

    source: End
    destination: End
    number: int
    seq: int
    ack: int
    flags: int
    window: int
    payload: int
    selective: bool


def parse_talks(path: Path) -> dict[Tuple, Talk]:
    """Return all TCP tuples of a capture. Raises `ValueError` for a file that is no whole pcap or pcapng."""
    found: dict[Tuple, Talk] = {}
    last: dict[tuple[bytes, bytes], Tuple] = {}
    own: Counter[tuple[bytes, bytes]] = Counter()
    for segment in parse_segments(path):
        one, other = sorted((segment.source, segment.destination))
        talk = found.setdefault((one, other), Talk())
        hosts = (segment.source[0], segment.destination[0])
        alternates = last.get(hosts) not in {None, (one, other)}
        last[hosts] = (one, other)
        own[hosts] += _count(talk, segment, alternates, own[hosts] >= _ALTERNATED)
    return found


def _count(talk: Talk, segment: Segment, alternates: bool, counts_own: bool) -> int:
    """Add `segment`; return whether the host numbers packets of each connection separately: 1, -1, or 0 for no sign.

    1 means that the segment shows it, -1 that it contradicts it.
    """
    sent = talk.sent.setdefault(segment.source, Sent())
    sent.packets += 1
    sent.payload += segment.payload
    talk.selective += segment.selective
    shown = 0
    if segment.number:
        sent.numbers[segment.number, segment.seq, segment.flags, segment.payload] += 1
        if sent.last_number is not None:
            step = (segment.number - sent.last_number) % 2**16
            shown = (1 if step == 1 else -1) if alternates else 0
            talk.skipped += counts_own and 1 < step < 1000
        sent.last_number = segment.number
    length = segment.payload + bool(segment.flags & _SYN) + bool(segment.flags & _FIN)
    if segment.flags & _SYN and sent.next is not None and (segment.seq + 1) % 2**32 != sent.next:
        sent.next = None  # another connection of the same ports
    if sent.next is not None and length and not segment.flags & _RST:
        ahead = (segment.seq - sent.next) % 2**32
        talk.overtaken += 0 < ahead < _HALF
        talk.repeated += ahead >= _HALF
    end = (segment.seq + length) % 2**32
    if length and (sent.next is None or (end - sent.next) % 2**32 < _HALF):
        sent.next = end
    if not length and segment.flags & _ACK:
        said = (segment.ack, segment.window)
        talk.duplicates += talk.last_ack.get(segment.source) == said
        talk.last_ack[segment.source] = said
    return shown


def parse_segments(path: Path) -> Iterator[Segment]:
    """Yield every TCP segment that is not inside a tunnel."""
    data = path.read_bytes()
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    for link, frame, wire in parse_frames(data):
        found = _network(link, frame)
        if found is None:
            continue
        at, version = found
        segment = _ipv4(frame, at, wire) if version == 4 else _ipv6(frame, at, wire)
        if segment is not None:
            yield segment


def parse_frames(data: bytes) -> Iterator[tuple[int, bytes, int]]:
    """Yield link type, bytes and length on the wire of every packet."""
    if len(data) < 24:
        raise ValueError("too short")
    for order in "<>":
        magic = struct.unpack_from(order + "I", data)[0]
        if magic in _PCAP:
            yield from _of_pcap(data, order, modified=magic == 0xA1B2CD34)
            return
    if data[:4] != b"\x0a\x0d\x0d\x0a":
        raise ValueError("neither pcap nor pcapng")
    yield from _of_pcapng(data)


def _of_pcap(data: bytes, order: str, *, modified: bool) -> Iterator[tuple[int, bytes, int]]:
    link = struct.unpack_from(order + "I", data, 20)[0] & 0xFFFF
    at, head = 24, 24 if modified else 16
    while at < len(data):
        if at + head > len(data):
            raise ValueError("cut in a record's head")
        captured, wire = struct.unpack_from(order + "II", data, at + 8)
        at += head
        if at + captured > len(data):
            raise ValueError("cut in a packet")
        yield link, data[at : at + captured], max(wire, captured)
        at += captured


def _of_pcapng(data: bytes) -> Iterator[tuple[int, bytes, int]]:
    at, order, links = 0, "<", list[int]()
    while at < len(data):
        if at + 12 > len(data):
            raise ValueError("cut in a block's head")
        kind = struct.unpack_from(order + "I", data, at)[0]
        if kind == _SECTION:
            order = "<" if data[at + 8 : at + 12] == b"\x4d\x3c\x2b\x1a" else ">"
            links = []
        length = struct.unpack_from(order + "I", data, at + 4)[0]
        if length < 12 or length % 4 or at + length > len(data):
            raise ValueError("cut in a block")
        body = data[at + 8 : at + length - 4]
        if kind == _INTERFACE:
            links.append(struct.unpack_from(order + "H", body)[0])
        elif kind == _ENHANCED:
            number, _, _, captured, wire = struct.unpack_from(order + "IIIII", body)
            yield links[number], body[20 : 20 + captured], max(wire, captured)
        elif kind == _SIMPLE and links:
            wire = struct.unpack_from(order + "I", body)[0]
            yield links[0], body[4 : 4 + wire], wire
        elif kind == _OLD:
            number, _, _, _, captured, wire = struct.unpack_from(order + "HHIIII", body)
            yield links[number], body[20 : 20 + captured], max(wire, captured)
        at += length


def _network(link: int, frame: bytes) -> tuple[int, int] | None:
    """Return the offset of the IP header and its version; None if there is none, or if another header is around it."""
    try:
        if link == 1:
            return _ethertype(frame, 12)
        if link == 113:
            return _ethertype(frame, 14)
        if link == 276 and frame[0:2] in {b"\x08\x00", b"\x86\xdd"}:
            return 20, 4 if frame[0] == 8 else 6
        at = {0: 4, 108: 4, 12: 0, 14: 0, 101: 0, 228: 0, 229: 0}[link]
    except (KeyError, IndexError, struct.error):
        return None
    version = frame[at] >> 4 if len(frame) > at else 0
    return (at, version) if version in {4, 6} else None


def _ethertype(frame: bytes, at: int) -> tuple[int, int] | None:
    for _ in range(8):
        kind = struct.unpack_from(">H", frame, at)[0]
        if kind in {0x0800, 0x86DD}:
            version = 4 if kind == 0x0800 else 6
            return (at + 2, version) if frame[at + 2] >> 4 == version else None
        if kind in _MPLS:
            return _labels(frame, at + 2)
        if kind == _PPPOE:
            inner = _PPP.get(frame[at + 8 : at + 10])
            return None if inner is None else (at + 10, inner)
        if kind not in _VLAN:
            return None
        at += 4
    return None


def _labels(frame: bytes, at: int) -> tuple[int, int] | None:
    """Return the offset after the last MPLS label and the IP version there; None if it is not IP."""
    while not frame[at + 2] & 1:
        at += 4
    version = frame[at + 4] >> 4
    return (at + 4, version) if version in {4, 6} else None


def _ipv4(frame: bytes, at: int, wire: int) -> Segment | None:
    if len(frame) < at + 20:
        return None
    header, total = (frame[at] & 15) * 4, struct.unpack_from(">H", frame, at + 2)[0]
    number, fragment = struct.unpack_from(">HH", frame, at + 4)
    if frame[at + 9] != 6 or fragment & 0x1FFF or header < 20:
        return None
    end = min(at + total, wire) if total else wire
    return _tcp(frame, at + header, end, (frame[at + 12 : at + 16], frame[at + 16 : at + 20]), number)


def _ipv6(frame: bytes, at: int, wire: int) -> Segment | None:
    if len(frame) < at + 40:
        return None
    length, kind = struct.unpack_from(">HB", frame, at + 4)
    ends = (frame[at + 8 : at + 24], frame[at + 24 : at + 40])
    end = min(at + 40 + length, wire) if length else wire
    at += 40
    for _ in range(16):
        if kind == 6 or at + 8 > len(frame):
            break
        if kind == 44:
            if struct.unpack_from(">H", frame, at + 2)[0] & 0xFFF8:
                return None
            size = 8
        elif kind in _EXTENSIONS:
            size = 8 + frame[at + 1] * 8
        elif kind == 51:
            size = 8 + frame[at + 1] * 4
        else:
            return None
        kind, at = frame[at], at + size
    return _tcp(frame, at, end, ends, 0) if kind == 6 else None


def _tcp(frame: bytes, at: int, end: int, ends: tuple[bytes, bytes], number: int) -> Segment | None:
    if len(frame) < at + 16:
        return None
    source, destination, seq, ack, header, flags, window = struct.unpack_from(">HHIIBBH", frame, at)
    header = (header >> 4) * 4
    if header < 20 or end < at + header:
        return None
    options = frame[at + 20 : at + header]
    return Segment(
        (ends[0], source),
        (ends[1], destination),
        number,
        seq,
        ack,
        flags,
        window,
        end - at - header,
        _is_selective(options),
    )


def _is_selective(options: bytes) -> bool:
    at = 0
    while at + 1 < len(options) and options[at]:
        if options[at] == 1:
            at += 1
        elif options[at] == 5:
            return True
        else:
            at += max(options[at + 1], 2)
    return False
