"""libguestfs as a peer of `boot`: the real `guestfish ... run`, from its start to its guest's end."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from guestmark.core.metric import Measurement
from guestmark.platforms import phases as steps
from guestmark.workloads.boot import metrics
from guestmark.workloads.boot.workload import durations
from guestmark.workloads.guestfs import inside as guestfs_inside
from guestmark.workloads.guestfs import libguestfs
from guestmark.workloads.guestfs.libguestfs import Mark, Timeline
from guestmark.workloads.guestfs.own_guest import OwnGuestWorkload
from guestmark.workloads.guestfs.params import RunParams

if TYPE_CHECKING:
    from guestmark.platforms.base import Machine

_LAUNCHED, _CLOSED = "launched", "closed"
# What ends a phase in the messages of libguestfs, of its guest's kernel, and of its guest.
_LINES = {
    steps.FIRMWARE: rb"SeaBIOS \(version",
    steps.HANDOVER: rb"Booting from ROM",
    steps.FIRST_LINE: rb"Linux version ",
    steps.KERNEL: rb"Run /init as init process",
    steps.MODULES: rb"supermin: picked ",
    steps.ROOT: rb"Starting /init script",
}
# Before the guest starts: the appliance is looked at, then what QEMU can do.
_BEFORE = (rb"finished building supermin appliance", rb"finished testing qemu features")
_ENDING = (metrics.POWEROFF, metrics.EXIT)


class GuestfsRunWorkload(OwnGuestWorkload[RunParams]):
    """A silent launch for the times of start and shutdown, then a verbose one for the phases."""

    PARAMS = RunParams
    ONCE = True

    def run(self, machine: Machine) -> list[Measurement]:
        """Launch and close, and the phases of a second launch."""
        values = durations(self._launch_inside(machine) if self._spec.nested else reached(self._launch()))[0]
        kept = {metric: values[metric] for metric in (metrics.READY, metrics.TOTAL, *_ENDING)}
        if self.params.phases and not self._spec.nested:
            traced = self._launch(verbose=True)
            values, missing = durations(reached(traced))
            starting = metrics.PHASES[: metrics.PHASES.index(metrics.WORK)]
            kept |= {metric: values[metric] for metric in starting if metric in values}
            self._found.traced_ready_s = values[metrics.READY]
            self._found.appliance_s, self._found.features_s = before_start(traced)
            if missing:
                said = ", ".join(metric.name for metric in missing)
                self.warnings.append(f"libguestfs's messages do not show the end of {said}")
        return [Measurement(metric, value, (value,)) for metric, value in kept.items()]

    def _script(self) -> list[str | Mark]:
        sized = libguestfs.sized(self.cell.factors)
        return [*sized, "add /dev/null", "run", Mark(_LAUNCHED), "shutdown", Mark(_CLOSED)]

    def _launch_inside(self, outer: Machine) -> dict[str, float]:
        """The phases there are of a launch in an outer guest, whose lines arrive here when they do."""
        session = guestfs_inside.run(outer, self._accelerator, self._script(), self.limit_s)
        ended_at = time.monotonic()
        launched, closed = (session.marks[name] for name in (_LAUNCHED, _CLOSED))
        times = {steps.READY: launched, steps.ORDERED: launched, steps.DOWN: closed, steps.GONE: ended_at}
        return {name: at - session.started_at for name, at in times.items()}

    def _launch(self, *, verbose: bool = False) -> Timeline:
        timeline = libguestfs.run(self._accelerator, self._script(), self.limit_s, verbose=verbose)
        self._found.qemu, self._found.confined = list(timeline.qemu), timeline.confined
        return timeline


def reached(timeline: Timeline) -> dict[str, float]:
    """The phases of a launch, named like those of our own guests; seconds since guestfish was started.

    The order to end is the moment its guest was ready, and what its guest does then is not said.
    """
    times = {
        name: at
        for name, line in _LINES.items()
        if (at := timeline.console.when(re.compile(line))) is not None
    }
    times[steps.READY] = times[steps.ORDERED] = timeline.marks[_LAUNCHED]
    times[steps.DOWN], times[steps.GONE] = timeline.marks[_CLOSED], timeline.ended_at
    return {name: at - timeline.started_at for name, at in times.items()}


def before_start(timeline: Timeline) -> Sequence[float | None]:
    """Seconds from guestfish's start until its appliance was known to be up to date, and then what QEMU can do.

    None for what its messages do not show; it is in what follows.
    """
    found: list[float | None] = []
    before = timeline.started_at
    for line in _BEFORE:
        at = timeline.console.when(re.compile(line))
        found.append(None if at is None else at - before)
        before = before if at is None else at
    return found
