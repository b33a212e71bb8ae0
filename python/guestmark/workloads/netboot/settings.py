"""Translates a cell's factors into QEMU's options."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from guestmark.core.architectures import X86_64
from guestmark.core.errors import UsageError
from guestmark.core.model import Cell
from guestmark.core.units import format_size
from guestmark.platforms.qemu.accelerators import ACCELERATORS
from guestmark.platforms.qemu.firmware import find_uefi
from guestmark.setting.machine import CPU, MACHINE, MEMORY, SMP
from guestmark.setting.network import (
    CONSOLE,
    FIRMWARE,
    IP,
    NETWORK,
    NIC,
    PROTOCOL,
    ROM,
    SERVER_DELAY,
    Firmware,
    Network,
    Nic,
    Protocol,
)
from guestmark.workloads.netboot import NetbootParams, rom
from guestmark.workloads.netboot.content import ServerOptions
from guestmark.workloads.netboot.nested import find_innermost_platform

_MIB = 1 << 20
# Memory for firmware and iPXE, in addition to the file that is fetched.
_OWN_MEMORY = 192 * _MIB
_STEP = 64 * _MIB
_NETWORKS = (Network.USER, Network.TAP, Network.PASST)


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a machine that boots from the network, ready to be started."""

    accelerator: str
    machine: str
    cpu: str
    smp: int
    memory: int
    nic: Nic
    rom: rom.Rom
    firmware: str
    console: str
    network: str
    ip: str
    serving: ServerOptions
    ovmf: tuple[str, str] | None

    @classmethod
    def read_settings(cls, cell: Cell, file_size: int) -> Settings:
        """Reads the cell's factors. Raises `UsageError`, or `PlatformUnusableError` if this host lacks something."""
        accelerator = cell.platform.inner.kind
        if cell.platform.is_nested:
            accelerator = find_innermost_platform(cell.platform)
        if accelerator not in ACCELERATORS:
            raise UsageError(
                f"a network boot cannot be measured on {cell.platform}", hint="use --on tcg, kvm or tcg/kvm"
            )
        if cell.platform.foreign_architecture:
            raise UsageError(
                f"a network boot cannot be measured on {cell.platform}: iPXE's ROMs here are for x86",
                hint="use --on tcg, kvm or tcg/kvm",
            )
        levels = cell.levels
        nic = levels[NIC]
        firmware = levels[FIRMWARE]
        network = levels.get(NETWORK) or Network.USER
        if network not in _NETWORKS:
            raise UsageError(f"no machine boots over network={network}", hint="use user, tap or passt")
        if cell.platform.is_nested and cell.workload.read_params(NetbootParams).kernel:
            raise UsageError(
                "a network boot inside an outer guest cannot go on to boot a kernel",
                hint="omit params.kernel, or use --on tcg or kvm",
            )
        ip, serving = levels[IP], _read_serving(cell)
        if ip == "6" and network is not Network.USER:
            raise UsageError("only QEMU's own network supports IPv6", hint="use network=user with ip=6")
        boots = rom.find_rom(levels[ROM], nic, as_kernel=network is Network.PASST)
        boots.check_card(nic, firmware)
        needed = file_size + _OWN_MEMORY
        memory = levels.get(MEMORY) or -(-needed // _STEP) * _STEP
        if memory < needed:
            raise UsageError(
                f"memory={format_size(memory)} cannot hold a file of {format_size(file_size)}, firmware and iPXE",
                hint=f"give at least {format_size(-(-needed // _MIB) * _MIB)}, or use --scale",
            )
        return cls(
            accelerator=accelerator,
            machine=levels.get(MACHINE) or "pc",
            cpu=levels.get(CPU) or ACCELERATORS[accelerator].firmware_cpu,
            smp=levels.get(SMP) or 1,
            memory=memory,
            nic=nic,
            rom=boots,
            firmware=firmware,
            console=levels[CONSOLE],
            network=network,
            ip=ip,
            serving=serving,
            ovmf=None if firmware is Firmware.BIOS else find_uefi(X86_64),
        )

    @property
    def romfile(self) -> str:
        """The card's ROM as QEMU reports it; empty if iPXE is booted as a kernel."""
        if self.rom.is_kernel:
            return ""
        return str(self.rom.path) if self.rom.own else self.rom.path.name

    @property
    def ipxe_platform(self) -> str:
        """iPXE's name for the firmware under which it runs."""
        return "pcbios" if self.firmware == "bios" else "efi"

    @property
    def firmware_file(self) -> str:
        """Path of OVMF's code; empty for QEMU's own SeaBIOS."""
        return self.ovmf[0] if self.ovmf else ""

    def qemu_arguments(self, scratch: Path) -> list[str]:
        """Returns QEMU's command line without network and monitor; creates files that QEMU changes in `scratch`."""
        # Without graphics SeaBIOS prints its screen output to the serial line.
        graphics = ",graphics=off" if self.console == "serial" else ""
        command = [
            X86_64.emulator.name, "-nodefaults", "-no-user-config", "-display", "none",
            "-machine", self.machine + graphics, "-accel", self.accelerator, "-cpu", self.cpu,
            "-smp", str(self.smp), "-m", f"{self.memory // _MIB}M", "-boot", "strict=on",
        ]  # fmt: skip
        if self.console == "vga":
            command += ["-vga", "std"]
        if self.console == "serial":
            command += ["-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console"]
        if self.ovmf is not None:
            code, template = self.ovmf
            variables = scratch / "variables.fd"
            shutil.copyfile(template, variables)
            command += [
                "-drive", f"if=pflash,unit=0,format=raw,readonly=on,file={code}",
                "-drive", f"if=pflash,unit=1,format=raw,file={variables}",
            ]  # fmt: skip
        if self.rom.is_kernel:
            command += ["-kernel", str(self.rom.path)]
        return command

    def build_card_argument(self, netdev: str) -> str:
        """Returns the network card in the form of QEMU's `-device`."""
        # Without `romfile` QEMU loads the distribution's ROM and patches the card's identity into it.
        own = f",romfile={self.romfile}" if self.rom.own else ""
        order = "" if self.rom.is_kernel else ",bootindex=0"
        return f"{self.nic.device},id=nic0,netdev={netdev}{order}{own}"


def _read_serving(cell: Cell) -> ServerOptions:
    protocol = cell.levels[PROTOCOL]
    certificate = cell.workload.read_params(NetbootParams).certificate
    if protocol is Protocol.HTTPS and not certificate:
        raise UsageError(
            "protocol=https needs a certificate that the ROM was built to trust",
            hint="set params.certificate to a PEM file that includes the key, and rom=FILE to your own ROM",
        )
    return ServerOptions(protocol, cell.levels[SERVER_DELAY], certificate or "")
