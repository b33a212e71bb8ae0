"""Disks on a hypervisor's command line, the modules they need in the guest, and the disks of a started guest."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from guestmark.appliance.initramfs import ModuleList
from guestmark.core.architectures import Bus
from guestmark.core.errors import UsageError
from guestmark.core.model import Cell
from guestmark.core.units import parse_size
from guestmark.disks import shares
from guestmark.disks.attached import AttachedDisk, find_device
from guestmark.disks.formats import FORMATS, KEY_ID
from guestmark.disks.image import Image
from guestmark.disks.spec import NO_FILESYSTEM, VHOST_USER, DiskSpec, disks_of
from guestmark.platforms import vhost_user
from guestmark.platforms.virtio import VirtioBus
from guestmark.setting.base import levels_of

if TYPE_CHECKING:
    from guestmark.agent.client import Agent
    from guestmark.platforms.place import Place

_BUS_MODULES = {
    "virtio-blk": ("virtio_blk",),
    "virtio-scsi": ("virtio_scsi", "sd_mod"),
    "nvme": ("nvme",),
    "ide": ("sd_mod",),
    "ubd": (),
    VHOST_USER: ("virtio_blk",),
    shares.NINE_P: ("9p", "9pnet_virtio"),
    shares.VIRTIOFS: ("virtiofs",),
    shares.HOSTFS: (),
}
_WITHOUT_PCI = {Bus.MMIO: ("virtio-blk",), Bus.CCW: ("virtio-blk", "virtio-scsi")}
_VIRTIO_ID_BLOCK = 2  # linux/virtio_ids.h
# What serves ext2 and ext3 differs between distributions; some need a checksum that no
# dependency names, and need it first.
_FILESYSTEM_MODULES = {
    "ext2": ("crc32c_generic", "ext2", "ext4"),
    "ext3": ("crc32c_generic", "ext4"),
    "ext4": ("crc32c_generic", "ext4"),
    "xfs": ("crc32c_generic", "xfs"),
    "btrfs": ("crc32c_generic", "btrfs"),
    "f2fs": ("crc32_generic", "f2fs"),
    "vfat": ("nls_cp437", "nls_iso8859-1", "nls_ascii", "vfat"),
    "exfat": ("exfat",),
    "nilfs2": ("nilfs2",),
    "jfs": ("jfs",),
    "erofs": ("crc32c_generic", "erofs"),
    "squashfs": ("squashfs",),
}


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


def plan9(
    tag: str, directory: Path | str, security_model: str, virtio: VirtioBus, *, read_only: bool
) -> list[str]:
    """A directory of the host on QEMU's command line, for a guest that mounts it by 9p."""
    path = str(directory).replace(",", ",,")
    return [
        "-fsdev", f"local,id={tag},path={path},security_model={security_model}"
        f"{',readonly=on,multidevs=remap' if read_only else ''}",
        "-device", f"{virtio.device('virtio-9p')},fsdev={tag},mount_tag={tag}",
    ]  # fmt: skip


def qemu_arguments(made: Sequence[Image], machine: str, virtio: VirtioBus) -> list[str]:
    """`-drive` and `-device` of every disk. Raises `UsageError` for a bus the machine does not have."""
    arguments: list[str] = []
    for index, image in enumerate(made):
        spec = image.spec
        if spec.filesystem == shares.NINE_P:
            arguments += plan9(spec.name, image.path, shares.security_model_of(spec), virtio, read_only=False)
        if spec.shared:
            continue
        if not virtio.on_pci and spec.bus not in _WITHOUT_PCI[virtio.bus]:
            raise UsageError(
                f"machine={machine} has no bus {spec.bus}", hint="choose bus=virtio-blk, or another machine"
            )
        if spec.bus == VHOST_USER:
            arguments += vhost_user.qemu_arguments(spec)
            continue
        # An emulated IDE disk cannot be read-only; the agent opens sources for reading only.
        read_only = spec.read_only and spec.bus != "ide"
        path = image.opened.replace(",", ",,")
        arguments += [
            "-drive",
            f"if=none,id={spec.name},file={path},format={spec.format},aio={spec.aio}"
            f"{',readonly=on' if read_only else ''}{_switches(spec)}{_key(spec)}",
        ]
        if FORMATS[spec.format].encrypted and FORMATS[spec.format].objects[1] not in arguments:
            arguments += ["-object", FORMATS[spec.format].objects[1]]
        own_thread = ",iothread=disks" if spec.switch("iothread") == "on" else ""
        if own_thread and "iothread,id=disks" not in arguments:
            arguments += ["-object", "iothread,id=disks"]
        if spec.bus == "virtio-scsi":
            controller = f"{virtio.device('virtio-scsi')},id=scsi{own_thread}"
            arguments += ["-device", controller] if controller not in arguments else []
            own_thread = ""
        arguments += [
            "-device",
            f"{_device(spec, index, virtio)},drive={spec.name},serial={spec.name}{own_thread}{_blocks(spec)}",
        ]
    return arguments


def _switches(spec: DiskSpec) -> str:
    """Of a drive, those that are not left at QEMU's defaults."""
    names = {
        "discard": "discard", "detect_zeroes": "detect-zeroes", "bandwidth": "throttling.bps-total",
        "iops": "throttling.iops-total",
    }  # fmt: skip
    # A machine that stops because its disk is full would be waited for; its guest is told instead.
    reported = ",werror=report,rerror=report" if spec.logged else ""
    rate = spec.switch("bandwidth")
    bytes_ = {"bandwidth": str(parse_size(rate))} if rate else {}
    options = [option for factor, level in levels_of(spec) for option in factor.drive(level)]
    return (
        reported
        + "".join(f",{option}" for option in options)
        + "".join(
            f",{option}={bytes_.get(name, level)}"
            for name, option in names.items()
            if (level := spec.switch(name))
        )
    )


def _blocks(spec: DiskSpec) -> str:
    """Properties of the device that are not left at QEMU's defaults."""
    names = {
        "queues": "num-queues",
        "logical_block": "logical_block_size",
        "physical_block": "physical_block_size",
    }
    given = {name: spec.switch(name) for name in names}
    if given["logical_block"] and not given["physical_block"]:
        given["physical_block"] = given["logical_block"]  # a sector is not smaller than what may be written
    options = [option for factor, level in levels_of(spec) for option in factor.device(level)]
    options += [f"{names[name]}={level}" for name, level in given.items() if level]
    return "".join(f",{option}" for option in options)


def _key(spec: DiskSpec) -> str:
    return f",key-secret={KEY_ID}" if FORMATS[spec.format].encrypted else ""


def written(made: Sequence[Image]) -> list[Path]:
    """The images that a hypervisor opens for writing."""
    # An emulated IDE disk cannot be read-only.
    return [image.path for image in made if not image.spec.read_only or image.spec.bus == "ide"]


def _device(spec: DiskSpec, index: int, virtio: VirtioBus) -> str:
    match spec.bus:
        case "virtio-blk":
            return virtio.device(spec.bus)
        case "virtio-scsi":
            return "scsi-hd,bus=scsi.0"
        case "ide":
            return f"ide-hd,bus=ide.{index}"
        case other:
            return other


def uml_modules(cell: Cell) -> ModuleList:
    """Modules that a UML guest needs for its root and its disks."""
    specs = disks_of(cell)
    modules = [module for spec in specs for module in _BUS_MODULES[spec.bus]]
    optional = [module for spec in specs for module in _FILESYSTEM_MODULES.get(spec.filesystem, ())]
    return ModuleList(("overlay", *dict.fromkeys(modules)), tuple(dict.fromkeys(optional)))


def uml_command(command: Sequence[str], made: Sequence[Image], scratch: Path, place: "Place") -> list[str]:
    """`command`, which starts UML in `scratch`, with its disks.

    Images are named by links in the scratch directory: to `ubd` a comma or colon in a path means a COW file.
    """
    arguments: list[str] = []
    for index, image in enumerate(made):
        spec = image.spec
        if spec.shared:
            continue
        if spec.bus == VHOST_USER:
            arguments.append(f"virtio_uml.device={vhost_user.socket_of(spec)}:{_VIRTIO_ID_BLOCK}")
        else:
            path = place.link(image.path, scratch, f"disk-{spec.name}")
            arguments.append(f"ubd{index}{'r' if spec.read_only else ''}={path}")
    return vhost_user.beside([*command, *arguments], made, scratch, place)


def attached(made: Sequence[Image], agent: "Agent") -> tuple[AttachedDisk, ...]:
    """The disks of a started guest, each with its device there. Raises `MachineError` when one does not appear."""
    disks = []
    for index, unsettled in enumerate(made):
        image = unsettled.settle()
        if image.spec.shared:
            disks.append(AttachedDisk(image.spec, image, image.spec.name, mounted_at(image.spec)))
            continue
        device = find_device(agent, image.spec, index)
        if image.spec.bus == VHOST_USER:
            vhost_user.tell_cache(agent, device, image.spec)
        target = "" if image.spec.filesystem == NO_FILESYSTEM else mounted_at(image.spec)
        disks.append(AttachedDisk(image.spec, image, device, target))
    return tuple(disks)


def mounted_at(spec: DiskSpec) -> str:
    """The directory of a guest at which a disk is mounted."""
    return f"/run/guestmark/{spec.name}"
