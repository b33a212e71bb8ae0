"""The way to this host that another machine already has: this host listens, and the machine connects to it."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass

from guestmark.agent.client import Agent
from guestmark.agent.traffic import ANY_ADDRESS
from guestmark.core.errors import MachineError, PlatformUnusableError, UsageError
from guestmark.core.levels import Levels
from guestmark.core.machine_facts import LinkEnd, NetworkFacts
from guestmark.core.placement import format_processor_list
from guestmark.platforms.network.attestation import PROBE_BYTES, describe_end, send_probe
from guestmark.platforms.network.links import describe_link_towards
from guestmark.platforms.network.trial_network import start_peer
from guestmark.setting.network import NETWORK, PEER_ADDRESS, Network, explain_only_existing, parse_address

_ANY_IPV6_ADDRESS = "::"
# Set by sshd: address and port of the client, then those of the server.
_SSH_CONNECTION = b"SSH_CONNECTION="


@dataclass(slots=True)
class ExistingNetwork:
    """A `platforms.base.MachineNetwork` that guestmark did not set up, so what lies between both ends is unknown."""

    machine: Agent
    peer: Agent
    peer_pid: int
    peer_address: str
    machine_address: str | None = None
    machine_ports: range = range(0)
    is_here: bool = True
    kernel_pid: int | None = None

    @property
    def listen_address(self) -> str:
        """The address at which servers on the peer listen; all of them if this host does not have the given one."""
        family, anywhere = socket.AF_INET, ANY_ADDRESS
        if ":" in self.peer_address:
            family, anywhere = socket.AF_INET6, _ANY_IPV6_ADDRESS
        with contextlib.suppress(OSError), socket.create_server((self.peer_address, 0), family=family):
            return self.peer_address
        return anywhere

    def reach_machine(self, port: int) -> tuple[str, int]:
        """Raises `PlatformUnusableError`: whether this host can connect to the machine is not known."""
        raise PlatformUnusableError(
            f"the peer cannot reach port {port} of a machine with network={Network.EXISTING}",
            hint="let the machine connect to the peer: run the server there",
        )

    def read_mover_s(self) -> float:
        """Returns 0: who moves the bytes is not known."""
        return 0.0

    def attest(self) -> NetworkFacts:
        """Returns facts about the network. Raises `AttestationError` if no bytes reach this host."""
        send_probe(self.machine, self.peer, self.peer_address, self.listen_address, direct=False)
        return NetworkFacts(
            network=Network.EXISTING,
            machine=self._describe_machine_end(),
            peer_processors=format_processor_list(os.sched_getaffinity(self.peer_pid)),
            probe_bytes=PROBE_BYTES,
        )

    def _describe_machine_end(self) -> LinkEnd | None:
        """Returns the interface from which the machine reaches this host; None if its kernel does not show it."""
        if ":" in self.peer_address:
            return None
        try:
            return describe_end(describe_link_towards(self.machine, self.peer_address))
        except MachineError:
            return None


@contextlib.contextmanager
def open_existing_network(
    name: str, levels: Levels, machine: Agent, *, by_ssh: bool
) -> Iterator[ExistingNetwork | None]:
    """Starts a peer on this host for the machine `name`; yields None with network=none.

    `by_ssh` says that the machine's agent was started by its sshd, which knows this host's address. Raises
    `PlatformUnusableError` if that address is not known, `UsageError` for another network.
    """
    if levels[NETWORK] is Network.NONE:
        yield None
        return
    if why := explain_only_existing(levels[NETWORK]):
        raise UsageError(f"{name} cannot have network={levels[NETWORK]}", hint=why)
    address = levels.get(PEER_ADDRESS) or ""
    if not address and by_ssh:
        address = _find_client_address(machine)
    if not address:
        raise PlatformUnusableError(
            f"the address at which {name} reaches this host is not known",
            hint=f"--set {PEER_ADDRESS.name}=ADDRESS, an IP address of this host as the machine sees it",
        )
    with start_peer() as (peer, pid):
        yield ExistingNetwork(machine, peer, pid, address)


def _find_client_address(machine: Agent) -> str:
    """Returns the address from which ssh connected to the machine; empty without ssh."""
    for entry in machine.read_file("/proc/self/environ").split(b"\0"):
        if entry.startswith(_SSH_CONNECTION):
            first = entry.removeprefix(_SSH_CONNECTION).split(b" ")[0].decode(errors="replace")
            with contextlib.suppress(ValueError):
                return parse_address(first)
    return ""
