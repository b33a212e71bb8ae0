"""Creates bootable disk images from a root by mmdebstrap and GRUB for BIOS, UEFI or Open Firmware, without mounts."""

from __future__ import annotations

import os
import struct
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from guestmark.appliance.paths import locate_cache
from guestmark.core.architectures import X86_64, Architecture
from guestmark.core.temporary import scratch_directory
from tests.framework.foreign_programs import make_emulated_command

_SECTOR = 512
_MEBIBYTE = 1 << 20
_ESP_MB = 16
# The type of the partition that Open Firmware boots (PReP).
_PREP = 0x41
_MODULES = ("part_gpt", "part_msdos", "ext2", "linux", "search", "search_fs_file", "normal", "fat")
# Boots at once, without a menu; the root is found by a file that every image here has.
_GRUB = (
    "search --set=root --file /{kernel}\n"
    "linux /{kernel} root=LABEL=guest-root ro console={console} net.ifnames=0 {words}\n"
    "initrd /initrd.img\nboot\n"
)
_BASE = ("systemd-sysv", "udev", "kmod")


@dataclass(frozen=True, slots=True)
class _Loader:
    """How images boot: packages of kernel and GRUB, GRUB's target, and its file on an EFI partition."""

    kernel: str
    grub: str = ""
    target: str = ""
    file: str = ""
    # The link to the kernel.
    link: str = "vmlinuz"


_LOADERS = {
    "x86_64": _Loader("linux-image-cloud-amd64", target="x86_64-efi", file="BOOTX64.EFI"),
    "arm64": _Loader("linux-image-cloud-arm64", "grub-efi-arm64-bin", "arm64-efi", "BOOTAA64.EFI"),
    "ppc64el": _Loader("linux-image-powerpc64le", "grub-ieee1275-bin", "powerpc-ieee1275", link="vmlinux"),
}


def make_root_archive(release: str, extra: Sequence[str] = (), architecture: Architecture = X86_64) -> Path:
    """Return a tar archive of a Debian root of this release, made once and kept in the cache of the tests.

    For another architecture, the packages' scripts run by emulation of single programs.
    """
    loader = _LOADERS[architecture.name]
    name = "-".join([release, *sorted(extra), *([] if architecture is X86_64 else [architecture.name])])
    archive = locate_cache() / "tests" / "roots" / f"{name}.tar"
    if not archive.exists():
        archive.parent.mkdir(parents=True, exist_ok=True)
        part = archive.with_name(f"{os.getpid()}-{archive.name}")
        command = [
            "mmdebstrap",
            "--variant=minbase",
            f"--include={','.join(filter(None, [loader.kernel, loader.grub, *_BASE, *extra]))}",
            release,
            str(part),
        ]
        if architecture is not X86_64:
            command[1:1] = ["--mode=root", f"--architectures={architecture.name}"]
            command = make_emulated_command(architecture.machine_name, command)
        done = subprocess.run(command, capture_output=True, text=True, timeout=1500, check=False)
        if done.returncode:
            part.unlink(missing_ok=True)
            raise AssertionError(f"mmdebstrap {release}: {done.stderr[-400:]}")
        part.rename(archive)
    return archive


def make_disk_image(
    archive: Path,
    target: Path,
    *,
    uefi: bool = False,
    architecture: Architecture = X86_64,
    image_format: str = "qcow2",
    words: str = "",
    files: Mapping[str, str] | None = None,
    links: Mapping[str, str] | None = None,
) -> Path:
    """Make a bootable disk of a root, with one partition for BIOS, or with one for the firmware's loader and the root.

    `files` are written into the root, and `links` made there, by their paths.
    """
    with scratch_directory("disk-image") as room:
        root = room / "root"
        root.mkdir()
        subprocess.run(
            ["tar", "-xf", archive, "-C", root, "--numeric-owner"], check=True, capture_output=True
        )
        (root / "etc/fstab").write_text("LABEL=guest-root / ext4 rw 0 1\n")
        (root / "etc/hostname").write_text("image-guest\n")
        for name, content in (files or {}).items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(content)
        for name, destination in (links or {}).items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).symlink_to(destination)
        disk = room / "disk.raw"
        used = int(subprocess.run(["du", "-sm", root], capture_output=True, check=True).stdout.split()[0])
        first = (1 + (_ESP_MB if uefi else 0)) * _MEBIBYTE
        size = first + (used * 5 // 4 + 128) * _MEBIBYTE
        with disk.open("wb") as stream:
            stream.truncate(size + _MEBIBYTE)
        subprocess.run(
            ["mke2fs", "-q", "-F", "-t", "ext4", "-L", "guest-root", "-d", root, "-E", f"offset={first}", disk,
             f"{(size - first) // 1024}k"],
            check=True, capture_output=True,
        )  # fmt: skip
        config, loader = room / "grub.cfg", _LOADERS[architecture.name]
        config.write_text(_GRUB.format(kernel=loader.link, console=architecture.console, words=words))
        if uefi:
            kind = 0xEF if architecture.uefi else _PREP
            _write_partitions(disk, [(kind, _MEBIBYTE, _ESP_MB * _MEBIBYTE), (0x83, first, size - first)])
            install = _install_for_uefi if architecture.uefi else _install_for_open_firmware
            install(disk, config, room, loader)
        else:
            _write_partitions(disk, [(0x83, first, size - first)])
            _install_for_bios(disk, config, room)
        subprocess.run(["qemu-img", "convert", "-q", "-O", image_format, disk, target], check=True)
    return target


def _write_partitions(disk: Path, partitions: Sequence[tuple[int, int, int]]) -> None:
    """Write a table of primary partitions: type, first byte and bytes of each. The first one is marked active."""
    table = b""
    for number, (kind, begin, size) in enumerate(partitions):
        table += struct.pack("<B3sB3sII", 0 if number else 0x80, b"\xfe\xff\xff", kind, b"\xfe\xff\xff",
                             begin // _SECTOR, size // _SECTOR)  # fmt: skip
    with disk.open("r+b") as stream:
        stream.seek(0x1B8)
        stream.write(b"gstm\0\0" + table.ljust(64, b"\0") + b"\x55\xaa")


def _make_grub(
    target: str, config: Path, image: Path, modules: Sequence[str], directory: Path | None = None
) -> None:
    """Make GRUB's image of the modules in a directory, by default this host's."""
    found = ["-d", str(directory)] if directory else []
    subprocess.run(
        ["grub-mkimage", "-O", target, *found, "-o", image, "-c", config, "-p", "/boot/grub", *_MODULES, *modules],
        check=True, capture_output=True,
    )  # fmt: skip


def _install_for_bios(disk: Path, config: Path, room: Path) -> None:
    """Put GRUB into the gap before the first partition, as its own grub-bios-setup does: boot.img loads sector 1."""
    core = room / "core.img"
    _make_grub("i386-pc", config, core, ("biosdisk", "serial"))
    loader = bytearray(Path("/usr/lib/grub/i386-pc/boot.img").read_bytes())
    loader[0x5C:0x64] = struct.pack("<Q", 1)
    loader[0x66:0x68] = b"\x90\x90"  # boot.img: take the drive that the firmware names
    content = bytearray(core.read_bytes().ljust(-(-core.stat().st_size // _SECTOR) * _SECTOR, b"\0"))
    # The first sector of the core loads the others: where they begin, how many they are, and where they go.
    content[0x1F4:0x200] = struct.pack("<QHH", 2, len(content) // _SECTOR - 1, 0x820)
    with disk.open("r+b") as stream:
        stream.write(loader[:0x1B8])
        stream.seek(_SECTOR)
        stream.write(content)


def _install_for_uefi(disk: Path, config: Path, room: Path, loader: _Loader) -> None:
    """Fill the EFI system partition with GRUB under the name that firmware looks for on removable media."""
    program, system = room / "grub.efi", room / "esp"
    if loader.grub:
        _make_grub(loader.target, config, program, (), room / "root/usr/lib/grub" / loader.target)
    else:
        _make_grub(loader.target, config, program, ("efi_gop", "serial"))
    with system.open("wb") as stream:
        stream.truncate(_ESP_MB * _MEBIBYTE)
    subprocess.run(["mkfs.vfat", system], check=True, capture_output=True)
    made = ["mmd", "-i", str(system), "::/EFI", "::/EFI/BOOT"]
    copied = ["mcopy", "-i", str(system), str(program), f"::/EFI/BOOT/{loader.file}"]
    for command in (made, copied):
        subprocess.run(command, check=True, capture_output=True)
    _fill_first_partition(disk, system)


def _install_for_open_firmware(disk: Path, config: Path, room: Path, loader: _Loader) -> None:
    """Put GRUB as it is into the partition that Open Firmware boots."""
    program = room / "grub.elf"
    directory = room / "root/usr/lib/grub" / loader.target
    _make_grub(loader.target, config, program, ("ofnet",), directory)
    _fill_first_partition(disk, program)


def _fill_first_partition(disk: Path, content: Path) -> None:
    with disk.open("r+b") as stream:
        stream.seek(_MEBIBYTE)
        stream.write(content.read_bytes())
