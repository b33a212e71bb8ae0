"""A file read back in the guest after unmounting and mounting again, or on the host as the ceiling."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guestmark.core.metric import Measurement
from guestmark.disks.packed import FILE
from guestmark.workloads.common import metrics
from guestmark.workloads.common.durability import Below
from guestmark.workloads.common.moving import Timed, measured, refusals, sync_everything, target_of
from guestmark.workloads.common.verify import checked
from guestmark.workloads.disk.fill import FillWorkload

if TYPE_CHECKING:
    from guestmark.platforms.base import Machine


class FilereadWorkload(FillWorkload):
    """`fileread`: the file is written first, untimed, or the disk is made with it (erofs, squashfs); what is read comes
    from the image, which the host may cache.
    """

    def get_ready(self, machine: Machine) -> None:
        """Writes the file, where the disk was not made with it."""
        disk = target_of(machine)
        if disk.spec.packed:
            return
        self.move(machine, f"{disk.directory}/{FILE}")
        disk.image.flush()

    def run(self, machine: Machine) -> list[Measurement]:
        """Unmounts, mounts again, reads; then checks what was there to read."""
        disk = target_of(machine)
        with refusals(disk):
            if self._mounted:
                disk.umount(machine.agent)
            disk.mount(machine.agent)
            self._mounted = True
            sync_everything(machine.agent)
            below = Below.before(machine)
            moved = machine.agent.read_back(
                f"{disk.directory}/{FILE}",
                block_size=self.block_size,
                length=self.amount,
                timeout_s=self.limit_s,
            )
            changes = below.after(flushed=False)
            timed = Timed.of(moved)
            self._note_clocks(timed)
            expected = self.expected(machine)
            self._mounted = False  # the check unmounts first
            checked(machine, disk, FILE, expected)
        values = [
            (metrics.THROUGHPUT, self.amount / timed.wall_s),
            (metrics.WALL, timed.wall_s),
            (metrics.GUEST_WALL, timed.guest_wall_s),
        ]
        return [*measured(values), *changes.measurements(self.amount)]
