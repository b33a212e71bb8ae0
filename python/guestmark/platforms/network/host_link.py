"""Connects machines on this host's kernel to their peer: the agent is started in a network namespace."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from guestmark.core.levels import Levels
from guestmark.platforms.network.helpers import join_namespace
from guestmark.platforms.network.namespaces import MACHINE_INTERFACE, LinkKind, open_namespaces
from guestmark.platforms.network.trial_network import (
    LOOPBACK,
    TrialNetwork,
    choose_link_kind,
    read_link_options,
    start_peer,
)
from guestmark.setting.network import MTU, NETWORK, Network

_LINK_KINDS = {
    Network.VETH: LinkKind.VETH,
    Network.HOST: LinkKind.NOTHING,
    Network.PASTA: LinkKind.PROGRAM_JOINS,
    Network.SLIRP4NETNS: LinkKind.PROGRAM_JOINS,
}
# The usual MTU of containers' user-mode networks.
_USUAL_MTU = 65520


@contextlib.contextmanager
def open_host_network(name: str, levels: Levels) -> Iterator[TrialNetwork | None]:
    """Creates the network of a machine of the platform `name`; yields None with network=none.

    Raises `UsageError` for a network that these machines cannot have, and `PlatformUnusableError`.
    """
    level = levels[NETWORK]
    if level is Network.NONE:
        yield None
        return
    joint = choose_link_kind(name, level, _LINK_KINDS)
    options = read_link_options(levels)
    with contextlib.ExitStack() as stack:
        namespaces = stack.enter_context(open_namespaces(joint, options))
        peer, pid = stack.enter_context(start_peer(namespaces))
        network = TrialNetwork(levels, namespaces, peer, pid, options.name, machine_name=MACHINE_INTERFACE)
        if joint is LinkKind.PROGRAM_JOINS:
            joined = stack.enter_context(join_namespace(level, namespaces, levels.get(MTU) or _USUAL_MTU))
            network.set_socket_addresses(
                joined.peer_address, joined.machine_address, forwards=joined.forwards
            )
            network.list_joiners = network.list_others = joined.process.list_pids
            network.list_helpers = joined.process.list_supervisors
            network.drivers = ("tun",)
        elif level is Network.HOST:
            network.peer_address = network.machine_address = "127.0.0.1"
            network.own_address, network.peer_name, network.machine_name = "127.0.0.1", LOOPBACK, LOOPBACK
        else:
            network.drivers, network.leaves_work = ("veth",), True
        yield network


def make_command_prefix(network: TrialNetwork, *, as_caller: bool) -> list[str]:
    """Returns the command prefix that runs a command in a machine's network namespace."""
    spaces = network.namespaces
    return spaces.make_command_prefix(spaces.of_machine, as_caller=as_caller)
