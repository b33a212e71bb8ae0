"""A private sshd for tests, on loopback, with its keys and configuration in a private directory."""

from __future__ import annotations

import contextlib
import os
import pwd
import shlex
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from guestmark.platforms.exclusive import LOCK_VARIABLE, NO_LOCK

SSHD = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/usr/bin")
_READY_S = 10.0


@dataclass(slots=True)
class Sshd:
    """A running server; for users of its `client`, machines of any name are this one."""

    directory: Path
    port: int
    process: subprocess.Popen[bytes]
    address: str = "127.0.0.1"

    @property
    def config(self) -> Path:
        """The configuration for ssh."""
        return self.directory / "ssh_config"

    @property
    def client(self) -> str:
        """The command to set as GUESTMARK_SSH."""
        return shlex.join(["ssh", "-F", str(self.config)])

    def log(self) -> str:
        """Return the server's log."""
        return (self.directory / "log").read_text()

    def stop(self) -> None:
        """Stop the listening server; sessions continue."""
        self.process.terminate()
        self.process.wait()


def key(path: Path) -> Path:
    """Create a key without a passphrase, and return its path."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
    return path


@contextlib.contextmanager
def sshd(
    directory: Path,
    environment: Mapping[str, str] | None = None,
    settings: str = "",
    *,
    address: str = "127.0.0.1",
    within: Sequence[str] = (),
) -> Iterator[Sshd]:
    """Yield a server for this user; its sessions have `environment`, `settings` are lines of its configuration.

    `within` is the prefix of a command that starts it elsewhere, such as in a namespace, where it listens on
    `address`.
    """
    if SSHD is None:
        pytest.skip("there is no sshd: install the package openssh-server")
    if os.getuid() == 0:  # sshd separates its privileges with this directory
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    directory.chmod(0o700)
    host, user, port = key(directory / "host"), key(directory / "user"), _free_port()
    shutil.copy(user.with_suffix(".pub"), directory / "authorized")
    set_there = {LOCK_VARIABLE: NO_LOCK, "XDG_CACHE_HOME": str(directory / "cache"), **(environment or {})}
    settings += f"SetEnv {' '.join(shlex.quote(f'{name}={value}') for name, value in set_there.items())}\n"
    (directory / "sshd_config").write_text(
        f"ListenAddress {address}:{port}\nHostKey {host}\nPidFile {directory}/pid\n"
        f"AuthorizedKeysFile {directory}/authorized\nStrictModes no\nUsePAM no\nPasswordAuthentication no\n"
        "KbdInteractiveAuthentication no\nPermitRootLogin yes\nMaxStartups 100\n" + settings
    )
    name = pwd.getpwuid(os.getuid()).pw_name
    (directory / "known").write_text(f"[{address}]:{port} {host.with_suffix('.pub').read_text()}")
    (directory / "ssh_config").write_text(
        f"Host *\n HostName {address}\n Port {port}\n User {name}\n IdentityFile {user}\n IdentitiesOnly yes\n"
        f" UserKnownHostsFile {directory}/known\n GlobalKnownHostsFile none\n StrictHostKeyChecking yes\n"
        " HashKnownHosts no\n"
    )
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            [*within, SSHD, "-D", "-e", "-f", str(directory / "sshd_config")],
            stdin=subprocess.DEVNULL,
            stderr=log,
        )
    server = Sshd(directory, port, process, address)
    try:
        _await(server)
        yield server
    finally:
        if process.poll() is None:
            server.stop()


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def _await(server: Sshd) -> None:
    deadline = time.monotonic() + _READY_S
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection((server.address, server.port), 1.0):
            return
        assert server.process.poll() is None, server.log()
        time.sleep(0.02)
    raise AssertionError(f"sshd does not listen: {server.log()}")
