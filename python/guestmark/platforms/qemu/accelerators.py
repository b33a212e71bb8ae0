"""What differs between QEMU's accelerators, a row for each. Importing this is cheap."""

from collections.abc import Mapping
from dataclasses import dataclass

# All devices are on the first PCI bus, or behind bridges that are found from it. Kernels look for others on 256 buses,
# and on processors of AMD's early families twice for AGP bridges on each of their 65536 places: every look is an exit.
_NO_PCI_SEARCH = "pci=noearly,lastbus=0"
# Kernels copy and clear memory byte by byte, with string instructions, where the processor calls that fast (ERMS,
# FSRM). Emulated, each byte is a turn of a loop. Without the claim they take eight bytes a turn, and moving data
# through a guest is twice as fast.
TCG_CPU = "max,erms=off,fsrm=off"


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One accelerator. `boot_args` shorten a boot under emulation and change nothing in the steady state."""

    name: str
    cpu: str  # the default model of the processor
    outer_cpu: str  # that of a guest that holds others
    firmware_cpu: str  # that of a machine that only runs firmware
    boot_args: str
    counter: str  # what is counted when a system call leaves the guest, or would
    start_limit_s: float
    emulates: bool = False  # every instruction is translated


KVM = Accelerator(
    "kvm",
    cpu="host",
    outer_cpu="host",
    firmware_cpu="host",
    boot_args=f"tsc=reliable no_timer_check cryptomgr.notests=1 {_NO_PCI_SEARCH}",
    counter="kvm_exits",
    start_limit_s=45.0,
)
TCG = Accelerator(
    "tcg",
    cpu=TCG_CPU,
    outer_cpu=f"{TCG_CPU},svm=on",
    firmware_cpu="max",
    # No rewriting of lock prefixes in the kernel's text, no watching of the clock, no self-tests of ciphers.
    boot_args=f"tsc=reliable no_timer_check cryptomgr.notests=1 {_NO_PCI_SEARCH} noreplace-smp",
    counter="tcg_tlb_flushes",
    start_limit_s=90.0,
    emulates=True,
)
ACCELERATORS: Mapping[str, Accelerator] = {accelerator.name: accelerator for accelerator in (KVM, TCG)}
