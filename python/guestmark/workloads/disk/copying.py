"""Copies made inside the guest, from a second disk or the shared filesystem."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guestmark.workloads.common.moving import MovingWorkload, Timed, source_of

if TYPE_CHECKING:
    from guestmark.agent.wire import Checksum
    from guestmark.platforms.base import Machine

_BLOCKS = (32 << 20, 16 << 20, 8 << 20, 1 << 20)


_VHOST_USER_MOST = 8 << 20  # a daemon beside the machine was half as fast with four times as much


def largest_block(memory: int, in_flight: int, most: int = _BLOCKS[0]) -> int:
    """Bytes of a request: each costs an emulated processor milliseconds, whatever its size.

    All that are in flight leave the machine two thirds of its memory.
    """
    fitting = (size for size in _BLOCKS if size <= most and 3 * size * in_flight <= memory)
    return next(fitting, _BLOCKS[-1])


class CopyWorkload(MovingWorkload):
    """A copy from the source disk; `direct` bypasses the guest's page cache."""

    direct = False

    def get_ready(self, machine: Machine) -> None:
        """Knows the source's digest before the timing."""
        source_of(machine).image.checksum()

    def move(self, machine: Machine, path: str) -> Timed:
        """Copies the source disk's bytes and flushes."""
        in_flight = self.params.in_flight
        block_size = self.block_size
        if self.direct and block_size is None:
            most = _VHOST_USER_MOST if self.over_vhost_user else _BLOCKS[0]
            block_size = largest_block(machine.agent.facts().mem_total_kib << 10, in_flight, most)
        moved = machine.agent.copy(
            source_of(machine).path,
            path,
            direct=self.direct,
            block_size=block_size,
            in_flight=in_flight,
            length=self.amount,
            timeout_s=self.limit_s,
        )
        self.moving.direct, self.moving.preallocated = moved.direct, moved.preallocated
        return Timed.of(moved)

    def expected(self, machine: Machine) -> Checksum:
        """What the source holds."""
        return source_of(machine).image.checksum()


class DdWorkload(CopyWorkload):
    """`dd`."""


class DirectWorkload(CopyWorkload):
    """`direct`."""

    direct = True
