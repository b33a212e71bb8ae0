"""The host itself: nothing is around its agent."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from guestmark.core.errors import UsageError
from guestmark.core.model import Cell
from guestmark.core.platform_kind import of_machines
from guestmark.core.platform_spec import HOST, Layer
from guestmark.disks import loop
from guestmark.platforms.host_like import HostLike, Surroundings
from guestmark.setting.base import On, is_disk_setting
from guestmark.setting.disk import DiskSpec


class HostPlatform(HostLike):
    """`host`: no machine is booted. Its disks are directories, or images that are mounted where only its agent is."""

    def __init__(self, layer: Layer = HOST.inner) -> None:
        super().__init__(layer)

    def check(self, cell: Cell, disks: Sequence[DiskSpec]) -> None:
        """Raises `UsageError` for factors, which a host cannot be given."""
        looped = any(disk.loop for disk in disks)
        others = [
            name
            for name in cell.factors
            if not (looped and is_disk_setting(name, On.LOOP)) and of_machines(name) and not HOST.takes(name)
        ]
        if others:
            raise UsageError(
                f"the host cannot be given {', '.join(sorted(others))}", hint="factors are for guests"
            )

    @contextlib.contextmanager
    def surroundings(self, cell: Cell, disks: Sequence[DiskSpec]) -> Iterator[Surroundings]:
        """Mounts of its own, where it has images to mount."""
        looped = any(disk.loop for disk in disks)
        if looped:
            loop.check()
        yield Surroundings(loop.PRIVATE_MOUNTS if looped else ())
