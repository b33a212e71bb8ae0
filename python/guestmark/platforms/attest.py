"""What a machine really is, held against what the cell asked for. Nothing falls back silently."""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from guestmark.core.units import parse_size
from guestmark.platforms.guest import Guest, mismatch

# Of the memory asked for, what a kernel may keep for itself (its image, page structures, reserved ranges).
_MEMORY_KEPT = 0.15
_MEMORY_KEPT_BYTES = 128 << 20


def attest_qemu(guest: Guest, factors: Mapping[str, str], kernel: str) -> dict[str, Any]:
    """Accelerator, model, processors and memory by QMP and from inside, and the release of the `kernel`.

    Raises `AttestationError` with both values.
    """
    vmm = guest.facts_of_vmm()
    inside = _inside(guest)
    asked = {"accelerator": guest.cell.platform.rpartition("/")[2].partition("@")[0]}
    _same("the accelerator", asked["accelerator"], vmm["accelerator"], guest)
    _same("the processor model", factors["cpu"].partition(",")[0], vmm["cpu"], guest)
    processors = int(factors["smp"])
    _same("the number of processors (hypervisor)", processors, vmm["processors"], guest)
    _same("the number of processors (guest)", processors, inside["processors"], guest)
    _kernel(kernel, inside, guest)
    _memory(parse_size(factors["memory"]), vmm["memory_bytes"], inside["memory_bytes"], guest)
    return {"asked": dict(factors), "vmm": dict(vmm), "guest": inside}


def attest_uml(guest: Guest, factors: Mapping[str, str], kernel: str) -> dict[str, Any]:
    """Kernel kind and release, processors and memory from inside. Raises `AttestationError` with both values."""
    inside = _inside(guest)
    if inside["cpu"] != "UML":
        raise mismatch("the processor model", "UML", inside["cpu"] or inside["kernel"], guest)
    _same("the number of processors", 1, inside["processors"], guest)
    _kernel(kernel, inside, guest)
    asked = parse_size(factors["memory"])
    _memory(asked, asked, inside["memory_bytes"], guest)
    return {"asked": dict(factors), "guest": inside}


def _inside(guest: Guest) -> dict[str, Any]:
    facts = guest.agent.facts()
    hello = guest.agent.hello()
    return {
        "kernel": hello.kernel,
        "root": next(
            (line.split()[2] for line in reversed(facts.mounts.splitlines()) if line.split()[1] == "/"), ""
        ),
        "arch": hello.arch,
        "boot_id": hello.boot_id,
        "cpu": facts.cpu_model,
        "processors": facts.cpus_online,
        "memory_bytes": facts.mem_total_kib * 1024,
        "clocksource": facts.clocksource,
        "cpu_flags_missing": sorted(host_cpu_flags() - set(facts.cpu_flags)),  # that the host has
        "cpu_flags_more": sorted(set(facts.cpu_flags) - host_cpu_flags()),  # that the host has not
    }


@functools.cache
def host_cpu_flags() -> frozenset[str]:
    """The features of this host's first processor, as its kernel names them."""
    for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()


def _kernel(asked: str, inside: Mapping[str, Any], guest: Guest) -> None:
    _same("the kernel", asked, inside["kernel"], guest)
    _same("the root filesystem", "overlay", inside["root"], guest)


def _same(what: str, asked: object, found: object, guest: Guest) -> None:
    if asked != found:
        raise mismatch(what, asked, found, guest)


def _memory(asked: int, vmm: int, inside: int, guest: Guest) -> None:
    if vmm != asked:
        raise mismatch("the memory (hypervisor)", asked, vmm, guest)
    kept = max(_MEMORY_KEPT * asked, _MEMORY_KEPT_BYTES)
    if not asked - kept <= inside <= asked * 1.01:
        raise mismatch(
            "the memory (guest)", f"{asked} bytes less what the kernel keeps", f"{inside} bytes", guest
        )
