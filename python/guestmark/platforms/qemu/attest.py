"""What a QEMU guest really is, held against what the cell asked for."""

import os
from collections.abc import Mapping

from guestmark.core.architectures import host_architecture
from guestmark.core.machine_facts import GuestMachine, Vmm
from guestmark.core.units import parse_size
from guestmark.platforms.attest import check_kernel, check_memory, disks, inside_of, same
from guestmark.platforms.guest import Guest
from guestmark.platforms.place import HERE
from guestmark.platforms.qemu.boots import Boot


def attest_qemu(guest: Guest, vmm: Vmm, factors: Mapping[str, str], boot: Boot) -> GuestMachine:
    """Accelerator, model, processors and memory by QMP and from inside, kernel and root, and the architecture.

    Raises `AttestationError` with both values.
    """
    inside = inside_of(guest)
    _check_program(guest)
    same("the accelerator", guest.cell.platform.inner.kind, vmm.accelerator, guest)
    same("the processor model", factors["cpu"].partition(",")[0], vmm.cpu, guest)
    processors = int(factors["smp"])
    same("the number of processors (hypervisor)", processors, vmm.processors, guest)
    same("the number of processors (guest)", processors, inside.processors, guest)
    check_kernel(boot.kernel.release, inside, guest, boot.root_type)
    expected = guest.cell.platform.foreign or host_architecture()
    same("the architecture", expected.machine_name, inside.arch, guest)
    check_memory(parse_size(factors["memory"]), vmm.memory_bytes, inside.memory_bytes, guest)
    return GuestMachine(asked=dict(factors), vmm=vmm, guest=inside, disks=disks(guest))


def _check_program(guest: Guest) -> None:
    """Raises `AttestationError` when another QEMU runs than the one that was asked for; one that is a script's own
    business, or runs inside another guest, is not looked at."""
    asked = guest.cell.factors.get("qemu")
    if asked is None or guest.place is not HERE or guest.vmm_pid is None:
        return
    with open(asked, "rb") as file:
        if file.read(4) != b"\x7fELF":
            return
    same("QEMU", os.path.realpath(asked), os.path.realpath(f"/proc/{guest.vmm_pid}/exe"), guest)
