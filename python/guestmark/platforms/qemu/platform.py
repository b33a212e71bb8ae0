"""QEMU guests with KVM or TCG: the distribution's kernel, and the host's root filesystem shared read-only."""

import contextlib
import functools
import mmap
import os
import re
import shutil
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from guestmark.agent.client import Agent
from guestmark.agent.confinement import HYPERVISOR, Confinement
from guestmark.appliance.initramfs import ModuleList, build_initramfs
from guestmark.appliance.kernel import Kernel, Notify
from guestmark.core import procfs
from guestmark.core.architectures import Architecture, host_architecture
from guestmark.core.cause import Cause
from guestmark.core.distribution import install_hint
from guestmark.core.errors import MachineError, PlatformUnusableError, UsageError
from guestmark.core.levels import Levels
from guestmark.core.machine_facts import GuestMachine, Restored, Vmm
from guestmark.core.model import Cell
from guestmark.core.platform_kind import Program
from guestmark.core.platform_spec import Layer
from guestmark.disks.image import Image
from guestmark.foreign import parts
from guestmark.foreign.progress import Progress
from guestmark.platforms import drives
from guestmark.platforms.affinity import find_vcpu_threads, take_seat
from guestmark.platforms.attest import (
    attest_disks,
    check_kernel,
    describe_inside,
    measure_backing,
    require_checks,
    require_same,
)
from guestmark.platforms.base import Unusable, Usable
from guestmark.platforms.drives import VirtioBus
from guestmark.platforms.guest import Guest, await_ready, make_mismatch, stop_on_exit
from guestmark.platforms.phases import ANSWERED, Watch
from guestmark.platforms.place import HERE, HypervisorProcess, Line, Place
from guestmark.platforms.probe import NO_FACTORS, probe_by_start
from guestmark.platforms.process import SupervisedProcess
from guestmark.platforms.qemu import restored, virtiofs
from guestmark.platforms.qemu.accelerators import ACCELERATORS, KVM, TCG, Accelerator
from guestmark.platforms.qemu.boots import NINE_P, VIRTIOFS, Boot, find_boot
from guestmark.platforms.qmp import Monitor, require_shape
from guestmark.setting import memory
from guestmark.setting.disk import Disks
from guestmark.setting.drive import Aio, Bus
from guestmark.setting.filesystem import Filesystem, choose_share_cache
from guestmark.setting.image import PROTOCOL, Protocol
from guestmark.setting.machine import (
    CPU,
    MACHINE,
    MEMORY,
    PROGRAM,
    QEMU_ARGS,
    SMP,
    START,
    Start,
    StartedGuest,
    attest_levels,
    iterate_guest_levels,
    list_kernel_words,
)

_KVM_HINT = (
    "the host's KVM cannot run a Linux guest (common in virtual machines without real nested virtualization); "
    "use tcg or uml here, or tcg/kvm to exercise KVM"
)


def kvm_hint(cause: Cause) -> str:
    """Returns what to do about a KVM guest that failed for this cause; empty if nothing is known."""
    device = Path("/dev/kvm")
    if not device.exists():
        return "there is no /dev/kvm: load kvm_amd or kvm_intel, or enable virtualization in the firmware"
    if not os.access(device, os.R_OK | os.W_OK):
        return "you may not open /dev/kvm: add yourself to its group (usually kvm)"
    return _KVM_HINT if cause.is_failed_start else ""


def add_kvm_hint(found: Usable | Unusable) -> Usable | Unusable:
    """Adds what to do about KVM to the finding of a probe that has no hint."""
    if isinstance(found, Unusable) and not found.hint:
        return replace(found, hint=kvm_hint(found.cause))
    return found


def attest_qemu(guest: Guest, vmm: Vmm, levels: Levels, boot: Boot) -> GuestMachine:
    """Compares accelerator, architecture, kernel, root and all factors that can be compared, by QMP and from inside.

    Raises `AttestationError` with both values.
    """
    inside = describe_inside(guest)
    # A guest that was restored has completed an incoming migration; one that booted has none.
    loaded = guest.query("query-migrate").get("status") == "completed" if guest.query else None
    require_same("the accelerator", guest.cell.platform.inner.kind, vmm.accelerator, guest)
    backing = measure_backing(guest) if memory.has_memory_factors(guest.cell.levels) else None
    require_checks(
        attest_levels(levels, StartedGuest(inside, vmm, _find_running_program(guest), loaded, backing)), guest
    )
    check_kernel(boot.kernel.release, inside, guest, boot.root_type)
    if boot.share == NINE_P and guest.place is HERE and guest.vmm_pid is not None:
        require_same(
            "the root filesystem", str(boot.root), _find_shared_directory(guest.vmm_pid, boot.root), guest
        )
    expected = guest.cell.platform.foreign_architecture or host_architecture()
    require_same("the architecture", expected.machine_name, inside.arch, guest)
    return GuestMachine(
        asked=dict(levels.texts),
        vmm=vmm,
        guest=inside,
        disks=attest_disks(guest),
        restored=guest.restored,
        backing=backing,
    )


def _find_running_program(guest: Guest) -> str:
    """Returns the hypervisor's executable; empty for one inside another guest, which is not looked at."""
    if guest.place is not HERE or guest.vmm_pid is None:
        return ""
    return os.path.realpath(f"/proc/{guest.vmm_pid}/exe")


def _find_shared_directory(pid: int, wanted: Path) -> str:
    """Returns `wanted` if QEMU, process `pid`, has that very directory open; else the directories that it has open."""
    expected, others = os.stat(wanted), []
    for link, target in procfs.list_open_files(pid):
        with contextlib.suppress(OSError):
            found = link.stat()
            # Paths may lead to the same directory by several names, so inodes are compared.
            if os.path.samestat(found, expected):
                return str(wanted)
            if stat.S_ISDIR(found.st_mode):
                others.append(target)
    return ", ".join(others) or "no directory"


# Defaults on the host's own architecture.
DEFAULTS: Mapping[str, str] = {MEMORY.name: "1G", SMP.name: "1"}
_SHARE_TAG = "guestmark-root"
# QEMU's own seccomp filter, as libvirt sets it: no fork or exec, no change of user, no scheduling.
_SANDBOX = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"
_BALLOON_S = 60.0
# QEMU cannot save the state of these devices.
_UNSAVABLE_BUSES = (Bus.NVME, Bus.VHOST_USER, Bus.VIRTIOFS)
# Ports of the channel's device: the agent's, and room for those that outer guests add.
_LEAST_PORTS = 8


@dataclass(frozen=True, slots=True)
class Extras:
    """What a start needs beyond the cell's factors, such as further arguments and optional modules."""

    arguments: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    # Number of ports of the channel's device, the agent's included.
    ports: int = 1
    # Files that the arguments name for writing.
    writable: tuple[Path, ...] = ()
    # True if the arguments make sockets.
    sockets: bool = False
    # Words for the command line of the guest's kernel.
    kernel: tuple[str, ...] = ()
    # Further files of the initramfs.
    programs: Mapping[str, Path | bytes] = field(default_factory=dict)
    # True if a restored guest gets a generation id, provided its machine can have one.
    generation_id: bool = True


NO_EXTRAS = Extras()


class QemuPlatform:
    """`kvm` or `tcg`, of this host's architecture or another.

    `notify` announces slow steps, such as fetching a kernel.
    """

    def __init__(self, layer: Layer, notify: Notify = lambda _: None) -> None:
        self.name = str(layer)
        self.architecture = layer.architecture
        self.accelerator = ACCELERATORS[layer.kind]
        if layer.is_foreign and not self.accelerator.emulates:
            host = host_architecture().name
            raise UsageError(
                f"platform {self.name!r}: {layer.kind} runs programs on the host's own processor, which is {host}",
                hint=f"{self.architecture.name} can only be emulated here: {TCG.name}@{self.architecture.name}",
            )
        self._notify = notify

    @contextlib.contextmanager
    def start(
        self,
        cell: Cell,
        deadline_s: float | None = None,
        extras: Extras = NO_EXTRAS,
        place: Place = HERE,
    ) -> Iterator[Guest]:
        """Boots a fresh guest for `cell` and yields it once its agent answers; see `Platform.start`.

        `place` is where its hypervisor runs: this host, or an outer guest.
        """
        levels = cell.levels.with_defaults(self._default_factors())
        self._check_processors(levels)
        boot = find_boot(self.architecture, cell, levels, self._notify)
        program = levels.get(PROGRAM) or self.architecture.emulator.command
        virtio = VirtioBus.for_machine(self.architecture, levels[MACHINE])
        initramfs = build_initramfs(
            boot.agent, boot.kernel.modules, _list_modules(boot.share, virtio, extras, cell), extras.programs
        )
        memory.check_memory(levels, here=place is HERE, on_pci=virtio.on_pci)
        watch = Watch.for_cell(cell)
        is_restored = levels[START] is Start.RESTORED
        generation_id = is_restored and extras.generation_id and _has_generation_id(self.architecture)
        if is_restored:
            _require_restorable(cell, boot, place, virtio, watched=watch is not None)
        process = place.make_process(self.name, _choose_confinement(cell, boot, extras, self.accelerator))
        line, monitor_line = place.make_line("agent"), place.make_line("monitor")
        monitor = Monitor(monitor_line.own_socket())
        with contextlib.ExitStack() as stack:
            # The seat is taken first and given back last, so that the hypervisor never runs outside of it.
            seat = stack.enter_context(take_seat(cell, emulator=True))
            stack.enter_context(stop_on_exit(process, line.close, monitor.close, monitor_line.close))
            made = stack.enter_context(place.prepare_disks(cell))
            arguments = [
                *_base_arguments(self.architecture, self.accelerator, levels, program),
                *(sandbox_arguments(program) if place is HERE else ()),
                *_console_arguments(watch, self.architecture),
                *([] if is_restored else memory.make_memory_arguments(levels, shared=_needs_shared_memory(boot, made))),
                *(_root_arguments(stack, process, virtio, boot) if boot.share else ()),
                *_share_arguments(stack, process, virtio, made),
                *_channel_arguments(line, virtio, max(_LEAST_PORTS, extras.ports)),
                *_monitor_arguments(monitor_line),
                *drives.qemu_arguments(made, levels[MACHINE], virtio),
                *(levels.get(QEMU_ARGS) or ()),
                *extras.arguments,
                *(["-device", "vmgenid,guid=auto"] if generation_id else []),
                *_kernel_arguments(
                    place,
                    boot.kernel,
                    initramfs,
                    " ".join([self._format_kernel_words(place, boot.share, levels, watch), *extras.kernel]),
                ),
            ]  # fmt: skip
            written = (*drives.list_writable_paths(made), *extras.writable)
            command = drives.add_storage_daemon(arguments, made, process.scratch, place)
            template, state = None, -1
            if is_restored:
                template = stack.enter_context(self._take_template(cell, arguments, levels, boot, made))
                state = stack.enter_context(restored.open_inheritable(template.state, os.O_RDONLY))
                command = [
                    *restored.drop_kernel(arguments, boot.kernel, self.architecture),
                    *restored.memory_arguments(template.memory, levels[MEMORY], shared=False),
                    *("-incoming", "defer"),
                ]
                written = (*written, template.memory)
            process.start(command, pass_fds=(*line.fds, *monitor_line.fds), writable=written)
            line.close_inherited()
            monitor_line.close_inherited()
            agent = Agent(line.transport())
            guest = Guest(
                cell,
                process,
                agent,
                lambda g: attest_qemu(g, query_vmm(monitor, self.architecture), levels, boot),
                place=place,
                seat=seat,
            )
            # The threads are moved before the wait for the agent, so that the guest boots in its place.
            if seat.placement:
                _place_threads(guest, monitor)
            if template is not None:
                guest.restored = Restored(
                    template=template.key,
                    clone=template.clones,
                    template_s=template.made_s if template.clones == 1 else 0.0,
                    generation_id=generation_id,
                )
                answered = restored.resume_clone(
                    monitor, state, line.own_socket(), deadline_s or self.accelerator.start_limit_s
                )
                if answered is not None:
                    guest.phases[ANSWERED] = answered - process.started_at
            await_ready(agent, process, deadline_s or self.accelerator.start_limit_s, guest.phases)
            stack.callback(agent.close)
            guest.query = monitor.execute
            # Only a guest that answers can be asked for its disks, and only then may levels change its memory.
            guest.disks = drives.find_attached_disks(made, agent)
            _attest_daemons(guest)
            _apply_memory_orders(monitor, levels)
            yield guest

    @contextlib.contextmanager
    def _take_template(
        self,
        cell: Cell,
        arguments: Sequence[str],
        levels: Levels,
        boot: Boot,
        made: Sequence[Image],
    ) -> Iterator[restored.Template]:
        """Yields what a guest with these arguments goes on from: a template of the block, or one made for it.

        The template has disks like the guest's but never reads or writes them, so the first guest's own disks serve.
        """

        def make(template: restored.Template) -> None:
            with contextlib.ExitStack() as stack:
                process = SupervisedProcess(
                    self.name, _choose_confinement(cell, boot, NO_EXTRAS, self.accelerator)
                )
                line, monitor_line = HERE.make_line("agent"), HERE.make_line("monitor")
                monitor = Monitor(monitor_line.own_socket())
                stack.enter_context(stop_on_exit(process, line.close, monitor.close, monitor_line.close))
                state = stack.enter_context(
                    restored.open_inheritable(template.state, os.O_WRONLY | os.O_CREAT)
                )
                named = dict(zip(_find_descriptors(arguments), (*line.fds, *monitor_line.fds), strict=True))
                command = [
                    *_replace_descriptors(arguments, named),
                    *restored.memory_arguments(template.memory, levels[MEMORY], shared=True),
                ]
                written = (template.memory, *drives.list_writable_paths(made))
                process.start(command, pass_fds=(*line.fds, *monitor_line.fds), writable=written)
                line.close_inherited()
                monitor_line.close_inherited()
                restored.save_template(process, monitor, state, self.accelerator.start_limit_s)

        program = shutil.which(arguments[0]) or arguments[0]
        key = restored.template_key(drives.replace_paths(arguments, made), os.path.realpath(program))
        with restored.TEMPLATES.take_template(key, levels[MEMORY], make) as template:
            yield template

    def _default_factors(self) -> dict[str, str]:
        row = self.architecture
        return {
            **DEFAULTS,
            MEMORY.name: row.memory,
            MACHINE.name: row.machine,
            CPU.name: self.accelerator.default_cpu(row),
        }

    def _check_processors(self, levels: Levels) -> None:
        if levels[SMP] > 1 and not self.architecture.several_processors:
            raise PlatformUnusableError(
                f"a machine of {self.architecture.name} has one processor, and smp={levels[SMP]} was asked for",
                hint="give it one: --set smp=1",
            )

    def make_parts(self, packages: Sequence[str], progress: Progress) -> None:
        """Makes what guests of another architecture boot, if it does not exist yet. Raises `GuestmarkError`."""
        if self.architecture.is_host:
            if found := self.find_missing(Levels(NO_FACTORS)):
                raise PlatformUnusableError(found.reason, hint=found.hint, cause=found.cause)
        else:
            parts.get_parts(self.architecture, packages, progress, self._missing_programs)

    def _missing_programs(self) -> list[Program]:
        """Returns the programs that its machines need and that are not installed."""
        row = self.architecture
        return [row.emulator] if row.emulator.path is None else []

    def find_missing(self, levels: Levels) -> Unusable | None:
        """What has to be installed first."""
        row = self.architecture
        if row.is_host:
            return find_missing_program(row.emulator)
        try:
            parts.check_parts(row, self._missing_programs())
        except PlatformUnusableError as error:
            return Unusable.from_error(error)
        return None

    def probe(
        self, deadline_s: float | None = None, factors: Mapping[str, str] = NO_FACTORS
    ) -> Usable | Unusable:
        """Boots a guest and attests it; what fails is the reason."""
        found = self.find_missing(Levels(factors)) or probe_by_start(
            self, deadline_s or self.accelerator.start_limit_s, factors=factors
        )
        return add_kvm_hint(found) if self.accelerator is KVM else found

    def _format_kernel_words(self, place: Place, share: str, levels: Levels, watch: Watch | None) -> str:
        # cache=loose lets the guest cache files without asking the host again, which a read-only root allows.
        options = (
            "trans=virtio,version=9p2000.L,msize=512000,cache=loose,access=any" if share == NINE_P else ""
        )
        row = self.architecture
        return " ".join(
            [
                *(watch.qemu_kernel_arguments(row) if watch else []),
                f"console={row.console} quiet panic=-1",
                self.accelerator.boot_args(row),
                "guestmark.channel=virtio:guestmark",
                f"guestmark.root={share}:{_SHARE_TAG}" if share else "guestmark.root=none",
                *([f"guestmark.rootopts={options}"] if options else []),
                *self._format_clock_rate(place),
                *([] if row.is_host else [f"guestmark.realtime={time.time():.0f}"]),
                *list_kernel_words(levels),
            ]
        ).strip()

    def _format_clock_rate(self, place: Place) -> list[str]:
        """Returns a word that tells a guest under TCG the rate of its time-stamp counter, which is the host's.

        Measuring the rate, as kernels do, fails on machines without a timer for it (microvm), and on a busy host gives
        clocks that run several times too fast.
        """
        khz = place.tsc_khz() if self.accelerator.emulates and self.architecture.is_host else None
        return [f"tsc_early_khz={khz}"] if khz else []


def _has_generation_id(architecture: Architecture) -> bool:
    """Returns whether QEMU can tell a guest that it is a copy."""
    return architecture.is_host and architecture.generation_id


def _require_restorable(cell: Cell, boot: Boot, place: Place, virtio: VirtioBus, *, watched: bool) -> None:
    """Raises `PlatformUnusableError` for a guest that cannot be saved, or whose start is what is measured."""
    why = (
        "a guest inside another one cannot be restored"
        if place is not HERE
        else "guests whose root is not served by 9p cannot be saved"
        if boot.share != NINE_P
        else f"guests with a disk of bus={unsaved} cannot be saved"
        if (unsaved := next((disk.bus for disk in cell.view(Disks) if disk.bus in _UNSAVABLE_BUSES), None))
        else "disks whose writes are logged begin with their guest's boot"
        if any(disk.logged for disk in cell.view(Disks))
        else "machines without PCI are not restored"
        if not virtio.on_pci
        else "a workload that watches guests boot has nothing to see in restored ones"
        if watched
        else ""
    )
    if why:
        raise PlatformUnusableError(why, hint="give them start=cold")


_DESCRIPTOR = re.compile(r"(?<=\bfd=)\d+")


def _find_descriptors(arguments: Sequence[str]) -> list[str]:
    """Returns the numbers of the descriptors that arguments name, in order."""
    return [found[0] for word in arguments for found in [_DESCRIPTOR.search(word)] if found]


def _replace_descriptors(arguments: Sequence[str], named: Mapping[str, int]) -> list[str]:
    """Returns the arguments with other descriptors."""
    return [_DESCRIPTOR.sub(lambda found: str(named[found[0]]), word) for word in arguments]


def _place_threads(guest: Guest, monitor: Monitor) -> None:
    """Gives QEMU's threads their places as soon as it can say which are its virtual processors.

    If QEMU has ended by then, the wait for its start finds out why.
    """
    with contextlib.suppress(MachineError):
        guest.seat.move_threads(find_vcpu_threads(monitor.execute("query-cpus-fast"), guest.vmm_pid))


def _apply_memory_orders(monitor: Monitor, levels: Levels) -> None:
    """Sends the monitor what levels order, and waits until a balloon has its size. Raises `MachineError`."""
    for command, arguments in memory.list_monitor_commands(levels):
        monitor.execute(command, arguments)
    wanted = levels.get(memory.BALLOON)
    end = time.monotonic() + _BALLOON_S
    while wanted is not None and monitor.execute("query-balloon")["actual"] != wanted:
        if time.monotonic() > end:
            raise MachineError(f"the balloon did not leave the guest {wanted} bytes within {_BALLOON_S:g} s")
        time.sleep(0.01)


def _choose_confinement(cell: Cell, boot: Boot, extras: Extras, accelerator: Accelerator) -> Confinement:
    """Returns QEMU's confinement, with rings and sockets only for disks, shares and arguments that need them."""
    disks = cell.view(Disks)
    return replace(
        HYPERVISOR,
        more=tuple(
            word for factor, level in iterate_guest_levels(cell.levels) for word in factor.process(level)
        ),
        kvm=accelerator is KVM,
        rings=any(disk.aio is Aio.IO_URING for disk in disks),
        sockets=boot.share == VIRTIOFS
        or extras.sockets
        # Arguments of the user's own may name sockets, which cannot be seen from here.
        or QEMU_ARGS in cell.levels
        or any(
            disk.bus in {Bus.VHOST_USER, Bus.VIRTIOFS} or disk.level(PROTOCOL) is Protocol.NBD
            for disk in disks
        ),
    )


def find_missing_program(program: Program) -> Unusable | None:
    """Returns `Unusable` with the command that installs `program` if it is not installed, else None."""
    if program.path:
        return None
    return Unusable(f"{program.name} is not installed", install_hint(program.package))


def query_vmm(monitor: Monitor, architecture: Architecture) -> Vmm:
    """Returns what QEMU says it runs: version, accelerator, processors and their model, memory in bytes."""
    with require_shape():
        kvm = monitor.execute("query-kvm")
        processors = monitor.execute("query-cpus-fast")
        model = monitor.execute("qom-get", {"path": processors[0]["qom-path"], "property": "type"})
        version = monitor.execute("query-version")["qemu"]
        return Vmm(
            accelerator=KVM.name if kvm["enabled"] else TCG.name,
            kvm_present=kvm["present"],
            processors=len(processors),
            cpu=str(model).removesuffix(architecture.cpu_suffix),
            memory_bytes=monitor.execute("query-memory-size-summary")["base-memory"],
            qemu=f"{version['major']}.{version['minor']}.{version['micro']}",
        )


def _list_modules(share: str, virtio: VirtioBus, extras: Extras, cell: Cell) -> ModuleList:
    shared = {NINE_P: ("9p", "9pnet_virtio", "overlay"), VIRTIOFS: ("virtiofs", "overlay")}.get(share, ())
    also = restored.TEMPLATES.filesystems if cell.levels.get(START) is Start.RESTORED else ()
    for_disks, filesystems = drives.list_qemu_modules(cell, also)
    required = (*virtio.modules, "virtio_console", *shared, *for_disks, *memory.list_modules(cell.levels))
    return ModuleList(required, (*filesystems, *extras.modules))


def _base_arguments(
    architecture: Architecture, accelerator: Accelerator, levels: Levels, program: str
) -> list[str]:
    threads = ",thread=multi" if accelerator.emulates and levels[SMP] > 1 else ""
    given = [
        word for factor, level in iterate_guest_levels(levels) for word in factor.qemu(level, architecture)
    ]
    return [
        program, "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none",
        "-accel", accelerator.name + threads, *given,
    ]  # fmt: skip


@functools.cache
def sandbox_arguments(emulator: str) -> tuple[str, ...]:
    """Returns the option with which QEMU gives up system calls that it does not need.

    Empty if this QEMU or this kernel was built without seccomp.
    """
    program = shutil.which(emulator)
    with contextlib.suppress(OSError, ValueError):
        if program and "\nSeccomp:" in Path("/proc/self/status").read_text():
            # QEMU has no option that tells; a QEMU without the library refuses -sandbox and would not start.
            with open(program, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                if content.find(b"libseccomp.so") >= 0:
                    return ("-sandbox", _SANDBOX)
    return ()


def _console_arguments(watch: Watch | None, architecture: Architecture) -> list[str]:
    shared = ",mux=on" if watch else ""
    return [
        "-chardev", f"stdio,id=console,signal=off{shared}", *architecture.console_device,
        *(watch.qemu_arguments(architecture) if watch else []),
    ]  # fmt: skip


def _root_arguments(
    stack: contextlib.ExitStack, process: HypervisorProcess, virtio: VirtioBus, boot: Boot
) -> list[str]:
    if boot.share == NINE_P:
        return drives.plan9_arguments(_SHARE_TAG, boot.root, "none", virtio, read_only=True)
    if not isinstance(process, SupervisedProcess):
        raise PlatformUnusableError(
            "a guest inside a guest gets its root over 9p, which its kernel does not have",
            hint="give a kernel with 9p: --set kernel=FILE",
        )
    return stack.enter_context(virtiofs.serve_directory(process, virtiofs.root_share(_SHARE_TAG), virtio.bus))


def _share_arguments(
    stack: contextlib.ExitStack, process: HypervisorProcess, virtio: VirtioBus, made: Sequence[Image]
) -> list[str]:
    """Starts a virtiofsd for each directory of the host that a disk shares; nested guests have none."""
    arguments: list[str] = []
    for image in made:
        if image.spec.filesystem is Filesystem.VIRTIOFS and isinstance(process, SupervisedProcess):
            arguments += stack.enter_context(
                virtiofs.serve_directory(process, _describe_share(image), virtio.bus)
            )
    return arguments


def _describe_share(image: Image) -> virtiofs.Share:
    spec = image.spec
    return virtiofs.Share(
        spec.name, image.path, choose_share_cache(spec), writable=True, name=f"virtiofsd of the {spec.name}"
    )


def _attest_daemons(guest: Guest) -> None:
    """Records which process serves each directory. Raises `AttestationError` if one was started with other options."""
    for disk in guest.disks:
        if disk.spec.filesystem is not Filesystem.VIRTIOFS:
            continue
        share = _describe_share(disk.image)
        server = guest.process.helpers[share.name]
        disk.server = server.pid()
        if differs := virtiofs.find_difference(server, share):
            raise make_mismatch(f"the {disk.spec.name}'s daemon", share.cache, differs, guest)


def _needs_shared_memory(boot: Boot, made: Sequence[Image]) -> bool:
    """Returns whether processes other than QEMU serve the guest, and need its memory."""
    return boot.share == VIRTIOFS or any(image.spec.bus in {Bus.VHOST_USER, Bus.VIRTIOFS} for image in made)


def _channel_arguments(line: Line, virtio: VirtioBus, ports: int) -> list[str]:
    # One interrupt for each queue of a few ports: by default the 64 queues of 31 ports share one, and the guest looks
    # through all of them at each interrupt.
    vectors = f",vectors={2 * ports + 4}" if virtio.on_pci else ""
    return [
        "-device", f"{virtio.format_device('virtio-serial')},max_ports={ports}{vectors}",
        "-chardev", line.format_chardev("agent"),
        "-device", "virtserialport,chardev=agent,name=guestmark",
    ]  # fmt: skip


def _monitor_arguments(line: Line) -> list[str]:
    return ["-chardev", line.format_chardev("monitor"), "-mon", "chardev=monitor,mode=control"]


def _kernel_arguments(place: Place, kernel: Kernel, initramfs: Path, arguments: str) -> list[str]:
    image = place.locate_file(Path(kernel.elf or kernel.image))
    return ["-kernel", image, "-initrd", place.locate_file(initramfs), "-append", arguments]
