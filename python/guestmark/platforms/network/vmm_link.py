"""Connects guests of Firecracker and Cloud Hypervisor to their peer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from guestmark.core.levels import Levels
from guestmark.platforms.network.hypervisor_link import HypervisorLink
from guestmark.platforms.network.inner import make_peer_command_prefix, open_inner_network
from guestmark.platforms.network.namespaces import LinkKind, open_namespaces
from guestmark.platforms.network.trial_network import (
    MACHINE_MAC,
    TrialNetwork,
    choose_link_kind,
    read_link_options,
    refuse_packet_settings,
    start_peer,
)
from guestmark.platforms.place import HERE, Place
from guestmark.setting.network import NETWORK, NIC, NIC_QUEUES, NIC_RING, OFFLOADS, Network, Offloads

_LINK_KINDS = {Network.TAP: LinkKind.TAP, Network.VSOCK: LinkKind.NOTHING}
_DRIVERS = NIC.read(NIC.default).drivers


@dataclass(frozen=True, slots=True)
class TapCard:
    """A guest's network card. Its hypervisor inherits the tap's `descriptors`, or opens it by its name if it cannot."""

    tap: str
    descriptors: tuple[int, ...]
    queues: int
    # Descriptors of the receive ring; None for the hypervisor's default.
    ring: int | None
    offloads: Offloads
    mac: str = MACHINE_MAC


@dataclass(frozen=True, slots=True)
class VmmLink(HypervisorLink):
    """A link with the guest's card, if it has one."""

    card: TapCard | None = None


def list_modules(levels: Levels) -> tuple[str, ...]:
    """Returns the modules that drive the card of a guest with a network; sockets need none besides the root's."""
    return _DRIVERS if levels[NETWORK] is Network.TAP else ()


@contextlib.contextmanager
def open_vmm_network(
    name: str, levels: Levels, place: Place, *, vsock: Path, cid: int, inherits: bool
) -> Iterator[VmmLink]:
    """Creates the network of a guest of the platform `name`; yields an empty link with network=none.

    `vsock` is the hypervisor's socket, `cid` the guest's context identifier. The hypervisor `inherits` a tap if it can.
    Raises `UsageError` for an impossible combination, and `PlatformUnusableError`.
    """
    level = levels[NETWORK]
    if level is Network.NONE:
        yield VmmLink()
        return
    kind = choose_link_kind(name, level, _LINK_KINDS)
    if level is Network.VSOCK:
        refuse_packet_settings(levels)
    inherits = inherits and place is HERE
    options = replace(read_link_options(levels, headers=True), named=not inherits)
    with contextlib.ExitStack() as stack:
        taps: tuple[int, ...] = ()
        pass_fds: tuple[int, ...] = ()
        within: tuple[str, ...] = ()
        if place is HERE:
            namespaces = stack.enter_context(open_namespaces(kind, options))
            peer, pid = stack.enter_context(start_peer(namespaces))
            network = TrialNetwork(
                levels, namespaces, peer, pid, options.name,
                machine_mac=MACHINE_MAC, drivers=_DRIVERS, tap=options.name_tap(kind),
            )  # fmt: skip
            if inherits:
                taps = pass_fds = namespaces.taps
            else:
                within = tuple(namespaces.make_command_prefix(namespaces.peer))
                pass_fds = namespaces.list_descriptors()
        else:
            network = stack.enter_context(open_inner_network(levels, place, kind, options, _DRIVERS))
            within = make_peer_command_prefix(network)
        if level is Network.VSOCK:
            network.set_vsock(cid, listen_address=f"unix:{vsock}")
            yield VmmLink(network)
            return
        network.leaves_work = True
        card = TapCard(options.name, taps, levels[NIC_QUEUES], levels.get(NIC_RING), levels[OFFLOADS])
        yield VmmLink(network, pass_fds=pass_fds, within=within, card=card)
