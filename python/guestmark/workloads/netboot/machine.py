"""A QEMU machine without disk, kernel or agent: it has firmware, one network card, and iPXE in the card's ROM."""

from __future__ import annotations

import base64
import contextlib
import os
import re
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from guestmark.agent.confinement import WITH_NETWORK
from guestmark.capture.startup import find_lease
from guestmark.core.architectures import X86_64
from guestmark.core.errors import AttestationError, MachineError
from guestmark.core.machine_facts import ConfinementFacts
from guestmark.core.model import Cell
from guestmark.platforms import counters
from guestmark.platforms.affinity import Seat, find_vcpu_threads, take_seat
from guestmark.platforms.confinement import attest_process
from guestmark.platforms.guest import stop_on_exit
from guestmark.platforms.place import HERE, Place, make_channel, open_plain_file, read_plain_file
from guestmark.platforms.process import Console, SupervisedProcess, make_watchdog
from guestmark.platforms.qemu.accelerators import KVM
from guestmark.platforms.qemu.attest import query_vmm
from guestmark.platforms.qemu.command_line import build_sandbox_arguments
from guestmark.platforms.qmp import Monitor
from guestmark.workloads.common.program import blank_unprintable
from guestmark.workloads.netboot import BootingMachine, Card, Lease, control, figures
from guestmark.workloads.netboot.control import Control, Request
from guestmark.workloads.netboot.kernel import BootedKernel
from guestmark.workloads.netboot.network import NETDEV, Link, get_bound_port
from guestmark.workloads.netboot.settings import Settings

_BOOT_CAPTURE = "boot"
_FULL_PACKETS = 65536


@dataclass(slots=True)
class NetbootMachine:
    """A running machine whose iPXE has asked what to do; `waiting` is that request."""

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
    lease: Lease | None = None  # the exchange in which it got its address
    fetched_to: int | None = None  # address at which its memory last held a file

    @property
    def boot_capture(self) -> Path:
        """The capture of its start."""
        return self.scratch / f"{_BOOT_CAPTURE}.pcap"

    @property
    def command_line(self) -> tuple[str, ...]:
        """The full command line of QEMU."""
        return self.process.command

    @property
    def query(self) -> Callable[[str], Any]:
        """Executes a command of QEMU's monitor by name."""
        return self.monitor.execute

    @property
    def vmm_pid(self) -> int | None:
        """The process id of QEMU."""
        return self.process.pid()

    @property
    def scratch(self) -> Path:
        """A directory that is removed with the machine."""
        return self.process.scratch

    def check_running(self) -> None:
        """Raises `MachineError` if QEMU has ended."""
        make_watchdog(self.process, "QEMU")()

    def attest(self) -> BootingMachine:
        """Checks what QEMU's monitor and iPXE report. Raises `AttestationError` with requested and actual value."""
        settings = self.settings
        vmm = query_vmm(self.monitor, X86_64)
        nic = Card(
            type=self._query_card("type"), romfile=self._query_card("romfile"), mac=self._query_card("mac")
        )
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
                    f"{what} is not what was asked for: asked for {wanted}, found {actual}",
                    console=self.console(),
                )
        confined = attest_process(self.vmm_pid, self.process.writable)
        if confined is not None:
            confined.helpers = {}
            for name, pid in self.link.helpers.items():
                confined.helpers[name] = attest_process(pid, ()) or ConfinementFacts()
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

    def _query_card(self, name: str) -> Any:
        return self.monitor.execute("qom-get", {"path": "/machine/peripheral/nic0", "property": name})

    def console(self) -> str:
        """Returns the output on the serial line, then the text on the screen."""
        text = self.process.console.read_text()
        if self.settings.console == "vga" and self.process.is_running():
            with contextlib.suppress(MachineError):
                text += f"\n--- screen ---\n{read_screen_text(self.monitor, self.scratch)}"
        return text

    def screenshot(self) -> str:
        """Returns the screen as PNG in base64; empty if there is no screen, or if QEMU has ended."""
        if self.settings.console != "vga" or not self.process.is_running():
            return ""
        file = self.scratch / "screen.png"
        with contextlib.suppress(MachineError, OSError):
            self.monitor.execute("screendump", {"filename": str(file), "format": "png"})
            return base64.b64encode(read_plain_file(file)).decode()
        return ""

    def vmm_stats(self) -> Mapping[str, float]:
        """Returns nothing, because the noise recorder reads these figures itself."""
        return {}

    def counters(self) -> Mapping[str, float]:
        """Returns QEMU's counters, which help to explain the times."""
        return counters.read_guest_counters(self.vmm_pid, self.query)

    @contextlib.contextmanager
    def capture(self, file: Path) -> Iterator[None]:
        """Captures all packets of the card, in full length, into `file` until the context ends."""
        name = file.stem
        self.monitor.execute("object-add", _build_dump_options(name, file))
        try:
            yield
        finally:
            with contextlib.suppress(MachineError):
                self.monitor.execute("object-del", {"id": name})


def _build_dump_options(name: str, file: Path) -> dict[str, Any]:
    return {
        "qom-type": "filter-dump", "id": name, "netdev": NETDEV, "file": str(file), "maxlen": _FULL_PACKETS,
    }  # fmt: skip


def _build_dump_argument(name: str, file: Path) -> str:
    options = _build_dump_options(name, file)
    values = [f"{key}={value}" for key, value in options.items() if key != "qom-type"]
    return ",".join([options["qom-type"], *values])


@contextlib.contextmanager
def start_machine(
    cell: Cell, settings: Settings, link: Link, deadline_s: float, kernel: BootedKernel | None = None
) -> Iterator[NetbootMachine]:
    """Boots a fresh machine and yields it once its iPXE has asked what to do. `kernel` is a kernel to boot at the end.

    Raises `MachineError`, with the machine's console and screen, if this does not happen before the deadline.
    """
    process = SupervisedProcess("netboot", replace(WITH_NETWORK, kvm=settings.accelerator == KVM.name))
    ours, theirs = make_channel()
    monitor = Monitor(ours)
    control_url = link.control_url
    with contextlib.ExitStack() as stack:
        if kernel:
            stack.callback(kernel.line.close)
        seat = stack.enter_context(take_seat(cell, emulator=True))
        stack.enter_context(stop_on_exit(process, monitor.close, theirs.close))
        boot = process.scratch / f"{_BOOT_CAPTURE}.pcap"
        card_log = CardLog()
        stack.callback(card_log.close_inherited)
        command = [
            *settings.qemu_arguments(process.scratch),
            *build_sandbox_arguments(X86_64.emulator.name),
            *link.arguments,
            *(kernel.qemu_arguments() if kernel else ()),
            *card_log.build_trace_arguments(),
            "-device", settings.build_card_argument(NETDEV),
            "-object", _build_dump_argument(_BOOT_CAPTURE, boot),
            "-chardev", f"socket,id=monitor,fd={theirs.fileno()}", "-mon", "chardev=monitor,mode=control",
        ]  # fmt: skip
        # If iPXE is booted as a kernel, it reads its first script from the initramfs.
        if not link.names_bootfile:
            script = process.scratch / "first.ipxe"
            script.write_text(control.build_first_script(control_url))
            command += ["-initrd", str(script)]
        orders = stack.enter_context(
            Control(link.control, {control.BOOT: control.build_boot_script(control_url)})
        )
        process.start(
            command,
            pass_fds=(theirs.fileno(), card_log.fd, *link.pass_fds, *(kernel.line.fds if kernel else ())),
        )
        # This process closes its copies of descriptors that QEMU inherited, so that it notices when QEMU ends.
        theirs.close()
        card_log.close_inherited()
        if kernel:
            kernel.line.close_inherited()
        # QEMU creates the threads of its processors when it starts; only then can they be pinned.
        if seat.placement:
            with contextlib.suppress(MachineError):  # if QEMU has ended, the next steps detect it
                seat.move_threads(find_vcpu_threads(monitor.execute("query-cpus-fast"), process.pid()))
        ends = time.monotonic() + deadline_s
        request = orders.next(make_watchdog(process, "QEMU"), lambda: ends - time.monotonic())
        machine = NetbootMachine(cell, settings, process, monitor, link, orders, request or Request("", {}))
        machine.seat = seat
        if request is None or request.kind != "hello":
            reason = describe_failure(
                boot,
                asked=bool(orders.fetched),
                screen=machine.console(),
                invariant_tsc=_has_invariant_tsc(monitor),
            )
            raise NetbootError(f"iPXE did not ask what to do within {deadline_s:.0f} s: {reason}", machine)
        ready = time.monotonic()
        with contextlib.suppress(MachineError):  # this QEMU cannot trace
            monitor.execute("trace-event-set-state", {"name": EVENT, "enable": False})
        # From here on packets belong to a round, which has its own capture.
        monitor.execute("object-del", {"id": _BOOT_CAPTURE})
        _record_phases(machine, card_log, ready)
        yield machine


def _record_phases(machine: NetbootMachine, card_log: CardLog, ready: float) -> None:
    found = {figures.READY: ready}
    if (taken := card_log.find_enabling_time(machine.settings.nic.device)) is not None:
        found[figures.CARD] = taken
    if trace := figures.read_capture(machine.boot_capture):
        found |= figures.find_first_packets(
            trace, get_bound_port(machine.link.control), machine.control.accepted
        )
        machine.lease = figures.convert_lease(find_lease(trace))
    since = machine.process.started_at
    phases = [(name, at - since) for name, at in found.items()]
    phases.sort(key=lambda end: end[1])
    machine.phases.update(phases)


def _has_invariant_tsc(monitor: Monitor) -> bool | None:
    """Returns whether the machine's first processor has an invariant TSC; None if QEMU does not report it."""
    with contextlib.suppress(MachineError, LookupError):
        path = monitor.execute("query-cpus-fast")[0]["qom-path"]
        return bool(monitor.execute("qom-get", {"path": path, "property": "invtsc"}))
    return None


class NetbootError(MachineError):
    """The error for a machine that hangs; console and screen are captured when the error is created."""

    def __init__(self, message: str, machine: NetbootMachine, *, hint: str = "") -> None:
        super().__init__(message, hint=hint, console=machine.console())
        self.screenshot = machine.screenshot()
        if self.screenshot:
            self.console += f"\n--- screenshot, PNG in base64 ---\n{self.screenshot}\n"


_GLOBAL_HEADER, _RECORD_HEADER = 24, 16
_LIMIT = 1 << 20  # bytes to read; a boot has a few dozen packets

# Texts that iPXE itself prints, and that its loader prints through the firmware, even in a build without console.
_STARTED = ("iPXE initialising devices", "starting execution...")


def describe_failure(
    capture: Path, *, asked: bool, screen: str = "", invariant_tsc: bool | None = None
) -> str:
    """Returns in one clause why a boot got no further, judged by its packets.

    `asked` is true if iPXE has fetched its first script; `screen` is the text on screen and serial line;
    `invariant_tsc` tells whether the processor has an invariant TSC, None if unknown.
    """
    # Steps are tried from the latest to the earliest: the first one that was reached is where the boot ended.
    if asked:
        return "it fetched its script and went silent"
    requests, answers, packets = _count_dhcp_packets(capture)
    if not packets:
        return _explain_no_packets(screen, invariant_tsc)
    if answers:
        return "it got an address, but did not fetch its script"
    if requests:
        return f"it never got an address ({requests} DHCP requests, no answer)"
    return f"it did not ask for an address ({packets} packets)"


def _explain_no_packets(screen: str, invariant_tsc: bool | None) -> str:
    if not any(said in screen for said in _STARTED):
        nothing = "the card sent nothing (its ROM was not started, or the firmware hangs)"
        return nothing if screen.strip() else f"{nothing}; --set console=vga shows its screen"
    # iPXE measures time before it opens a card. If it accepts no timer, it waits for ever.
    hung = "its ROM was started and hangs while it initialises devices, before it uses the card"
    if invariant_tsc is not False:
        return hung
    return (
        f"{hung}; the processor has no invariant TSC, without which iPXE refuses the TSC as its timer: "
        "a ROM without another timer hangs at this point"
    )


def _count_dhcp_packets(capture: Path) -> tuple[int, int, int]:
    """Counts DHCP requests, DHCP answers and all packets in a pcap file as QEMU writes it."""
    try:
        with open_plain_file(capture) as stream:
            data = stream.read(_LIMIT)
    except OSError:
        return 0, 0, 0
    requests = answers = packets = 0
    at = _GLOBAL_HEADER
    while at + _RECORD_HEADER <= len(data):
        length = struct.unpack_from("<I", data, at + 8)[0]
        frame = data[at + _RECORD_HEADER : at + _RECORD_HEADER + length]
        at += _RECORD_HEADER + length
        packets += 1
        # IPv4 without options, UDP; ports of BOOTP.
        if len(frame) >= 42 and frame[12:14] == b"\x08\x00" and frame[14] == 0x45 and frame[23] == 17:
            to = struct.unpack_from(">H", frame, 36)[0]
            requests += to == 67
            answers += to == 68
    return requests, answers, packets


EVENT = "pci_cfg_write"
# The command register's offset, and the bit that lets a card use memory.
_COMMAND, _MASTER = 0x4, 0x4
_ROM, _ENABLED = 0x30, 0x1  # the expansion ROM's
_SIZING = 0xFFFFFFFF  # written to a base address register to read the size of its region
_WRITE = re.compile(
    rb"pci_cfg_write (?P<device>\S+) \S+ @0x(?P<offset>[0-9a-f]+) <- 0x(?P<value>[0-9a-f]+)\n"
)


class CardLog:
    """Observes when the boot ROM's driver takes the card: QEMU reports every write to a PCI configuration space.

    Firmware leaves bus mastering of a network card off; iPXE's driver enables it first of all (`adjust_pci_device` in
    iPXE's src/drivers/bus/pci.c; under UEFI the PCI bus driver does so on a driver's behalf). The lines come from
    QEMU's trace event `pci_cfg_write`, which is on during the boot and off while files are fetched. They are read as
    they arrive; QEMU gets the file descriptor.
    """

    def __init__(self) -> None:
        end, self._fd = os.pipe()
        self._lines = Console(end)

    @property
    def fd(self) -> int:
        """The end of the pipe that QEMU writes to."""
        return self._fd

    def build_trace_arguments(self) -> list[str]:
        """Returns QEMU's options for the trace."""
        return ["-trace", EVENT, "-D", f"/dev/fd/{self._fd}"]

    def close_inherited(self) -> None:
        """Closes this process's copy of the descriptor that QEMU has inherited. May be called twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def find_enabling_time(self, device: str) -> float | None:
        """Returns the monotonic time at which `device` (QEMU's name of the model) was first allowed to use memory.

        For a card that never uses memory (ne2k_pci) it is the time at which the firmware read its ROM. None if
        neither is known, for instance because this QEMU writes no such lines.
        """
        return self._find_bit(device, _COMMAND, _MASTER) or self._find_bit(device, _ROM, _ENABLED)

    def _find_bit(self, device: str, register: int, bit: int) -> float | None:
        """Returns the time at which a bit of a register was first set; None if it never was."""
        for found in _WRITE.finditer(self._lines.read_text().encode()):
            offset, value = int(found["offset"], 16), int(found["value"], 16)
            if found["device"].decode() == device and offset == register and value & bit and value != _SIZING:
                return self._lines.find_arrival(re.compile(re.escape(found[0])))
        return None


_TEXT_AT = 0xB8000  # of the VGA's text page
_COLUMNS, _ROWS = 80, 25


def read_screen_text(monitor: Monitor, scratch: Path) -> str:
    """Returns the text of a VGA screen, read from the guest's memory, without empty lines at the end.

    Raises `MachineError`.
    """
    file = scratch / "screen.bin"
    size = _COLUMNS * _ROWS * 2
    monitor.execute("pmemsave", {"val": _TEXT_AT, "size": size, "filename": str(file)})
    try:
        data = read_plain_file(file, size)
    except OSError as error:
        raise MachineError(f"QEMU did not save the screen's text: {error.strerror}") from error
    # Every second byte is a character's colour.
    characters = data[0:size:2].decode("cp437")
    lines = []
    for at in range(0, len(characters), _COLUMNS):
        row = characters[at : at + _COLUMNS].rstrip(" \0")
        lines.append(blank_unprintable(row))
    return "\n".join(lines).rstrip()
