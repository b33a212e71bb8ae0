"""A tap device in a private network namespace: the host's own TCP serves the guest, which reaches nothing else."""

from __future__ import annotations

import array
import contextlib
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from guestmark.core.errors import PlatformUnusableError
from guestmark.workloads.netboot import tap_setup
from guestmark.workloads.netboot.content import Serving
from guestmark.workloads.netboot.dhcp import DhcpServer, Lease
from guestmark.workloads.netboot.link import NETDEV, Link, port_of
from guestmark.workloads.netboot.router import Router
from guestmark.workloads.netboot.scripts import BOOT

# As in the publication that is reproduced; the namespace is private, so nothing else can have them.
SERVER, GUEST, PREFIX = "10.0.6.1", "10.0.6.2", 24
_SETUP_S = 20.0
_SOCKETS = 6
_HINT = "it needs root, or unprivileged user namespaces and /dev/net/tun; network=user needs nothing"


@contextlib.contextmanager
def opened(port: int, serving: Serving) -> Iterator[Link]:
    """The link. Raises `PlatformUnusableError` where privileges do not allow a tap."""
    tap, dhcp_fd, router_fd, control_fd, data_fd, client_fd = _made(port, serving.kind)
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, tap)
        dhcp, router, control, data, client = (
            stack.enter_context(socket.socket(fileno=fd))
            for fd in (dhcp_fd, router_fd, control_fd, data_fd, client_fd)
        )
        bootfile = f"http://{SERVER}:{port_of(control)}/{BOOT}"
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


def _made(port: int, kind: socket.SocketKind = socket.SOCK_STREAM) -> list[int]:
    unshare = shutil.which("unshare")
    if unshare is None:
        raise PlatformUnusableError("network=tap needs unshare, which is missing", hint="install util-linux")
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
            raise PlatformUnusableError("the tap was not set up in time", hint=_HINT) from None
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["no reason given"]
            raise PlatformUnusableError(f"network=tap cannot be used here: {said[0]}", hint=_HINT)
        fds = array.array("i")
        _, ancillary, _, _ = ours.recvmsg(16, socket.CMSG_LEN(_SOCKETS * fds.itemsize))
        for _, _, payload in ancillary:
            fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
    if len(fds) != _SOCKETS:
        for fd in fds:
            os.close(fd)
        raise PlatformUnusableError("the tap's set-up ended without a result", hint=_HINT)
    return list(fds)
