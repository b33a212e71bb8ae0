"""What a User-Mode Linux guest really is, held against what the cell asked for."""

from collections.abc import Mapping

from guestmark.core.machine_facts import GuestMachine
from guestmark.platforms.attest import check_kernel, disks, hold, inside_of, same
from guestmark.platforms.guest import Guest, mismatch
from guestmark.setting.machine import Started, checks


def attest_uml(guest: Guest, factors: Mapping[str, str], kernel: str) -> GuestMachine:
    """Kernel kind and release, processors and memory from inside. Raises `AttestationError` with both values."""
    inside = inside_of(guest)
    if inside.cpu != "UML":
        raise mismatch("the processor model", "UML", inside.cpu or inside.kernel, guest)
    same("the number of processors", 1, inside.processors, guest)
    check_kernel(kernel, inside, guest)
    hold(checks(factors, Started(inside)), guest)
    return GuestMachine(asked=dict(factors), guest=inside, disks=disks(guest))
