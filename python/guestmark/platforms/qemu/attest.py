"""What a QEMU guest really is, held against what the cell asked for."""

import os
from collections.abc import Mapping

from guestmark.core.architectures import host_architecture
from guestmark.core.machine_facts import GuestMachine, Vmm
from guestmark.platforms.attest import check_kernel, disks, hold, inside_of, same
from guestmark.platforms.guest import Guest
from guestmark.platforms.place import HERE
from guestmark.platforms.qemu.boots import Boot
from guestmark.setting.machine import Started, checks


def attest_qemu(guest: Guest, vmm: Vmm, factors: Mapping[str, str], boot: Boot) -> GuestMachine:
    """Accelerator, architecture, kernel and root, and all factors that can be compared, by QMP and from inside.

    Raises `AttestationError` with both values.
    """
    inside = inside_of(guest)
    same("the accelerator", guest.cell.platform.inner.kind, vmm.accelerator, guest)
    hold(checks(factors, Started(inside, vmm, _program(guest))), guest)
    check_kernel(boot.kernel.release, inside, guest, boot.root_type)
    expected = guest.cell.platform.foreign or host_architecture()
    same("the architecture", expected.machine_name, inside.arch, guest)
    return GuestMachine(asked=dict(factors), vmm=vmm, guest=inside, disks=disks(guest))


def _program(guest: Guest) -> str:
    """The file of the hypervisor; empty for one that runs inside another guest, which is not looked at."""
    if guest.place is not HERE or guest.vmm_pid is None:
        return ""
    return os.path.realpath(f"/proc/{guest.vmm_pid}/exe")
