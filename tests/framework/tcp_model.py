"""A small model of a TCP connection whose every interval is known: who sends what, when, and what the other end says.

Times are in milliseconds at the client; the path takes `way_ms` each way. `seen_at` gives the packets as a capture at
either end holds them, with time stamps of the segments' own clock left out: nothing but numbers and windows. A path may
delay a packet, or double it; systems that are `numbered` count their packets in IPv4's identification.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from tests.framework import captures as cf

MSS = 1460
_SYN_OPTIONS = b"\x02\x04\x05\xb4\x04\x02\x01\x01"  # segment size, selective acknowledgements


@dataclass
class Model:
    """Packets: (ms at the sender, by the client, ms on the way, the packet)."""

    way_ms: float = 10.0
    numbered: bool = False
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
    ) -> None:
        """One packet, sent at `at_ms` by its sender's clock; both clocks are the same.

        It takes `late_ms` longer than others, and a copy that the path makes arrives `copied_ms` after it.
        """
        ends = (cf.CLIENT, cf.SERVER) if client else (cf.SERVER, cf.CLIENT)
        data = cf.tcp(*ends, flags, seq, ack, b"x" * payload, min(window, self.largest_window), options)
        if self.numbered:
            number = 1 + sum(by_client == client for _, by_client, _, _ in self.sent)
            data = data[:4] + struct.pack(">H", number) + data[6:]
        self.sent.append((at_ms, client, self.way_ms + late_ms, data))
        if copied_ms:
            self.copies.append((at_ms, client, self.way_ms + late_ms + copied_ms, data))

    def shake_hands(self) -> float:
        """A handshake from time 0; returns when the client has connected."""
        self.packet(0, True, cf.SYN, 0, 0, options=_SYN_OPTIONS)
        self.packet(self.way_ms, False, cf.SYN | cf.ACK, 0, 1, options=_SYN_OPTIONS)
        self.packet(2 * self.way_ms, True, cf.ACK, 1, 1)
        return 2 * self.way_ms

    def seen_at(self, client: bool) -> bytes:
        """A capture at one end."""
        seen = []
        for number, (at, by_client, way, data) in enumerate(self.sent):
            ms = at if by_client == client else at + way
            seen.append((round(ms * 1e6) + 10**18, number, data))
        arrived = ((at + way, data) for at, by_client, way, data in self.copies if by_client != client)
        seen += [(round(ms * 1e6) + 10**18, len(seen), data) for ms, data in arrived]
        return cf.pcap(cf.frames((ns, data) for ns, _, data in sorted(seen)), nanos=True)


def sack(*blocks: tuple[int, int]) -> bytes:
    """The option that acknowledges selectively."""
    return bytes([1, 1, 5, 2 + 8 * len(blocks)]) + b"".join(struct.pack(">II", *block) for block in blocks)
