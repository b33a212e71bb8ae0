"""Which firmware boots a disk image, and how images are refused that cannot be booted or entered."""

from __future__ import annotations

import shlex
import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guestmark.core.architectures import ARCHITECTURES, X86_64
from guestmark.core.errors import PlatformUnusableError
from guestmark.core.machine_facts import ImageFirmware
from guestmark.platforms import libguestfs
from guestmark.platforms.qemu import disk_images
from guestmark.setting.machine import IMAGE

_SECTOR = 512
_ESP = bytes.fromhex("28732ac11ff8d211ba4b00a0c93ec93b")
_LINUX = bytes.fromhex("af3dc60f838472478e793d69d8477de4")


def boot_record(code: bytes = b"", types: tuple[int, ...] = ()) -> bytes:
    table = b"".join(struct.pack("<B3sB3sII", 0, b"", kind, b"", 2048, 2048) for kind in types)
    return code.ljust(446, b"\0") + table.ljust(64, b"\0") + b"\x55\xaa"


def guid_table(*types: bytes) -> bytes:
    return b"EFI PART".ljust(_SECTOR, b"\0") + b"".join(kind.ljust(128, b"\0") for kind in types)


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (boot_record(b"\xeb\x63", (0x83,)), ImageFirmware.BIOS),
        (boot_record(b"\xeb\x63", (0xEF, 0x83)), ImageFirmware.BIOS),
        (boot_record(types=(0xEF, 0x83)), ImageFirmware.UEFI),
        (boot_record(types=(0xEE,)) + guid_table(_LINUX, _ESP), ImageFirmware.UEFI),
        (boot_record(b"\xeb\x63", (0xEE,)) + guid_table(_ESP, _LINUX), ImageFirmware.BIOS),
        (boot_record(types=(0xEE,)) + guid_table(_LINUX), None),
        (boot_record(types=(0x83,)), None),
        (bytes(34 * _SECTOR), None),
        (b"", None),
    ],
)
def test_firmware_is_that_of_the_boot_loader(head: bytes, expected: ImageFirmware | None) -> None:
    assert disk_images.choose_firmware(head, X86_64) is expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("arm64", [None, ImageFirmware.UEFI]),
        ("riscv64", [None, ImageFirmware.UEFI]),
        ("ppc64el", [ImageFirmware.EMULATOR] * 2),
    ],
)
def test_firmware_is_the_architecture_s(name: str, expected: list[ImageFirmware | None]) -> None:
    heads = (boot_record(b"\xeb\x63", (0x83,)), boot_record(b"\xeb\x63", (0xEF, 0x83)))
    assert [disk_images.choose_firmware(head, ARCHITECTURES[name]) for head in heads] == expected


@given(st.binary(max_size=34 * _SECTOR))
def test_any_first_sectors_are_read(head: bytes) -> None:
    assert disk_images.choose_firmware(head, X86_64) in (None, ImageFirmware.BIOS, ImageFirmware.UEFI)


def prepare(path: Path, tmp_path: Path) -> None:
    disk_images._describe_image(path)
    disk_images._find_firmware(path, X86_64)


def test_what_is_no_bootable_image_is_said(tmp_path: Path) -> None:
    def make(name: str, *options: str) -> Path:
        subprocess.run(["qemu-img", "create", "-q", *options, tmp_path / name, "4M"], check=True)
        return tmp_path / name

    empty = make("empty.qcow2", "-f", "qcow2")
    with pytest.raises(
        PlatformUnusableError, match="neither a boot loader for BIOS nor an EFI system partition"
    ):
        prepare(empty, tmp_path)
    # Not LUKS, which first measures how fast this processor is, and fails on a busy one.
    secret = ["--object", "secret,id=key,data=secret", "-o", "encrypt.format=aes,encrypt.key-secret=key"]
    locked = make("locked.qcow2", "-f", "qcow2", *secret)
    with pytest.raises(PlatformUnusableError, match=r"locked\.qcow2 is encrypted"):
        prepare(locked, tmp_path)
    damaged = tmp_path / "damaged.qcow2"
    damaged.write_bytes(empty.read_bytes()[:40] + b"\xff" * 400)
    with pytest.raises(PlatformUnusableError, match=r"damaged\.qcow2 cannot be read as a disk image"):
        prepare(damaged, tmp_path)
    lost = make("lost.qcow2", "-f", "qcow2", "-F", "qcow2", "-b", str(empty))
    empty.unlink()
    with pytest.raises(PlatformUnusableError, match=r"lost\.qcow2 cannot be read"):
        prepare(lost, tmp_path)


@pytest.mark.parametrize("text", ["", "nothing-here.qcow2", "/"])
def test_a_path_without_an_image_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="there is no disk image"):
        IMAGE.parse(text)


def test_an_image_s_content_is_that_of_the_images_below_it(tmp_path: Path) -> None:
    base, top = tmp_path / "base.qcow2", tmp_path / "top.qcow2"
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", base, "1M"], check=True)
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", base, top], check=True)
    assert disk_images.list_backing_files(top) == (top, base)
    assert disk_images.list_backing_files(base) == (base,)


@given(st.text(alphabet=" \"\\'abc/", min_size=1))
def test_paths_with_blanks_are_one_word_of_guestfish(text: str) -> None:
    quoted = libguestfs.quote_word(text)
    assert shlex.split(quoted) == [text]


@pytest.mark.parametrize("printed", ["abc", "", "1e9", "-1", "nan", "\u0661"])
def test_what_a_guest_prints_in_place_of_a_number_is_nothing(printed: str) -> None:
    assert disk_images._read_number({"init": printed}, "init") == 0.0
    assert disk_images._read_number({"init": "1.25"}, "init") == 1.25
