"""A session of several hundred calls of libguestfs's API, through the real guestfish and in its own guest."""

from __future__ import annotations

import functools
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from guestmark.core.errors import WorkloadError
from guestmark.core.findings import Findings
from guestmark.core.model import Cell, Measurement, Plan
from guestmark.core.platform_spec import PlatformSpec
from guestmark.platforms.qemu.accelerators import ACCELERATORS
from guestmark.workloads.common.metrics import LAUNCH
from guestmark.workloads.guestfs import inside as guestfs_inside
from guestmark.workloads.guestfs import libguestfs, session
from guestmark.workloads.guestfs.facts import Guestfs
from guestmark.workloads.guestfs.libguestfs import Mark
from guestmark.workloads.guestfs.metrics import CALLS, WALL

if TYPE_CHECKING:
    from guestmark.platforms.base import Machine, Platform

_DEEPEST = 2
_ANSWER_S = 30.0


class GuestfsApiWorkload:
    """`guestfs-api`: one launch, one session; seconds and calls a second without the launch."""

    def __init__(self, plan: Plan, cell: Cell) -> None:
        self.facts = Findings()
        self._found = self.facts.add(Guestfs())
        self.warnings: list[str] = []
        self._cell = cell
        self._spec = cell.platform
        self._kind = self._spec.inner.kind
        self._factors = cell.factors
        self._rounds = int(cell.workload.params["rounds"])
        self._limit_s = plan.policy.trial_limit_s

    @classmethod
    def preflight(cls, plan: Plan, cells: Sequence[Cell]) -> Sequence[str]:
        """Checks that libguestfs can be used here at all. Raises `PlatformUnusableError` naming a package."""
        for kind in {cell.platform.inner.kind for cell in cells}:
            libguestfs.prepare(kind)
        return ()

    @classmethod
    def impossible(cls, cell: Cell) -> str:
        """See `KnowsLimits`: libguestfs has no guest of that kind."""
        return unusable(cell.platform)

    def machine(self, platform: Platform) -> AbstractContextManager[Machine]:
        """The host's agent, or of a nested platform the outer guest: libguestfs starts what is inside itself."""
        return guestfs_inside.machine(platform, self._cell)

    def prepare(self, machine: Machine) -> None:
        """Prepares the appliance, so that no launch has to build it."""
        libguestfs.prepare(self._kind)
        self._found.version = version()

    def run(self, machine: Machine) -> list[Measurement]:
        """Launches guestfish and makes the calls. Raises `WorkloadError` when one fails or misbehaves."""
        calls = session.commands(self._rounds)
        script: list[str | Mark] = [*libguestfs.sized(self._factors)]
        script += [session.drive(), "run", Mark("launched"), *calls, Mark("done"), "shutdown"]
        started_at, marks, printed = self._told(machine, script)
        self._found.calls = len(calls)
        if found := session.wrong(printed, self._rounds):
            raise WorkloadError(f"libguestfs did not do as told: {found}")
        wall_s, launch_s = marks["done"] - marks["launched"], marks["launched"] - started_at
        values = ((WALL, wall_s), (CALLS, len(calls) / wall_s), (LAUNCH, launch_s))
        return [Measurement(metric, value, (value,)) for metric, value in values]

    def _told(self, machine: Machine, script: Sequence[str | Mark]) -> tuple[float, Mapping[str, float], str]:
        """When guestfish was started, when it reached its marks, and what it printed."""
        if self._spec.nested:
            inside = guestfs_inside.run(machine, self._kind, script, self._limit_s)
            return inside.started_at, inside.marks, inside.printed
        timeline = libguestfs.run(self._kind, script, self._limit_s)
        self._found.qemu = list(timeline.qemu)
        return timeline.started_at, timeline.marks, timeline.console.text()

    def cleanup(self, machine: Machine) -> None:
        """Nothing: libguestfs has cleaned up after itself."""


def unusable(spec: PlatformSpec) -> str:
    """Why libguestfs cannot run on that platform, in one line; empty if it can."""
    if spec.is_guest and spec.inner.kind not in ACCELERATORS:
        return _no_uml()
    if spec.inner.kind not in ACCELERATORS or len(spec.layers) > _DEEPEST:
        return (
            f"libguestfs starts its own guest with tcg or kvm, here or in one outer guest, and none on {spec}"
        )
    return ""


@functools.cache
def _no_uml() -> str:
    """libguestfs had a backend for User-Mode Linux until 1.47: the one that is installed is asked."""
    if shutil.which(libguestfs.GUESTFISH) is None:
        return ""  # which `libguestfs.prepare` says better
    asked = subprocess.run(
        [libguestfs.GUESTFISH, "set-backend", "uml"],
        capture_output=True, text=True, check=False, timeout=_ANSWER_S, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    if asked.returncode == 0:
        return f"{version()} has a backend for User-Mode Linux, but guestmark does not use it"
    said = next(iter(asked.stderr.strip().splitlines()), "")
    return f"{version()} has no backend for User-Mode Linux any more: {said.rpartition('error: ')[2]}"


def version() -> str:
    """The name and version that guestfish gives itself."""
    asked = subprocess.run(
        [libguestfs.GUESTFISH, "--version"], capture_output=True, text=True, check=False, timeout=_ANSWER_S
    )
    return asked.stdout.strip() or libguestfs.GUESTFISH
