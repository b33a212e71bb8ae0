"""Disks on a hypervisor's command line, the modules they need in the guest, and the disks of a started guest."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from guestmark.disks.attached import AttachedDisk, find_device
from guestmark.disks.image import Image, images
from guestmark.disks.spec import NO_FILESYSTEM, DiskSpec, disks_of
from guestmark.errors import UsageError
from guestmark.plan.model import Cell

if TYPE_CHECKING:
    from guestmark.agent.client import Agent
    from guestmark.platforms.place import Place

_BUS_MODULES = {
    "virtio-blk": ("virtio_blk",),
    "virtio-scsi": ("virtio_scsi", "sd_mod"),
    "nvme": ("nvme",),
    "ide": ("sd_mod",),
}
# What serves ext2 and ext3 differs between distributions; some need a checksum that no
# dependency names, and need it first.
_FILESYSTEM_MODULES = {
    "ext2": ("crc32c_generic", "ext2", "ext4"),
    "ext3": ("crc32c_generic", "ext4"),
    "ext4": ("crc32c_generic", "ext4"),
    "xfs": ("crc32c_generic", "xfs"),
    "btrfs": ("crc32c_generic", "btrfs"),
}


@contextlib.contextmanager
def made_for(cell: Cell) -> Iterator[tuple[Image, ...]]:
    """Fresh images of the cell's disks, in order; empty for most cells. They go when the context is left."""
    with images(disks_of(cell)) as made:
        yield made


def qemu_modules(cell: Cell) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Modules the guest needs for its disks: those of the bus, and those for filesystems, of which some may be built
    in or absent.
    """
    specs = disks_of(cell)
    required = [module for spec in specs for module in _BUS_MODULES[spec.bus]]
    if any(spec.bus == "ide" for spec in specs):
        required.insert(0, "ata_piix" if cell.factors.get("machine", "q35").startswith("pc") else "ahci")
    optional = [module for spec in specs for module in _FILESYSTEM_MODULES.get(spec.filesystem, ())]
    return tuple(dict.fromkeys(required)), tuple(dict.fromkeys(optional))


def qemu_arguments(made: Sequence[Image], machine: str) -> list[str]:
    """`-drive` and `-device` of every disk. Raises `UsageError` for a bus that the machine has not."""
    on_pci = not machine.startswith("microvm")
    arguments: list[str] = []
    for index, image in enumerate(made):
        spec = image.spec
        if not on_pci and spec.bus != "virtio-blk":
            raise UsageError(
                f"machine={machine} has no bus {spec.bus}", hint="choose bus=virtio-blk or machine=q35"
            )
        # An emulated IDE disk cannot be read-only; the agent opens sources for reading only.
        read_only = spec.read_only and spec.bus != "ide"
        path = str(image.path).replace(",", ",,")
        arguments += [
            "-drive",
            f"if=none,id={spec.name},file={path},format={spec.format},cache={spec.cache},aio={spec.aio}"
            f"{',readonly=on' if read_only else ''}",
        ]
        if spec.bus == "virtio-scsi" and "virtio-scsi-pci,id=scsi,disable-legacy=on" not in arguments:
            arguments += ["-device", "virtio-scsi-pci,id=scsi,disable-legacy=on"]
        arguments += ["-device", f"{_device(spec, index, on_pci)},drive={spec.name},serial={spec.name}"]
    return arguments


def _device(spec: DiskSpec, index: int, on_pci: bool) -> str:
    match spec.bus:
        case "virtio-blk":
            return "virtio-blk-pci,disable-legacy=on" if on_pci else "virtio-blk-device"
        case "virtio-scsi":
            return "scsi-hd,bus=scsi.0"
        case "ide":
            return f"ide-hd,bus=ide.{index}"
        case other:
            return other


def uml_arguments(made: Sequence[Image], scratch: Path, place: "Place") -> list[str]:
    """`ubd` arguments. Through links in the scratch directory, because a comma or colon in a path means a COW file."""
    arguments = []
    for index, image in enumerate(made):
        path = place.link(image.path, scratch, f"disk-{image.spec.name}")
        arguments.append(f"ubd{index}{'r' if image.spec.read_only else ''}={path}")
    return arguments


def attached(made: Sequence[Image], agent: "Agent") -> tuple[AttachedDisk, ...]:
    """The disks of a started guest, each with its device there. Raises `MachineError` when one does not appear."""
    disks = []
    for index, unsettled in enumerate(made):
        image = unsettled.settle()
        device = find_device(agent, image.spec, index)
        target = "" if image.spec.filesystem == NO_FILESYSTEM else f"/run/guestmark/{image.spec.name}"
        disks.append(AttachedDisk(image.spec, image, device, target))
    return tuple(disks)
