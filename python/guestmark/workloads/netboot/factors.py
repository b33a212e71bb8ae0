"""The factors of network boots. Importing this module is cheap: it imports nothing heavy."""

import os
import re

from guestmark.core.factor import Factor, one_of
from guestmark.core.units import parse_duration
from guestmark.workloads.netboot.nics import NICS

DISTRIBUTION = "distribution"
_LONGEST_DELAY_S = 10
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*", re.ASCII)


def _rom(text: str) -> str:
    if _NAME.fullmatch(text.strip()):
        return text.strip()  # the distribution's, or a build in the directory of builds
    path = os.path.abspath(os.path.expanduser(text.strip()))
    if not text.strip() or not os.path.isfile(path):
        raise ValueError(f"there is no ROM at {text!r}")
    return path


def _delay(text: str) -> str:
    seconds = parse_duration(text)
    if not 0 <= seconds <= _LONGEST_DELAY_S:
        raise ValueError(f"{text!r} is not between 0ms and {_LONGEST_DELAY_S}s")
    return f"{seconds * 1e3:g}ms"


_ALIASES = {
    "virtio": "virtio-net",
    "virtio-net-pci": "virtio-net",
    "ne2k": "ne2k_pci",
    "pcnet32": "pcnet",
    "i82559er": "eepro100",
}
NIC = Factor(
    "nic",
    "the network card that boots, e.g. virtio-net or e1000",
    one_of(*NICS, aliases=_ALIASES),
    tuple(NICS),
)
FIRMWARE = Factor(
    "firmware",
    "bios (SeaBIOS) or uefi (OVMF), for network boots; a file of firmware is bios=PATH",
    one_of("bios", "uefi", aliases={"efi": "uefi", "ovmf": "uefi", "seabios": "bios"}),
    ("bios", "uefi"),
)
CONSOLE = Factor(
    "console",
    "where firmware and iPXE print: vga, serial or none",
    one_of("vga", "serial", "none", aliases={"off": "none"}),
    ("vga", "serial", "none"),
)
ROM = Factor(
    "rom",
    "the card's boot ROM: distribution, the path of a build of your own (.rom, or .lkrn for BIOS), or its name in "
    "$GUESTMARK_ROMS",
    _rom,
    (DISTRIBUTION,),
)
NETWORK = Factor(
    "network",
    "user (QEMU's own), tap (in a private network namespace) or passt",
    one_of("user", "tap", "passt"),
    ("user", "tap", "passt"),
)
PROTOCOL = Factor(
    "protocol",
    "how files are fetched: http, https (with params.certificate, by a ROM that knows it) or tftp",
    one_of("http", "https", "tftp"),
    ("http", "https", "tftp"),
)
IP = Factor(
    "ip",
    "the version of the Internet Protocol that files are fetched over: 4 or 6",
    one_of("4", "6"),
    ("4", "6"),
)
SERVER_DELAY = Factor(
    "server_delay",
    "what the server waits before each file, or before each block over TFTP: a difference of known size",
    _delay,
    ("0ms",),
)
FACTORS = (NIC, FIRMWARE, CONSOLE, ROM, NETWORK, PROTOCOL, IP, SERVER_DELAY)
NAMES = frozenset(factor.name for factor in FACTORS)
