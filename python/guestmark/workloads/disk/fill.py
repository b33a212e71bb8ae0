"""A pattern written in the guest; nothing is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guestmark.agent.wire import Pattern
from guestmark.disks.store import store
from guestmark.workloads.common.moving import MovingWorkload, Timed

if TYPE_CHECKING:
    from guestmark.agent.wire import Checksum
    from guestmark.platforms.base import Machine


class FillWorkload(MovingWorkload):
    """`fill`: bytes of value 0, of value 1, or random ones. Does the content matter to the image's format?"""

    def move(self, machine: Machine, path: str) -> Timed:
        """Writes the pattern and flushes."""
        return Timed.of(
            machine.agent.fill(
                path,
                self.amount,
                Pattern(self.params.content),
                block_size=self.block_size,
                timeout_s=self.limit_s,
            )
        )

    def expected(self, machine: Machine) -> Checksum:
        """From the generator alone."""
        return store().agent().checksum_of_pattern(Pattern(self.params.content), self.amount)


class FilewriteWorkload(FillWorkload):
    """`filewrite`: what `dd if=/dev/zero bs=1024k` and a flush would do."""
