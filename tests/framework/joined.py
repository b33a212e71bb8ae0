"""Two agents in network namespaces of their own that a pair of virtual interfaces joins."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from guestmark.agent.binary import start_host_agent
from guestmark.agent.client import Agent
from guestmark.platforms.host_like import Host

MACHINE, PEER = "10.212.0.1", "10.212.0.2"


@dataclass(slots=True)
class JoinedNetwork:
    """As `platforms.base.MachineNetwork`; `namespaces` are the machine's and the peer's."""

    peer: Agent
    namespaces: tuple[str, str]
    peer_address: str = PEER
    machine_address: str = MACHINE


@dataclass(slots=True)
class JoinedMachine(Host):
    """This host as a machine with a network."""

    network: JoinedNetwork | None = None  # type: ignore[assignment]


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, timeout=10)


@contextlib.contextmanager
def joined_machine() -> Iterator[JoinedMachine]:
    """Yields a machine on this host with its peer; both namespaces are gone afterwards."""
    if os.getuid() != 0 or shutil.which("ip") is None:
        pytest.skip("making network namespaces takes root and the package iproute2")
    tag = secrets.token_hex(3)
    names = (f"gm-{tag}-machine", f"gm-{tag}-peer")
    with contextlib.ExitStack() as stack:
        for name in names:
            _ip("netns", "add", name)
            stack.callback(_ip, "netns", "del", name)
            _ip("-n", name, "link", "set", "lo", "up")
        cable = ("link", "add", "eth0", "netns", names[0], "type", "veth")
        _ip(*cable, "peer", "name", "eth0", "netns", names[1])
        agents = []
        for name, address in zip(names, (MACHINE, PEER), strict=True):
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
            process, transport = start_host_agent(["ip", "netns", "exec", name])
            stack.callback(process.wait, 10)
            agents.append(stack.enter_context(Agent(transport)))
        yield JoinedMachine(agents[0], (), network=JoinedNetwork(agents[1], names))
