"""Joins machines on this host's kernel to their peer: the agent is started inside a network namespace."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from guestmark.core.errors import UsageError
from guestmark.core.levels import Levels
from guestmark.platforms.network.namespaces import MACHINE_INTERFACE, Joint, open_namespaces
from guestmark.platforms.network.trial_network import TrialNetwork, read_joint_options, start_peer
from guestmark.setting.network import NETWORK, Network

_JOINTS = {Network.VETH: Joint.VETH, Network.HOST: Joint.NOTHING}


@contextlib.contextmanager
def open_host_network(name: str, levels: Levels) -> Iterator[TrialNetwork | None]:
    """Makes the network of a machine of the platform `name`; None with network=none.

    Raises `UsageError` for a network that such machines cannot have, and `PlatformUnusableError`.
    """
    level = levels[NETWORK]
    if level is Network.NONE:
        yield None
        return
    joint = _JOINTS.get(level)
    if joint is None:
        raise UsageError(
            f"{name} cannot have network={level}",
            hint=f"use {', '.join(_JOINTS)}, or exclude the combination",
        )
    with (
        open_namespaces(joint, read_joint_options(levels)) as namespaces,
        start_peer(namespaces) as (peer, pid),
    ):
        network = TrialNetwork(levels, namespaces, peer, pid)
        if level is Network.HOST:
            network.peer_address = network.machine_address = "127.0.0.1"
            network.peer_interface = network.machine_name = "lo"
        else:
            network.machine_name = MACHINE_INTERFACE
        yield network


def enter_command(network: TrialNetwork, *, as_caller: bool) -> list[str]:
    """Returns words that become a machine's command inside its namespace."""
    spaces = network.namespaces
    namespace = spaces.peer if spaces.machine is None else spaces.machine
    return spaces.enter_command(namespace, as_caller=as_caller)
