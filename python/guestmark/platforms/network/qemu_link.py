"""Connects QEMU's guests to their peer."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import replace

from guestmark.core.architectures import Bus as MachineBus
from guestmark.core.errors import PlatformUnusableError, UsageError
from guestmark.core.levels import Levels
from guestmark.platforms.drives import VirtioBus
from guestmark.platforms.network.helpers import FORWARDED, SLIRP_PEER, serve_guest
from guestmark.platforms.network.hypervisor_link import HypervisorLink
from guestmark.platforms.network.inner import make_peer_command_prefix, open_inner_network
from guestmark.platforms.network.namespaces import (
    MACHINE_ADDRESS,
    PEER_ADDRESS,
    LinkKind,
    LinkOptions,
    open_namespaces,
)
from guestmark.platforms.network.trial_network import (
    MACHINE_MAC,
    TrialNetwork,
    choose_link_kind,
    read_link_options,
    refuse_packet_settings,
    start_peer,
)
from guestmark.platforms.place import HERE, Place
from guestmark.setting.network import MTU, NETWORK, NIC, NIC_QUEUES, NIC_RING, OFFLOADS, Network, Offloads

NETDEV = "network"  # its id in QEMU
# Properties of a virtio card for the offloads of both directions.
_VIRTIO_OFFLOADS = (
    "csum", "gso", "guest_csum", "guest_tso4", "guest_tso6", "guest_ecn", "guest_ufo",
    "host_tso4", "host_tso6", "host_ecn", "host_ufo",
)  # fmt: skip
_LINK_KINDS = {
    Network.TAP: LinkKind.TAP,
    Network.VHOST: LinkKind.TAP,
    Network.USER: LinkKind.NOTHING,
    Network.PASST: LinkKind.DUMMY_INTERFACE,
    Network.VSOCK: LinkKind.NOTHING,
}
_BY_TAP = (Network.TAP, Network.VHOST)
_VHOST = "/dev/vhost-net"
_VHOST_VSOCK = "/dev/vhost-vsock"
_VSOCK_MODULES = ("vmw_vsock_virtio_transport",)
# Context identifiers of guests: the lower ones have meanings of their own, and programs take them as signed numbers.
_CIDS = range(3, 1 << 31)
# The machine's address in QEMU's own network.
_USER_MACHINE = "10.0.2.15"
_USUAL_MTU = 1500


def list_modules(levels: Levels) -> Sequence[str]:
    """Returns the modules that drive the card or sockets of a guest with a network."""
    if levels[NETWORK] is Network.VSOCK:
        return _VSOCK_MODULES
    return () if levels[NETWORK] is Network.NONE else levels[NIC].drivers


@contextlib.contextmanager
def open_qemu_network(name: str, levels: Levels, virtio: VirtioBus, place: Place) -> Iterator[HypervisorLink]:
    """Creates the network of a guest of the platform `name`; yields an empty link with network=none.

    Raises `UsageError` for an impossible combination, and `PlatformUnusableError`.
    """
    level = levels[NETWORK]
    if level is Network.NONE:
        yield HypervisorLink()
        return
    joint = choose_link_kind(name, level, _LINK_KINDS)
    if level is Network.VSOCK:
        with _open_vsock(levels, virtio, place) as link:
            yield link
        return
    device = format_card(levels, virtio)
    if level is Network.VHOST and not levels[NIC].is_virtio:
        raise UsageError("network=vhost needs nic=virtio-net", hint="leave out nic, or use network=tap")
    options = read_link_options(levels, headers=levels[NIC].is_virtio)
    if place is not HERE:
        with _open_inside(levels, place, joint, options, device) as link:
            yield link
        return
    with contextlib.ExitStack() as stack:
        namespaces = stack.enter_context(open_namespaces(joint, options))
        peer, pid = stack.enter_context(start_peer(namespaces))
        nic, tap = levels[NIC], options.name_tap(joint)
        network = TrialNetwork(
            levels, namespaces, peer, pid, options.name, machine_mac=MACHINE_MAC, drivers=nic.drivers, tap=tap
        )
        network.leaves_work = level in _BY_TAP and nic.is_virtio
        if level in _BY_TAP:
            taps = namespaces.taps
            vhost = stack.enter_context(_open_vhost(level, len(taps))) if level is Network.VHOST else ()
            netdev = f"tap,id={NETDEV}{_list_descriptors('fd', taps)}"
            if vhost:
                netdev += f",vhost=on{_list_descriptors('vhostfd', vhost)}"
            yield HypervisorLink(network, ("-netdev", netdev, "-device", device), (*taps, *vhost))
            return
        if level is Network.USER:
            network.set_socket_addresses(SLIRP_PEER, _USER_MACHINE, forwards=True)
            words = ("-netdev", _format_user_network(), "-device", device)
            within = namespaces.make_command_prefix(namespaces.peer)
            yield HypervisorLink(network, words, namespaces.list_descriptors(), tuple(within))
            return
        mtu = levels.get(MTU) or _USUAL_MTU
        descriptor, helper = stack.enter_context(serve_guest(namespaces, mtu))
        network.set_socket_addresses(PEER_ADDRESS, MACHINE_ADDRESS, forwards=True)
        netdev = f"stream,id={NETDEV},server=off,addr.type=fd,addr.str={descriptor}"
        yield HypervisorLink(network, ("-netdev", netdev, "-device", device), (descriptor,), helper=helper)


@contextlib.contextmanager
def _open_inside(
    levels: Levels, place: Place, joint: LinkKind, options: LinkOptions, device: str
) -> Iterator[HypervisorLink]:
    """Creates the network of a nested guest, whose QEMU opens its interfaces in the peer's namespace.

    Raises `UsageError` for a network that is impossible there, and `PlatformUnusableError`.
    """
    level = levels[NETWORK]
    if level is Network.PASST:
        raise UsageError(f"a nested guest cannot have network={level}", hint="use network=tap, vhost or user")
    nic = levels[NIC]
    with open_inner_network(levels, place, joint, replace(options, named=True), nic.drivers) as network:
        network.leaves_work = level in _BY_TAP and nic.is_virtio
        if level in _BY_TAP:
            netdev = f"tap,id={NETDEV},ifname={options.name},script=no,downscript=no"
            if options.queues > 1:
                netdev += f",queues={options.queues}"
            if level is Network.VHOST:
                netdev += ",vhost=on"
        else:
            network.set_socket_addresses(SLIRP_PEER, _USER_MACHINE, forwards=True)
            netdev = _format_user_network()
        yield HypervisorLink(
            network, ("-netdev", netdev, "-device", device), within=make_peer_command_prefix(network)
        )


@contextlib.contextmanager
def _open_vsock(levels: Levels, virtio: VirtioBus, place: Place) -> Iterator[HypervisorLink]:
    """Gives a guest sockets to its hypervisor's kernel, where the peer listens.

    Raises `UsageError` for settings of packets, and `PlatformUnusableError`.
    """
    refuse_packet_settings(levels)
    options = read_link_options(levels)
    cid = _CIDS[secrets.randbelow(len(_CIDS))]
    device = f"{virtio.format_device('vhost-vsock')},guest-cid={cid}"
    if place is not HERE:
        with open_inner_network(levels, place, LinkKind.NOTHING, options, ()) as network:
            network.set_vsock(cid)
            yield HypervisorLink(network, ("-device", device))
        return
    with (
        _open_vhost(Network.VSOCK) as opened,
        open_namespaces(LinkKind.NOTHING, options) as namespaces,
        start_peer(namespaces) as (peer, pid),
    ):
        network = TrialNetwork(levels, namespaces, peer, pid, options.name)
        network.set_vsock(cid)
        yield HypervisorLink(network, ("-device", f"{device},vhostfd={opened[0]}"), opened)


@contextlib.contextmanager
def _open_vhost(level: Network, queues: int = 1) -> Iterator[tuple[int, ...]]:
    """Opens the kernel's device for `level`, vhost or vsock, once for each queue. Raises `PlatformUnusableError`."""
    device = _VHOST_VSOCK if level is Network.VSOCK else _VHOST
    module = os.path.basename(device).replace("-", "_")
    with contextlib.ExitStack() as stack:
        opened = []
        for _ in range(queues):
            try:
                opened.append(os.open(device, os.O_RDWR | os.O_CLOEXEC))
            except OSError as error:
                raise PlatformUnusableError(
                    f"network={level} needs {device}: {error.strerror}",
                    hint=f"load the module {module}, let this user open the device, or use network=tap",
                ) from error
            stack.callback(os.close, opened[-1])
        yield tuple(opened)


def _list_descriptors(name: str, descriptors: Sequence[int]) -> str:
    """Returns the netdev option for descriptors, one for each queue."""
    if len(descriptors) == 1:
        return f",{name}={descriptors[0]}"
    return f",{name}s={':'.join(map(str, descriptors))}"


def _format_user_network() -> str:
    """Returns the netdev of QEMU's user network with forwarded ports; it reaches only the peer's loopback."""
    words = [f"user,id={NETDEV},ipv6=off"]
    for protocol in ("tcp", "udp"):
        for port in FORWARDED:
            words.append(f"hostfwd={protocol}:127.0.0.1:{port}-{_USER_MACHINE}:{port}")
    return ",".join(words)


def format_card(levels: Levels, virtio: VirtioBus) -> str:
    """Returns the argument of `-device` for the card. Raises `UsageError` for settings that it does not have."""
    nic, queues, ring = levels[NIC], levels[NIC_QUEUES], levels.get(NIC_RING)
    if not nic.is_virtio:
        if queues > 1 or ring is not None:
            raise UsageError(
                f"nic={nic.name} has a single queue of a fixed size",
                hint="use nic=virtio-net with nic_queues and nic_ring, or exclude the combination",
            )
        if not virtio.on_pci:
            raise PlatformUnusableError(
                f"nic={nic.name} needs a machine with PCI", hint="use nic=virtio-net, or another machine type"
            )
        return f"{nic.device},netdev={NETDEV},mac={MACHINE_MAC},romfile="
    words = [virtio.format_device("virtio-net"), f"netdev={NETDEV}", f"mac={MACHINE_MAC}"]
    if virtio.bus is MachineBus.PCI:
        # The machine boots a kernel directly, so a boot ROM would only take time.
        words.append("romfile=")
    if queues > 1:
        words.append("mq=on")
        if virtio.on_pci:
            # One interrupt for each transmit and receive queue, one for configuration changes, one for control.
            words.append(f"vectors={2 * queues + 2}")
    if ring is not None:
        # Only the receive ring: the transmit ring has at most 256 entries unless another process serves the card.
        words.append(f"rx_queue_size={ring}")
    if (mtu := levels.get(MTU)) is not None:
        words.append(f"host_mtu={mtu}")
    if levels[OFFLOADS] is Offloads.OFF:
        words += [f"{name}=off" for name in _VIRTIO_OFFLOADS]
    return ",".join(words)
