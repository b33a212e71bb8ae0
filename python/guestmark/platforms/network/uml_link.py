"""Connects guests of User-Mode Linux to their peer."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace

from guestmark.core.errors import UsageError
from guestmark.core.levels import Levels
from guestmark.core.platform_kind import Program
from guestmark.platforms.network.helpers import SLIRP_PEER, find_program
from guestmark.platforms.network.hypervisor_link import HypervisorLink
from guestmark.platforms.network.inner import make_peer_command_prefix, open_inner_network
from guestmark.platforms.network.namespaces import MACHINE_INTERFACE, LinkKind, LinkOptions, open_namespaces
from guestmark.platforms.network.trial_network import (
    MACHINE_MAC,
    TrialNetwork,
    choose_link_kind,
    read_link_options,
    start_peer,
)
from guestmark.platforms.place import HERE, Place
from guestmark.setting.network import NETWORK, Network

_LINK_KINDS = {
    Network.TAP: LinkKind.TAP,
    Network.HYBRID: LinkKind.TAP,
    Network.RAW: LinkKind.VETH,
    Network.SLIRP: LinkKind.NOTHING,
}
# Its usual build relays at the speed of a modem.
_SLIRP = Program("slirp-fullbolt", "slirp")
# The interface of UML's serial line, and the machine's address, which slirp determines.
_SERIAL, _SERIAL_ADDRESS = "eth0", "10.0.2.15"


@contextlib.contextmanager
def open_uml_network(levels: Levels, place: Place) -> Iterator[HypervisorLink]:
    """Creates the network of a guest; yields an empty link with network=none.

    Raises `UsageError` for a network that UML cannot have, and `PlatformUnusableError`.
    """
    level = levels[NETWORK]
    if level is Network.NONE:
        yield HypervisorLink()
        return
    joint = choose_link_kind("uml", level, _LINK_KINDS)
    # UML opens the interface itself, because only then its packets have a virtio header, which offloads need.
    options = replace(read_link_options(levels), named=True, addressed=False)
    if place is not HERE:
        with _open_inside(levels, place, joint, options) as link:
            yield link
        return
    with open_namespaces(joint, options) as namespaces, start_peer(namespaces) as (peer, pid):
        network = TrialNetwork(
            levels, namespaces, peer, pid, options.name,
            machine_mac=MACHINE_MAC, drivers=("uml-vector",), tap=options.name_tap(joint),
        )  # fmt: skip
        network.leaves_work = joint is LinkKind.TAP
        interface = options.name_tap(joint) or MACHINE_INTERFACE
        within = namespaces.make_command_prefix(namespaces.of_machine)
        yield HypervisorLink(
            network,
            (_add_card(network, interface),),
            pass_fds=namespaces.list_descriptors(),
            within=tuple(within),
        )


@contextlib.contextmanager
def _open_inside(
    levels: Levels, place: Place, joint: LinkKind, options: LinkOptions
) -> Iterator[HypervisorLink]:
    """Creates the network of a nested guest. Raises `UsageError` and `PlatformUnusableError`."""
    level = levels[NETWORK]
    if joint is LinkKind.VETH:
        raise UsageError(
            f"a nested guest cannot have network={level}",
            hint=f"use network={Network.TAP}, {Network.HYBRID} or {Network.SLIRP}",
        )
    with open_inner_network(levels, place, joint, options, ("uml-vector",)) as network:
        network.leaves_work = joint is LinkKind.TAP
        yield HypervisorLink(
            network, (_add_card(network, options.name),), within=make_peer_command_prefix(network)
        )


def _add_card(network: TrialNetwork, interface: str) -> str:
    """Returns UML's argument for a card that opens an interface by its name, or for a serial line to slirp.

    Sets the network up for the latter. Raises `PlatformUnusableError` without slirp.
    """
    if network.level is Network.SLIRP:
        program = find_program(_SLIRP, network.level)
        network.set_socket_addresses(SLIRP_PEER, _SERIAL_ADDRESS, forwards=False)
        network.machine_mac, network.machine_name, network.drivers = "", _SERIAL, ("uml-netdev",)
        network.serial_program = os.path.realpath(program)
        return f"{_SERIAL}=slirp,,{program}"
    # Whatever its MTU, UML requests packets as long as the kernel makes them, but has room for them only with gro=1.
    # Without it, the first long packet blocks all that follow.
    return f"vec0:transport={network.level},ifname={interface},gro=1,mac={MACHINE_MAC}"
