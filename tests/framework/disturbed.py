"""Damages captures: packets are missing, cut, merged or captured twice, and headers lack useful fields.

Each function takes and returns raw IP packets, as `captures.packets_of` reads them.
"""

from __future__ import annotations

import random
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from tests.framework import captures as cf

_JOINED_WITHIN_NS, _JOINED_MOST = 1_000_000, 60_000
_NOP, _STAMPS = 1, 8

Packets = Sequence[cf.Packet]


def thinned(packets: Packets, share: float, seed: int = 1) -> list[cf.Packet]:
    """Drop this share of the packets, chosen at random."""
    chance = random.Random(seed)
    return [packet for packet in packets if chance.random() >= share]


def with_holes(packets: Packets, share: float, length: int = 25, seed: int = 1) -> list[cf.Packet]:
    """Drop this share of the packets, in bursts of `length`."""
    chance, out, left = random.Random(seed), [], 0
    for packet in packets:
        if not left and chance.random() < share / length:
            left = length
        if left:
            left -= 1
        else:
            out.append(packet)
    return out


def begun_late(packets: Packets, share: float = 0.3) -> list[cf.Packet]:
    """Drop the packets in this first share of the time, as if the capture had been started in the middle."""
    first, last = packets[0].ns, packets[-1].ns
    return [packet for packet in packets if packet.ns >= first + share * (last - first)]


def without_handshake(packets: Packets) -> list[cf.Packet]:
    """Drop SYNs, so that roles, window scales and segment sizes are unknown."""
    return [packet for packet in packets if not packet.data[_tcp(packet) + 13] & cf.SYN]


def one_way(packets: Packets, port: int) -> list[cf.Packet]:
    """Keep only the packets that `port` sent."""
    return [packet for packet in packets if cf.ports(packet)[0] == port]


def without_options(packets: Packets, *kinds: int) -> list[cf.Packet]:
    """Overwrite TCP options of these kinds, as if the systems did not support them."""
    return [cf.Packet(packet.ns, _blanked(packet, kinds), packet.wire) for packet in packets]


def without_stamps(packets: Packets) -> list[cf.Packet]:
    return without_options(packets, _STAMPS)


def without_numbers(packets: Packets) -> list[cf.Packet]:
    """Set the identification of every packet to 0."""
    return [cf.Packet(p.ns, p.data[:4] + b"\0\0" + p.data[6:], p.wire) for p in packets]


def counted_by_host(packets: Packets, others: float = 50, swapped: bool = False) -> list[cf.Packet]:
    """Number packets as Windows does: the identification counts all packets that the host sends.

    The host sends `others` packets a second to other peers. Older versions wrote the number `swapped`.
    """
    out, sent = [], Counter[bytes]()
    for packet in packets:
        host = packet.data[12:16]
        sent[host] += 1
        count = (sent[host] + round((packet.ns - packets[0].ns) / 1e9 * others)) % 2**16
        number = count.to_bytes(2, "little" if swapped else "big")
        out.append(cf.Packet(packet.ns, packet.data[:4] + number + packet.data[6:], packet.wire))
    return out


def cut(packets: Packets, length: int = 72) -> list[cf.Packet]:
    """Cut packets to a snapshot length."""
    return [cf.Packet(packet.ns, packet.data[:length], packet.length) for packet in packets]


def joined(packets: Packets, port: int | None = None) -> list[cf.Packet]:
    """Merge segments that follow each other closely into one packet, as a machine with GRO captures them.

    With `port`, only the segments that this port sent are merged, as a capture at its peer shows.
    """
    out: list[cf.Packet] = []
    for packet in packets:
        before = out[-1] if out else None
        if before is not None and port in {None, cf.ports(packet)[0]} and _continues(before, packet):
            head, payload = _split(before)
            whole = head[:2] + struct.pack(">H", len(before.data) + len(_split(packet)[1])) + head[4:]
            flags = whole[_tcp(before) + 13] | packet.data[_tcp(packet) + 13]
            at = _tcp(before) + 13
            whole = whole[:at] + bytes([flags]) + whole[at + 1 :]
            out[-1] = cf.Packet(packet.ns, whole + payload + _split(packet)[1])
        else:
            out.append(packet)
    return out


def together(near: Packets, far: Packets) -> list[cf.Packet]:
    """Merge the captures of both ends."""
    return sorted([*near, *far], key=lambda packet: packet.ns)


DISTURBANCES: dict[str, Callable[[Packets, int], list[cf.Packet]]] = {
    "1 % missing": lambda packets, _: thinned(packets, 0.01),
    "5 % missing": lambda packets, _: thinned(packets, 0.05, 2),
    "20 % missing": lambda packets, _: thinned(packets, 0.2, 3),
    "30 % missing": lambda packets, _: thinned(packets, 0.3, 4),
    "10 % missing in bursts": lambda packets, _: with_holes(packets, 0.1),
    "30 % missing in bursts": lambda packets, _: with_holes(packets, 0.3, 60, 2),
    "begun late": lambda packets, _: begun_late(packets),
    "no handshake": lambda packets, _: without_handshake(packets),
    "no time stamps": lambda packets, _: without_stamps(packets),
    "no numbers": lambda packets, _: without_numbers(packets),
    "numbers of a host that sends little else": lambda packets, _: counted_by_host(packets, 3),
    "numbers of a busy host": lambda packets, _: counted_by_host(packets),
    "numbers of a busy host, swapped": lambda packets, _: counted_by_host(packets, swapped=True),
    "neither stamps nor numbers nor handshake": lambda packets, _: without_handshake(
        without_numbers(without_stamps(packets))
    ),
    "headers only": lambda packets, _: cut(packets),
    "joined at the client": joined,
    "joined everywhere": lambda packets, _: joined(packets),
    "joined, 5 % missing": lambda packets, _: thinned(joined(packets), 0.05, 5),
}


def written(packets: Iterable[cf.Packet]) -> bytes:
    """Return the packets as a capture file."""
    return cf.pcap(packets, cf.RAW, nanos=True)


def _tcp(packet: cf.Packet) -> int:
    return (packet.data[0] & 15) * 4


def _split(packet: cf.Packet) -> tuple[bytes, bytes]:
    at = _tcp(packet)
    at += (packet.data[at + 12] >> 4) * 4
    return packet.data[:at], packet.data[at:]


def _continues(before: cf.Packet, packet: cf.Packet) -> bool:
    at, own = _tcp(packet), _tcp(before)
    if cf.ports(before) != cf.ports(packet) or packet.ns - before.ns > _JOINED_WITHIN_NS:
        return False
    (seq, ack), (first, acked) = (
        struct.unpack_from(">II", packet.data, at + 4),
        struct.unpack_from(">II", before.data, own + 4),
    )
    size = len(_split(before)[1])
    plain = not (before.data[own + 13] | packet.data[at + 13]) & (cf.SYN | cf.FIN | cf.RST)
    pushed = before.data[own + 13] & cf.PSH
    more = len(_split(packet)[1])
    fits = size + more < _JOINED_MOST
    return bool(
        plain and not pushed and size and more and fits and ack == acked and seq == (first + size) % 2**32
    )


def _blanked(packet: cf.Packet, kinds: Sequence[int]) -> bytes:
    at = _tcp(packet)
    end = at + (packet.data[at + 12] >> 4) * 4
    data, at = bytearray(packet.data), at + 20
    while at < end and data[at]:
        if data[at] == _NOP:
            at += 1
            continue
        length = data[at + 1]
        if data[at] in kinds:
            data[at : at + length] = bytes([_NOP]) * length
        at += length
    return bytes(data)
