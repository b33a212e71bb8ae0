"""Finds out what joins a machine and its peer, and compares it with what was asked for."""

from __future__ import annotations

import os
from dataclasses import dataclass

from guestmark.agent.client import Agent
from guestmark.agent.wire import LinkState
from guestmark.core.levels import Levels
from guestmark.core.machine_facts import LinkEnd, NetworkFacts
from guestmark.core.placement import write_list
from guestmark.platforms.network.links import describe_link
from guestmark.setting.network import NETWORK


@dataclass(frozen=True, slots=True)
class End:
    """One end of a network: its agent, and its interface's name."""

    agent: Agent
    interface: str


def attest_network(levels: Levels, machine: End, peer: End, peer_pid: int) -> NetworkFacts:
    """Returns the facts of a network. Raises `AttestationError` with both values where they are not what was asked."""
    return NetworkFacts(
        network=levels[NETWORK],
        machine=describe_end(describe_link(machine.agent, machine.interface)),
        peer=describe_end(describe_link(peer.agent, peer.interface)),
        peer_processors=write_list(os.sched_getaffinity(peer_pid)),
        probe_bytes=0,
    )


def describe_end(link: LinkState) -> LinkEnd:
    """Returns the facts of one end."""
    bits = [number for number, bit in enumerate(link.virtio) if bit == "1"]
    return LinkEnd(
        driver=link.driver,
        mtu=link.mtu,
        offloads=list(link.offloads),
        fixed=list(link.fixed),
        queues=link.channels or 1,
        ring=link.tx_ring,
        interrupts=list(link.interrupts),
        virtio=bits or None,
        congestion_control=link.congestion_control,
        ipv6=link.ipv6,
    )
