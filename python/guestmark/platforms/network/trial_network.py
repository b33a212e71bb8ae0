"""The network of one trial's machine, whatever joins it to its peer."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

from guestmark.agent.binary import start_host_agent
from guestmark.agent.client import Agent
from guestmark.core.errors import MachineError, PlatformUnusableError
from guestmark.core.levels import Levels
from guestmark.core.machine_facts import NetworkFacts
from guestmark.platforms.network.attestation import End, attest_network
from guestmark.platforms.network.links import LinkSetup, set_up_link
from guestmark.platforms.network.namespaces import (
    MACHINE_ADDRESS,
    PEER_ADDRESS,
    PEER_INTERFACE,
    PREFIX,
    JointOptions,
    Namespaces,
)
from guestmark.setting.network import MTU, NETWORK, NIC_QUEUES, OFFLOADS, Network

# Servers of a machine that is behind a process with sockets of its own, which forwards these ports.
FORWARDED = range(20000, 20016)
_READY_S = 10.0
_STOP_S = 2.0
# Locally administered; the network is nobody else's.
MACHINE_MAC = "52:54:00:67:6d:01"


@dataclass(slots=True)
class TrialNetwork:
    """A network with its peer; `platforms.base.MachineNetwork` says what workloads may ask.

    `machine_mac` is the hardware address of the interface that the machine's agent sets up, `machine_name` the name of
    one that is set up already; both are empty where the machine has none that it can see.
    """

    levels: Levels
    namespaces: Namespaces
    peer: Agent
    peer_pid: int
    peer_address: str = PEER_ADDRESS
    machine_address: str | None = MACHINE_ADDRESS
    machine_ports: range = range(1024, 32768)
    peer_interface: str = PEER_INTERFACE
    machine_mac: str = ""
    machine_name: str = ""
    # Where the peer dials servers of the machine, if not at its address.
    forwarded_at: str = ""
    machine: Agent | None = None

    @property
    def level(self) -> Network:
        """What joins machine and peer."""
        return self.levels[NETWORK]

    def connect(self, agent: Agent) -> None:
        """Sets up the machine's end once its agent answers. Raises `MachineError`."""
        self.machine = agent
        if not self.machine_mac:
            return
        setup = LinkSetup(
            f"{self.machine_address}/{PREFIX}",
            self.levels.get(MTU),
            self.levels.get(OFFLOADS),
            self.levels.get(NIC_QUEUES),
        )
        self.machine_name = set_up_link(agent, self.machine_mac, setup).name

    def reach_machine(self, port: int) -> tuple[str, int]:
        """Returns address and port that the peer dials for a server on the machine.

        Raises `PlatformUnusableError` if the peer cannot reach it.
        """
        address = self.forwarded_at or self.machine_address
        if not address or port not in self.machine_ports:
            raise PlatformUnusableError(
                f"the peer cannot reach port {port} of a machine with network={self.level}",
                hint="let the machine connect to the peer, or take network=tap or veth",
            )
        return address, port

    def attest(self) -> NetworkFacts:
        """Returns what the path really is. Raises `AttestationError` if that is not what the cell asked for."""
        if self.machine is None:
            raise MachineError("its network was never connected")
        machine, peer = End(self.machine, self.machine_name), End(self.peer, self.peer_interface)
        return attest_network(self.levels, machine, peer, self.peer_pid)


def read_joint_options(levels: Levels, *, headers: bool = False) -> JointOptions:
    """Returns what the levels say about interfaces on this host."""
    return JointOptions(levels.get(MTU), levels[OFFLOADS], levels[NIC_QUEUES], headers)


@contextlib.contextmanager
def start_peer(namespaces: Namespaces) -> Iterator[tuple[Agent, int]]:
    """Starts an agent in the peer's namespace; yields its client and its process id."""
    within = namespaces.enter_command(namespaces.peer)
    process, transport = start_host_agent(within, hold=namespaces.list_descriptors())
    with contextlib.ExitStack() as stack:
        stack.callback(_stop_peer, process)
        agent = Agent(transport)
        stack.callback(agent.close)
        agent.hello(timeout_s=_READY_S)
        yield agent, process.pid


def _stop_peer(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
