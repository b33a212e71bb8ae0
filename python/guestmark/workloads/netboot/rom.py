"""Recognises a boot ROM by its bytes: a PCI option ROM with BIOS and EFI images, or iPXE as a Linux kernel (`.lkrn`).

Layout: PCI Firmware Specification 3.0, section 5.1 (expansion ROM header and PCI data structure); Linux,
Documentation/arch/x86/boot.rst (`HdrS`).
"""

import hashlib
import os
import struct
from dataclasses import dataclass, replace
from pathlib import Path

from guestmark.core.errors import UsageError
from guestmark.setting.network import DISTRIBUTION, Nic

_DIRECTORIES = ("/usr/lib/ipxe/qemu", "/usr/share/ipxe/qemu", "/usr/share/qemu", "/usr/share/qemu-kvm")
_KERNELS = ("/usr/lib/ipxe/ipxe.lkrn", "/boot/ipxe.lkrn", "/usr/share/ipxe/ipxe.lkrn")
BUILDS = "GUESTMARK_ROMS"  # a directory with the user's own builds
# Bytes; the BAR of a ROM has at most 16 MiB.
_LARGEST = 16 << 20
_BIOS_CODE, _EFI_CODE = 0, 3


@dataclass(frozen=True, slots=True)
class Image:
    """One image in an option ROM."""

    vendor: int
    product: int
    code: int  # 0: BIOS, 3: EFI
    # Device IDs in its device list, which EFI reads and SeaBIOS ignores.
    more: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Rom:
    """A boot ROM that was examined; `images` is empty for an iPXE that boots as a kernel."""

    path: Path
    sha256: str
    images: tuple[Image, ...]
    # True for the user's own ROM. QEMU loads the distribution's and patches its IDs to fit the card.
    own: bool = True

    @property
    def is_kernel(self) -> bool:
        """True if it is booted with `-kernel` instead of from the card."""
        return not self.images

    def check_card(self, nic: Nic, firmware: str) -> None:
        """Raises `UsageError` if the ROM cannot boot this card under that firmware."""
        if self.is_kernel:
            if firmware != "bios":
                raise UsageError(
                    f"{self.path} boots under BIOS only",
                    hint="use firmware=bios, or a .rom with an EFI image",
                )
            return
        code, other = _EFI_CODE, "BIOS"
        if firmware == "bios":
            code, other = _BIOS_CODE, "EFI"
        fitting = [image for image in self.images if image.code == code]
        if not fitting:
            raise UsageError(
                f"{self.path} contains no image for {firmware.upper()}, only one for {other}",
                hint="build iPXE for it (bin-x86_64-efi/….efirom, or bin/….rom), or change firmware",
            )
        if not self.own:
            return
        for image in fitting:
            products = {image.product}
            if firmware != "bios":
                products.update(image.more)
            if image.vendor == nic.vendor and nic.product in products:
                return
        found = ", ".join(f"{image.vendor:04x}:{image.product:04x}" for image in fitting)
        raise UsageError(
            f"{self.path} is a ROM for {found}, but {nic.name} is {nic.vendor:04x}:{nic.product:04x}",
            hint=f"build it as {nic.vendor:04x}{nic.product:04x}.rom: firmware runs only the card's own ROM",
        )


def find_rom(level: str, nic: Nic, *, as_kernel: bool = False) -> Rom:
    """Returns the ROM for a level of the factor `rom`. Raises `UsageError` if there is none or it is not a ROM.

    `as_kernel` means that the network offers no boot file, so the ROM must be an iPXE that QEMU boots with a script.
    """
    if level != DISTRIBUTION:
        path = Path(level) if "/" in level else _choose_rom_path(level)
        found = read_rom(path)
        if as_kernel and not found.is_kernel:
            raise UsageError(
                f"{found.path} cannot boot over passt, because passt's DHCP server offers no boot file",
                hint="use an iPXE image that boots as a kernel (.lkrn), or network=user",
            )
        return found
    if as_kernel:
        for file in _KERNELS:
            if Path(file).is_file():
                return read_rom(Path(file))
        raise UsageError("network=passt needs iPXE as a kernel (ipxe.lkrn)", hint="install the package ipxe")
    for directory in _DIRECTORIES:
        path = Path(directory) / f"{nic.rom}.rom"
        if path.is_file():
            return replace(read_rom(path), own=False)
    raise UsageError(
        f"there is no boot ROM for {nic.name}", hint="install the package ipxe-qemu, or use rom=FILE"
    )


def _choose_rom_path(name: str) -> Path:
    directory = os.environ.get(BUILDS, "")
    for ending in (".rom", ".efirom", ".lkrn"):
        path = Path(directory) / f"{name}{ending}"
        if directory and path.is_file():
            return path
    where = f"in {directory}" if directory else f"because {BUILDS} is not set"
    raise UsageError(
        f"there is no build of iPXE called {name!r} {where}",
        hint=f"put {name}.rom (or .lkrn) into a directory and set {BUILDS} to it, or use rom=/PATH",
    )


def read_rom(path: Path) -> Rom:
    """Reads a ROM from a file. Raises `UsageError` if it cannot be read or is not a boot ROM."""
    try:
        with path.open("rb") as stream:
            data = stream.read(_LARGEST + 1)
    except OSError as error:
        raise UsageError(f"ROM {path} cannot be read: {error.strerror}", hint="use another ROM") from error
    if len(data) > _LARGEST:
        raise UsageError(f"{path} is larger than any ROM may be (16 MiB)", hint="use another ROM")
    is_kernel = data[0x202:0x206] == b"HdrS"
    images = () if is_kernel else _read_images(path, data)
    return Rom(path, hashlib.sha256(data).hexdigest(), images)


def _read_images(path: Path, data: bytes) -> tuple[Image, ...]:
    images: list[Image] = []
    start = 0
    while start + 0x1A <= len(data):
        if data[start : start + 2] != b"\x55\xaa":
            break
        at = start + struct.unpack_from("<H", data, start + 0x18)[0]
        if data[at : at + 4] != b"PCIR" or at + 0x18 > len(data):
            break
        vendor, product, devices, _, revision = struct.unpack_from("<HHHHB", data, at + 4)
        (blocks,) = struct.unpack_from("<H", data, at + 0x10)
        code, indicator = data[at + 0x14], data[at + 0x15]
        if not blocks or start + 512 * blocks > len(data):
            raise UsageError(
                f"{path} is truncated: an image in it should have {512 * blocks} bytes", hint="build it again"
            )
        more = _parse_device_list(data, at + devices) if revision >= 3 and devices else ()
        images.append(Image(vendor, product, code, more))
        if indicator & 0x80:
            break
        start += 512 * blocks
    if not images:
        raise UsageError(
            f"{path} is not a boot ROM (neither a PCI option ROM nor a .lkrn)",
            hint="build one with iPXE's makefile, or use rom=distribution",
        )
    return tuple(images)


def _parse_device_list(data: bytes, at: int) -> tuple[int, ...]:
    """Returns the product ids in the list at `at`, which ends with a 0."""
    found: list[int] = []
    while at + 2 <= len(data) and (product := struct.unpack_from("<H", data, at)[0]):
        found.append(product)
        at += 2
    return tuple(found)
