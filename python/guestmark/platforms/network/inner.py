"""Networks inside an outer guest: the peer is another agent there, in a separate network namespace."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from guestmark.core.errors import PlatformUnusableError
from guestmark.core.levels import Levels
from guestmark.platforms.network.movers import Surroundings
from guestmark.platforms.network.namespaces import LinkKind, LinkOptions, format_link_kind
from guestmark.platforms.network.trial_network import MACHINE_MAC, TrialNetwork
from guestmark.platforms.place import Place, PlaceOfPeers

# The first process of an outer guest is the agent. /proc/self/exe would be the shell's, because a script starts the
# hypervisor; the whole script is not run there, because the programs beside the hypervisor must not be in the network.
_AGENT = "/proc/1/exe"


@contextlib.contextmanager
def open_inner_network(
    levels: Levels, place: Place, joint: LinkKind, options: LinkOptions, drivers: tuple[str, ...]
) -> Iterator[TrialNetwork]:
    """Creates the peer of a nested guest, and the interface that its hypervisor opens in the peer's namespace.

    Raises `PlatformUnusableError`.
    """
    if not isinstance(place, PlaceOfPeers):
        raise PlatformUnusableError(
            "a guest inside such a machine cannot have a network", hint="leave out network"
        )
    with place.start_peer(format_link_kind(joint, options)) as (peer, pid):
        yield TrialNetwork(
            levels, Surroundings(place.ask_agent, of=pid), peer, pid, options.name,
            machine_mac=MACHINE_MAC, drivers=drivers, tap=options.name_tap(joint),
        )  # fmt: skip


def make_peer_command_prefix(network: TrialNetwork) -> tuple[str, ...]:
    """Returns the command prefix that runs a command in the network namespace of an inner guest's peer."""
    return (_AGENT, "network", "enter", f"--of={network.peer_pid}", "--")
