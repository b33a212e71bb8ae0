"""How virtio devices are attached to a machine: one of QEMU's devices for each bus, with what it needs besides."""

from dataclasses import dataclass

from guestmark.core.architectures import Architecture, Bus


@dataclass(frozen=True, slots=True)
class VirtioBus:
    """The bus of a machine's virtio devices."""

    bus: Bus
    pci_bus: str = ""  # its name where it is not the first
    legacy: bool = False  # devices keep the interface from before virtio 1

    @classmethod
    def of(cls, architecture: Architecture, machine: str) -> "VirtioBus":
        """That of a machine type; microvm has no PCI."""
        if machine.startswith("microvm"):
            return cls(Bus.MMIO)
        return cls(architecture.bus, architecture.pci_bus, architecture.legacy_virtio)

    def device(self, name: str) -> str:
        """The `-device` of that name, `virtio-blk` for instance, with its first options."""
        return f"{name}-{self.bus}{self._modern()}{self._attached()}"

    def _modern(self) -> str:
        return ",disable-legacy=on" if self.on_pci and not self.legacy else ""

    def _attached(self) -> str:
        return f",bus={self.pci_bus}" if self.on_pci and self.pci_bus else ""

    @property
    def on_pci(self) -> bool:
        """Whether there is PCI, and with it any device but virtio's."""
        return self.bus is Bus.PCI

    @property
    def modules(self) -> tuple[str, ...]:
        """Modules of the guest's kernel that find the devices."""
        return {Bus.PCI: ("virtio_pci",), Bus.MMIO: ("virtio_mmio",), Bus.CCW: ()}[self.bus]
