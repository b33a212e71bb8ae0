"""The least IPv6 router for a private tap: it says that there is none.

iPXE asks for routers beside DHCP, and starts only when every way to an address has ended. Asking in vain takes it some
16 seconds (RFC 4861, 6.3.7: solicitations are repeated). An advertisement of lifetime 0 (4.2) ends that at once.
"""

from __future__ import annotations

import socket
import struct
import threading
from types import TracebackType

_SOLICITATION, _ADVERTISEMENT = 133, 134
_ALL_NODES = "ff02::1"
_POLL_S = 0.2


class Router:
    """Answers solicitations on a raw ICMPv6 socket that is bound to the tap, until the context ends."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._closing = False
        self._thread = threading.Thread(target=self._serve, name="router", daemon=True)

    def __enter__(self) -> Router:
        self._socket.settimeout(_POLL_S)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing = True
        self._thread.join(2.0)

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
