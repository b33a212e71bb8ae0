"""Copies made inside the guest, from a second disk or the shared filesystem."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guestmark.workloads.common.moving import MovingWorkload, Timed, source_of

if TYPE_CHECKING:
    from guestmark.agent.bulk import Checksum
    from guestmark.platforms.base import Machine


class CopyWorkload(MovingWorkload):
    """A copy from the source disk; `direct` bypasses the guest's page cache."""

    direct = False

    def get_ready(self, machine: Machine) -> None:
        """Knows the source's digest before the timing."""
        source_of(machine).image.checksum()

    def move(self, machine: Machine, path: str) -> Timed:
        """Copies the source disk's bytes and flushes."""
        moved = machine.agent.copy(
            source_of(machine).path,
            path,
            direct=self.direct,
            block_size=self.block_size,
            in_flight=int(self.params.get("in_flight", 1)),
            length=self.amount,
            timeout_s=self.limit_s,
        )
        self.moving.direct, self.moving.preallocated = moved.direct, moved.preallocated
        return Timed.of(moved)

    def expected(self, machine: Machine) -> Checksum:
        """What the source holds."""
        return source_of(machine).image.checksum()
