"""What the workload `netboot` finds out besides its metrics."""

from __future__ import annotations

import msgspec

from guestmark.capture.model import Trace
from guestmark.core.findings import Fact
from guestmark.core.machine_facts import MachineFacts, Vmm


class Card(msgspec.Struct, kw_only=True):
    """The network card, as QEMU has it."""

    type: str
    romfile: str | None
    mac: str


class BootingMachine(MachineFacts, kw_only=True):
    """A machine that runs nothing but firmware and iPXE: what was asked for, and what QEMU and iPXE say of it."""

    asked: dict[str, str]
    vmm: Vmm
    nic: Card
    ipxe: dict[str, str]
    rom: str
    rom_sha256: str
    firmware: str


class Netboot(Fact, kw_only=True):
    """What was fetched from where, and the packets of the last round; nested, all that was found inside."""

    server_bytes_per_s: float | None = None  # that the HTTP server can give, measured alone
    file_sha256: str | None = None
    files: int | None = None
    file_bytes: int | None = None
    fetched_to: str | None = None  # the address in the guest's memory
    # The release of the kernel that was booted in the end.
    kernel: str | None = msgspec.field(name="booted_kernel", default=None)
    lease: Lease | None = None  # how the guest got its address
    picture: Trace | None = msgspec.field(name="capture_picture", default=None)
    inner: InnerBoot | None = None


class LeaseStep(msgspec.Struct):
    """One message of DHCP, seconds after the first."""

    at_s: float
    kind: str
    client: bool


class Lease(msgspec.Struct):
    """How an address was given: who took how long, how long was waited to repeat, and the messages."""

    duration_s: float
    client_s: float
    server_s: float
    recovery_s: float
    steps: list[LeaseStep]


class InnerBoot(msgspec.Struct, kw_only=True):
    """A network boot in an outer guest: the machine that was started there, and what was found out with it."""

    attestation: BootingMachine
    phases: dict[str, float]
    facts: Netboot
    command_line: list[str]
