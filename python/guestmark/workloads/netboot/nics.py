"""The network cards iPXE is known to drive in QEMU: device, PCI identity, and the distribution's ROM."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Nic:
    """One level of the factor `nic`.

    `rom` is the file (without `.rom`) that QEMU loads by itself: `efi-` is for BIOS and UEFI, `pxe-` for BIOS alone.
    """

    name: str
    device: str  # QEMU's
    vendor: int
    product: int
    rom: str


NICS = {
    nic.name: nic
    for nic in (
        Nic("virtio-net", "virtio-net-pci", 0x1AF4, 0x1000, "efi-virtio"),
        Nic("e1000", "e1000", 0x8086, 0x100E, "efi-e1000"),
        Nic("e1000e", "e1000e", 0x8086, 0x10D3, "efi-e1000e"),
        Nic("rtl8139", "rtl8139", 0x10EC, 0x8139, "efi-rtl8139"),
        Nic("pcnet", "pcnet", 0x1022, 0x2000, "efi-pcnet"),
        Nic("ne2k_pci", "ne2k_pci", 0x10EC, 0x8029, "efi-ne2k_pci"),
        Nic("vmxnet3", "vmxnet3", 0x15AD, 0x07B0, "efi-vmxnet3"),
        Nic("eepro100", "i82559er", 0x8086, 0x1209, "pxe-eepro100"),
    )
}
