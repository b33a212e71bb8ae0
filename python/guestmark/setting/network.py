"""The factors of a machine's network, and those of network boots: ROM, firmware, console, server."""

import contextlib
import os
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from guestmark.core.factor import Machine, Setting, one_of
from guestmark.core.units import parse_duration

DISTRIBUTION = "distribution"
_LONGEST_DELAY_S = 10
_ROM_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*", re.ASCII)


def _parse_rom(text: str) -> str:
    if _ROM_NAME.fullmatch(text.strip()):
        # A bare name stands for the distribution's ROM, or for a build in the directory of builds.
        return text.strip()
    path = os.path.abspath(os.path.expanduser(text.strip()))
    if not text.strip() or not os.path.isfile(path):
        raise ValueError(f"there is no ROM at {text!r}")
    return path


def _parse_delay(text: str) -> str:
    seconds = parse_duration(text)
    if not 0 <= seconds <= _LONGEST_DELAY_S:
        raise ValueError(f"{text!r} is not between 0ms and {_LONGEST_DELAY_S}s")
    return f"{seconds * 1e3:g}ms"


@dataclass(frozen=True, slots=True)
class Nic:
    """One level of the factor `nic`.

    `rom` is the file (without `.rom`) that QEMU loads by default: `efi-` files are for BIOS and UEFI, `pxe-` files for
    BIOS only. `drivers` are the Linux modules that may drive the card.
    """

    name: str
    device: str  # QEMU's
    vendor: int
    product: int
    rom: str
    drivers: tuple[str, ...]

    @property
    def is_virtio(self) -> bool:
        """True if the card is paravirtual."""
        return self.device.startswith("virtio")


_KNOWN_NICS = (
    Nic("virtio-net", "virtio-net-pci", 0x1AF4, 0x1000, "efi-virtio", ("virtio_net",)),
    Nic("e1000", "e1000", 0x8086, 0x100E, "efi-e1000", ("e1000",)),
    Nic("e1000e", "e1000e", 0x8086, 0x10D3, "efi-e1000e", ("e1000e",)),
    Nic("rtl8139", "rtl8139", 0x10EC, 0x8139, "efi-rtl8139", ("8139cp",)),
    Nic("pcnet", "pcnet", 0x1022, 0x2000, "efi-pcnet", ("pcnet32",)),
    Nic("ne2k_pci", "ne2k_pci", 0x10EC, 0x8029, "efi-ne2k_pci", ("ne2k-pci",)),
    Nic("vmxnet3", "vmxnet3", 0x15AD, 0x07B0, "efi-vmxnet3", ("vmxnet3",)),
    Nic("eepro100", "i82559er", 0x8086, 0x1209, "pxe-eepro100", ("e100",)),
)
NICS = {nic.name: nic for nic in _KNOWN_NICS}


_ALIASES = {
    "virtio": "virtio-net",
    "virtio-net-pci": "virtio-net",
    "ne2k": "ne2k_pci",
    "pcnet32": "pcnet",
    "i82559er": "eepro100",
}
NIC = Setting(
    "nic",
    "the network card, e.g. virtio-net or e1000",
    one_of(*NICS, aliases=_ALIASES),
    tuple(NICS),
    read=NICS.__getitem__,
    default="virtio-net",
    machines=Machine.QEMU,
)


class Firmware(StrEnum):
    """The firmware that boots from the card."""

    BIOS = "bios"
    UEFI = "uefi"


FIRMWARE = Setting(
    "firmware",
    "bios (SeaBIOS) or uefi (OVMF), for network boots; for a firmware file, use bios=PATH",
    one_of(*Firmware, aliases={"efi": "uefi", "ovmf": "uefi", "seabios": "bios"}),
    tuple(Firmware),
    read=Firmware,
    default=Firmware.BIOS,
)


class Console(StrEnum):
    """The console on which firmware and iPXE print."""

    VGA = "vga"
    SERIAL = "serial"
    NONE = "none"


CONSOLE = Setting(
    "console",
    "where firmware and iPXE print: vga, serial or none",
    one_of(*Console, aliases={"off": "none"}),
    tuple(Console),
    read=Console,
    default=Console.VGA,
)
ROM = Setting(
    "rom",
    "the card's boot ROM: distribution, the path of a build of your own (.rom, or .lkrn for BIOS), or its name in "
    "$GUESTMARK_ROMS",
    _parse_rom,
    (DISTRIBUTION,),
    read=str,
    default=DISTRIBUTION,
)


class Network(StrEnum):
    """The connection between a machine and its peer, which has its own network namespace."""

    NONE = "none"
    # User-mode networks: QEMU itself or a helper process relays the traffic through its own sockets.
    USER = "user"
    PASST = "passt"
    PASTA = "pasta"
    SLIRP4NETNS = "slirp4netns"
    # The program slirp, which UML starts at the other end of a serial line.
    SLIRP = "slirp"
    # An interface in the peer's namespace whose packets the hypervisor reads and writes.
    TAP = "tap"
    # The same, but a kernel thread reads and writes the packets in place of the hypervisor.
    VHOST = "vhost"
    # No network: sockets between a guest and its hypervisor's kernel, for which a kernel thread there moves the bytes.
    VSOCK = "vsock"
    # UML's other transports: packet sockets on such an interface, in both directions or for receiving only.
    RAW = "raw"
    HYBRID = "hybrid"
    # A pair of virtual interfaces.
    VETH = "veth"
    # The machine has no network of its own: it is in the peer's namespace.
    HOST = "host"
    # The way to this host that another machine already has; nothing is set up.
    EXISTING = "existing"


_NETWORK_ALIASES = {"off": "none"}
NETWORK = Setting(
    "network",
    "how the machine is connected to its peer (to nothing else, but for vsock and existing): none, user, passt, tap, "
    "vhost, vsock, veth, existing, …",
    one_of(*Network, aliases=_NETWORK_ALIASES),
    tuple(Network),
    read=Network,
    default=Network.NONE,
    machines=Machine.QEMU | Machine.UML,
)


def parse_address(text: str) -> str:
    """Return an IP address in its usual spelling. Raises `ValueError` for anything else, such as a name or a scope."""
    for family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError):
            return socket.inet_ntop(family, socket.inet_pton(family, text.strip()))
    raise ValueError(f"{text!r} is not an IP address")


PEER_ADDRESS = Setting(
    "peer_address",
    "with network=existing, the IP address at which the machine reaches this host; by default the one from which its "
    "ssh connection came",
    parse_address,
    (),
    read=str,
)


def explain_only_existing(level: Network) -> str:
    """Return why a machine that guestmark does not connect cannot have this network; empty if it can."""
    if level in (Network.NONE, Network.EXISTING):
        return ""
    return f"guestmark sets up no network for it; use network={Network.EXISTING}"


class Offloads(StrEnum):
    """Whether each end of a link may leave checksums and segmentation to the other end."""

    ON = "on"
    OFF = "off"


def _parse_number(what: str, least: int, most: int) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if not re.fullmatch(r"\s*[0-9]{1,6}\s*", text, re.ASCII) or not least <= int(text) <= most:
            raise ValueError(f"{text!r} is not {what} ({least} to {most})")
        return str(int(text))

    return parse


def _parse_ring(text: str) -> str:
    number = int(_parse_number("a number of descriptors", 256, 1024)(text))
    if number & (number - 1):
        raise ValueError(f"{text!r} is not a power of two")
    return str(number)


MTU = Setting(
    "mtu",
    "maximum packet size in bytes, at both ends of the machine's network",
    _parse_number("an MTU", 576, 65535),
    ("1500", "9000", "65520"),
    read=int,
    machines=Machine.QEMU | Machine.UML,
)
NIC_QUEUES = Setting(
    "nic_queues",
    "number of queues of the machine's network card",
    _parse_number("a number of queues", 1, 16),
    ("1", "2", "4"),
    read=int,
    default="1",
    machines=Machine.QEMU,
)
OFFLOADS = Setting(
    "offloads",
    "whether checksums and segmentation are left to the other end of the machine's network: on or off",
    one_of(*Offloads),
    tuple(Offloads),
    read=Offloads,
    default=Offloads.ON,
    machines=Machine.QEMU,
)
NIC_RING = Setting(
    "nic_ring",
    "size of the receive ring of the machine's network card: 256, 512 or 1024 descriptors",
    _parse_ring,
    ("256", "512", "1024"),
    read=int,
    machines=Machine.QEMU,
)
# The network factors of machines that guestmark does not connect.
EXISTING_NETWORK_FACTORS = (NETWORK, PEER_ADDRESS)
# The network factors of machines that run on this host's kernel.
HOST_NETWORK_FACTORS = (NETWORK, MTU, OFFLOADS)


class Protocol(StrEnum):
    """How files are fetched."""

    HTTP = "http"
    HTTPS = "https"
    TFTP = "tftp"


PROTOCOL = Setting(
    "protocol",
    "how files are fetched: http, https (with params.certificate and a ROM that trusts it) or tftp",
    one_of(*Protocol),
    tuple(Protocol),
    read=Protocol,
    default=Protocol.HTTP,
)
IP = Setting(
    "ip",
    "the IP version over which files are fetched: 4 or 6",
    one_of("4", "6"),
    ("4", "6"),
    read=str,
    default="4",
)
SERVER_DELAY = Setting(
    "server_delay",
    "time that the server waits before each file, or over TFTP before each block, to create a known difference",
    _parse_delay,
    ("0ms",),
    read=parse_duration,
    default="0ms",
)
NETBOOT_FACTORS = (NIC, FIRMWARE, CONSOLE, ROM, NETWORK, PROTOCOL, IP, SERVER_DELAY)
