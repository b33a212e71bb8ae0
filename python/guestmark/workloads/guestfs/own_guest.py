"""What workloads have in common in which libguestfs starts its own guest and does everything there."""

from __future__ import annotations

import functools
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from guestmark.core.model import Cell, Plan
from guestmark.core.platform_spec import PlatformSpec
from guestmark.platforms.qemu.accelerators import ACCELERATORS
from guestmark.workloads.base import P, Workload
from guestmark.workloads.guestfs import inside as guestfs_inside
from guestmark.workloads.guestfs import libguestfs
from guestmark.workloads.guestfs.libguestfs import Guestfs

if TYPE_CHECKING:
    from guestmark.platforms.base import Machine, Platform

_DEEPEST = 2
_ANSWER_S = 30.0


class OwnGuestWorkload(Workload[P]):
    """libguestfs on the cell's accelerator, on this host or in one outer guest."""

    def __init__(self, plan: Plan, cell: Cell) -> None:
        super().__init__(plan, cell)
        self._found = self.facts.add(Guestfs())
        self._spec = cell.platform
        self._accelerator = cell.platform.inner.kind

    @classmethod
    def preflight(cls, plan: Plan, cells: Sequence[Cell]) -> Sequence[str]:
        """Checks that libguestfs can be used here at all. Raises `PlatformUnusableError` naming a package."""
        for accelerator in {cell.platform.inner.kind for cell in cells}:
            libguestfs.prepare(accelerator)
        return ()

    @classmethod
    def impossible(cls, cell: Cell) -> str:
        """Says where libguestfs has no guest of that kind."""
        return unusable(cell.platform)

    def machine(self, platform: Platform) -> AbstractContextManager[Machine]:
        """The host's agent, or of a nested platform the outer guest: libguestfs starts what is inside itself."""
        return guestfs_inside.machine(platform, self.cell)

    def prepare(self, machine: Machine) -> None:
        """Prepares the appliance, so that no launch has to build it."""
        libguestfs.prepare(self._accelerator)


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
