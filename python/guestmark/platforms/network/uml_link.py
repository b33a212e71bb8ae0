"""Joins guests of User-Mode Linux to their peer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

from guestmark.agent.client import Agent
from guestmark.core.errors import PlatformUnusableError, UsageError
from guestmark.core.levels import Levels
from guestmark.platforms.network.namespaces import MACHINE_INTERFACE, Joint, open_namespaces
from guestmark.platforms.network.trial_network import (
    MACHINE_MAC,
    TrialNetwork,
    read_joint_options,
    start_peer,
)
from guestmark.platforms.place import HERE, HypervisorProcess, Place
from guestmark.platforms.process import SupervisedProcess
from guestmark.setting.network import NETWORK, Network

_JOINTS = {Network.TAP: Joint.TAP, Network.HYBRID: Joint.TAP, Network.RAW: Joint.VETH}


@dataclass(frozen=True, slots=True)
class UmlLink:
    """UML's arguments for a network, and the descriptors that it inherits; empty with network=none."""

    network: TrialNetwork | None = None
    arguments: tuple[str, ...] = ()
    pass_fds: tuple[int, ...] = ()
    # Words that start UML inside the namespace whose interface it opens.
    within: tuple[str, ...] = ()

    def connect(self, agent: Agent, process: HypervisorProcess) -> TrialNetwork | None:
        """Sets up the guest's end, once its agent answers, and returns its network. Raises `MachineError`."""
        if self.network is None:
            return None
        if isinstance(process, SupervisedProcess):
            self.network.list_ends, self.network.list_joiners = process.list_supervisors, process.list_pids
        self.network.connect(agent)
        return self.network


@contextlib.contextmanager
def open_uml_network(levels: Levels, place: Place) -> Iterator[UmlLink]:
    """Makes the network of a guest; nothing with network=none.

    Raises `UsageError` for a network that UML cannot have, and `PlatformUnusableError`.
    """
    level = levels[NETWORK]
    if level is Network.NONE:
        yield UmlLink()
        return
    joint = _JOINTS.get(level)
    if joint is None:
        raise UsageError(
            f"uml cannot have network={level}", hint=f"use {', '.join(_JOINTS)}, or exclude the combination"
        )
    if place is not HERE:
        raise PlatformUnusableError(
            "a guest inside another one cannot have a network", hint="leave out network, or use uml"
        )
    # UML opens the interface itself: only then it gives packets a virtio header, without which there are no offloads.
    options = replace(read_joint_options(levels), named=True, addressed=False)
    with open_namespaces(joint, options) as namespaces, start_peer(namespaces) as (peer, pid):
        taps = joint is Joint.TAP
        network = TrialNetwork(
            levels, namespaces, peer, pid, options.name,
            machine_mac=MACHINE_MAC, drivers=("uml-vector",), tap=options.name if taps else "",
        )  # fmt: skip
        network.leaves_work = taps
        inside = namespaces.peer if namespaces.machine is None else namespaces.machine
        interface = options.name if taps else MACHINE_INTERFACE
        # Whatever it was told of, UML asks for packets as long as the kernel makes them. It has room for them only with
        # gro=1: without that the first long one stops all that arrive.
        words = f"vec0:transport={level},ifname={interface},gro=1,mac={MACHINE_MAC}"
        within = namespaces.enter_command(inside)
        yield UmlLink(network, (words,), namespaces.list_descriptors(), tuple(within))
