"""The network of one trial's machine: the part that is common to all kinds."""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from guestmark.agent.binary import start_host_agent
from guestmark.agent.client import Agent
from guestmark.agent.traffic import ANY_ADDRESS
from guestmark.core.errors import MachineError, PlatformUnusableError, UsageError
from guestmark.core.levels import Levels
from guestmark.core.machine_facts import NetworkFacts
from guestmark.platforms.counters import read_processor_s, read_vhost_s
from guestmark.platforms.network.attestation import End, Path, attest_network, attest_vsock
from guestmark.platforms.network.helpers import FORWARDED
from guestmark.platforms.network.links import LinkSetup, set_up_link, switch_offloads
from guestmark.platforms.network.movers import Roots, Surroundings
from guestmark.platforms.network.namespaces import (
    MACHINE_ADDRESS,
    PEER_ADDRESS,
    PREFIX,
    LinkKind,
    LinkOptions,
    Namespaces,
)
from guestmark.platforms.place import HERE
from guestmark.setting.network import MTU, NETWORK, NIC, NIC_QUEUES, NIC_RING, OFFLOADS, Network, Offloads

LOOPBACK = "lo"
# The agent's address of the kernel that runs the hypervisor, by its context identifier.
VSOCK_HOST = "vsock:2"
# Ports of servers on a machine that its peer can reach, unless a process forwards a few of them.
_OPEN = range(1024, 32768)
# The kernel's taps leave room for a header of Ethernet in 64 KiB; libslirp in QEMU and slirp know only the usual one.
_LARGEST_MTU = {
    Network.USER: 1500,
    Network.SLIRP: 1500,
    **dict.fromkeys((Network.TAP, Network.VHOST, Network.RAW, Network.HYBRID), 65521),
}
_FORWARDING = frozenset({Network.USER, Network.PASST, Network.PASTA})
_ONE_WAY = frozenset({Network.NONE, Network.SLIRP4NETNS, Network.SLIRP, Network.VSOCK, Network.EXISTING})
_READY_S = 10.0
_STOP_S = 2.0
# A locally administered address; the network has no other machines.
MACHINE_MAC = "52:54:00:67:6d:01"


def list_reachable_ports(level: Network) -> range:
    """Return the ports of a machine that its peer can reach over such a network; empty if it can reach none."""
    if level in _ONE_WAY:
        return range(0)
    return FORWARDED if level in _FORWARDING else _OPEN


def make_unreachable_error(level: Network, port: int) -> PlatformUnusableError:
    """Return the error for a server at a port of a machine that its peer cannot reach over such a network."""
    hint = "let the machine connect to the peer, or use network=tap or veth"
    if ports := list_reachable_ports(level):
        hint = f"ports {ports[0]} to {ports[-1]} can be reached"
    return PlatformUnusableError(
        f"the peer cannot reach port {port} of a machine with network={level}", hint=hint
    )


@dataclass(slots=True)
class TrialNetwork:
    """A network with its peer; `platforms.base.MachineNetwork` is the part that workloads may use.

    `machine_mac` is the hardware address of an interface that the machine's agent has to set up, `machine_name` the
    name of one that is already set up; both are empty if the machine sees no interface.
    """

    levels: Levels
    # The namespaces if they are on this host, or how to find processes in them if an agent created them.
    where: Namespaces | Surroundings
    peer: Agent
    peer_pid: int
    # Name of the peer's interface.
    peer_name: str
    peer_address: str = PEER_ADDRESS
    machine_address: str | None = MACHINE_ADDRESS
    # Settings of the machine's interface.
    own_address: str = MACHINE_ADDRESS
    machine_mac: str = ""
    machine_name: str = ""
    # The address at which the peer reaches servers on the machine, if it is not the machine's.
    forwarded_at: str = ""
    machine: Agent | None = None
    # Return the processes on this host that are the machine, those that supervise others, and those that move bytes
    # between the ends.
    list_ends: Callable[[], Sequence[int]] = tuple
    list_helpers: Callable[[], Sequence[int]] = tuple
    list_joiners: Callable[[], Sequence[int]] = tuple
    # Returns those of the movers that are neither the machine nor its hypervisor.
    list_others: Callable[[], Sequence[int]] = tuple
    # The program that the hypervisor starts to carry the packets of a serial line, which has no hardware addresses.
    serial_program: str = ""
    # The process on this host that is the machine's kernel, if it handles the interface's packets itself.
    kernel_pid: int | None = None
    # Drivers that the machine's interface may have; any if empty.
    drivers: tuple[str, ...] = ()
    # Whether both ends can leave checksums and segmentation to each other.
    leaves_work: bool = False
    # Name of the tap between machine and peer, if there is one.
    tap: str = ""
    # The machine's context identifier with network=vsock.
    cid: int = 0
    # Address at which servers on the peer listen.
    listen_address: str = ANY_ADDRESS
    # The last attestation.
    found: NetworkFacts | None = None

    def set_socket_addresses(self, peer_address: str, machine_address: str, *, forwards: bool) -> None:
        """Sets the addresses for a process that relays the machine's traffic through sockets on the peer's loopback.

        If it `forwards`, a range of ports on that loopback leads to the machine.
        """
        self.peer_name, self.peer_address, self.own_address = LOOPBACK, peer_address, machine_address
        self.machine_address, self.forwarded_at = None, ""
        if forwards:
            self.machine_address, self.forwarded_at = machine_address, "127.0.0.1"

    def set_vsock(self, cid: int, listen_address: str = VSOCK_HOST) -> None:
        """Sets the addresses of a guest that has sockets to its hypervisor's kernel in place of an interface.

        If the hypervisor itself answers, the peer listens on Unix sockets, at another `listen_address`.
        """
        self.cid, self.machine_mac, self.peer_name = cid, "", LOOPBACK
        self.peer_address, self.own_address, self.machine_address = VSOCK_HOST, "", None
        self.listen_address = listen_address

    @property
    def by_kernel(self) -> bool:
        """Whether threads of the kernel move the bytes for the hypervisor."""
        return self.level is Network.VHOST or self.listen_address == VSOCK_HOST

    @property
    def level(self) -> Network:
        """The kind of network between machine and peer."""
        return self.levels[NETWORK]

    @property
    def is_here(self) -> bool:
        """Whether the peer is a process of this host."""
        return isinstance(self.where, Namespaces)

    @property
    def machine_ports(self) -> range:
        """Ports at which the peer reaches servers on the machine."""
        return list_reachable_ports(self.level)

    @property
    def namespaces(self) -> Namespaces:
        """The namespaces of a network on this host."""
        assert isinstance(self.where, Namespaces), "the network is inside another machine"
        return self.where

    def set_own_stack_mover(self, pid: int) -> None:
        """Sets process `pid` as the mover: it is the machine's kernel and handles the interface's packets itself."""
        self.kernel_pid = pid
        self.drivers, self.leaves_work, self.list_joiners = (), False, lambda: (pid,)

    def connect(self, agent: Agent) -> None:
        """Sets up the machine's end once its agent answers. Raises `MachineError`."""
        self.machine = agent
        if not (self.machine_mac or self.serial_program):
            return
        if self.tap and self.levels[OFFLOADS] is Offloads.OFF:
            switch_offloads(self.peer, self.peer_name, Offloads.OFF)
        setup = LinkSetup(
            f"{self.own_address}/{PREFIX}",
            self.levels.get(MTU),
            self.levels.get(OFFLOADS),
            self.levels.get(NIC_QUEUES),
        )
        self.machine_name = set_up_link(agent, setup, mac=self.machine_mac, name=self.machine_name).name

    def reach_machine(self, port: int) -> tuple[str, int]:
        """Returns the address and port at which the peer reaches a server on the machine.

        Raises `PlatformUnusableError` if the peer cannot reach it.
        """
        address = self.forwarded_at or self.machine_address
        if not address or port not in self.machine_ports:
            raise make_unreachable_error(self.level, port)
        return address, port

    def attest(self) -> NetworkFacts:
        """Returns facts about the network. Raises `AttestationError` if it is not what the cell requested."""
        if self.machine is None:
            raise MachineError("the machine was never connected to its network")
        path = Path(
            self.levels,
            self._identify_surroundings(),
            End(self.machine, self.machine_name, self.own_address),
            End(self.peer, self.peer_name, self.peer_address),
            self.peer_pid,
            Roots((self.peer_pid, *self.list_ends(), *self.list_helpers()), tuple(self.list_joiners())),
            self.drivers,
            direct=self.peer_name != LOOPBACK or self.level is Network.HOST,
            offloads=self.leaves_work,
            tap=self.tap,
            counts=self.kernel_pid is None,
            listens=self.listen_address,
            by_kernel=self.by_kernel,
            serial_program=self.serial_program,
        )
        if self.level is Network.VSOCK:
            self.found = attest_vsock(path, self.cid)
        else:
            self.found = attest_network(path)
        return self.found

    def _identify_surroundings(self) -> Surroundings:
        """Returns the identifiers by which processes in the network are found."""
        if isinstance(self.where, Surroundings):
            return self.where
        descriptors = [fd for fd in (self.where.peer, self.where.machine) if fd is not None]
        inodes = tuple(os.fstat(fd).st_ino for fd in descriptors)
        return Surroundings(HERE.ask_agent, inodes, owner=os.getpid())

    def read_mover_s(self) -> float:
        """Returns the seconds of processor time, so far, of movers on this host other than the machine's hypervisor."""
        others = sum(read_processor_s(pid) or 0.0 for pid in self.list_others())
        if not self.by_kernel:
            return others
        return others + sum(map(read_vhost_s, self.list_ends()))

    def remarks(self) -> list[str]:
        """Returns remarks about the programs that moved the bytes."""
        if self.found is None:
            return []
        remarks = []
        for mover in self.found.movers:
            if mover.debug:
                remarks.append(f"{mover.program}, which carries the network traffic, is a debug build")
        return remarks


def choose_link_kind(name: str, level: Network, kinds: Mapping[Network, LinkKind]) -> LinkKind:
    """Returns the kind of link for `level` from those of the platform `name`. Raises `UsageError` if it has none."""
    if level not in kinds:
        raise UsageError(
            f"{name} cannot have network={level}", hint=f"use {', '.join(kinds)}, or exclude the combination"
        )
    return kinds[level]


def read_link_options(levels: Levels, *, headers: bool = False) -> LinkOptions:
    """Returns the settings of interfaces on this host from the levels. Raises `UsageError` for impossible ones."""
    level = levels[NETWORK]
    most = _LARGEST_MTU.get(level)
    if most is not None and (levels.get(MTU) or 0) > most:
        raise UsageError(
            f"network={level} has an MTU of at most {most}",
            hint=f"use mtu={most}, or exclude the combination",
        )
    if levels[OFFLOADS] is Offloads.OFF and level not in (Network.VETH, Network.TAP, Network.VHOST):
        raise UsageError(
            f"network={level} has no offloads to switch off",
            hint=f"use network={Network.VETH} or {Network.TAP}, or exclude the combination",
        )
    return LinkOptions(
        f"peer{secrets.token_hex(3)}", levels.get(MTU), levels[OFFLOADS], levels[NIC_QUEUES], headers
    )


def refuse_packet_settings(levels: Levels) -> None:
    """Raises `UsageError` for settings of packets or a card, which network=vsock does not have."""
    given = {
        MTU.name: levels.get(MTU) is not None,
        NIC.name: levels[NIC] is not NIC.read(NIC.default),
        NIC_QUEUES.name: levels[NIC_QUEUES] > 1,
        NIC_RING.name: levels.get(NIC_RING) is not None,
    }
    for name, is_given in given.items():
        if is_given:
            raise UsageError(
                f"network=vsock has neither packets nor a card, so {name} does not apply",
                hint=f"leave out {name}, or exclude the combination",
            )


@contextlib.contextmanager
def start_peer(namespaces: Namespaces | None = None) -> Iterator[tuple[Agent, int]]:
    """Starts an agent in the peer's namespace, by default this host's; yields its client and its process id."""
    within: Sequence[str] = ()
    hold: Sequence[int] = ()
    if namespaces is not None:
        within = namespaces.make_command_prefix(namespaces.peer)
        hold = namespaces.list_descriptors()
    process, transport = start_host_agent(within, hold=hold)
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
