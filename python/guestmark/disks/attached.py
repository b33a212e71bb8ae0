"""A disk as the workload finds it on a started machine, and mounting it there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from guestmark.disks.spec import DiskSpec

if TYPE_CHECKING:
    from guestmark.agent.client import Agent
    from guestmark.disks.image import Image


@dataclass(slots=True)
class AttachedDisk:
    """One disk of a machine, in the order of `disks_of(cell)`; `machine.disks` holds them.

    `device` is its path in the guest (`/dev/vda`), empty on the host. On the host a target is a fresh directory of its
    location (`directory`), a source a file (`image.path`, which is also `path`).
    """

    spec: DiskSpec
    image: Image
    device: str = ""
    directory: str = ""  # where the target is, or will be, mounted

    @property
    def path(self) -> str:
        """Where the bytes of a source are read: the device in a guest, the image itself on the host."""
        return self.device or str(self.image.path)

    def mount(self, agent: Agent) -> str:
        """Mounts the formatted disk with its options and returns the directory; checks the live mount against the
        options asked. On the host it does nothing. Raises `MachineError` with the kernel's message when it refuses,
        `AttestationError` with both values when an option did not take effect.
        """
        raise NotImplementedError

    def umount(self, agent: Agent) -> None:
        """Unmounts; nothing of its content stays in the guest's caches. On the host it only drops caches."""
        raise NotImplementedError

    def remount(self, agent: Agent) -> str:
        """Unmount and mount again, so that what is read next comes from the disk."""
        self.umount(agent)
        return self.mount(agent)
