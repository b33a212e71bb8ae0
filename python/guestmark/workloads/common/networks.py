"""The network of a trial's machine, for workloads that need one."""

from __future__ import annotations

from collections.abc import Iterable

from guestmark.core.errors import UsageError, WorkloadError
from guestmark.core.model import Cell
from guestmark.platforms.base import HasNetwork, Machine, MachineNetwork
from guestmark.setting.network import NETWORK, Network

_HINT = "add one: --set network=tap for guests, --set network=veth for others"


def require_network(cells: Iterable[Cell]) -> None:
    """Raises `UsageError` for the first cell whose machine has no network."""
    for cell in cells:
        if cell.levels.get(NETWORK) in {None, Network.NONE}:
            raise UsageError(
                f"{cell.id}: {cell.workload.name} needs a network, but the machine has none", hint=_HINT
            )


def find_network(machine: Machine) -> MachineNetwork:
    """Returns the machine's network. Raises `WorkloadError` without one."""
    network = machine.network if isinstance(machine, HasNetwork) else None
    if network is None:
        raise WorkloadError("the machine has no network", hint=_HINT)
    return network
