"""passt as the guest's network: user-mode sockets like QEMU's own network, in a program of its own.

Its DHCP names no boot file, so iPXE has to be booted as a kernel that is given its first script.

It is not confined as other helpers are, because it confines itself further than they are, which Landlock would forbid:
an empty and read-only root, another user, no capabilities, and a filter of system calls. That is attested all the same.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator

from guestmark.core.errors import PlatformUnusableError
from guestmark.workloads.netboot.content import Serving
from guestmark.workloads.netboot.link import NETDEV, Link, listen

_SERVER, _GUEST, _PREFIX = "10.0.6.1", "10.0.6.2", 24
_EARLY_S = 0.3  # within which passt ends when it does not like its arguments or the host


@contextlib.contextmanager
def opened(port: int, serving: Serving) -> Iterator[Link]:
    """The link. Raises `PlatformUnusableError` when passt is missing or does not start."""
    program = shutil.which("passt")
    if program is None:
        raise PlatformUnusableError(
            "network=passt needs passt, which is missing", hint="install the package passt"
        )
    ours, theirs = socket.socketpair()
    with contextlib.ExitStack() as stack:
        stack.enter_context(ours)
        log = stack.enter_context(tempfile.TemporaryFile())
        data = stack.enter_context(listen("127.0.0.1", port, serving.kind))
        control = stack.enter_context(listen("127.0.0.1", 0))
        # It maps its gateway's address to the host's loopback, and ends with its only connection.
        command = [
            program, "--foreground", "--stderr", "--one-off", "--fd", str(theirs.fileno()), "--ipv4-only",
            "--address", _GUEST, "--netmask", str(_PREFIX), "--gateway", _SERVER, "--mtu", "1500",
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
            said = next((line for line in reversed(lines) if "syslog" not in line), "it said nothing")
            raise PlatformUnusableError(f"passt does not start: {said}", hint="use network=user")
        yield Link(
            ("-netdev", f"stream,id={NETDEV},server=off,addr.type=fd,addr.str={ours.fileno()}"),
            (ours.fileno(),),
            _SERVER,
            control,
            data,
            lambda: socket.create_connection(data.getsockname(), 10.0),
            names_bootfile=False,
            scheme=serving.protocol,
            helpers={"passt": process.pid},
        )
