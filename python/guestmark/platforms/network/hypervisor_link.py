"""What a hypervisor needs to connect its guest to the guest's peer."""

from __future__ import annotations

from dataclasses import dataclass

from guestmark.agent.client import Agent
from guestmark.platforms.network.trial_network import TrialNetwork
from guestmark.platforms.place import HypervisorProcess
from guestmark.platforms.process import SupervisedProcess


@dataclass(frozen=True, slots=True)
class HypervisorLink:
    """A hypervisor's arguments for a network, and the descriptors that it inherits; empty with network=none."""

    network: TrialNetwork | None = None
    arguments: tuple[str, ...] = ()
    pass_fds: tuple[int, ...] = ()
    # The command prefix that starts the hypervisor in the namespace where it opens an interface or its own sockets.
    within: tuple[str, ...] = ()
    # The helper without which the hypervisor cannot run.
    helper: SupervisedProcess | None = None

    def connect(self, agent: Agent, process: HypervisorProcess) -> TrialNetwork | None:
        """Sets up the guest's end, once its agent answers, and returns its network. Raises `MachineError`."""
        if self.network is None:
            return None
        helper = self.helper

        def list_joiners() -> list[int]:
            joiners = []
            if (pid := process.pid()) is not None:
                joiners.append(pid)
            if helper is not None:
                joiners += helper.list_pids()
            return joiners

        if isinstance(process, SupervisedProcess):
            self.network.list_ends = process.list_supervisors
        if helper is not None:
            self.network.list_helpers, self.network.list_others = helper.list_supervisors, helper.list_pids
        self.network.list_joiners = list_joiners
        self.network.connect(agent)
        return self.network
