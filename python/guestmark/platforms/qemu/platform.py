"""QEMU guests with KVM or TCG: the distribution's kernel, and the host's root filesystem shared read-only."""

import contextlib
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from guestmark.agent.client import Agent
from guestmark.agent.confinement import HYPERVISOR, Confinement
from guestmark.appliance.initramfs import ModuleList, build_initramfs
from guestmark.appliance.kernel import Notify
from guestmark.core.architectures import Architecture, find_host_architecture
from guestmark.core.cause import Cause
from guestmark.core.distribution import make_install_hint
from guestmark.core.errors import MachineError, PlatformUnusableError, UsageError
from guestmark.core.levels import Levels
from guestmark.core.model import Cell
from guestmark.core.platform_kind import Program
from guestmark.core.platform_spec import Layer
from guestmark.disks.image import Image
from guestmark.foreign import parts
from guestmark.foreign.progress import Progress
from guestmark.platforms import drives
from guestmark.platforms.affinity import find_vcpu_threads, take_seat
from guestmark.platforms.base import Unusable, Usable
from guestmark.platforms.drives import VirtioBus
from guestmark.platforms.guest import Guest, await_ready, stop_on_exit
from guestmark.platforms.network import qemu_link
from guestmark.platforms.network.hypervisor_link import HypervisorLink
from guestmark.platforms.phases import ANSWERED, Watch
from guestmark.platforms.place import HERE, HypervisorProcess, Line, Place
from guestmark.platforms.probe import NO_FACTORS, probe_by_start
from guestmark.platforms.process import SupervisedProcess
from guestmark.platforms.qemu import command_line, restored
from guestmark.platforms.qemu.accelerators import ACCELERATORS, KVM, TCG, Accelerator
from guestmark.platforms.qemu.attest import attest_daemons, attest_qemu, query_vmm
from guestmark.platforms.qemu.boots import NINE_P, VIRTIOFS, Boot, find_boot
from guestmark.platforms.qemu.disk_images import (
    START_LIMIT_S,
    ImageBoot,
    ImageGuest,
    find_image_boot,
)
from guestmark.platforms.qmp import Monitor
from guestmark.setting import memory
from guestmark.setting.disk import Disks
from guestmark.setting.drive import Aio, Bus
from guestmark.setting.image import PROTOCOL, Protocol
from guestmark.setting.machine import (
    CPU,
    IMAGE,
    MACHINE,
    MEMORY,
    PROGRAM,
    QEMU_ARGS,
    SMP,
    START,
    Start,
    collect_guest_options,
    list_kernel_command_line_words,
)
from guestmark.setting.network import NETWORK, Network

_KVM_HINT = (
    "the host's KVM cannot run a Linux guest (common in virtual machines without real nested virtualization); "
    "use tcg or uml here, or tcg/kvm to exercise KVM"
)


def suggest_kvm_remedy(cause: Cause) -> str:
    """Returns a hint for a KVM guest that failed for this cause; empty if none is known."""
    device = Path("/dev/kvm")
    if not device.exists():
        return "there is no /dev/kvm: load kvm_amd or kvm_intel, or enable virtualization in the firmware"
    if not os.access(device, os.R_OK | os.W_OK):
        return "you may not open /dev/kvm: add yourself to its group (usually kvm)"
    return _KVM_HINT if cause.is_failed_start else ""


def add_kvm_hint(found: Usable | Unusable) -> Usable | Unusable:
    """Adds a hint about KVM to a probe's finding that has none."""
    if isinstance(found, Unusable) and not found.hint:
        return replace(found, hint=suggest_kvm_remedy(found.cause))
    return found


# Defaults on the host's own architecture.
DEFAULTS: Mapping[str, str] = {MEMORY.name: "1G", SMP.name: "1"}
_BALLOON_S = 60.0
# QEMU cannot save the state of devices on these buses.
_UNSAVABLE_BUSES = (Bus.NVME, Bus.VHOST_USER, Bus.VIRTIOFS)


@dataclass(frozen=True, slots=True)
class Extras:
    """Additions to a start that no factor describes, such as further arguments and optional modules."""

    arguments: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    # Number of ports of the channel's device, including the agent's.
    ports: int = 1
    # Files that the arguments name for writing.
    writable: tuple[Path, ...] = ()
    # True if the arguments create sockets.
    sockets: bool = False
    # Further files of the initramfs.
    programs: Mapping[str, Path | bytes] = field(default_factory=dict)
    # True if a restored guest gets a generation id, if its machine supports that.
    generation_id: bool = True
    # True if a restored guest gets the time and random bytes.
    renews: bool = True


NO_EXTRAS = Extras()


@dataclass(frozen=True, slots=True)
class _GuestStart:
    """The inputs of one start's command line, except streams and disks."""

    cell: Cell
    levels: Levels
    boot: Boot | ImageBoot
    place: Place
    process: HypervisorProcess
    virtio: VirtioBus
    watch: Watch | None
    extras: Extras


@dataclass(frozen=True, slots=True)
class _Launch:
    """QEMU's command line, with the template and the descriptor of its state if the guest is restored."""

    command: Sequence[str]
    template: restored.Template | None = None
    state: int = -1
    written: tuple[Path, ...] = ()


class QemuPlatform:
    """`kvm` or `tcg`, of this host's architecture or another.

    `notify` is called before slow steps, such as downloading a kernel.
    """

    def __init__(self, layer: Layer, notify: Notify = lambda _: None) -> None:
        self.name = str(layer)
        self.architecture = layer.architecture
        self.accelerator = ACCELERATORS[layer.kind]
        if layer.is_foreign and not self.accelerator.emulates:
            host = find_host_architecture().name
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
        limit_s = deadline_s or self.accelerator.start_limit_s
        levels = cell.levels.with_defaults(self._list_default_factors())
        self._check_processors(levels)
        virtio = VirtioBus.for_machine(self.architecture, levels[MACHINE])
        boot = self._find_boot(cell, levels, virtio, place)
        if isinstance(boot, ImageBoot):
            limit_s = max(limit_s, START_LIMIT_S)
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
            # The seat is taken first and released last, so that the hypervisor never runs on other processors.
            seat = stack.enter_context(take_seat(cell, emulator=True))
            stack.enter_context(stop_on_exit(process, line.close, monitor.close, monitor_line.close))
            made = stack.enter_context(place.prepare_disks(cell))
            link = stack.enter_context(qemu_link.open_qemu_network(self.name, levels, virtio, place))
            start = _GuestStart(cell, levels, boot, place, process, virtio, watch, extras)
            arguments = [*self._make_arguments(stack, start, made, line, monitor_line), *link.arguments]
            if generation_id:
                arguments += ["-device", "vmgenid,guid=auto"]
            launch = self._prepare_launch(stack, start, arguments, made, limit_s)
            written = (*launch.written, *drives.list_writable_paths(made), *extras.writable)
            template = launch.template
            _start_process(process, launch.command, (line, monitor_line), link, written)
            agent = Agent(line.transport())
            kind = ImageGuest if isinstance(boot, ImageBoot) else Guest
            guest = kind(
                cell,
                process,
                agent,
                lambda g: attest_qemu(g, query_vmm(monitor, self.architecture), levels, boot),
                place=place,
                seat=seat,
            )
            # The threads are moved before the agent answers, so that the guest boots on its processors.
            if seat.placement:
                _place_threads(guest, monitor)
            if template is not None:
                guest.restored = template.describe_clone(generation_id=generation_id)
                answered = restored.resume_clone(
                    monitor, launch.state, line.own_socket(), limit_s, renews=extras.renews
                )
                if answered is not None:
                    guest.phases[ANSWERED] = answered - process.started_at
            await_ready(agent, process, limit_s, guest.phases)
            stack.callback(agent.close)
            _complete_guest(guest, monitor, made, levels)
            guest.network = link.connect(agent, process)
            yield guest

    def _make_arguments(
        self,
        stack: contextlib.ExitStack,
        start: _GuestStart,
        made: Sequence[Image],
        line: Line,
        monitor_line: Line,
    ) -> list[str]:
        """Return QEMU's command line; `stack` ends the daemons that QEMU needs."""
        boot, levels, place, process = start.boot, start.levels, start.place, start.process
        virtio, watch, extras = start.virtio, start.watch, start.extras
        program = levels.get(PROGRAM) or self.architecture.emulator.command
        sandbox: tuple[str, ...] = ()
        if place is HERE:
            sandbox = command_line.build_sandbox_arguments(program)
        arguments = [
            *command_line.build_base_arguments(self.architecture, self.accelerator, levels, program),
            *sandbox,
            *command_line.build_console_arguments(watch, self.architecture),
            *_build_memory_arguments(levels, boot, made),
            *command_line.build_share_arguments(stack, process, virtio, made),
            *command_line.build_channel_arguments(line, virtio, extras.ports),
            *command_line.build_monitor_arguments(monitor_line),
            *drives.build_drive_arguments(made, levels[MACHINE], virtio),
            *(levels.get(QEMU_ARGS) or ()),
            *extras.arguments,
        ]
        if isinstance(boot, ImageBoot):
            return [*arguments, *boot.make_arguments(place, process.scratch, virtio)]
        arguments += command_line.build_root_arguments(stack, process, virtio, boot)
        modules = _list_modules(boot.share, virtio, extras, start.cell)
        initramfs = build_initramfs(boot.agent, boot.kernel.modules, modules, extras.programs)
        words = [self._format_kernel_command_line(place, boot.share, levels, watch)]
        return [
            *arguments,
            *command_line.build_kernel_arguments(place, boot.kernel, initramfs, " ".join(words)),
        ]

    def _find_boot(self, cell: Cell, levels: Levels, virtio: VirtioBus, place: Place) -> Boot | ImageBoot:
        """Return what the cell's guest boots: its level `image`, or else a kernel with the host's root."""
        if IMAGE in levels:
            # libguestfs runs on this host, where the accelerator of a nested guest may not work.
            accelerator = self.accelerator if place is HERE else TCG
            return find_image_boot(self.architecture, accelerator.name, levels, virtio, self._notify)
        return find_boot(self.architecture, cell, levels, self._notify)

    def _prepare_launch(
        self,
        stack: contextlib.ExitStack,
        start: _GuestStart,
        arguments: list[str],
        made: Sequence[Image],
        limit_s: float,
    ) -> _Launch:
        """Return the command with these arguments; creates the files of an image's guest, and takes a template."""
        boot, place, scratch = start.boot, start.place, start.process.scratch
        if start.levels[START] is not Start.RESTORED:
            if isinstance(boot, ImageBoot):
                boot.create_files(place, scratch)
            return _Launch(drives.add_storage_daemon(arguments, made, scratch, place))
        template = stack.enter_context(self._take_template(start, arguments, made, limit_s))
        state = stack.enter_context(restored.open_inheritable(template.state, os.O_RDONLY))
        if isinstance(boot, ImageBoot):
            boot.create_files(place, scratch, template.directory)
        else:
            arguments = restored.drop_kernel(arguments, boot.kernel, self.architecture)
        memory_arguments = restored.build_memory_arguments(
            template.memory, start.levels[MEMORY], shared=False
        )
        command = [*arguments, *memory_arguments, "-incoming", "defer"]
        return _Launch(command, template, state, (template.memory,))

    @contextlib.contextmanager
    def _take_template(
        self, start: _GuestStart, arguments: Sequence[str], made: Sequence[Image], limit_s: float
    ) -> Iterator[restored.Template]:
        """Yields the template for a guest with these arguments: the block's, or one created for this guest.

        The template has disks like the guest's but never accesses them, so the first guest's own disks are used; the
        disk of an image is its own.
        """
        boot, scratch, size = start.boot, str(start.process.scratch), start.levels[MEMORY]

        def make(template: restored.Template) -> None:
            with contextlib.ExitStack() as stack:
                process = SupervisedProcess(
                    self.name, _choose_confinement(start.cell, boot, NO_EXTRAS, self.accelerator)
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
                    *restored.build_memory_arguments(template.memory, size, shared=True),
                ]
                written = [template.memory, *drives.list_writable_paths(made)]
                if isinstance(boot, ImageBoot):
                    boot.create_files(HERE, template.directory)
                    command = [word.replace(scratch, str(template.directory)) for word in command]
                    written += filter(Path.exists, boot.list_files(template.directory))
                process.start(command, pass_fds=(*line.fds, *monitor_line.fds), writable=written)
                line.close_inherited()
                monitor_line.close_inherited()
                restored.save_template(process, monitor, line.own_socket(), state, limit_s)

        program = shutil.which(arguments[0]) or arguments[0]
        words = [word.replace(scratch, "") for word in drives.replace_paths(arguments, made)]
        if isinstance(boot, ImageBoot):
            words.append(str(boot.overlay))
        key = restored.compute_template_key(words, os.path.realpath(program))
        with restored.TEMPLATES.take_template(key, size, make) as template:
            yield template

    def _list_default_factors(self) -> dict[str, str]:
        row = self.architecture
        return {
            **DEFAULTS,
            MEMORY.name: row.memory,
            MACHINE.name: row.machine,
            CPU.name: self.accelerator.choose_default_cpu(row),
        }

    def _check_processors(self, levels: Levels) -> None:
        if levels[SMP] > 1 and not self.architecture.several_processors:
            raise PlatformUnusableError(
                f"{self.architecture.name} machines have one processor, but smp={levels[SMP]} was requested",
                hint="use --set smp=1",
            )

    def make_parts(self, packages: Sequence[str], progress: Progress) -> None:
        """Builds missing parts for guests of another architecture. Raises `GuestmarkError`."""
        if self.architecture.is_host:
            if found := self.find_missing(Levels(NO_FACTORS)):
                raise PlatformUnusableError(found.reason, hint=found.hint, cause=found.cause)
        else:
            parts.get_parts(self.architecture, packages, progress, self._list_missing_programs)

    def _list_missing_programs(self) -> list[Program]:
        """Returns the programs that the platform's machines need but that are not installed."""
        row = self.architecture
        return [row.emulator] if row.emulator.path is None else []

    def find_missing(self, levels: Levels) -> Unusable | None:
        """Returns a finding about programs that have to be installed first; None if all are installed."""
        row = self.architecture
        if row.is_host:
            return find_missing_program(row.emulator)
        try:
            if IMAGE in levels:
                parts.check_agent(row, self._list_missing_programs())
            else:
                parts.check_parts(row, self._list_missing_programs())
        except PlatformUnusableError as error:
            return Unusable.from_error(error)
        return None

    def probe(
        self, deadline_s: float | None = None, factors: Mapping[str, str] = NO_FACTORS
    ) -> Usable | Unusable:
        """Boots a guest and attests it; if that fails, the error is the reason."""
        found = self.find_missing(Levels(factors)) or probe_by_start(
            self, deadline_s or self.accelerator.start_limit_s, factors=factors
        )
        return add_kvm_hint(found) if self.accelerator is KVM else found

    def _format_kernel_command_line(
        self, place: Place, share: str, levels: Levels, watch: Watch | None
    ) -> str:
        row = self.architecture
        words = watch.build_qemu_kernel_arguments(row) if watch else []
        words += [
            f"console={row.console} quiet panic=-1",
            self.accelerator.build_kernel_command_line(row),
            "guestmark.channel=virtio:guestmark",
        ]
        if share:
            words.append(f"guestmark.root={share}:{command_line.SHARE_TAG}")
        else:
            words.append("guestmark.root=none")
        if share == NINE_P:
            # cache=loose lets the guest cache files without asking the host again, which a read-only root allows.
            words.append(
                "guestmark.rootopts=trans=virtio,version=9p2000.L,msize=512000,cache=loose,access=any"
            )
        words += self._format_clock_rate(place)
        # A foreign machine may have no real-time clock that its kernel can read.
        if not row.is_host:
            words.append(f"guestmark.realtime={time.time():.0f}")
        return " ".join([*words, *list_kernel_command_line_words(levels)]).strip()

    def _format_clock_rate(self, place: Place) -> list[str]:
        """Returns the kernel argument with the rate of a TCG guest's time-stamp counter, which is the host's.

        Kernels measure the rate otherwise, which fails on machines without a timer for it (microvm), and on a busy host
        results in clocks that run several times too fast.
        """
        if self.accelerator.emulates and self.architecture.is_host and (khz := place.tsc_khz()):
            return [f"tsc_early_khz={khz}"]
        return []


def _start_process(
    process: HypervisorProcess,
    command: Sequence[str],
    lines: Sequence[Line],
    link: HypervisorLink,
    written: Sequence[Path],
) -> None:
    """Starts QEMU, which inherits its ends of the lines and the network. Raises `MachineError`."""
    inherited: list[int] = []
    for line in lines:
        inherited += line.fds
    if link.helper is not None and isinstance(process, SupervisedProcess):
        process.end_with(Network.PASST, link.helper)
    process.start(command, pass_fds=(*inherited, *link.pass_fds), writable=written, within=link.within)
    for line in lines:
        line.close_inherited()


def _has_generation_id(architecture: Architecture) -> bool:
    """Returns whether QEMU has a generation id on this architecture, which shows a guest that it is a copy."""
    return architecture.is_host and architecture.generation_id


def _require_restorable(
    cell: Cell, boot: Boot | ImageBoot, place: Place, virtio: VirtioBus, *, watched: bool
) -> None:
    """Raises `PlatformUnusableError` for a guest that cannot be saved, or whose boot is to be measured."""
    disks = cell.view(Disks)
    unsavable = next((disk.bus for disk in disks if disk.bus in _UNSAVABLE_BUSES), None)
    if place is not HERE:
        why = "nested guests cannot be restored"
    elif isinstance(boot, Boot) and boot.share != NINE_P:
        why = "guests whose root is not served by 9p cannot be saved"
    elif unsavable is not None:
        why = f"guests with a disk of bus={unsavable} cannot be saved"
    elif disks.any_logged:
        why = "a log of a disk's writes has to begin with the guest's boot"
    elif not virtio.on_pci:
        why = "machines without PCI cannot be restored"
    elif cell.levels[NETWORK] is not Network.NONE:
        why = "guests with a network cannot be saved"
    elif watched:
        why = "restored guests do not boot, so their boot cannot be measured"
    else:
        return
    raise PlatformUnusableError(why, hint="use start=cold for them")


def _build_memory_arguments(levels: Levels, boot: Boot | ImageBoot, made: Sequence[Image]) -> list[str]:
    """Returns the arguments for the guest's memory; empty for a restored guest, which gets its template's memory."""
    if levels[START] is Start.RESTORED:
        return []
    return memory.make_memory_arguments(levels, shared=command_line.needs_shared_memory(boot, made))


_DESCRIPTOR = re.compile(r"(?<=\bfd=)\d+")


def _find_descriptors(arguments: Sequence[str]) -> list[str]:
    """Returns the descriptor numbers in the arguments, in order."""
    numbers = []
    for word in arguments:
        if found := _DESCRIPTOR.search(word):
            numbers.append(found[0])
    return numbers


def _replace_descriptors(arguments: Sequence[str], named: Mapping[str, int]) -> list[str]:
    """Returns the arguments with descriptor numbers replaced."""
    return [_DESCRIPTOR.sub(lambda found: str(named[found[0]]), word) for word in arguments]


def _place_threads(guest: Guest, monitor: Monitor) -> None:
    """Moves QEMU's threads to their processors as soon as its monitor names the virtual processors.

    If QEMU has ended by then, the wait for its start reports why.
    """
    with contextlib.suppress(MachineError):
        guest.seat.move_threads(find_vcpu_threads(monitor.execute("query-cpus-fast"), guest.vmm_pid))


def _complete_guest(guest: Guest, monitor: Monitor, made: Sequence[Image], levels: Levels) -> None:
    """Finds the disks of a guest whose agent answers, and applies the levels that need a running guest."""
    if isinstance(guest, ImageGuest):
        guest.await_settled()
    guest.query = monitor.execute
    guest.disks = drives.find_attached_disks(made, guest.agent)
    attest_daemons(guest)
    _apply_memory_orders(monitor, levels)


def _apply_memory_orders(monitor: Monitor, levels: Levels) -> None:
    """Sends the levels' commands to the monitor, and waits until a balloon has its size. Raises `MachineError`."""
    for command, arguments in memory.list_monitor_commands(levels):
        monitor.execute(command, arguments)
    wanted = levels.get(memory.BALLOON)
    end = time.monotonic() + _BALLOON_S
    while wanted is not None and monitor.execute("query-balloon")["actual"] != wanted:
        if time.monotonic() > end:
            raise MachineError(f"the balloon did not leave the guest {wanted} bytes within {_BALLOON_S:g} s")
        time.sleep(0.01)


def _choose_confinement(
    cell: Cell, boot: Boot | ImageBoot, extras: Extras, accelerator: Accelerator
) -> Confinement:
    """Returns QEMU's confinement, with io_uring and sockets only if disks, shares or arguments need them."""
    return replace(
        HYPERVISOR,
        more=tuple(collect_guest_options(cell.levels, lambda factor: factor.process)),
        kvm=accelerator is KVM,
        taps=cell.levels[NETWORK] in (Network.TAP, Network.VHOST),
        vhost=cell.levels[NETWORK] in (Network.VHOST, Network.VSOCK),
        network=cell.levels[NETWORK] is Network.USER,
        rings=any(disk.aio is Aio.IO_URING for disk in cell.view(Disks)),
        sockets=boot.share == VIRTIOFS or extras.sockets or _may_need_sockets(cell),
    )


def _may_need_sockets(cell: Cell) -> bool:
    """Returns whether a process that serves a disk, or the user's own arguments, may need QEMU's sockets."""
    if QEMU_ARGS in cell.levels:
        return True
    for disk in cell.view(Disks):
        if disk.bus in {Bus.VHOST_USER, Bus.VIRTIOFS}:
            return True
        if disk.level(PROTOCOL) is Protocol.NBD:
            return True
    return False


def find_missing_program(program: Program) -> Unusable | None:
    """Returns `Unusable` with the command that installs `program` if it is not installed, else None."""
    if program.path:
        return None
    return Unusable(f"{program.name} is not installed", make_install_hint(program.package))


def _list_modules(share: str, virtio: VirtioBus, extras: Extras, cell: Cell) -> ModuleList:
    shared = {NINE_P: ("9p", "9pnet_virtio", "overlay"), VIRTIOFS: ("virtiofs", "overlay")}.get(share, ())
    also = restored.TEMPLATES.filesystems if cell.levels.get(START) is Start.RESTORED else ()
    for_disks, filesystems = drives.list_qemu_modules(cell, also)
    network = qemu_link.list_modules(cell.levels)
    required = (
        *virtio.modules, "virtio_console", *shared, *for_disks, *memory.list_modules(cell.levels), *network
    )  # fmt: skip
    return ModuleList(required, (*filesystems, *extras.modules))
