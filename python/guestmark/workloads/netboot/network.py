"""How guest and servers are connected, by the level of the factor `network`."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

from guestmark.core.errors import UsageError
from guestmark.workloads.netboot import passt, tap
from guestmark.workloads.netboot.link import NETDEV, Link, listen, port_of
from guestmark.workloads.netboot.scripts import BOOT


@contextlib.contextmanager
def opened(kind: str, port: int) -> Iterator[Link]:
    """The link for a level of the factor `network`; `port` is the files' (0: any free one)."""
    if kind == "user":
        with _user(port) as link:
            yield link
        return
    if kind == "tap":
        with tap.opened(port) as link:
            yield link
        return
    if kind == "passt":
        with passt.opened(port) as link:
            yield link
        return
    raise UsageError(f"there is no network {kind!r}", hint="use user, tap or passt")


@contextlib.contextmanager
def _user(port: int) -> Iterator[Link]:
    """QEMU's user network: the guest finds the host's loopback at 10.0.2.2."""
    with listen("127.0.0.1", port) as data, listen("127.0.0.1", 0) as control:
        server = "10.0.2.2"
        bootfile = f"http://{server}:{port_of(control)}/{BOOT}"
        yield Link(
            ("-netdev", f"user,id={NETDEV},ipv6=off,bootfile={bootfile}"),
            (),
            server,
            control,
            data,
            lambda: socket.create_connection(data.getsockname(), 10.0),
        )
