"""How QEMU runs a guest's instructions: with KVM, or by translating them (TCG)."""

from collections.abc import Mapping
from dataclasses import dataclass

from guestmark.core.architectures import Architecture, find_host_architecture


@dataclass(frozen=True, slots=True)
class Accelerator:
    """How QEMU runs a guest's instructions."""

    name: str
    # Processor model of machines that run only firmware.
    firmware_cpu: str
    # Counter of the events by which a system call leaves the guest.
    counter: str
    start_limit_s: float
    # True if every instruction is translated.
    emulates: bool = False

    def choose_default_cpu(self, architecture: Architecture) -> str:
        """Returns the default processor model."""
        return architecture.cpu if self.emulates else "host"

    @property
    def outer_cpu(self) -> str:
        """Default processor model of outer guests."""
        row = find_host_architecture()
        if not self.emulates:
            return "host"
        return row.outer_cpu or row.cpu

    def build_kernel_command_line(self, architecture: Architecture) -> str:
        """Returns kernel arguments that shorten a boot and change nothing in the steady state."""
        emulated = architecture.emulated_kernel_command_line if self.emulates else ""
        return f"{architecture.kernel_command_line} {emulated}".strip()


KVM = Accelerator(
    "kvm",
    firmware_cpu="host",
    counter="kvm_exits",
    start_limit_s=45.0,
)
TCG = Accelerator(
    "tcg",
    firmware_cpu="max",
    counter="tcg_tlb_flushes",
    start_limit_s=90.0,
    emulates=True,
)
ACCELERATORS: Mapping[str, Accelerator] = {accelerator.name: accelerator for accelerator in (KVM, TCG)}
