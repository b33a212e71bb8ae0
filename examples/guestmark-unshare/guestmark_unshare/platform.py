"""How its machines are started and attested."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence

from guestmark.agent.client import Agent
from guestmark.core.errors import AttestationError
from guestmark.core.machine_facts import HostMachine
from guestmark.core.model import Cell
from guestmark.platforms.affinity import Seat
from guestmark.platforms.host_like import Host, HostLike, Surroundings
from guestmark.setting.disk import DiskSpec

_WITHIN = ("unshare", "--user", "--map-current-user", "--mount", "--uts", "--ipc")
_SPACES = ("user", "mnt", "uts", "ipc")


class Unshared(Host):
    """The host in namespaces; attested by comparing them with this process's own."""

    def attest(self) -> HostMachine:
        """Raises `AttestationError` when a namespace is that of this process."""
        for space in _SPACES:
            if _namespace("self", space) == _namespace(str(self.pid), space):
                raise AttestationError(f"the {space} namespace is the host's own")
        return super().attest()


def _namespace(pid: str, space: str) -> str:
    return os.readlink(f"/proc/{pid}/ns/{space}")


class UnsharePlatform(HostLike):
    """Every trial gets an agent in fresh namespaces."""

    @contextlib.contextmanager
    def enter_surroundings(self, cell: Cell, disks: Sequence[DiskSpec]) -> Iterator[Surroundings]:
        """Namespaces of its own."""
        yield Surroundings(_WITHIN)

    def make_machine(self, agent: Agent, command: tuple[str, ...], seat: Seat, pid: int) -> Unshared:
        """The host as it is in there."""
        return Unshared(agent, command, seat=seat, pid=pid)
