"""The second, independent read of what was written: by another program on the host, else by the guest."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from guestmark.core.errors import WorkloadError
from guestmark.disks.store import store
from guestmark.setting.image import Format

if TYPE_CHECKING:
    from guestmark.agent.wire import Checksum
    from guestmark.disks.attached import AttachedDisk
    from guestmark.disks.image import Image
    from guestmark.platforms.base import Machine

_READ_S = 600.0
READABLE = ("ext2", "ext3", "ext4")  # what debugfs reads


def checked(machine: Machine, disk: AttachedDisk, name: str, expected: Checksum) -> None:
    """Unmounts the target, reads its file `name` again and compares; checks the image too.

    A raw image with an ext filesystem is read on the host with debugfs, past guest and hypervisor; others by the guest,
    from the disk. Raises `WorkloadError` when a byte is wrong, `MachineError` when the image is damaged.
    """
    past_guest = bool(disk.device) and readable_on_host(disk.image)
    disk.umount(machine.agent, drop_caches=not past_guest)
    if not disk.device or disk.spec.shared:
        file = Path(disk.image.path if disk.spec.shared else disk.directory, name)
        if file.is_symlink():  # a guest could have pointed it anywhere
            raise WorkloadError(f"the data did not arrive: {name} is a link")
        found = store().agent().checksum(str(file), timeout_s=_READ_S)
        how = "on the host"
    elif past_guest:
        found = disk.image.read_again(name)
        how = "by debugfs on the host"
    else:
        directory = disk.mount(machine.agent)
        found = machine.agent.checksum(f"{directory}/{name}", timeout_s=_READ_S)
        disk.umount(machine.agent)
        how = "by the guest from the disk"
    compare(found, expected, how)
    if disk.device:
        disk.image.check()


def compare(found: Checksum, expected: Checksum, how: str) -> None:
    """Raises `WorkloadError` when they differ."""
    if found == expected:
        return
    if found.size != expected.size:
        what = f"{found.size} bytes were found, {expected.size} were written"
    else:
        what = f"the checksum is {found.xxh3}, not {expected.xxh3}"
    raise WorkloadError(f"the data did not arrive intact: {what} (read {how})")


def readable_on_host(image: Image) -> bool:
    """Whether the host can read files of this image without the guest."""
    return image.spec.format is Format.RAW and image.spec.filesystem in READABLE
