"""Servers that iPXE needs on a private tap: a minimal DHCP server (RFC 2131, RFC 2132) and an IPv6 router.

The DHCP server has one address and the name of the boot file. UEFI's own HTTP boot uses it, too: its firmware says
that it is an HTTP client and accepts only servers that say the same (UEFI 2.10, 24.7.3.1).
"""

from __future__ import annotations

import socket
import struct
import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass
from types import TracebackType
from typing import Self

_POLL_S = 0.2
_END_S = 2.0


class Responder(ABC):
    """Serves `_socket` in a thread while a context lasts; wakes up often enough to notice `_closing`."""

    def __init__(self, sock: socket.socket, name: str) -> None:
        self._socket = sock
        self._closing = False
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._socket.settimeout(_POLL_S)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing = True
        self._thread.join(_END_S)

    @abstractmethod
    def _serve(self) -> None:
        """Serves until the socket is closed; runs in a thread."""


_COOKIE = b"\x63\x82\x53\x63"
_HEADER = 236  # bytes of BOOTP before the cookie
_DISCOVER, _OFFER, _REQUEST, _ACK = 1, 2, 3, 5
_LEASE_S = 86400
_TYPE, _MASK, _ROUTER, _TIME, _SERVER, _CLASS, _BOOTFILE, _END = 53, 1, 3, 51, 54, 60, 67, 255
_HTTP_CLIENT = b"HTTPClient"


@dataclass(frozen=True, slots=True)
class Lease:
    """The lease that every client gets; there is only one."""

    server: str
    address: str
    prefix: int
    bootfile: str


class DhcpServer(Responder):
    """Answers on a socket that is bound to port 67 of the tap, until the context ends."""

    def __init__(self, sock: socket.socket, lease: Lease) -> None:
        super().__init__(sock, "dhcp")
        self._lease = lease

    def _serve(self) -> None:
        while not self._closing:
            try:
                packet = self._socket.recv(2048)
            except TimeoutError:
                continue
            except OSError:
                return
            reply = make_answer(packet, self._lease)
            if reply:
                self._socket.sendto(reply, ("255.255.255.255", 68))


def make_answer(packet: bytes, lease: Lease) -> bytes | None:
    """Returns the answer to a client's message; None unless it is a DISCOVER or a REQUEST."""
    if len(packet) < _HEADER + 4 or packet[0] != 1 or packet[_HEADER : _HEADER + 4] != _COOKIE:
        return None
    asked = _parse_options(packet[_HEADER + 4 :])
    kind = {bytes([_DISCOVER]): _OFFER, bytes([_REQUEST]): _ACK}.get(asked.get(_TYPE, b""))
    if kind is None:
        return None
    server, address = socket.inet_aton(lease.server), socket.inet_aton(lease.address)
    mask = struct.pack(">I", 0xFFFFFFFF << (32 - lease.prefix) & 0xFFFFFFFF)
    # op 2 (reply), the client's hardware type, transaction and flags; its hardware address comes back unchanged.
    header = struct.pack(
        ">BBBB4sHH4s4s4s4s16s64s128s",
        2, packet[1], packet[2], 0, packet[4:8], 0, struct.unpack_from(">H", packet, 10)[0],
        bytes(4), address, server, bytes(4), packet[28:44], b"", lease.bootfile.encode(),
    )  # fmt: skip
    options = [
        (_TYPE, bytes([kind])), (_SERVER, server), (_TIME, struct.pack(">I", _LEASE_S)), (_MASK, mask),
        (_ROUTER, server), (_BOOTFILE, lease.bootfile.encode()),
    ]  # fmt: skip
    if asked.get(_CLASS, b"").startswith(_HTTP_CLIENT):
        options.append((_CLASS, _HTTP_CLIENT))
    packed = b"".join(bytes([code, len(value)]) + value for code, value in options)
    return header + _COOKIE + packed + bytes([_END])


def _parse_options(data: bytes) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    at = 0
    while at < len(data) and data[at] != _END:
        if data[at] == 0:
            at += 1
            continue
        if at + 1 >= len(data):
            break
        found[data[at]] = data[at + 2 : at + 2 + data[at + 1]]
        at += 2 + data[at + 1]
    return found


_SOLICITATION, _ADVERTISEMENT = 133, 134
_ALL_NODES = "ff02::1"


class Router(Responder):
    """Announces on a raw ICMPv6 socket on the tap that there is no router, until the context ends.

    iPXE asks for routers besides DHCP, and continues only when all attempts to get an address have ended. Without an
    answer that takes some 16 seconds (RFC 4861, 6.3.7: solicitations are repeated). An advertisement with lifetime 0
    (4.2) ends it at once.
    """

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock, "router")

    def _serve(self) -> None:
        while not self._closing:
            try:
                packet = self._socket.recv(2048)
                if packet[:1] == bytes([_SOLICITATION]):
                    # Type, code, checksum (the kernel's), hop limit, flags, and lifetime and timers of 0.
                    self._socket.sendto(
                        struct.pack(">BBHBBHII", _ADVERTISEMENT, 0, 0, 64, 0, 0, 0, 0), (_ALL_NODES, 0)
                    )
            except TimeoutError:
                continue
            except OSError:  # fails until the tap has an address; iPXE asks again
                if self._socket.fileno() < 0:
                    return
