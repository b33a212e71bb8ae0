"""A guest of any architecture that answers ssh: an sshd inside it is reached through the guest's own agent."""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from guestmark.platforms.base import Machine
from tests.framework.cells import cell_of
from tests.framework.guests import start_cell
from tests.framework.sshd import key

_SSHD = "/usr/sbin/sshd"
_THERE = "/run/tests-sshd"
# sshd's packages are unpacked, not installed, so its user and its directories have not been made.
_FURNISH = "echo sshd:x:101:65534::/run/sshd:/usr/sbin/nologin >> /etc/passwd; mkdir -p /run/sshd"
# Gives ssh the connection itself, by ProxyUseFdpass.
_CONNECT = (
    "import socket, sys; to = socket.socket(socket.AF_UNIX); to.connect(sys.argv[1]); "
    "socket.send_fds(socket.socket(fileno=1), [b'0'], [to.fileno()])"
)


@contextlib.contextmanager
def guest_with_sshd(platform: str, directory: Path) -> Iterator[str]:
    """Yield the command to set as GUESTMARK_SSH; it reaches a running guest of that platform by any name.

    The guest serves one connection after the other.
    """
    host, user = key(directory / "host"), key(directory / "user")
    (directory / "known").write_text(f"guest {host.with_suffix('.pub').read_text()}")
    path = directory / "socket"
    (directory / "ssh_config").write_text(
        f"Host *\n HostName guest\n User root\n IdentityFile {user}\n IdentitiesOnly yes\n ProxyUseFdpass yes\n"
        f" ProxyCommand {shlex.join([sys.executable, '-c', _CONNECT, str(path)])}\n"
        f" UserKnownHostsFile {directory}/known\n GlobalKnownHostsFile none\n StrictHostKeyChecking yes\n"
    )
    with (
        start_cell(cell_of(platform, "exec", command=[_SSHD])) as machine,
        socket.socket(socket.AF_UNIX) as listening,
    ):
        machine.agent.exec(["sh", "-ec", f"{_FURNISH}; mkdir -m 700 {_THERE}"], timeout_s=60)
        for name, content in (("host", host.read_bytes()), ("keys", user.with_suffix(".pub").read_bytes())):
            machine.agent.write_file(f"{_THERE}/{name}", content)
        machine.agent.exec(["chmod", "-R", "go=", _THERE], timeout_s=60)
        listening.bind(str(path))
        listening.listen()
        serving = threading.Thread(target=_serve, args=(machine, listening))
        serving.start()
        try:
            yield shlex.join(["ssh", "-F", str(directory / "ssh_config")])
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            serving.join()


def _serve(machine: Machine, listening: socket.socket) -> None:
    options = {
        "HostKey": f"{_THERE}/host", "AuthorizedKeysFile": f"{_THERE}/keys", "StrictModes": "no", "UsePAM": "no",
    }  # fmt: skip
    words = [_SSHD, "-i", "-e", "-f", "/dev/null"]
    words += [f"-o{name}={value}" for name, value in options.items()]
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:  # it has been shut down
                return
            with connection, contextlib.suppress(BrokenPipeError):
                machine.agent.run_piped(
                    words, stdin_fd=connection.fileno(), output_fds=(connection.fileno(), nowhere)
                )
    finally:
        os.close(nowhere)
