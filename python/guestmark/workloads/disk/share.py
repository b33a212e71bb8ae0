"""A file of the host, copied in the guest from the shared filesystem (9p, virtiofs, hostfs)."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from guestmark.core.errors import AgentError, WorkloadError
from guestmark.core.model import Cell, Plan
from guestmark.workloads.common.moving import MovingWorkload, Timed

if TYPE_CHECKING:
    from guestmark.agent.wire import Checksum
    from guestmark.disks.image import Image
    from guestmark.platforms.base import Machine

_MOUNTED_AT = "/run/guestmark/share"


class ShareWorkload(MovingWorkload):
    """`share`. The guest's root is the share; it is bound once more to a place where no `/dev` hides the host's."""

    def __init__(self, plan: Plan, cell: Cell) -> None:
        super().__init__(plan, cell)
        self._image: Image | None = None
        self._at = ""

    def get_ready(self, machine: Machine) -> None:
        """Makes the file on the host and the share in the guest."""
        self._image = self.source()
        self._image.checksum()
        if machine.vmm_pid is None:
            return  # on the host the file is simply there
        machine.agent.mkdir(_MOUNTED_AT, parents=True)
        done = machine.agent.exec(["mount", "--bind", "/", _MOUNTED_AT], timeout_s=60)
        if not done.ok:
            raise WorkloadError(
                f"the share cannot be mounted: {done.stderr.decode(errors='replace').strip()}"
            )
        self._at = _MOUNTED_AT
        words = machine.agent.facts().cmdline.split()
        self.moving.share = next(
            (word.partition("=")[2] for word in words if word.startswith("guestmark.root=")), "unknown"
        )

    def move(self, machine: Machine, path: str) -> Timed:
        """Copies the file and flushes."""
        assert self._image is not None
        return Timed.of(
            machine.agent.copy(
                f"{self._at}{self._image.path}",
                path,
                block_size=self.block_size,
                length=self.amount,
                timeout_s=self.limit_s,
            )
        )

    def expected(self, machine: Machine) -> Checksum:
        """What the file holds."""
        assert self._image is not None
        return self._image.checksum()

    def cleanup(self, machine: Machine) -> None:
        """Unmounts the share too."""
        try:
            super().cleanup(machine)
        finally:
            if self._at:
                with contextlib.suppress(AgentError):
                    machine.agent.umount(self._at)
