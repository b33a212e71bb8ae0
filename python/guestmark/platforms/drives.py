"""Disks on a hypervisor's command line, the modules they need in the guest, and the disks of a started guest.

Some disks are served over vhost-user by `qemu-storage-daemon`, which runs beside the hypervisor and shares the guest's
memory.
"""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from guestmark.agent.client import Agent
from guestmark.appliance.initramfs import ModuleList
from guestmark.core.architectures import Architecture
from guestmark.core.architectures import Bus as MachineBus
from guestmark.core.errors import UsageError
from guestmark.core.model import Cell
from guestmark.disks.attached import AttachedDisk, find_device
from guestmark.disks.daemon import DAEMON
from guestmark.disks.image import Image
from guestmark.platforms.place import Place
from guestmark.setting.base import collect_options, format_switch, join_with_leading_comma, quote_qemu_value
from guestmark.setting.disk import Disks, DiskSpec
from guestmark.setting.drive import Bus
from guestmark.setting.filesystem import Filesystem, choose_security_model
from guestmark.setting.location import SHARED_MEMORY
from guestmark.setting.machine import MACHINE

# Seconds within which the storage daemon must listen.
_DAEMON_START_S = 5


def _choose_driver(image: Image) -> str:
    """Returns the storage daemon's driver for an image file, or for a block device of this host or an outer guest."""
    path = str(image.path)
    if path.startswith("/dev/") and not path.startswith(f"{SHARED_MEMORY}/"):
        return "host_device"
    return "file"


def name_vhost_socket(spec: DiskSpec) -> str:
    """Returns the name of a disk's socket in the hypervisor's scratch directory."""
    return f"{spec.name}.socket"


def add_storage_daemon(
    command: Sequence[str], made: Sequence[Image], scratch: Path, place: "Place"
) -> list[str]:
    """Returns `command`, which starts a hypervisor in `scratch`, with a storage daemon for those disks that need one.

    The daemon is started first and remains a descendant of the hypervisor: it ends with it, and its processor time
    counts as the hypervisor's. The hypervisor also ends with the daemon, because its guest would otherwise wait for its
    disk forever. Images are named by links in the scratch directory, because the daemon's options have a different
    syntax.
    """
    served = [image for image in made if image.spec.bus is Bus.VHOST_USER]
    if not served:
        return list(command)
    arguments: list[str] = []
    for image in served:
        spec = image.spec
        path = place.link_image(image.path, scratch, f"disk-{spec.name}")
        blockdev = join_with_leading_comma(collect_options(spec, lambda factor: factor.blockdev))
        export = join_with_leading_comma(collect_options(spec, lambda factor: factor.export))
        arguments += [
            "--blockdev", f"driver={_choose_driver(image)},node-name={spec.name},"
            f"filename={path},read-only={format_switch(spec.read_only)}{blockdev}",
            "--export", f"type=vhost-user-blk,id={spec.name},node-name={spec.name},addr.type=unix,"
            f"addr.path={name_vhost_socket(spec)},writable={format_switch(not spec.read_only)}{export}",
        ]  # fmt: skip
    listens = " && ".join(f"[ -S {name_vhost_socket(image.spec)} ]" for image in served)
    script = (
        # While the shell waits for the sockets, USR1 ends it with an exit status; once it has executed the
        # hypervisor, only KILL is sure to end it.
        f"trap 'exit 1' USR1; {{ {shlex.join([DAEMON, *arguments])}; kill -USR1 $$; sleep 0.1; kill -9 $$; }} & n=0; "
        f"until {listens}; do [ $((n += 1)) -lt {_DAEMON_START_S * 100} ] "
        f"|| exit 1; sleep 0.01; done; exec {shlex.join(command)}"
    )
    return ["sh", "-c", script]


def build_vhost_user_arguments(spec: DiskSpec) -> list[str]:
    """Returns QEMU's arguments for a disk served over vhost-user; the guest's memory must be shared."""
    return [
        "-chardev", f"socket,id={spec.name},path={name_vhost_socket(spec)}",
        # The daemon serves one queue; by default QEMU uses one for each processor.
        "-device", f"vhost-user-blk-pci,id={spec.name},chardev={spec.name},num-queues=1",
    ]  # fmt: skip


def announce_write_cache(agent: "Agent", device: str, spec: DiskSpec) -> None:
    """Sets the write cache of a disk in the guest, because the daemon wrongly reports that there is none."""
    path = f"/sys/block/{device.removeprefix('/dev/')}/cache_type"
    agent.write_file(path, f"{spec.cache.write_cache}\n".encode())


@dataclass(frozen=True, slots=True)
class VirtioBus:
    """The bus of a machine's virtio devices."""

    bus: MachineBus
    # Name of the PCI bus if it is not the first.
    pci_bus: str = ""
    # True if devices keep the legacy interface (before virtio 1).
    legacy: bool = False

    @classmethod
    def for_machine(cls, architecture: Architecture, machine: str) -> "VirtioBus":
        """Returns the bus of a machine type; microvm has no PCI."""
        if machine.startswith("microvm"):
            return cls(MachineBus.MMIO)
        return cls(architecture.bus, architecture.pci_bus, architecture.legacy_virtio)

    def format_device(self, name: str) -> str:
        """Returns the argument of `-device` for that name, such as `virtio-blk`, with its first options."""
        return f"{name}-{self.bus}{self._format_legacy()}{self._format_bus()}"

    def _format_legacy(self) -> str:
        # Only devices on PCI have a legacy interface beside the modern one.
        if self.on_pci and not self.legacy:
            return ",disable-legacy=on"
        return ""

    def _format_bus(self) -> str:
        if self.on_pci and self.pci_bus:
            return f",bus={self.pci_bus}"
        return ""

    @property
    def on_pci(self) -> bool:
        """Whether the machine has PCI, and so can have devices other than virtio."""
        return self.bus is MachineBus.PCI

    @property
    def modules(self) -> tuple[str, ...]:
        """Modules of the guest's kernel for the bus."""
        return {MachineBus.PCI: ("virtio_pci",), MachineBus.MMIO: ("virtio_mmio",), MachineBus.CCW: ()}[
            self.bus
        ]


# Device number of virtio-blk: linux/virtio_ids.h.
_VIRTIO_ID_BLOCK = 2


def list_qemu_modules(cell: Cell, also: Iterable[Filesystem] = ()) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the modules that the guest needs for its disks: those for buses, and those for filesystems.

    Filesystem modules may be built in or absent. `also` are filesystems to add if the guest has any filesystem.
    """
    specs = cell.view(Disks)
    required = _collect_modules(spec.bus for spec in specs)
    if any(spec.bus is Bus.IDE for spec in specs):
        controller = "ahci"
        # The machine `pc` has the PIIX3 controller of 1996, `q35` an AHCI one.
        if (cell.levels.get(MACHINE) or "").startswith("pc"):
            controller = "ata_piix"
        required.insert(0, controller)
    filesystems = [spec.filesystem for spec in specs]
    if any(kind.maker for kind in filesystems):
        filesystems = sorted({*filesystems, *also})
    return tuple(dict.fromkeys(required)), tuple(dict.fromkeys(_collect_modules(filesystems)))


def _collect_modules(parts: Iterable[Bus | Filesystem]) -> list[str]:
    modules: list[str] = []
    for part in parts:
        modules += part.modules
    return modules


def build_plan9_arguments(
    tag: str, directory: Path | str, security_model: str, virtio: VirtioBus, *, read_only: bool
) -> list[str]:
    """Returns QEMU's arguments that share a directory of the host with a guest by 9p."""
    further = ""
    if read_only:
        further = ",readonly=on,multidevs=remap"
    return [
        "-fsdev", f"local,id={tag},path={quote_qemu_value(directory)},security_model={security_model}{further}",
        "-device", f"{virtio.format_device('virtio-9p')},fsdev={tag},mount_tag={tag}",
    ]  # fmt: skip


def build_drive_arguments(made: Sequence[Image], machine: str, virtio: VirtioBus) -> list[str]:
    """Returns QEMU's arguments for all disks. Raises `UsageError` for a bus that the machine does not have."""
    arguments: list[str] = []
    for index, image in enumerate(made):
        spec = image.spec
        if spec.filesystem is Filesystem.NINE_P:
            arguments += build_plan9_arguments(
                spec.name, image.path, choose_security_model(spec), virtio, read_only=False
            )
        if spec.is_directory:
            continue
        if not virtio.on_pci and virtio.bus not in spec.bus.without_pci:
            raise UsageError(
                f"machine={machine} has no bus {spec.bus}", hint="use bus=virtio-blk, or another machine type"
            )
        if spec.bus is Bus.VHOST_USER:
            arguments += build_vhost_user_arguments(spec)
            continue
        # An emulated IDE disk cannot be read-only; the agent opens sources for reading only.
        read_only = spec.read_only and spec.bus is not Bus.IDE
        # By default QEMU stops the machine if the host's disk is full, and the run would wait forever. With these
        # options the guest gets an I/O error.
        drive = ["werror=report", "rerror=report"] if spec.logged else []
        if read_only:
            drive.append("readonly=on")
        drive += collect_options(spec, lambda factor: factor.drive)
        arguments += [
            "-drive",
            f"if=none,id={spec.name},file={quote_qemu_value(image.open_path)}{join_with_leading_comma(drive)}",
        ]
        for made_once in collect_options(spec, lambda factor: factor.objects):
            if made_once not in arguments:
                arguments += ["-object", made_once]
        if spec.bus is Bus.VIRTIO_SCSI:
            shared = join_with_leading_comma(collect_options(spec, lambda factor: factor.controller))
            controller = f"{virtio.format_device(spec.bus)},id=scsi{shared}"
            # All disks of the bus share one controller.
            if controller not in arguments:
                arguments += ["-device", controller]
        properties = join_with_leading_comma(collect_options(spec, lambda factor: factor.device))
        arguments += [
            "-device",
            f"{_format_disk_device(spec.bus, index, virtio)},drive={spec.name},serial={spec.name}{properties}",
        ]
    return arguments


def replace_paths(arguments: Sequence[str], made: Sequence[Image]) -> list[str]:
    """Returns the arguments with image paths replaced by disk sizes, so that starts can be compared."""
    words = list(arguments)
    for image in made:
        opened: Path | str = image.open_path
        if image.spec.is_directory:
            opened = image.path
        path = quote_qemu_value(opened)
        words = [word.replace(path, f"{image.spec.name} of {image.spec.size}") for word in words]
    return words


def list_writable_paths(made: Sequence[Image]) -> list[Path]:
    """Returns the images that a hypervisor opens for writing, and the sockets of processes that serve images."""
    # An emulated IDE disk cannot be read-only.
    images = [image.path for image in made if not image.spec.read_only or image.spec.bus is Bus.IDE]
    return images + [image.socket for image in made if image.socket]


def _format_disk_device(bus: Bus, index: int, virtio: VirtioBus) -> str:
    match bus:
        case Bus.VIRTIO_BLK:
            return virtio.format_device(bus)
        case Bus.VIRTIO_SCSI:
            return "scsi-hd,bus=scsi.0"
        case Bus.IDE:
            return f"ide-hd,bus=ide.{index}"
        case other:
            return other


def list_uml_modules(cell: Cell) -> ModuleList:
    """Returns the modules that a UML guest needs for its root and its disks."""
    specs = cell.view(Disks)
    modules = _collect_modules(spec.bus for spec in specs)
    optional = _collect_modules(spec.filesystem for spec in specs)
    return ModuleList(("overlay", *dict.fromkeys(modules)), tuple(dict.fromkeys(optional)))


def build_uml_disk_arguments(
    command: Sequence[str], made: Sequence[Image], scratch: Path, place: "Place"
) -> list[str]:
    """Returns `command`, which starts UML in `scratch`, with its disks.

    Images are named by links in the scratch directory, because `ubd` splits a path at a comma or colon (COW files).
    """
    arguments: list[str] = []
    for index, image in enumerate(made):
        spec = image.spec
        if spec.is_directory:
            continue
        if spec.bus is Bus.VHOST_USER:
            arguments.append(f"virtio_uml.device={name_vhost_socket(spec)}:{_VIRTIO_ID_BLOCK}")
        else:
            path = place.link_image(image.path, scratch, f"disk-{spec.name}")
            drive = f"ubd{index}"
            if spec.read_only:
                drive += "r"
            arguments.append(f"{drive}={path}")
    return add_storage_daemon([*command, *arguments], made, scratch, place)


def find_attached_disks(
    made: Sequence[Image], agent: "Agent", serials: Mapping[str, str] = MappingProxyType({})
) -> tuple[AttachedDisk, ...]:
    """Returns the disks of a started guest, with their device files. Raises `MachineError` if one does not appear.

    `serials` maps disk names to serial numbers, for hypervisors that do not use the name as serial number.
    """
    disks = []
    for index, unsettled in enumerate(made):
        image = unsettled.finish_allocation()
        if image.spec.is_directory:
            disks.append(AttachedDisk(image.spec, image, image.spec.name, mount_point(image.spec)))
            continue
        device = find_device(agent, image.spec, index, serials.get(image.spec.name, ""))
        if image.spec.bus is Bus.VHOST_USER:
            announce_write_cache(agent, device, image.spec)
        target = ""
        if image.spec.filesystem is not Filesystem.NONE:
            target = mount_point(image.spec)
        disks.append(AttachedDisk(image.spec, image, device, target))
    return tuple(disks)


def mount_point(spec: DiskSpec) -> str:
    """Returns the directory in a guest at which a disk is mounted."""
    return f"/run/guestmark/{spec.name}"
