"""Joins QEMU's guests to their peer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from guestmark.agent.client import Agent
from guestmark.core.architectures import Bus as MachineBus
from guestmark.core.errors import PlatformUnusableError, UsageError
from guestmark.core.levels import Levels
from guestmark.platforms.drives import VirtioBus
from guestmark.platforms.network.namespaces import Joint, open_namespaces
from guestmark.platforms.network.trial_network import (
    MACHINE_MAC,
    TrialNetwork,
    read_joint_options,
    start_peer,
)
from guestmark.platforms.place import HERE, Place
from guestmark.setting.network import MTU, NETWORK, NIC, NIC_QUEUES, NIC_RING, OFFLOADS, Network, Offloads

NETDEV = "network"  # its id in QEMU
# What a virtio card can leave to its other end, each way.
_VIRTIO_OFFLOADS = (
    "csum", "gso", "guest_csum", "guest_tso4", "guest_tso6", "guest_ecn", "guest_ufo",
    "host_tso4", "host_tso6", "host_ecn", "host_ufo",
)  # fmt: skip
_JOINTS = {Network.TAP: Joint.TAP}


@dataclass(frozen=True, slots=True)
class QemuLink:
    """QEMU's arguments for a network, and the descriptors that it inherits; empty with network=none."""

    network: TrialNetwork | None = None
    arguments: tuple[str, ...] = ()
    pass_fds: tuple[int, ...] = ()

    def connect(self, agent: Agent) -> TrialNetwork | None:
        """Sets up the guest's end, once its agent answers, and returns its network. Raises `MachineError`."""
        if self.network is not None:
            self.network.connect(agent)
        return self.network


def list_modules(levels: Levels) -> Sequence[str]:
    """Returns the modules that drive the card of a guest with a network."""
    return () if levels[NETWORK] is Network.NONE else levels[NIC].drivers


@contextlib.contextmanager
def open_qemu_network(name: str, levels: Levels, virtio: VirtioBus, place: Place) -> Iterator[QemuLink]:
    """Makes the network of a guest of the platform `name`; nothing with network=none.

    Raises `UsageError` for a combination that cannot be, and `PlatformUnusableError`.
    """
    level = levels[NETWORK]
    if level is Network.NONE:
        yield QemuLink()
        return
    joint = _JOINTS.get(level)
    if joint is None:
        raise UsageError(
            f"{name} cannot have network={level}",
            hint=f"use {', '.join(_JOINTS)}, or exclude the combination",
        )
    if place is not HERE:
        raise PlatformUnusableError(
            "a guest inside another one cannot have a network", hint="leave out network, or use tcg or kvm"
        )
    device = format_card(levels, virtio)
    options = read_joint_options(levels, headers=levels[NIC].is_virtio)
    with open_namespaces(joint, options) as namespaces, start_peer(namespaces) as (peer, pid):
        network = TrialNetwork(levels, namespaces, peer, pid, machine_mac=MACHINE_MAC)
        queues = namespaces.taps
        named = f"fd={queues[0]}" if len(queues) == 1 else f"fds={':'.join(map(str, queues))}"
        yield QemuLink(network, ("-netdev", f"tap,id={NETDEV},{named}", "-device", device), queues)


def format_card(levels: Levels, virtio: VirtioBus) -> str:
    """Returns the argument of `-device` for the card. Raises `UsageError` for what such a card does not have."""
    nic, queues, ring = levels[NIC], levels[NIC_QUEUES], levels.get(NIC_RING)
    if not nic.is_virtio:
        if queues > 1 or ring is not None:
            raise UsageError(
                f"nic={nic.name} has one queue of a fixed size",
                hint="use nic=virtio-net with nic_queues and nic_ring, or exclude the combination",
            )
        if not virtio.on_pci:
            raise PlatformUnusableError(
                f"nic={nic.name} needs a machine with PCI", hint="use nic=virtio-net, or another machine"
            )
        return f"{nic.device},netdev={NETDEV},mac={MACHINE_MAC},romfile="
    words = [virtio.format_device("virtio-net"), f"netdev={NETDEV}", f"mac={MACHINE_MAC}"]
    if virtio.bus is MachineBus.PCI:
        # The machine boots a kernel directly: a ROM would only take time.
        words.append("romfile=")
    if queues > 1:
        words.append("mq=on")
        if virtio.on_pci:
            # One interrupt for each queue of sending and of receiving, for changes and for control.
            words.append(f"vectors={2 * queues + 2}")
    if ring is not None:
        words += [f"rx_queue_size={ring}", f"tx_queue_size={ring}"]
    if (mtu := levels.get(MTU)) is not None:
        words.append(f"host_mtu={mtu}")
    if levels[OFFLOADS] is Offloads.OFF:
        words += [f"{name}=off" for name in _VIRTIO_OFFLOADS]
    return ",".join(words)
