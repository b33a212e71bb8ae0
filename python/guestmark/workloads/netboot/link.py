"""A link is the guest's cable and the sockets that wait at its other end."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from dataclasses import dataclass, field

from guestmark.core.errors import PlatformUnusableError

NETDEV = "net"  # its id in QEMU
_BACKLOG = 64


@dataclass(frozen=True, slots=True)
class Link:
    """`server` is the host's address as the guest sees it; `connect` is a connection of the host's own to the files."""

    arguments: tuple[str, ...]
    pass_fds: tuple[int, ...]
    server: str
    control: socket.socket
    data: socket.socket
    connect: Callable[[], socket.socket]
    names_bootfile: bool = True  # whether its DHCP tells the guest what to fetch first
    scheme: str = "http"  # of the files
    data_server: str = (
        ""  # the host as the guest sees it when it fetches files, where that is another address
    )
    helpers: dict[str, int] = field(default_factory=dict)  # process ids of what the guest talks to, by name

    @property
    def control_url(self) -> str:
        """How the guest calls the server that tells it what to do."""
        return f"http://{_host(self.server)}:{port_of(self.control)}"

    @property
    def data_url(self) -> str:
        """How the guest calls the server of the files."""
        return f"{self.scheme}://{_host(self.data_server or self.server)}:{port_of(self.data)}"


def _host(address: str) -> str:
    """An address as it stands in a URL."""
    return f"[{address}]" if ":" in address else address


def port_of(listening: socket.socket) -> int:
    """The TCP port a socket listens on."""
    return int(listening.getsockname()[1])


def listen(address: str, port: int, kind: socket.SocketKind = socket.SOCK_STREAM) -> socket.socket:
    """A listening socket; port 0 means any free one. Raises `PlatformUnusableError` when the port is taken."""
    sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, kind)
    try:
        if kind is socket.SOCK_STREAM:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address, port))
        if kind is socket.SOCK_STREAM:
            sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise PlatformUnusableError(
                f"port {port} on {address} is in use", hint="choose another, or port = 0 for any free one"
            ) from error
        raise PlatformUnusableError(f"port {port} on {address}: {error.strerror}") from error
    return sock
