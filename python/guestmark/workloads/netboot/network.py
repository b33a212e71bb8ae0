"""Connects guest and servers according to the factor `network`.

A link is the guest's cable and the sockets that listen at its other end.
"""

from __future__ import annotations

import array
import contextlib
import errno
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from guestmark.core.errors import PlatformUnusableError, UsageError
from guestmark.core.temporary import open_unnamed_file
from guestmark.core.user_namespaces import explain_how_to_allow
from guestmark.workloads.netboot import tap_setup
from guestmark.workloads.netboot.content import PLAIN, ServerOptions
from guestmark.workloads.netboot.control import BOOT
from guestmark.workloads.netboot.dhcp import DhcpServer, Lease, Router

NETDEV = "net"  # its id in QEMU
_BACKLOG = 64


@dataclass(frozen=True, slots=True)
class Link:
    """A link. `server` is the host's address as the guest sees it; `connect` opens the host's own connection."""

    arguments: tuple[str, ...]
    pass_fds: tuple[int, ...]
    server: str
    control: socket.socket
    data: socket.socket
    connect: Callable[[], socket.socket]
    # Whether its DHCP server offers the file that the guest fetches first.
    names_bootfile: bool = True
    scheme: str = "http"  # where files are served
    # The host's address for fetching files, if the guest sees another one.
    data_server: str = ""
    # Process ids of the programs that the guest talks to, by name.
    helpers: dict[str, int] = field(default_factory=dict)

    @property
    def control_url(self) -> str:
        """URL at which the guest asks what to do."""
        return f"http://{_format_url_host(self.server)}:{get_bound_port(self.control)}"

    @property
    def data_url(self) -> str:
        """URL at which the guest fetches files."""
        return (
            f"{self.scheme}://{_format_url_host(self.data_server or self.server)}:{get_bound_port(self.data)}"
        )


def _format_url_host(address: str) -> str:
    """Returns an address in the form that URLs need."""
    return f"[{address}]" if ":" in address else address


def get_bound_port(listening: socket.socket) -> int:
    """Returns the TCP port that a socket listens on."""
    return int(listening.getsockname()[1])


def open_listener(address: str, port: int, kind: socket.SocketKind = socket.SOCK_STREAM) -> socket.socket:
    """Opens a listening socket; port 0 means any free one. Raises `PlatformUnusableError` if it is in use."""
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
                f"port {port} on {address} is in use", hint="use another port, or port = 0 for any free one"
            ) from error
        raise PlatformUnusableError(f"port {port} on {address}: {error.strerror}") from error
    return sock


_LOOPBACK = {"4": "127.0.0.1", "6": "::1"}


@contextlib.contextmanager
def open_link(kind: str, port: int, serving: ServerOptions = PLAIN, ip: str = "4") -> Iterator[Link]:
    """Opens the link for levels of `network` and `ip`; `port` is the file server's (0 for any free one)."""
    if kind == "user":
        with _open_user_network(port, serving, ip) as link:
            yield link
        return
    if kind == "tap":
        with _open_tap(port, serving) as link:
            yield link
        return
    if kind == "passt":
        with _open_passt(port, serving) as link:
            yield link
        return
    raise UsageError(f"there is no network {kind!r}", hint="use user, tap or passt")


@contextlib.contextmanager
def _open_user_network(port: int, serving: ServerOptions, ip: str) -> Iterator[Link]:
    """Opens QEMU's user network: the guest finds the host's loopback at 10.0.2.2 and, with IPv6, at fec0::2.

    Booting always uses IPv4: without it iPXE would wait for DHCP to give up, which takes longer than a boot's limit.
    """
    with (
        open_listener(_LOOPBACK[ip], port, serving.socket_kind) as data,
        open_listener("127.0.0.1", 0) as control,
    ):
        server = "10.0.2.2"
        bootfile = f"http://{server}:{get_bound_port(control)}/{BOOT}"
        # IPv6 stays on, as iPXE also asks for a router and would wait 13 seconds for one that never answers.
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


# The addresses of the published experiment; the network namespace is private, so they cannot conflict.
SERVER, GUEST, PREFIX = "10.0.6.1", "10.0.6.2", 24
_SETUP_S = 20.0
_SOCKETS = 6
_TAP_HINT = "it needs root, or unprivileged user namespaces and /dev/net/tun; network=user needs neither"


@contextlib.contextmanager
def _open_tap(port: int, serving: ServerOptions) -> Iterator[Link]:
    """Opens a tap device in a private network namespace.

    The host's own TCP serves the guest, which reaches nothing else. Raises `PlatformUnusableError` if privileges do not
    allow a tap.
    """
    tap, *descriptors = make_tap(port, serving.socket_kind)
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, tap)
        sockets = [stack.enter_context(socket.socket(fileno=fd)) for fd in descriptors]
        dhcp, router, control, data, client = sockets
        bootfile = f"http://{SERVER}:{get_bound_port(control)}/{BOOT}"
        stack.enter_context(DhcpServer(dhcp, Lease(SERVER, GUEST, PREFIX, bootfile)))
        stack.enter_context(Router(router))
        yield Link(
            ("-netdev", f"tap,id={NETDEV},fd={tap}"),
            (tap,),
            SERVER,
            control,
            data,
            lambda: client,
            scheme=serving.protocol,
        )


def make_tap(port: int, kind: socket.SocketKind = socket.SOCK_STREAM) -> list[int]:
    """Returns the descriptors of a new tap and of the sockets on it. Raises `PlatformUnusableError`."""
    unshare = shutil.which("unshare")
    if unshare is None:
        raise PlatformUnusableError("network=tap needs unshare, which is missing", hint="install util-linux")
    # Users other than root can create a network namespace only inside a user namespace in which they are root.
    private = ["--net"] if os.geteuid() == 0 else ["--map-root-user", "--net"]
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(_SETUP_S)
        program = [sys.executable, "-I", str(Path(tap_setup.__file__)), str(theirs.fileno())]
        try:
            done = subprocess.run(
                [unshare, *private, *program, SERVER, str(PREFIX), str(port), str(int(kind))],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_SETUP_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise PlatformUnusableError("the tap was not set up in time", hint=_TAP_HINT) from None
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["no reason given"]
            why = os.geteuid() and explain_how_to_allow()
            raise PlatformUnusableError(
                f"network=tap cannot be used here: {said[0]}",
                hint=f"{why}; network=user needs no user namespace" if why else _TAP_HINT,
            )
        fds = array.array("i")
        # Descriptors are passed as ancillary data (unix(7), SCM_RIGHTS); the namespace lives as long as they are open.
        _, ancillary, _, _ = ours.recvmsg(16, socket.CMSG_LEN(_SOCKETS * fds.itemsize))
        for _, _, payload in ancillary:
            fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
    if len(fds) != _SOCKETS:
        for fd in fds:
            os.close(fd)
        raise PlatformUnusableError("the tap was not set up, and no error was reported", hint=_TAP_HINT)
    return list(fds)


# Seconds within which passt ends if it refuses its arguments or the host.
_EARLY_S = 0.3


@contextlib.contextmanager
def _open_passt(port: int, serving: ServerOptions) -> Iterator[Link]:
    """Opens a user-mode network like QEMU's own, but in a separate program: passt.

    passt's DHCP server offers no boot file, so iPXE is booted as a kernel that gets its first script from QEMU. passt
    is not confined like other helpers, because it confines itself further in ways that Landlock would forbid: an empty
    read-only root, another user, no capabilities, and a system call filter. This is attested as well. Raises
    `PlatformUnusableError` if passt is missing or does not start.
    """
    program = shutil.which("passt")
    if program is None:
        raise PlatformUnusableError(
            "network=passt needs passt, which is missing", hint="install the package passt"
        )
    ours, theirs = socket.socketpair()
    with contextlib.ExitStack() as stack:
        stack.enter_context(ours)
        log = stack.enter_context(open_unnamed_file())
        data = stack.enter_context(open_listener("127.0.0.1", port, serving.socket_kind))
        control = stack.enter_context(open_listener("127.0.0.1", 0))
        # passt maps its gateway's address to the host's loopback, and ends with its only connection.
        command = [
            program, "--foreground", "--stderr", "--one-off", "--fd", str(theirs.fileno()), "--ipv4-only",
            "--address", GUEST, "--netmask", str(PREFIX), "--gateway", SERVER, "--mtu", "1500",
            "--tcp-ports", "none", "--udp-ports", "none",
        ]  # fmt: skip
        with theirs:
            process = subprocess.Popen(
                command, pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        stack.callback(process.wait)
        stack.callback(process.kill)
        time.sleep(_EARLY_S)
        if process.poll() is not None:
            log.seek(0)
            lines = log.read().decode(errors="replace").strip().splitlines()
            # passt's last line may merely complain that there is no system log.
            said = next((line for line in reversed(lines) if "syslog" not in line), "it printed nothing")
            raise PlatformUnusableError(f"passt does not start: {said}", hint="use network=user")
        yield Link(
            ("-netdev", f"stream,id={NETDEV},server=off,addr.type=fd,addr.str={ours.fileno()}"),
            (ours.fileno(),),
            SERVER,
            control,
            data,
            lambda: socket.create_connection(data.getsockname(), 10.0),
            names_bootfile=False,
            scheme=serving.protocol,
            helpers={"passt": process.pid},
        )
