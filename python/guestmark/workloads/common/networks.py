"""The network of a trial's machine, for workloads that need one."""

from __future__ import annotations

from collections.abc import Iterable

from guestmark.core.errors import UsageError, WorkloadError
from guestmark.core.model import Cell
from guestmark.platforms.base import HasNetwork, Machine, MachineNetwork
from guestmark.setting.network import NETWORK, Network

_HINT = "add one: --set network=tap for guests, --set network=veth for others"


def require_network(cells: Iterable[Cell], *, of_its_own: bool = True) -> None:
    """Raises `UsageError` for the first cell whose machine has no network.

    With `of_its_own`, it must have IP addresses on a network that it shares with its peer alone.
    """
    for cell in cells:
        level = cell.levels.get(NETWORK)
        if level in {None, Network.NONE}:
            raise UsageError(
                f"{cell.id}: {cell.workload.name} needs a network, but the machine has none", hint=_HINT
            )
        if of_its_own and level is Network.VSOCK:
            raise UsageError(
                f"{cell.id}: the programs of {cell.workload.name} use IP, which network=vsock does not carry",
                hint="use network=tap, or exclude the combination",
            )
        if of_its_own and level is Network.EXISTING:
            raise UsageError(
                f"{cell.id}: with network=existing, a server of {cell.workload.name} would be open to everybody",
                hint="run server and client on the same side, or measure machines whose network is made for them",
            )


def find_network(machine: Machine) -> MachineNetwork:
    """Returns the machine's network. Raises `WorkloadError` without one."""
    network = machine.network if isinstance(machine, HasNetwork) else None
    if network is None:
        raise WorkloadError("the machine has no network", hint=_HINT)
    return network
