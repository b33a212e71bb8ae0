"""A session of several hundred calls of libguestfs's API, through the real guestfish and in its own guest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from guestmark.core.errors import WorkloadError
from guestmark.core.metric import Measurement
from guestmark.workloads.common.metrics import LAUNCH
from guestmark.workloads.guestfs import inside as guestfs_inside
from guestmark.workloads.guestfs import libguestfs, session
from guestmark.workloads.guestfs.libguestfs import Mark
from guestmark.workloads.guestfs.own_guest import OwnGuestWorkload, version
from guestmark.workloads.guestfs.session import CALLS, WALL

if TYPE_CHECKING:
    from guestmark.platforms.base import Machine


class GuestfsApiWorkload(OwnGuestWorkload[session.Rounds]):
    """`guestfs-api`: one launch, one session; seconds and calls a second without the launch."""

    PARAMS = session.Rounds

    def prepare(self, machine: Machine) -> None:
        """Prepares the appliance, and notes the version of guestfish."""
        super().prepare(machine)
        self._found.version = version()

    def run(self, machine: Machine) -> list[Measurement]:
        """Launches guestfish and makes the calls. Raises `WorkloadError` when one fails or misbehaves."""
        calls = session.commands(self.params.rounds)
        script: list[str | Mark] = [*libguestfs.sized(self.cell.factors)]
        script += [session.drive(), "run", Mark("launched"), *calls, Mark("done"), "shutdown"]
        started_at, marks, printed = self._told(machine, script)
        self._found.calls = len(calls)
        if found := session.wrong(printed, self.params.rounds):
            raise WorkloadError(f"libguestfs did not do as told: {found}")
        wall_s, launch_s = marks["done"] - marks["launched"], marks["launched"] - started_at
        values = ((WALL, wall_s), (CALLS, len(calls) / wall_s), (LAUNCH, launch_s))
        return [Measurement(metric, value, (value,)) for metric, value in values]

    def _told(self, machine: Machine, script: Sequence[str | Mark]) -> tuple[float, Mapping[str, float], str]:
        """When guestfish was started, when it reached its marks, and what it printed."""
        if self._spec.nested:
            inside = guestfs_inside.run(machine, self._accelerator, script, self.limit_s)
            return inside.started_at, inside.marks, inside.printed
        timeline = libguestfs.run(self._accelerator, script, self.limit_s)
        self._found.qemu, self._found.confined = list(timeline.qemu), timeline.confined
        return timeline.started_at, timeline.marks, timeline.console.text()
