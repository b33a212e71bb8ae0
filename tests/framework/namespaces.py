"""Machines that are network namespaces of this host: each with a card, an address and an sshd.

They share this host's files and processes. Only the network between them is their own, and can be cut.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.framework.sshd import Sshd, sshd


@dataclass(frozen=True, slots=True)
class Machine:
    """One of the machines; `cable` is the other end of its card."""

    name: str
    address: str
    namespace: str
    bridge: str
    cable: str
    sshd: Sshd

    def plug(self, *, plugged: bool) -> None:
        """Connect the machine to the others, or disconnect it."""
        _ip("link", "set", self.cable, "up" if plugged else "down")

    def keep_known(self) -> None:
        """Make packets to the machine vanish silently while it is unplugged, as behind a switch."""
        there = json.loads(_ip("-j", "-n", self.namespace, "link", "show", "eth0"))
        entry = (self.address, "lladdr", there[0]["address"], "dev", self.bridge, "nud", "permanent")
        _ip("neigh", "replace", *entry)


@dataclass(frozen=True, slots=True)
class Network:
    """The machines, and this host's `address` in their network."""

    address: str
    range: str
    machines: dict[str, Machine]
    config: Path  # of ssh, with all machines by name

    @property
    def client(self) -> str:
        """The command to set as GUESTMARK_SSH."""
        return shlex.join(["ssh", "-F", str(self.config)])


@contextlib.contextmanager
def network(directory: Path, names: Sequence[str]) -> Iterator[Network]:
    """Yield a network of machines with these names, which are removed afterwards."""
    if os.getuid() != 0 or shutil.which("ip") is None:
        pytest.skip("making network namespaces takes root and the package iproute2")
    tag = secrets.token_hex(3)
    taken = _ip("-o", "addr")  # also by a killed run, which has left its devices
    free = [subnet for subnet in (f"10.213.{number}" for number in range(254)) if f"{subnet}." not in taken]
    bridge, subnet = f"gm{tag}", secrets.choice(free)
    with contextlib.ExitStack() as stack:
        _ip("link", "add", bridge, "type", "bridge")
        stack.callback(_ip, "link", "del", bridge)
        _ip("addr", "add", f"{subnet}.1/24", "dev", bridge)
        _ip("link", "set", bridge, "up")
        machines = {}
        for number, name in enumerate(names, 2):
            namespace, cable, address = f"gm-{tag}-{name}", f"gm{tag}.{number}", f"{subnet}.{number}"
            _ip("netns", "add", namespace)
            stack.callback(_ip, "netns", "del", namespace)  # with its card, and so the cable
            _ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", namespace)
            _ip("link", "set", cable, "master", bridge, "up")
            _ip("-n", namespace, "link", "set", "lo", "up")
            _ip("-n", namespace, "addr", "add", f"{address}/24", "dev", "eth0")
            _ip("-n", namespace, "link", "set", "eth0", "up")
            own = directory / name
            own.mkdir(mode=0o700)
            within = ("ip", "netns", "exec", namespace)
            server = stack.enter_context(sshd(own, address=address, within=within))
            machines[name] = Machine(name, address, namespace, bridge, cable, server)
        config = directory / "ssh_config"
        texts = [(name, machine.sshd.config.read_text()) for name, machine in machines.items()]
        config.write_text("".join(text.replace("Host *", f"Host {name}", 1) for name, text in texts))
        yield Network(f"{subnet}.1", f"{subnet}.0/24", machines, config)


def _ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, timeout=10, stdout=subprocess.PIPE, text=True).stdout
