"""QEMU guests with KVM or TCG: the distribution's kernel, the host's root filesystem shared read-only."""

import contextlib
import functools
import mmap
import platform
import shlex
import shutil
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from guestmark.agent.binary import agent_binary, tsc_khz
from guestmark.agent.client import Agent
from guestmark.appliance.initramfs import ModuleList, build_initramfs
from guestmark.appliance.kernel import Kernel, Notify, find_kernel
from guestmark.appliance.modules import ModuleTree
from guestmark.core.errors import MachineError, PlatformUnusableError
from guestmark.core.machine_facts import Vmm
from guestmark.core.model import Cell
from guestmark.core.platform_spec import Layer
from guestmark.platforms import drives
from guestmark.platforms.affinity import placed, virtual_processors
from guestmark.platforms.base import Unusable, Usable
from guestmark.platforms.guest import Guest, await_ready, stopping
from guestmark.platforms.phases import Watch
from guestmark.platforms.place import HERE, Line, Place, Process
from guestmark.platforms.probe import NO_FACTORS, probe_by_start
from guestmark.platforms.process import SupervisedProcess
from guestmark.platforms.qemu import virtiofs
from guestmark.platforms.qemu.accelerators import ACCELERATORS, KVM, TCG, Accelerator
from guestmark.platforms.qemu.attest import attest_qemu
from guestmark.platforms.qemu.hints import kvm_hint
from guestmark.platforms.qmp import Monitor

QEMU = "qemu-system-x86_64"
DEFAULTS = {"memory": "1G", "smp": "1", "machine": "q35"}
_SHARE_TAG = "guestmark-root"
_SANDBOX = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"
_PORTS = 8  # of the channel's device: the agent's, and what outer guests of nested ones add


@dataclass(frozen=True, slots=True)
class Extras:
    """What a start needs beyond the cell's factors: extra arguments and optional modules."""

    arguments: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    ports: int = 1  # of the channel's device, the agent's included
    writable: tuple[Path, ...] = ()  # files that the arguments name for writing


NO_EXTRAS = Extras()


class QemuPlatform:
    """`kvm` or `tcg` on the host's own architecture. `notify` announces slow steps (fetching a kernel)."""

    def __init__(self, layer: Layer, notify: Notify = lambda _: None) -> None:
        if layer.arch not in (None, platform.machine()):
            raise PlatformUnusableError(
                f"{layer}: guests of another architecture are not supported by this version",
                hint=f"this host can run {layer.kind}",
            )
        self.name = str(layer)
        self.accelerator = ACCELERATORS[layer.kind]
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
        factors = {**DEFAULTS, "cpu": self.accelerator.cpu, **cell.factors}
        kernel = find_kernel(factors.get("kernel", ""), self._notify, rank)
        bus = "device" if factors["machine"].startswith("microvm") else "pci"
        share = _share_of(kernel)
        initramfs = build_initramfs(agent_binary(), kernel.modules, _modules(share, bus, extras, cell))
        watch = Watch.of(cell)
        process = place.process(self.name)
        line, monitor_line = place.line("agent"), place.line("monitor")
        monitor = Monitor(monitor_line.socket())
        with contextlib.ExitStack() as stack:
            seat = stack.enter_context(placed(cell, emulator=True))
            stack.enter_context(stopping(process, line.close, monitor.close, monitor_line.close))
            made = stack.enter_context(place.disks(cell))
            command = [
                *_base(self.accelerator, factors),
                *(sandbox() if place is HERE else ()),
                *_console(watch),
                *(stack.enter_context(_virtiofs(process, bus, factors["memory"]))
                  if share == "virtiofs" else _plan9(bus)),
                *_channel(line, bus, max(_PORTS, extras.ports)),
                *_monitor(monitor_line),
                *drives.qemu_arguments(made, factors["machine"]),
                *shlex.split(factors.get("qemu_args", "")),
                *extras.arguments,
                *_kernel(kernel, initramfs, self._kernel_args(share, factors, watch)),
            ]  # fmt: skip
            written = (*drives.written(made), *extras.writable)
            process.start(command, pass_fds=(*line.fds, *monitor_line.fds), writable=written)
            line.handed()
            monitor_line.handed()
            agent = Agent(line.transport())
            guest = Guest(
                cell,
                process,
                agent,
                lambda g: attest_qemu(g, facts_of_vmm(monitor), factors, kernel.release),
                place=place,
                seat=seat,
            )
            if seat.placement:
                _settle(guest, monitor)
            await_ready(agent, process, deadline_s or self.accelerator.start_limit_s, guest.phases)
            stack.callback(agent.close)
            guest.query = monitor.execute
            guest.disks = drives.attached(made, agent)
            yield guest

    def missing(self) -> Unusable | None:
        """What has to be installed first."""
        return missing_program(QEMU, "qemu-system-x86")

    def probe(
        self, deadline_s: float | None = None, factors: Mapping[str, str] = NO_FACTORS
    ) -> Usable | Unusable:
        """Boots a guest and attests it; what fails is the reason."""
        found = self.missing() or probe_by_start(
            self, deadline_s or self.accelerator.start_limit_s, factors=factors
        )
        if isinstance(found, Unusable) and self.accelerator is KVM and not found.hint:
            return Unusable(found.reason, kvm_hint(found.reason))
        return found

    def _kernel_args(self, share: str, factors: Mapping[str, str], watch: Watch | None) -> str:
        options = "trans=virtio,version=9p2000.L,msize=512000,cache=loose,access=any" if share == "9p" else ""
        return " ".join(
            [
                *(watch.qemu_kernel_arguments() if watch else []),
                "console=ttyS0 quiet panic=-1",
                self.accelerator.boot_args,
                f"guestmark.channel=virtio:guestmark guestmark.root={share}:{_SHARE_TAG}",
                *([f"guestmark.rootopts={options}"] if options else []),
                *self._told_clock(),
                factors.get("kernel_args", ""),
            ]
        ).strip()

    def _told_clock(self) -> list[str]:
        """Under TCG the time-stamp counter is the host's, whose rate is known.

        Measuring it, as kernels do, fails where the machine has no timer for it (microvm), and on a busy host gives
        clocks that run several times too fast.
        """
        khz = tsc_khz() if self.accelerator.emulates else None
        return [f"tsc_early_khz={khz}"] if khz else []


def _settle(guest: Guest, monitor: Monitor) -> None:
    """Gives QEMU's threads their places as soon as it can say which are its virtual processors: the guest boots there.

    A QEMU that has ended by then is looked at where its start is waited for.
    """
    with contextlib.suppress(MachineError):
        guest.seat.settle(virtual_processors(monitor.execute("query-cpus-fast")))


def missing_program(program: str, package: str) -> Unusable | None:
    """`Unusable`, naming the package, when `program` is not in `PATH`."""
    if shutil.which(program):
        return None
    return Unusable(f"{program} is not installed", f"install the package {package}")


def facts_of_vmm(monitor: Monitor) -> Vmm:
    """What QEMU says it is running: version, accelerator, processors and their model, memory in bytes."""
    kvm = monitor.execute("query-kvm")
    processors = monitor.execute("query-cpus-fast")
    model = monitor.execute("qom-get", {"path": processors[0]["qom-path"], "property": "type"})
    version = monitor.execute("query-version")["qemu"]
    return Vmm(
        accelerator=KVM.name if kvm["enabled"] else TCG.name,
        kvm_present=kvm["present"],
        processors=len(processors),
        cpu=str(model).removesuffix("-x86_64-cpu"),
        memory_bytes=monitor.execute("query-memory-size-summary")["base-memory"],
        qemu=f"{version['major']}.{version['minor']}.{version['micro']}",
    )


def rank(kernel: Kernel) -> int | None:
    """Which kernel to take when none is asked for: one with 9p, else one that a daemon can serve for this user."""
    try:
        share = _share_of(kernel)
        if share == "virtiofs":
            virtiofs.daemon()
    except PlatformUnusableError:
        return None
    return ("9p", "virtiofs").index(share)


def _share_of(kernel: Kernel) -> str:
    """9p where the kernel can; else virtiofs. A kernel without modules is taken to have 9p built in."""
    if kernel.modules is None:
        return "9p"
    tree = ModuleTree.read(kernel.modules)
    if tree.has("9pnet_virtio"):
        return "9p"
    if not tree.has("virtiofs"):
        raise PlatformUnusableError(
            f"the kernel {kernel.release} has neither 9p nor virtiofs, so the host's root cannot be shared with it",
            hint="give another kernel with --set kernel=FILE",
        )
    return "virtiofs"


def _modules(share: str, bus: str, extras: Extras, cell: Cell) -> ModuleList:
    transport = "virtio_mmio" if bus == "device" else "virtio_pci"
    shared = ("9p", "9pnet_virtio") if share == "9p" else ("virtiofs",)
    for_disks, filesystems = drives.qemu_modules(cell)
    required = (transport, "virtio_console", *shared, "overlay", *for_disks)
    return ModuleList(required, (*filesystems, *extras.modules))


def _base(accelerator: Accelerator, factors: Mapping[str, str]) -> list[str]:
    threads = ",thread=multi" if accelerator.emulates and int(factors["smp"]) > 1 else ""
    return [
        QEMU, "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none",
        "-machine", factors["machine"], "-accel", accelerator.name + threads, "-cpu", _enforced(factors["cpu"]),
        "-smp", factors["smp"], "-m", factors["memory"],
    ]  # fmt: skip


@functools.cache
def sandbox() -> tuple[str, ...]:
    """The option with which QEMU gives up what it does not need; none where it was built without, or by the kernel."""
    program = shutil.which(QEMU)
    with contextlib.suppress(OSError, ValueError):
        if program and "\nSeccomp:" in Path("/proc/self/status").read_text():
            with open(program, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                if content.find(b"libseccomp.so") >= 0:
                    return ("-sandbox", _SANDBOX)
    return ()


def _console(watch: Watch | None) -> list[str]:
    shared = ",mux=on" if watch else ""
    return [
        "-chardev", f"stdio,id=console,signal=off{shared}", "-serial", "chardev:console",
        *(watch.qemu_arguments() if watch else []),
    ]  # fmt: skip


def _enforced(cpu: str) -> str:
    """QEMU only warns about features it cannot provide; this makes it refuse unless told otherwise."""
    return cpu if "enforce" in cpu else f"{cpu},enforce=on"


def _plan9(bus: str) -> list[str]:
    return [
        "-fsdev", "local,id=root,path=/,security_model=none,readonly=on,multidevs=remap",
        "-device", f"virtio-9p-{bus},fsdev=root,mount_tag={_SHARE_TAG}{_modern(bus)}",
    ]  # fmt: skip


def _virtiofs(process: Process, bus: str, memory: str) -> AbstractContextManager[list[str]]:
    if not isinstance(process, SupervisedProcess):
        raise PlatformUnusableError(
            "a guest inside a guest gets its root over 9p, which its kernel does not have",
            hint="give a kernel with 9p: --set kernel=FILE",
        )
    return virtiofs.server(process, _SHARE_TAG, bus, memory)


def _channel(line: Line, bus: str, ports: int) -> list[str]:
    # An interrupt for each queue of a few ports: by default the 64 queues of 31 ports share one, and the guest looks
    # through all of them each time.
    vectors = f",vectors={2 * ports + 4}" if bus == "pci" else ""
    return [
        "-device", f"virtio-serial-{bus}{_modern(bus)},max_ports={ports}{vectors}",
        "-chardev", line.chardev("agent"),
        "-device", "virtserialport,chardev=agent,name=guestmark",
    ]  # fmt: skip


def _monitor(line: Line) -> list[str]:
    return ["-chardev", line.chardev("monitor"), "-mon", "chardev=monitor,mode=control"]


def _kernel(kernel: Kernel, initramfs: object, arguments: str) -> list[str]:
    return ["-kernel", str(kernel.elf or kernel.image), "-initrd", str(initramfs), "-append", arguments]


def _modern(bus: str) -> str:
    return ",disable-legacy=on" if bus == "pci" else ""
