"""The least IPv6 router for a private tap: it says that there is none.

iPXE asks for routers beside DHCP, and starts only when every way to an address has ended. Asking in vain takes it some
16 seconds (RFC 4861, 6.3.7: solicitations are repeated). An advertisement of lifetime 0 (4.2) ends that at once.
"""

from __future__ import annotations

import socket
import struct

from guestmark.workloads.netboot.answering import Answering

_SOLICITATION, _ADVERTISEMENT = 133, 134
_ALL_NODES = "ff02::1"


class Router(Answering):
    """Answers solicitations on a raw ICMPv6 socket that is bound to the tap, until the context ends."""

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
            except OSError:  # not before the tap has an address of its own; iPXE asks again
                if self._socket.fileno() < 0:
                    return
