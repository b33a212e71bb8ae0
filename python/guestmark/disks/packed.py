"""Creates erofs and squashfs images with their content, for workloads that only read."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

from guestmark.core.errors import MachineError
from guestmark.core.units import format_size
from guestmark.disks import daemon
from guestmark.setting.disk import DiskSpec
from guestmark.setting.filesystem import Filesystem

# The name of the file in it, the same as for files that workloads write to other disks.
FILE = "data"


def make_packed_image(spec: DiskSpec, image: Path, fill: Callable[[Path], None]) -> None:
    """Create an image that holds one file, which `fill` writes. Raises `MachineError`."""
    tree = image.with_suffix(".tree")
    tree.mkdir()
    file = tree / FILE
    try:
        fill(file)
        maker = spec.filesystem.maker
        if spec.filesystem is Filesystem.EROFS:
            options = [*spec.mkfs_options, str(image), str(tree)]
        else:
            options = [str(tree), str(image), "-noappend", "-quiet", *spec.mkfs_options]
        try:
            daemon.run_program(maker, *options, writable=[image.parent])
        except MachineError as error:
            raise MachineError(
                f"the {spec.filesystem} filesystem cannot be created: {error.message}",
                hint=f"check mkfs={shlex.join(spec.mkfs_options)!r}; {error.hint}",
                cause=error.cause,
            ) from error
    finally:
        file.unlink(missing_ok=True)
        tree.rmdir()
    if (size := image.stat().st_size) > spec.size:
        raise MachineError(
            f"{size} bytes of {spec.filesystem} do not fit on a disk of {format_size(spec.size)}",
            hint="use a larger disk (--set size=4G) or less data (--scale)",
        )
    with image.open("r+b") as whole:
        whole.truncate(spec.size)
