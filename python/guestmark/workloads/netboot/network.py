"""How guest and servers are connected, by the level of the factor `network`."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

from guestmark.core.errors import UsageError
from guestmark.workloads.netboot import passt, tap
from guestmark.workloads.netboot.content import PLAIN, Serving
from guestmark.workloads.netboot.link import NETDEV, Link, listen, port_of
from guestmark.workloads.netboot.scripts import BOOT

_LOOPBACK = {"4": "127.0.0.1", "6": "::1"}


@contextlib.contextmanager
def opened(kind: str, port: int, serving: Serving = PLAIN, ip: str = "4") -> Iterator[Link]:
    """The link for levels of `network` and `ip`; `port` is the files' (0: any free one)."""
    if kind == "user":
        with _user(port, serving, ip) as link:
            yield link
        return
    if kind == "tap":
        with tap.opened(port, serving) as link:
            yield link
        return
    if kind == "passt":
        with passt.opened(port, serving) as link:
            yield link
        return
    raise UsageError(f"there is no network {kind!r}", hint="use user, tap or passt")


@contextlib.contextmanager
def _user(port: int, serving: Serving, ip: str) -> Iterator[Link]:
    """QEMU's user network: the guest finds the host's loopback at 10.0.2.2 and, with IPv6, at fec0::2.

    It always boots over IPv4: without, iPXE would wait for DHCP to give up, which takes it longer than a boot may.
    """
    with listen(_LOOPBACK[ip], port, serving.kind) as data, listen("127.0.0.1", 0) as control:
        server = "10.0.2.2"
        bootfile = f"http://{server}:{port_of(control)}/{BOOT}"
        # IPv6 stays on: iPXE asks for its router, too, and would wait 13 seconds for one that never answers.
        yield Link(
            ("-netdev", f"user,id={NETDEV},bootfile={bootfile}"),
            (),
            server,
            control,
            data,
            lambda: socket.create_connection(data.getsockname()[:2], 10.0),
            scheme=serving.protocol,
            data_server="fec0::2" if ip == "6" else server,
        )
