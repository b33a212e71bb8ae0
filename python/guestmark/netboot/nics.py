"""The network cards iPXE is known to drive in QEMU: device, PCI identity, and the distribution's ROM."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Nic:
    """One level of the factor `nic`. `rom` is the stem of the distribution's file: `efi-STEM.rom`, `pxe-STEM.rom`."""

    name: str
    device: str  # QEMU's
    vendor: int
    product: int
    rom: str


NICS = {
    nic.name: nic
    for nic in (
        Nic("virtio-net", "virtio-net-pci", 0x1AF4, 0x1000, "virtio"),
        Nic("e1000", "e1000", 0x8086, 0x100E, "e1000"),
        Nic("e1000e", "e1000e", 0x8086, 0x10D3, "e1000e"),
        Nic("rtl8139", "rtl8139", 0x10EC, 0x8139, "rtl8139"),
        Nic("pcnet", "pcnet", 0x1022, 0x2000, "pcnet"),
        Nic("ne2k_pci", "ne2k_pci", 0x10EC, 0x8029, "ne2k_pci"),
        Nic("vmxnet3", "vmxnet3", 0x15AD, 0x07B0, "vmxnet3"),
        Nic("eepro100", "i82559er", 0x8086, 0x1209, "eepro100"),
    )
}
