"""Extracts the kernel inside a bzImage.

A distribution's bzImage unpacks itself on the guest's own processor, which under TCG costs seconds (4 s of a 7 s boot
for an xz-compressed Debian kernel). The ELF image inside boots directly through its PVH entry point, so it is unpacked
once on the host and kept. Layout of the header: Documentation/arch/x86/boot.rst in the Linux sources.
"""

import bz2
import lzma
import shutil
import struct
import subprocess
import zlib
from pathlib import Path

from guestmark.appliance.paths import FileCache
from guestmark.core.errors import GuestmarkError

_XEN_ELFNOTE_PHYS32_ENTRY = 18
_PT_NOTE = 4
# Limits that no kernel reaches; they reject other files. Bytes of an unpacked image, and of memory to unpack it.
_LARGEST = 1 << 30
_MOST_MEMORY = 512 << 20
_LARGEST_NOTES = 1 << 20
_MOST_SEGMENTS = 64


class NotABzImageError(GuestmarkError):
    """The file is not an x86 bzImage, or its payload cannot be unpacked here."""


def read_release(image: Path) -> str:
    """Returns the kernel release (`uname -r`) of a bzImage or an uncompressed ELF kernel. Raises `NotABzImageError`."""
    return _releases.look_up(image)


def _find_release(image: Path) -> str:
    data = image.read_bytes()
    if data[:4] == b"\x7fELF":
        at = data.find(b"Linux version ")
        if at >= 0:
            return data[at + 14 : at + 100].split(b" ")[0].decode("ascii", "replace")
    elif len(data) > 0x260 and data[0x202:0x206] == b"HdrS":
        (offset,) = struct.unpack_from("<H", data, 0x20E)
        if offset:
            return (
                data[offset + 0x200 : offset + 0x300]
                .split(b"\0")[0]
                .split(b" ")[0]
                .decode("ascii", "replace")
            )
    raise NotABzImageError(
        f"{image} is not a Linux kernel for x86 (neither a bzImage nor an ELF image)",
        hint="use a vmlinuz as installed by the distribution, or the vmlinux of a kernel build",
    )


_releases = FileCache(_find_release)


def unpack_elf(image: Path) -> bytes:
    """Returns the ELF image inside the bzImage `image`. Raises `NotABzImageError` with the reason."""
    data = image.read_bytes()
    if len(data) < 0x260 or data[0x202:0x206] != b"HdrS":
        raise NotABzImageError(f"{image} has no Linux boot header")
    # By the boot protocol, 0 stands for 4.
    setup_sectors = data[0x1F1] or 4
    payload_offset, payload_length = struct.unpack_from("<II", data, 0x248)
    start = (setup_sectors + 1) * 512 + payload_offset
    elf = _decompress_payload(data[start : start + payload_length], image)
    if elf[:4] != b"\x7fELF":
        raise NotABzImageError(f"{image} contains no ELF image")
    return elf


def has_pvh_entry(elf: bytes) -> bool:
    """Returns whether the ELF image has the note with a PVH entry point, which QEMU's `-kernel` needs."""
    # Only ELFCLASS64 is understood here.
    if len(elf) < 64 or elf[:4] != b"\x7fELF" or elf[4] != 2:
        return False
    (phoff,) = struct.unpack_from("<Q", elf, 32)
    phentsize, phnum = struct.unpack_from("<HH", elf, 54)
    for index in range(min(phnum, _MOST_SEGMENTS)):
        at = phoff + index * phentsize
        if at + 40 > len(elf):
            return False
        kind, _, offset, _, _, size = struct.unpack_from("<IIQQQQ", elf, at)
        notes = elf[offset : offset + min(size, _LARGEST_NOTES)]
        if kind == _PT_NOTE and _XEN_ELFNOTE_PHYS32_ENTRY in _read_note_types(notes):
            return True
    return False


def _read_note_types(notes: bytes) -> set[int]:
    types: set[int] = set()
    at = 0
    while at + 12 <= len(notes):
        name_size, data_size, kind = struct.unpack_from("<III", notes, at)
        if notes[at + 12 : at + 15] == b"Xen":
            types.add(kind)
        # Name and data are each padded to four bytes.
        at += 12 + (name_size + 3 & ~3) + (data_size + 3 & ~3)
    return types


def _decompress_payload(payload: bytes, image: Path) -> bytes:
    try:
        if payload[:6] == b"\xfd7zXZ\0":
            return lzma.LZMADecompressor(lzma.FORMAT_XZ, _MOST_MEMORY).decompress(payload, _LARGEST)
        if payload[:2] == b"\x1f\x8b":
            return zlib.decompressobj(31).decompress(payload, _LARGEST)
        if payload[:3] == b"BZh":
            return bz2.BZ2Decompressor().decompress(payload, _LARGEST)
        if payload[:3] == b"\x5d\0\0":
            return lzma.LZMADecompressor(lzma.FORMAT_ALONE, _MOST_MEMORY).decompress(payload, _LARGEST)
    except (lzma.LZMAError, zlib.error, OSError, EOFError) as error:
        raise NotABzImageError(
            f"the kernel in {image} cannot be unpacked: {error}", hint="the file is damaged: reinstall it"
        ) from error
    for magic, tool in ((b"\x28\xb5\x2f\xfd", "zstd"), (b"\x02\x21\x4c\x18", "lz4")):
        if payload[:4] == magic:
            return _decompress_with(tool, payload, image)
    raise NotABzImageError(f"{image} uses an unknown compression format ({payload[:4].hex()})")


def _decompress_with(tool: str, payload: bytes, image: Path) -> bytes:
    path = shutil.which(tool)
    if path is None:
        raise NotABzImageError(
            f"{image} is compressed with {tool}, which is not installed", hint=f"install {tool}"
        )
    # The last four bytes are the unpacked size, which is not part of the stream. The exit status is ignored: the tools
    # complain about what follows a stream only after they have written all of it.
    try:
        done = subprocess.run(
            [path, "-d", "-c"], input=payload[:-4], capture_output=True, check=False, timeout=60
        )
    except subprocess.TimeoutExpired:
        raise NotABzImageError(f"the kernel in {image} cannot be unpacked: {tool} did not finish") from None
    return done.stdout
