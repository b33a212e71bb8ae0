"""`firecracker` and `cloud-hypervisor`: the distribution's kernel on KVM, with the host's root and disks on virtio.

Neither can share directories of its host. So the guest connects by vsock, which both map to Unix sockets, and a process
beside the hypervisor accepts each connection (`guestmark-agent listen`): one for the agent's channel, one for the
host's root over 9p (`guestmark-agent share`). Both processes end with the hypervisor.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from guestmark.agent.client import Agent
from guestmark.agent.confinement import Confinement
from guestmark.agent.results import CallError
from guestmark.appliance.initramfs import ModuleList, build_initramfs
from guestmark.appliance.kernel import Kernel, Notify, find_kernel
from guestmark.appliance.modules import ModuleTree
from guestmark.core.architectures import find_host_architecture
from guestmark.core.cause import Cause
from guestmark.core.errors import PlatformUnusableError
from guestmark.core.levels import Levels
from guestmark.core.machine_facts import GuestMachine, RunBy
from guestmark.core.model import Cell
from guestmark.core.own_program import find_agent_binary
from guestmark.core.platform_kind import Program, read_version_line
from guestmark.core.platform_spec import Layer
from guestmark.disks.image import Image
from guestmark.platforms import drives
from guestmark.platforms.affinity import take_seat
from guestmark.platforms.attest import (
    attest_disks,
    check_kernel,
    describe_inside,
    find_async_engines,
    require_all_checks_pass,
    require_same,
)
from guestmark.platforms.base import Unusable, Usable
from guestmark.platforms.guest import Guest, await_ready, stop_on_exit
from guestmark.platforms.network.vmm_link import TapCard, open_vmm_network
from guestmark.platforms.network.vmm_link import list_modules as list_network_modules
from guestmark.platforms.phases import Watch
from guestmark.platforms.place import HERE, FileIdentity, Place
from guestmark.platforms.probe import NO_FACTORS, probe_by_start
from guestmark.platforms.qemu.boots import use_given_modules
from guestmark.platforms.qemu.platform import add_kvm_hint, suggest_kvm_remedy
from guestmark.platforms.vmm.programs import CLOUD_HYPERVISOR, FIRECRACKER
from guestmark.setting.base import format_switch
from guestmark.setting.disk import Disks
from guestmark.setting.drive import Aio
from guestmark.setting.machine import (
    KERNEL,
    MEMORY,
    SMP,
    VMM,
    StartedGuest,
    attest_levels,
    list_kernel_command_line_words,
)
from guestmark.setting.network import NETWORK, Network, Offloads

DEFAULTS: Mapping[str, str] = {MEMORY.name: "1G", SMP.name: "1"}
# Name of the socket in the scratch directory; hypervisors append `_PORT` for connections of the guest to that port.
_VSOCK = "vsock"
# vsock ports of the agent's channel and of the root.
_CHANNEL, _ROOT = 1, 2
_GUEST_CID = 3
_MIB = 1 << 20
_MODULES = ("vmw_vsock_virtio_transport", "9p", "9pnet_fd", "overlay")
_ROOT_OPTIONS = "version=9p2000.L,msize=262144,cache=loose,access=any"
# Longest serial number of a virtio disk: VIRTIO_BLK_ID_BYTES.
_SERIAL = 20
# First version of Cloud Hypervisor with the option image_type.
_KNOWS_IMAGES = (52,)
# OEM ID in the header of an ACPI table.
_MAKER = slice(10, 16)


@dataclass(frozen=True, slots=True)
class MachineConfig:
    """The configuration of a machine, independent of the hypervisor."""

    kernel: str
    initramfs: str
    # Command line of the kernel.
    words: str
    processors: int
    # Bytes.
    memory: int
    disks: Sequence[Image]
    # Version of the hypervisor.
    version: tuple[int, ...]
    card: TapCard | None = None


@dataclass(frozen=True, slots=True)
class Hypervisor:
    """One of the hypervisors: its program, its identifiers, and how it starts a machine in its working directory."""

    program: Program
    # Text that it prints before its version.
    version_prefix: str
    # OEM ID of the machine's ACPI tables.
    maker: str
    # Modules of the guest's kernel for the bus of its devices.
    modules: tuple[str, ...]
    # Words for the command line of the guest's kernel.
    words: str
    command: Callable[[str, MachineConfig], list[str]]
    # Returns the serial number of a disk, by its name and its image.
    serial: Callable[[str, FileIdentity], str]
    # Whether it takes the descriptors of a tap; without privileges, Cloud Hypervisor cannot open one by its name.
    inherits_taps: bool


def _build_firecracker_command(program: str, machine: MachineConfig) -> list[str]:
    """Returns the command that writes Firecracker's configuration file and executes Firecracker."""
    described = {
        "boot-source": {
            "kernel_image_path": machine.kernel,
            "initrd_path": machine.initramfs,
            "boot_args": machine.words,
        },
        "machine-config": {"vcpu_count": machine.processors, "mem_size_mib": machine.memory // _MIB},
        "vsock": {"guest_cid": _GUEST_CID, "uds_path": _VSOCK},
        "drives": [_describe_firecracker_drive(image) for image in machine.disks],
    }
    if machine.card is not None:
        described["network-interfaces"] = [
            {"iface_id": "network", "host_dev_name": machine.card.tap, "guest_mac": machine.card.mac}
        ]
    script = 'printf %s "$0" > machine.json && exec "$@"'
    return [
        "sh",
        "-c",
        script,
        json.dumps(described),
        program,
        "--no-api",
        "--level",
        "Error",
        "--config-file",
        "machine.json",
    ]


def _describe_firecracker_drive(image: Image) -> dict[str, object]:
    return {
        "drive_id": image.spec.name,
        "path_on_host": str(image.path),
        "is_root_device": False,
        "is_read_only": image.spec.read_only,
        "cache_type": "Writeback",
        "io_engine": "Sync",
    }


def _choose_firecracker_serial(_name: str, image: FileIdentity) -> str:
    """Returns the serial number that Firecracker derives from the image's file; it ignores the drive's name."""
    return "".join(map(str, image))[:_SERIAL]


def _build_cloud_hypervisor_command(program: str, machine: MachineConfig) -> list[str]:
    disks: list[str] = []
    for image in machine.disks:
        read_only = format_switch(image.spec.read_only)
        words = f"path={image.path},readonly={read_only},serial={image.spec.name}"
        # Older versions detect an image's format by its first bytes.
        if machine.version >= _KNOWS_IMAGES:
            words += ",image_type=raw"
        disks.append(words)
    if disks:
        disks.insert(0, "--disk")
    card: list[str] = []
    if machine.card is not None:
        # One queue in each direction.
        taps = ",".join(map(str, machine.card.descriptors))
        words = f"fd=[{taps}]" if taps else f"tap={machine.card.tap}"
        words += f",mac={machine.card.mac},num_queues={2 * machine.card.queues}"
        if machine.card.ring is not None:
            words += f",queue_size={machine.card.ring}"
        if machine.card.offloads is Offloads.OFF:
            words += ",offload_tso=off,offload_ufo=off,offload_csum=off"
        card = ["--net", words]
    return [
        program,
        "--kernel", machine.kernel, "--initramfs", machine.initramfs, "--cmdline", machine.words,
        "--cpus", f"boot={machine.processors}", "--memory", f"size={machine.memory}",
        "--vsock", f"cid={_GUEST_CID},socket={_VSOCK}",
        "--serial", "tty", "--console", "off",
        *disks,
        *card,
    ]  # fmt: skip


_KNOWN_HYPERVISORS = (
    # Firecracker ends when its guest reboots; there is no other way to shut its guest down.
    Hypervisor(
        FIRECRACKER,
        version_prefix="Firecracker v",
        maker="FIRECK",
        modules=("virtio_mmio",),
        words="reboot=k pci=off",
        command=_build_firecracker_command,
        serial=_choose_firecracker_serial,
        inherits_taps=False,
    ),
    Hypervisor(
        CLOUD_HYPERVISOR,
        version_prefix="cloud-hypervisor ",
        maker="CLOUDH",
        modules=("virtio_pci",),
        words="",
        command=_build_cloud_hypervisor_command,
        serial=lambda name, _image: name,
        inherits_taps=True,
    ),
)
HYPERVISORS: Mapping[str, Hypervisor] = {known.program.name: known for known in _KNOWN_HYPERVISORS}


class VmmPlatform:
    """One of the small hypervisors. `notify` announces slow steps, such as fetching a kernel."""

    def __init__(self, layer: Layer, notify: Notify = lambda _: None) -> None:
        self.name = str(layer)
        self._hypervisor = HYPERVISORS[layer.kind]
        self._start_limit_s = layer.description.start_limit_s
        self._notify = notify

    @contextlib.contextmanager
    def start(self, cell: Cell, deadline_s: float | None = None, *, place: Place = HERE) -> Iterator[Guest]:
        """Boots a fresh guest for `cell` and yields it once its agent answers; see `Platform.start`.

        `place` is where its hypervisor runs: this host, or an outer guest.
        """
        levels = cell.levels.with_defaults(DEFAULTS)
        if missing := self.find_missing(levels):
            raise PlatformUnusableError(missing.reason, hint=missing.hint)
        if place is HERE and not os.access("/dev/kvm", os.R_OK | os.W_OK):
            raise PlatformUnusableError(f"{self.name} needs KVM", hint=suggest_kvm_remedy(Cause.OTHER))
        hypervisor, program = self._hypervisor, self._find_program(levels)
        levels = levels.with_levels({VMM.name: program})
        version = _read_version(program, hypervisor.version_prefix)
        kernel = use_given_modules(find_kernel(levels.get(KERNEL) or "", self._notify, _rank_kernel), levels)
        initramfs = build_initramfs(find_agent_binary(), kernel.modules, _list_modules(hypervisor, cell))
        watch = Watch.for_cell(cell)
        rings = any(disk.aio is Aio.IO_URING for disk in cell.view(Disks))
        by_tap = levels[NETWORK] is Network.TAP
        opens = by_tap and not hypervisor.inherits_taps
        confinement = Confinement(sockets=True, rings=rings, kvm=True, network=opens, taps=by_tap)
        process = place.make_process(self.name, confinement)
        line = place.make_inherited_line()
        with (
            take_seat(cell, emulator=False) as seat,
            stop_on_exit(process, line.close),
            place.prepare_disks(cell) as made,
            open_vmm_network(
                self.name,
                levels,
                place,
                vsock=process.scratch / _VSOCK,
                cid=_GUEST_CID,
                inherits=hypervisor.inherits_taps,
            ) as link,
        ):
            machine = MachineConfig(
                place.locate_file(kernel.elf or kernel.image),
                place.locate_file(initramfs),
                _format_direct_boot_command_line(hypervisor, levels, watch),
                levels[SMP],
                levels[MEMORY],
                made,
                tuple(map(int, re.findall(r"[0-9]+", version))),
                link.card,
            )
            agent_there = place.locate_file(find_agent_binary())
            command = [
                *_build_listen_command(agent_there, _CHANNEL, [agent_there, "relay", str(line.descriptor)]),
                *_build_listen_command(agent_there, _ROOT, [agent_there, "share", "/"]),
                *hypervisor.command(program, machine),
            ]
            process.start(
                command,
                pass_fds=(*line.fds, *link.pass_fds),
                writable=drives.list_writable_paths(made),
                within=link.within,
            )
            line.close_inherited()
            agent = Agent(line.transport())
            check = functools.partial(
                self._attest_guest, levels=levels, release=kernel.release, version=version
            )
            guest = Guest(cell, process, agent, check, place=place, seat=seat)
            await_ready(agent, process, deadline_s or self._start_limit_s, guest.phases)
            try:
                serials = {}
                for image in made:
                    identity = place.identify_file(image.path)
                    serials[image.spec.name] = hypervisor.serial(image.spec.name, identity)
                guest.disks = drives.find_attached_disks(made, agent, serials)
                guest.network = link.connect(agent, process)
                yield guest
            finally:
                agent.close()

    def find_missing(self, levels: Levels) -> Unusable | None:
        """Returns a finding about what has to be installed first; None if nothing is missing."""
        name = self._hypervisor.program.name
        if not find_host_architecture().kernel_unpacked:
            return Unusable(f"{name} runs only on x86-64 hosts")
        if not (program := self._find_program(levels)):
            return Unusable(
                f"{name} is not installed, and this distribution has no package for it",
                "download a release's binary and put it into PATH, or name it: --set vmm=FILE",
            )
        try:
            _read_version(program, self._hypervisor.version_prefix)
        except PlatformUnusableError as error:
            return Unusable.from_error(error)
        return None

    def probe(
        self, deadline_s: float | None = None, factors: Mapping[str, str] = NO_FACTORS
    ) -> Usable | Unusable:
        """Boots a guest and attests it; if that fails, the error is the reason."""
        found = self.find_missing(Levels(factors)) or probe_by_start(
            self, deadline_s or self._start_limit_s, factors=factors
        )
        return add_kvm_hint(found)

    def _find_program(self, levels: Levels) -> str:
        return levels.get(VMM) or self._hypervisor.program.path or ""

    def _attest_guest(self, guest: Guest, *, levels: Levels, release: str, version: str) -> GuestMachine:
        """Attests the program, the machine's maker as the guest sees it, and all factors that can be compared.

        Raises `AttestationError` with both values if they differ.
        """
        inside = describe_inside(guest)
        running = "".join(guest.place.read_links(f"/proc/{guest.vmm_pid}/exe"))
        require_same("the machine's maker", self._hypervisor.maker, _read_maker(guest), guest)
        check_kernel(release, inside, guest)
        require_all_checks_pass(attest_levels(levels, StartedGuest(inside, program=running)), guest)
        found = attest_disks(guest)
        rings = bool(guest.disks) and "io_uring" in find_async_engines(guest, guest.vmm_pid)
        for disk in guest.disks:
            require_same(f"the {disk.spec.name} disk's ring", disk.spec.aio is Aio.IO_URING, rings, guest)
            cache = found[disk.spec.name].write_cache if found else ""
            require_same(
                f"the {disk.spec.name} disk's write cache", disk.spec.cache.write_cache, cache, guest
            )
        return GuestMachine(
            asked=dict(levels.texts),
            run_by=RunBy(name=self._hypervisor.program.name, version=version),
            guest=inside,
            disks=found,
        )


def _read_maker(guest: Guest) -> str:
    """Returns the OEM ID of the machine's first ACPI table, where hypervisors put their name."""
    try:
        table = guest.agent.read_file("/sys/firmware/acpi/tables/FACP", limit=4096)
    except CallError:
        return "unknown"
    return table[_MAKER].decode(errors="replace").strip("\0 ")


def _build_listen_command(agent: str, port: int, server: Sequence[str]) -> list[str]:
    """Returns a prefix for a hypervisor's command, by which `server` accepts the connection to this port."""
    return [agent, "listen", f"{_VSOCK}_{port}", *server, "--"]


def _format_direct_boot_command_line(hypervisor: Hypervisor, levels: Levels, watch: Watch | None) -> str:
    row = find_host_architecture()
    words = watch.build_qemu_kernel_arguments(row) if watch else []
    words += [f"console={row.console} quiet panic=-1", row.kernel_command_line]
    if hypervisor.words:
        words.append(hypervisor.words)
    words += [
        f"guestmark.channel=vsock:{_CHANNEL}",
        f"guestmark.root=vsock:{_ROOT}",
        f"guestmark.rootopts={_ROOT_OPTIONS}",
    ]
    return " ".join([*words, *list_kernel_command_line_words(levels)])


def _list_modules(hypervisor: Hypervisor, cell: Cell) -> ModuleList:
    for_disks, filesystems = drives.list_qemu_modules(cell)
    network = list_network_modules(cell.levels)
    return ModuleList((*hypervisor.modules, *_MODULES, *for_disks, *network), filesystems)


def _rank_kernel(kernel: Kernel) -> int | None:
    """Ranks kernels; None for those that cannot mount their root over vsock.

    A kernel without modules is assumed to have everything built in.
    """
    if kernel.elf is None:
        return None
    if kernel.modules is None:
        return 0
    tree = ModuleTree.read(kernel.modules)
    if not all(map(tree.has_module, _MODULES)):
        return None
    return 0


@functools.cache
def _read_version(program: str, version_prefix: str) -> str:
    """Returns the version that the program prints. Raises `PlatformUnusableError` if it is a different program."""
    try:
        line = read_version_line(program)
    except (OSError, subprocess.SubprocessError, IndexError) as error:
        raise PlatformUnusableError(
            f"cannot read the version of {program}: {error}", hint="name the right program: --set vmm=FILE"
        ) from error
    name, found, version = line.partition(version_prefix)
    if name or not found:
        raise PlatformUnusableError(
            f"{program} reports that it is {line!r}, not {version_prefix.strip()}",
            hint="name the right program: --set vmm=FILE",
        )
    return version.strip().removeprefix("v")
