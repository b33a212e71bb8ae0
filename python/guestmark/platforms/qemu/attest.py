"""What a QEMU guest really is, held against what the cell asked for."""

from collections.abc import Mapping

from guestmark.core.architectures import host_architecture
from guestmark.core.machine_facts import GuestMachine, Vmm
from guestmark.core.units import parse_size
from guestmark.platforms.attest import check_kernel, check_memory, disks, inside_of, same
from guestmark.platforms.guest import Guest
from guestmark.platforms.qemu.boots import Boot


def attest_qemu(guest: Guest, vmm: Vmm, factors: Mapping[str, str], boot: Boot) -> GuestMachine:
    """Accelerator, model, processors and memory by QMP and from inside, kernel and root, and the architecture.

    Raises `AttestationError` with both values.
    """
    inside = inside_of(guest)
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
