"""A guest that runs in another machine than this host: what is the guest's own, whatever is around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from guestmark.agent.client import Agent
    from guestmark.disks.attached import AttachedDisk
    from guestmark.platforms.guest import Guest
    from guestmark.platforms.place import Process


class GuestWithin:
    """`inner` is the guest as the machine around it sees it."""

    def __init__(self, inner: Guest) -> None:
        self.inner = inner
        self.cell = inner.cell

    @property
    def agent(self) -> Agent:
        """The guest's."""
        return self.inner.agent

    @property
    def phases(self) -> dict[str, float]:
        """The guest's, from the start of its hypervisor."""
        return self.inner.phases

    @property
    def process(self) -> Process:
        """Its hypervisor."""
        return self.inner.process

    @property
    def disks(self) -> tuple[AttachedDisk, ...]:
        """The guest's disks, whose images are in the machine around it."""
        return self.inner.disks

    @property
    def query(self) -> Callable[[str], Any] | None:
        """Asks the hypervisor's monitor."""
        return self.inner.query

    def switch_off(self, timeout_s: float) -> None:
        """Switches the guest off; see `Guest.switch_off`."""
        self.inner.switch_off(timeout_s)
