"""When the boot ROM's driver takes the card: QEMU tells of every write to a PCI device's configuration.

Firmware leaves a network card without the right to read and write memory by itself; iPXE's driver sets that bit first
of all (`adjust_pci_device` in iPXE's src/drivers/bus/pci.c; UEFI's PCI bus driver on a driver's behalf). The lines are
those of QEMU's trace event `pci_cfg_write`, which is on until the boot is over and not while files are fetched.
"""

from __future__ import annotations

import os
import re

from guestmark.platforms.process import Console

EVENT = "pci_cfg_write"
_COMMAND, _MASTER = 0x4, 0x4  # the command register's offset, and the bit that lets a card use memory
_ROM, _ENABLED = 0x30, 0x1  # the expansion ROM's
_SIZING = 0xFFFFFFFF  # asks how large a region is
_WRITE = re.compile(
    rb"pci_cfg_write (?P<device>\S+) \S+ @0x(?P<offset>[0-9a-f]+) <- 0x(?P<value>[0-9a-f]+)\n"
)


class CardLog:
    """The lines of one machine, read as they come. Its file descriptor is given to QEMU."""

    def __init__(self) -> None:
        end, self._fd = os.pipe()
        self._lines = Console(end)

    @property
    def fd(self) -> int:
        """The end that QEMU writes to."""
        return self._fd

    def arguments(self) -> list[str]:
        """QEMU's options for it."""
        return ["-trace", EVENT, "-D", f"/dev/fd/{self._fd}"]

    def handed(self) -> None:
        """Closes our copy of what QEMU has inherited. May be called twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def taken_at(self, device: str) -> float | None:
        """When `device` (QEMU's name of the model) was first allowed to use memory, on the monotonic clock.

        Of a card that never uses memory (ne2k_pci): when the firmware read its ROM. None when neither is known, as with
        a QEMU that writes no such lines.
        """
        return self._first(device, _COMMAND, _MASTER) or self._first(device, _ROM, _ENABLED)

    def _first(self, device: str, register: int, bit: int) -> float | None:
        """When a bit of a register was first set."""
        for found in _WRITE.finditer(self._lines.text().encode()):
            offset, value = int(found["offset"], 16), int(found["value"], 16)
            if found["device"].decode() == device and offset == register and value & bit and value != _SIZING:
                return self._lines.when(re.compile(re.escape(found[0])))
        return None
