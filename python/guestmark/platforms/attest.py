"""What every guest is asked and held against: what the cell asked for. Nothing falls back silently."""

import functools
from collections.abc import Iterable
from pathlib import Path

from guestmark.core.machine_facts import Disk, Inside
from guestmark.platforms.attest_disks import attest_disks
from guestmark.platforms.guest import Guest, mismatch
from guestmark.setting.base import Check


def disks(guest: Guest) -> dict[str, Disk] | None:
    """The facts of the guest's disks by name; None where there are none. Raises `AttestationError`."""
    return attest_disks(guest) if guest.disks else None


def inside_of(guest: Guest) -> Inside:
    """What the guest's own kernel says it is."""
    facts = guest.agent.facts()
    hello = guest.agent.hello()
    foreign = guest.cell.platform.foreign is not None
    return Inside(
        kernel=hello.kernel,
        root=next(
            (line.split()[2] for line in reversed(facts.mounts.splitlines()) if line.split()[1] == "/"), ""
        ),
        arch=hello.arch,
        boot_id=hello.boot_id,
        cpu=facts.cpu_model,
        processors=facts.cpus_online,
        memory_bytes=facts.mem_total_kib * 1024,
        clocksource=facts.clocksource,
        # Another architecture's have other names, which would say nothing.
        cpu_flags_missing=[] if foreign else sorted(host_cpu_flags() - set(facts.cpu_flags)),
        cpu_flags_more=[] if foreign else sorted(set(facts.cpu_flags) - host_cpu_flags()),
    )


@functools.cache
def host_cpu_flags() -> frozenset[str]:
    """The features of this host's first processor, as its kernel names them."""
    for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()


def check_kernel(asked: str, inside: Inside, guest: Guest, root: str = "overlay") -> None:
    """Raises `AttestationError` when another kernel runs, or not on the overlay of the shared root.

    `root` is the type of the root filesystem where it is not that.
    """
    same("the kernel", asked, inside.kernel, guest)
    same("the root filesystem", root, inside.root, guest)


def same(what: str, asked: object, found: object, guest: Guest) -> None:
    """Raises `AttestationError` with both values when they differ."""
    if asked != found:
        raise mismatch(what, asked, found, guest)


def hold(checks: Iterable[Check], guest: Guest) -> None:
    """Raises `AttestationError` for the first comparison that fails."""
    for check in checks:
        same(check.what, check.asked, check.found, guest)
