"""The factors of network boots. Importing this module makes them known; it imports nothing heavy."""

import os
import re

from guestmark.core.factors import Factor, one_of, register
from guestmark.workloads.netboot.nics import NICS

DISTRIBUTION = "distribution"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*", re.ASCII)
_QEMU = frozenset({"kvm", "tcg"})
_NETBOOT = frozenset({"netboot"})


def _rom(text: str) -> str:
    if _NAME.fullmatch(text.strip()):
        return text.strip()  # the distribution's, or a build in the directory of builds
    path = os.path.abspath(os.path.expanduser(text.strip()))  # noqa: PTH100, PTH111 - pathlib costs start-up time
    if not text.strip() or not os.path.isfile(path):  # noqa: PTH113
        raise ValueError(f"there is no ROM at {text!r}")
    return path


NIC = register(
    Factor(
        "nic",
        "the network card that boots, e.g. virtio-net or e1000",
        one_of(*NICS, aliases={"virtio": "virtio-net", "virtio-net-pci": "virtio-net", "ne2k": "ne2k_pci",
                                "pcnet32": "pcnet", "i82559er": "eepro100"}),
        _QEMU,
        tuple(NICS),
        _NETBOOT,
    )
)  # fmt: skip
FIRMWARE = register(
    Factor(
        "firmware",
        "bios (SeaBIOS) or uefi (OVMF)",
        one_of("bios", "uefi", aliases={"efi": "uefi", "ovmf": "uefi", "seabios": "bios"}),
        _QEMU,
        ("bios", "uefi"),
        _NETBOOT,
    )
)
CONSOLE = register(
    Factor(
        "console",
        "where firmware and iPXE print: vga, serial or none",
        one_of("vga", "serial", "none", aliases={"off": "none"}),
        _QEMU,
        ("vga", "serial", "none"),
        _NETBOOT,
    )
)
ROM = register(
    Factor(
        "rom",
        "the card's boot ROM: distribution, the path of a build of your own (.rom, or .lkrn for BIOS), or its name in "
        "$GUESTMARK_ROMS",
        _rom,
        _QEMU,
        (DISTRIBUTION,),
        _NETBOOT,
    )
)
NETWORK = register(
    Factor(
        "network",
        "user (QEMU's own), tap (in a private network namespace) or passt",
        one_of("user", "tap", "passt"),
        _QEMU,
        ("user", "tap", "passt"),
        _NETBOOT,
    )
)
NAMES = frozenset({NIC.name, FIRMWARE.name, CONSOLE.name, ROM.name, NETWORK.name})
