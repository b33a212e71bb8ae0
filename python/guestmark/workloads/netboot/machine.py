"""A QEMU machine without disk, kernel or agent: firmware, one network card, and iPXE in its ROM."""

from __future__ import annotations

import base64
import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guestmark.agent.confinement import WITH_NETWORK
from guestmark.capture.startup import lease_of
from guestmark.core.architectures import X86_64
from guestmark.core.errors import AttestationError, MachineError
from guestmark.core.machine_facts import Confined
from guestmark.core.model import Cell
from guestmark.platforms import counters
from guestmark.platforms.affinity import Seat, placed, virtual_processors
from guestmark.platforms.confinement import attested
from guestmark.platforms.guest import stopping
from guestmark.platforms.place import HERE, Place, channel
from guestmark.platforms.process import SupervisedProcess, watchdog
from guestmark.platforms.qemu.platform import facts_of_vmm, sandbox
from guestmark.platforms.qmp import Monitor
from guestmark.workloads.netboot import scripts, stages
from guestmark.workloads.netboot.bootlog import what_happened
from guestmark.workloads.netboot.cardlog import EVENT, CardLog
from guestmark.workloads.netboot.control import Control, Request
from guestmark.workloads.netboot.facts import BootingMachine, Card, Lease
from guestmark.workloads.netboot.kernel import BootedKernel
from guestmark.workloads.netboot.link import NETDEV, Link, port_of
from guestmark.workloads.netboot.screen import screen_text
from guestmark.workloads.netboot.settings import Settings

if TYPE_CHECKING:
    pass

_BOOT_CAPTURE = "boot"
_FULL_PACKETS = 65536


@dataclass(slots=True)
class NetbootMachine:
    """A started machine whose iPXE has asked what to do; `waiting` is that question."""

    cell: Cell
    settings: Settings
    process: SupervisedProcess
    monitor: Monitor
    link: Link
    control: Control
    waiting: Request
    phases: dict[str, float] = field(default_factory=dict)
    disks: tuple[()] = ()
    place: Place = HERE
    seat: Seat = field(default_factory=Seat)
    lease: Lease | None = None  # how it got its address
    fetched_to: int | None = None  # where its memory last held a file

    @property
    def boot_capture(self) -> Path:
        """The packets of its start."""
        return self.scratch / f"{_BOOT_CAPTURE}.pcap"

    @property
    def command_line(self) -> tuple[str, ...]:
        """Full command line of QEMU."""
        return self.process.command

    @property
    def query(self) -> Callable[[str], Any]:
        """Asks QEMU's monitor by a command's name."""
        return self.monitor.execute

    @property
    def vmm_pid(self) -> int | None:
        """Process id of QEMU."""
        return self.process.pid()

    @property
    def scratch(self) -> Path:
        """A directory that is removed with the machine."""
        return self.process.scratch

    def check(self) -> None:
        """Raises `MachineError` when QEMU has ended."""
        watchdog(self.process, "QEMU")()

    def attest(self) -> BootingMachine:
        """QEMU by its monitor, iPXE by what it said itself. Raises `AttestationError` with both values."""
        settings = self.settings
        vmm = facts_of_vmm(self.monitor, X86_64)
        nic = Card(type=self._of_card("type"), romfile=self._of_card("romfile"), mac=self._of_card("mac"))
        inside = dict(self.waiting.values)
        asked: list[tuple[str, object, object]] = [
            ("the accelerator", settings.accelerator, vmm.accelerator),
            ("the processor model", settings.cpu.partition(",")[0], vmm.cpu),
            ("the number of processors", settings.smp, vmm.processors),
            ("the memory", settings.memory, vmm.memory_bytes),
            ("the network card (QEMU)", settings.nic.device, nic.type),
            ("the card's ROM", settings.romfile, nic.romfile or ""),
            ("the card's address (iPXE)", nic.mac, inside.get("mac", "")),
            ("the firmware (iPXE)", settings.ipxe_platform, inside.get("platform", "")),
        ]
        for what, wanted, actual in asked:
            if wanted != actual:
                raise AttestationError(
                    f"{what} is not what was asked for: asked {wanted}, found {actual}",
                    console=self.console(),
                )
        confined = attested(self.vmm_pid, self.process.writable)
        if confined is not None:
            confined.helpers = {
                name: attested(pid, ()) or Confined() for name, pid in self.link.helpers.items()
            }
        return BootingMachine(
            confined=confined,
            asked=dict(self.cell.factors),
            vmm=vmm,
            nic=nic,
            ipxe=inside,
            rom=str(settings.rom.path),
            rom_sha256=settings.rom.sha256,
            firmware=settings.firmware_file,
            placement=self.seat.attest(self.vmm_pid),
        )

    def _of_card(self, name: str) -> Any:
        return self.monitor.execute("qom-get", {"path": "/machine/peripheral/nic0", "property": name})

    def console(self) -> str:
        """What went to the serial line, then what stands on the screen."""
        text = self.process.console.text()
        if self.settings.console == "vga" and self.process.running():
            with contextlib.suppress(MachineError):
                text += f"\n--- screen ---\n{screen_text(self.monitor, self.scratch)}"
        return text

    def screenshot(self) -> str:
        """The screen as PNG in base64; empty when there is no screen (any more)."""
        if self.settings.console != "vga" or not self.process.running():
            return ""
        file = self.scratch / "screen.png"
        with contextlib.suppress(MachineError, OSError):
            self.monitor.execute("screendump", {"filename": str(file), "format": "png"})
            return base64.b64encode(file.read_bytes()).decode()
        return ""

    def vmm_stats(self) -> Mapping[str, float]:
        """Nothing beyond what the noise recorder finds."""
        return {}

    def counters(self) -> Mapping[str, float]:
        """QEMU's counters, which explain the times."""
        return counters.of_guest(self.vmm_pid, self.query)

    @contextlib.contextmanager
    def capture(self, file: Path) -> Iterator[None]:
        """Every packet of the card, whole, into `file`, from here to the end of the context."""
        name = file.stem
        self.monitor.execute("object-add", _dump(name, file))
        try:
            yield
        finally:
            with contextlib.suppress(MachineError):
                self.monitor.execute("object-del", {"id": name})


def _dump(name: str, file: Path) -> dict[str, Any]:
    return {
        "qom-type": "filter-dump", "id": name, "netdev": NETDEV, "file": str(file), "maxlen": _FULL_PACKETS,
    }  # fmt: skip


@contextlib.contextmanager
def started(
    cell: Cell, settings: Settings, link: Link, deadline_s: float, kernel: BootedKernel | None = None
) -> Iterator[NetbootMachine]:
    """Boots a fresh machine and yields it once its iPXE has asked what to do. `kernel` is what it may boot at last.

    Raises `MachineError` with what can be seen of it when that does not happen before the deadline.
    """
    process = SupervisedProcess("netboot", WITH_NETWORK)
    ours, theirs = channel()
    monitor = Monitor(ours)
    control_url = link.control_url
    with contextlib.ExitStack() as stack:
        if kernel:
            stack.callback(kernel.line.close)
        seat = stack.enter_context(placed(cell, emulator=True))
        stack.enter_context(stopping(process, monitor.close, theirs.close))
        boot = process.scratch / f"{_BOOT_CAPTURE}.pcap"
        card_log = CardLog()
        stack.callback(card_log.handed)
        command = [
            *settings.arguments(process.scratch),
            *sandbox(X86_64.emulator.name),
            *link.arguments,
            *(kernel.qemu_arguments() if kernel else ()),
            *card_log.arguments(),
            "-device", settings.device(NETDEV),
            "-object", ",".join(["filter-dump", *(f"{key}={value}" for key, value in
                                 _dump(_BOOT_CAPTURE, boot).items() if key != "qom-type")]),
            "-chardev", f"socket,id=monitor,fd={theirs.fileno()}", "-mon", "chardev=monitor,mode=control",
        ]  # fmt: skip
        if not link.names_bootfile:
            script = process.scratch / "first.ipxe"
            script.write_text(scripts.first(control_url))
            command += ["-initrd", str(script)]
        control = stack.enter_context(Control(link.control, {scripts.BOOT: scripts.boot(control_url)}))
        process.start(
            command,
            pass_fds=(theirs.fileno(), card_log.fd, *link.pass_fds, *(kernel.line.fds if kernel else ())),
        )
        theirs.close()
        card_log.handed()
        if kernel:
            kernel.line.handed()
        if seat.placement:
            with contextlib.suppress(MachineError):  # a QEMU that has ended is found by what follows
                seat.settle(virtual_processors(monitor.execute("query-cpus-fast"), process.pid()))
        ends = time.monotonic() + deadline_s
        request = control.next(watchdog(process, "QEMU"), lambda: ends - time.monotonic())
        machine = NetbootMachine(cell, settings, process, monitor, link, control, request or Request("", {}))
        machine.seat = seat
        if request is None or request.kind != "hello":
            reason = what_happened(
                boot,
                asked=bool(control.fetched),
                screen=machine.console(),
                invariant_tsc=_has_invariant_tsc(monitor),
            )
            raise NetbootError(f"iPXE did not ask what to do within {deadline_s:.0f} s: {reason}", machine)
        ready = time.monotonic()
        with contextlib.suppress(MachineError):  # a QEMU that cannot trace
            monitor.execute("trace-event-set-state", {"name": EVENT, "enable": False})
        monitor.execute("object-del", {"id": _BOOT_CAPTURE})
        _find_phases(machine, card_log, ready)
        yield machine


def _find_phases(machine: NetbootMachine, card_log: CardLog, ready: float) -> None:
    found = {stages.READY: ready}
    if (taken := card_log.taken_at(machine.settings.nic.device)) is not None:
        found[stages.CARD] = taken
    if trace := stages.analysed(machine.boot_capture):
        found |= stages.seen(trace, port_of(machine.link.control), machine.control.accepted)
        machine.lease = stages.told(lease_of(trace))
    since = machine.process.started_at
    machine.phases.update(sorted(((name, at - since) for name, at in found.items()), key=lambda end: end[1]))


def _has_invariant_tsc(monitor: Monitor) -> bool | None:
    """Whether the machine's first processor has an invariant TSC; None when QEMU does not say."""
    with contextlib.suppress(MachineError, LookupError):
        path = monitor.execute("query-cpus-fast")[0]["qom-path"]
        return bool(monitor.execute("qom-get", {"path": path, "property": "invtsc"}))
    return None


class NetbootError(MachineError):
    """A machine that hangs; its console and screen are taken when the error is made."""

    def __init__(self, message: str, machine: NetbootMachine, *, hint: str = "") -> None:
        super().__init__(message, hint=hint, console=machine.console())
        self.screenshot = machine.screenshot()
        if self.screenshot:
            self.console += f"\n--- screenshot, PNG in base64 ---\n{self.screenshot}\n"
