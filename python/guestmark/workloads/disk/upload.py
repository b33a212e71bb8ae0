"""Bytes from the host through the guest's channel into a file; or one half of that way only: so the cost splits."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from guestmark.agent import clocks
from guestmark.agent.wire import Checksum, Pattern
from guestmark.core.errors import WorkloadError
from guestmark.core.metric import Measurement
from guestmark.core.model import Cell, Plan
from guestmark.workloads.common import metrics
from guestmark.workloads.common.moving import MovingWorkload, Timed, measured, sync_everything

if TYPE_CHECKING:
    from guestmark.disks.image import Image
    from guestmark.platforms.base import Machine

_PIECE = 1 << 20


class UploadWorkload(MovingWorkload):
    """`upload`, in its three variants: `full`, `channel` (dropped in the guest), `disk` (made in the guest)."""

    def __init__(self, plan: Plan, cell: Cell) -> None:
        super().__init__(plan, cell)
        self._variant = self.params.variant
        self._image: Image | None = None

    def prepare(self, machine: Machine) -> None:
        """The channel alone needs no disk."""
        if self._variant == "channel":
            self._image = self.source()
        else:
            super().prepare(machine)

    def get_ready(self, machine: Machine) -> None:
        """Makes the bytes on the host."""
        if self._variant == "full":
            self._image = self.source()

    def run(self, machine: Machine) -> list[Measurement]:
        """Sends, or writes, the bytes once."""
        if self._variant != "channel":
            return super().run(machine)
        assert self._image is not None
        sync_everything(machine.agent)
        timed = self._through_channel(machine, self._image)
        self._note_clocks(timed)
        return measured(
            [
                (metrics.THROUGHPUT, self.amount / timed.wall_s),
                (metrics.WALL, timed.wall_s),
                (metrics.GUEST_WALL, timed.guest_wall_s),
            ]
        )

    def move(self, machine: Machine, path: str) -> Timed:
        """Sends the bytes into the file, or has the guest make them."""
        if self._variant == "disk":
            return Timed.of(
                machine.agent.fill(path, self.amount, Pattern(self.params.content), timeout_s=self.limit_s)
            )
        assert self._image is not None
        return Timed.of(
            machine.agent.write_stream(path, pieces(self._image.path, self.amount), timeout_s=self.limit_s)
        )

    def expected(self, machine: Machine) -> Checksum:
        """What was sent, or made."""
        if self._variant == "disk":
            from guestmark.disks.store import store

            return store().agent().checksum_of_pattern(Pattern(self.params.content), self.amount)
        assert self._image is not None
        return self._image.checksum()

    def _through_channel(self, machine: Machine, image: Image) -> Timed:
        agent = machine.agent
        before = agent.ping()
        sent_ns = time.monotonic_ns()
        done = agent.sink(pieces(image.path, self.amount), timeout_s=self.limit_s)
        received_ns = time.monotonic_ns()
        after = agent.ping()
        if done.bytes != self.amount:
            raise WorkloadError(f"{done.bytes} of {self.amount} bytes arrived in the guest")
        wall = clocks.on_host_clock((done.started_ns, done.ended_ns), (before, after), (sent_ns, received_ns))
        return Timed(wall.seconds, wall.error_s, (done.ended_ns - done.started_ns) / 1e9, 0.0, wall.warning)


def pieces(path: Path, amount: int) -> Iterator[bytes]:
    """The file's first `amount` bytes. Raises `WorkloadError` when it is shorter by now."""
    left = amount
    with path.open("rb", buffering=0) as stream:
        while left:
            piece = stream.read(min(_PIECE, left))
            if not piece:
                raise WorkloadError(f"{path} is {left} bytes shorter than the {amount} that were asked for")
            left -= len(piece)
            yield piece
