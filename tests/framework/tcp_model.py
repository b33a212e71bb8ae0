"""A small model of a TCP connection whose every interval is known: who sends what, when, and how the peer reacts.

Times are in milliseconds at the client; the path takes `way_ms` in each direction. `seen_at` returns the packets as a
capture at either end: they have only numbers and windows, and time stamps if the systems use `stamps`. A path may
delay a packet, double it, or lose it. Systems differ in how they number their packets (IPv4's identification).
"""

from __future__ import annotations

import math
import random
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from tests.framework import captures as cf

MSS = 1460
_FIRST_STAMP = {True: 1_000_000, False: 7_000_000}
SYN_OPTIONS = b"\x02\x04\x05\xb4\x04\x02\x01\x01"  # segment size, selective acknowledgements


class Numbers(StrEnum):
    """How a system sets the identification of its IPv4 packets."""

    ONE = "one"  # always 1
    ZERO = "zero"  # as where packets may not be fragmented (RFC 6864)
    CONNECTION = "connection"  # counted for each connection, as Linux does
    HOST = "host"  # counted for all that the host sends, as Windows and lwIP do
    SWAPPED = "swapped"  # the same in the machine's byte order, as Windows did
    RANDOM = "random"  # as BSD and macOS have it


@dataclass
class Model:
    """A connection as a list of packets: (ms at the sender, whether the client sends, ms in flight, the packet).

    If hosts number their packets, other traffic takes `others` numbers a second. With `beside`, another connection of
    the same hosts is captured, on which the same end sends a packet half a millisecond before each of these.
    """

    way_ms: float = 10.0
    numbers: Numbers = Numbers.ONE
    others: float = 0.0
    beside: bool = False
    stamps: bool = False
    largest_window: int = 60_000
    sent: list[tuple[float, bool, float, bytes]] = field(default_factory=list)
    copies: list[tuple[float, bool, float, bytes]] = field(default_factory=list)

    def packet(  # noqa: PLR0917 - the header's fields
        self,
        at_ms: float,
        client: bool,
        flags: int,
        seq: int,
        ack: int,
        payload: int = 0,
        window: int = 60_000,
        options: bytes = b"",
        late_ms: float = 0.0,
        copied_ms: float = 0.0,
        lost: bool = False,
        text: bytes = b"",
    ) -> None:
        """Add one packet, sent at `at_ms` by its sender's clock; both clocks are the same.

        It carries `payload` bytes, or `text`. It takes `late_ms` longer than others, and a copy that the path makes
        arrives `copied_ms` after it. A `lost` packet is seen only by its sender.
        """
        if self.stamps:
            # Each system counts milliseconds from a value of its own, and echoes the last one that arrived.
            others = (at for at, by, way, _ in self.sent if by != client and at + way <= at_ms)
            echoed = int(max(others, default=0)) + _FIRST_STAMP[not client]
            options += struct.pack(">BBBBII", 1, 1, 8, 10, int(at_ms) + _FIRST_STAMP[client], echoed)
        ends = (cf.CLIENT, cf.SERVER) if client else (cf.SERVER, cf.CLIENT)
        data = cf.tcp(
            *ends, flags, seq, ack, text or b"x" * payload, min(window, self.largest_window), options
        )
        data = data[:4] + struct.pack(">H", self.number(at_ms, client)) + data[6:]
        self.sent.append((at_ms, client, math.inf if lost else self.way_ms + late_ms, data))
        if copied_ms:
            self.copies.append((at_ms, client, self.way_ms + late_ms + copied_ms, data))

    def number(self, at_ms: float, client: bool) -> int:
        """Return the identification of an end's next packet."""
        before = sum(by_client == client for _, by_client, _, _ in self.sent)
        match self.numbers:
            case Numbers.ZERO:
                return 0
            case Numbers.CONNECTION:
                return 1 + before
            case Numbers.HOST:
                return (1 + before + round(at_ms * self.others / 1e3)) % 2**16
            case Numbers.SWAPPED:
                count = (1 + before + round(at_ms * self.others / 1e3)) % 2**16
                return int.from_bytes(count.to_bytes(2, "little"))
            case Numbers.RANDOM:
                return random.Random(f"{at_ms} {client}").randrange(2**16)
            case _:
                return 1

    def shake_hands(self) -> float:
        """Add a handshake from time 0; return when the client has connected."""
        self.packet(0, True, cf.SYN, 0, 0, options=SYN_OPTIONS)
        self.packet(self.way_ms, False, cf.SYN | cf.ACK, 0, 1, options=SYN_OPTIONS)
        self.packet(2 * self.way_ms, True, cf.ACK, 1, 1)
        return 2 * self.way_ms

    def seen_at(self, client: bool) -> bytes:
        """Return a capture at one end."""
        seen = []
        for number, (at, by_client, way, data) in enumerate(self.sent):
            ms = at if by_client == client else at + way
            if math.isinf(ms):
                continue
            seen.append((round(ms * 1e6) + 10**18, number, data))
        if self.beside:
            seen += [(ns - 500_000, -1, data) for ns, data in self._seen_beside(seen)]
        arrived = ((at + way, data) for at, by_client, way, data in self.copies if by_client != client)
        seen += [(round(ms * 1e6) + 10**18, len(seen), data) for ms, data in arrived]
        return cf.pcap(cf.frames((ns, data) for ns, _, data in sorted(seen)), nanos=True)

    def passing(self, share: float) -> list[cf.Packet]:
        """Return the frames that pass a point on the path, given as a `share` of the way from the client."""
        seen = []
        for at, by_client, way, data in self.sent:
            ms = at + way * (share if by_client else 1 - share)
            seen.append(cf.Packet(round(ms * 1e6) + 10**18, cf.link(cf.ETHERNET, data)))
        return sorted(seen, key=lambda packet: packet.ns)

    def _seen_beside(self, seen: list[tuple[int, int, bytes]]) -> Iterator[tuple[int, bytes]]:
        """Yield the other connection's packets, one for each of `seen`, with their own numbers."""
        sent = Counter[bool]()
        for ns, number, _ in sorted(seen):
            client = self.sent[number][1]
            ends = ((cf.CLIENT[0], 1029), cf.SERVER) if client else (cf.SERVER, (cf.CLIENT[0], 1029))
            data = cf.tcp(*ends, cf.ACK | cf.PSH, 1 + sent[client], 1 + sent[not client], b"x")
            sent[client] += 1
            yield ns, data[:4] + struct.pack(">H", 7000 + sent[client]) + data[6:]


def download(
    count: int, flight: int, apart_ms: float, paced_ms: float = 0.0, pause: tuple[int, float] = (0, 0.0)
) -> Model:
    """Make a connection on which a server sends `count` segments, at most `flight` of them in flight.

    Segments leave the slowest link `apart_ms` apart. The server sends at most one every `paced_ms`, and pauses before
    one segment: `pause` is its number and the ms.
    """
    model = Model(10, stamps=True)
    now = model.shake_hands()
    model.packet(now, True, cf.ACK | cf.PSH, 1, 1, 100)
    now += model.way_ms
    acked: list[float] = []
    sent, free = now - paced_ms, now
    segments = []
    for number in range(count):
        sent = max(sent + paced_ms, acked[number - flight] if number >= flight else now)
        if pause[0] and number == pause[0]:
            sent += pause[1]
        free = max(free, sent) + apart_ms
        acked.append(free + 2 * model.way_ms)
        segments.append((sent, free))
    for number, (at, left) in enumerate(segments):
        last = cf.PSH if number == count - 1 else 0
        model.packet(at, False, cf.ACK | last, 1 + number * MSS, 101, MSS, late_ms=left - at)
        model.packet(left + model.way_ms, True, cf.ACK, 101, 1 + (number + 1) * MSS)
    return model


def conversations(
    turns: int, way_ms: float, lose: frozenset[int] = frozenset(), think_ms: float = 30, beside: bool = False
) -> Model:
    """Make a connection of one-segment requests and answers; answers in `lose` are lost once on the path."""
    chance = random.Random(3)
    model = Model(way_ms, Numbers.CONNECTION, beside=beside)
    now, seq, reply = model.shake_hands(), 1, 1
    for turn in range(turns):
        model.packet(now, True, cf.ACK | cf.PSH, seq, reply, 100, late_ms=chance.uniform(0, 2))
        seq += 100
        now += way_ms + 2 + think_ms
        if turn in lose:
            model.packet(now, False, cf.ACK | cf.PSH, reply, seq, MSS, lost=True)
            now += 250
        model.packet(now, False, cf.ACK | cf.PSH, reply, seq, MSS, late_ms=chance.uniform(0, 2))
        reply += MSS
        now += way_ms + 2
        model.packet(now, True, cf.ACK, seq, reply)
        now += 1
    return model


def repaired(rounds: int, lose: frozenset[int]) -> Model:
    """Make a connection whose server sends ten segments per round trip; in rounds `lose`, the fourth is lost.

    It is sent again one round later.
    """
    model = Model(20, Numbers.CONNECTION, stamps=True)
    now = model.shake_hands()
    model.packet(now, True, cf.ACK | cf.PSH, 1, 1, 100)
    now, sent = now + 20, 1
    for number in range(rounds):
        hole = (sent + 3 * MSS, sent + 4 * MSS) if number in lose else None
        for at in range(10):
            seq = sent + at * MSS
            is_lost = hole is not None and seq == hole[0]
            model.packet(now + at / 10, False, cf.ACK, seq, 101, MSS, lost=is_lost)
            if is_lost:
                continue
            acked, options = seq + MSS, b""
            if hole is not None and seq > hole[0]:
                acked, options = hole[0], sack((hole[1], seq + MSS))
            model.packet(now + at / 10 + 20, True, cf.ACK, 101, acked, options=options)
        sent += 10 * MSS
        now += 40 + 0.9
        if hole is not None:
            model.packet(now, False, cf.ACK, hole[0], 101, MSS)
            model.packet(now + 20, True, cf.ACK, 101, sent)
            now += 40
    return model


def sack(*blocks: tuple[int, int]) -> bytes:
    """Return the TCP option for selective acknowledgement of these blocks."""
    return bytes([1, 1, 5, 2 + 8 * len(blocks)]) + b"".join(struct.pack(">II", *block) for block in blocks)
