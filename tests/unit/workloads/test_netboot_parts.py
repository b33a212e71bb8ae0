"""The parts of network boots that need no guest: ROM headers, DHCP, scripts, boot logs."""

import socket
import struct
from collections.abc import Sequence
from pathlib import Path

import pytest

from guestmark.core.errors import UsageError
from guestmark.setting.network import NICS
from guestmark.workloads.netboot import control, dhcp, machine, rom, serve
from guestmark.workloads.netboot.content import make_content
from tests.framework.known import known

LEASE = dhcp.Lease("10.0.6.1", "10.0.6.2", 24, "http://10.0.6.1:80/boot.ipxe")


def image(
    vendor: int, product: int, code: int, *, last: bool = True, blocks: int = 2, devices: Sequence[int] = ()
) -> bytes:
    data = bytearray(512 * blocks)
    data[:2] = b"\x55\xaa"
    struct.pack_into("<H", data, 0x18, 0x40)
    listed = b"".join(struct.pack("<H", device) for device in (*devices, 0)) if devices else b""
    struct.pack_into("<4sHHHHB", data, 0x40, b"PCIR", vendor, product, 0x1C if devices else 0, 0x18, 3)
    struct.pack_into("<H", data, 0x50, blocks)
    data[0x54], data[0x55] = code, 0x80 if last else 0
    data[0x5C : 0x5C + len(listed)] = listed
    return bytes(data)


def written(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "a.rom"
    path.write_bytes(data)
    return path


def test_both_images_of_a_rom_are_seen(tmp_path: Path) -> None:
    read = rom.read_rom(written(tmp_path, image(0x8086, 0x100E, 0, last=False) + image(0x8086, 0x100E, 3)))
    assert [image.code for image in read.images] == [0, 3]
    read.check_card(NICS["e1000"], "bios")
    read.check_card(NICS["e1000"], "uefi")
    with pytest.raises(UsageError, match="8086:100e, but rtl8139"):
        read.check_card(NICS["rtl8139"], "bios")


def test_seabios_reads_no_device_list(tmp_path: Path) -> None:
    data = image(0x8086, 0x1000, 0, last=False, devices=(0x1001, 0x100E))
    read = rom.read_rom(written(tmp_path, data + image(0x8086, 0x1000, 3, devices=(0x1001, 0x100E))))
    read.check_card(NICS["e1000"], "uefi")
    with pytest.raises(UsageError):
        read.check_card(NICS["e1000"], "bios")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x55\xaa",
        b"\x55\xaa" + b"\xff" * 64,
        image(1, 2, 0)[:600],
        bytes(70000),
        image(1, 2, 0, blocks=1)[:80],
    ],
)
def test_what_is_no_rom(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(UsageError):
        rom.read_rom(written(tmp_path, data))


def test_a_kernel_boots_under_bios_only(tmp_path: Path) -> None:
    data = bytearray(1024)
    data[0x202:0x206] = b"HdrS"
    read = rom.read_rom(written(tmp_path, bytes(data)))
    assert read.is_kernel
    read.check_card(NICS["pcnet"], "bios")
    with pytest.raises(UsageError, match="BIOS only"):
        read.check_card(NICS["pcnet"], "uefi")


def request(kind: int) -> bytes:
    hardware = bytes.fromhex("525400123456")
    header = struct.pack(">BBBB4sHH16x16s192x", 1, 1, 6, 0, b"abcd", 0, 0x8000, hardware)
    return header + b"\x63\x82\x53\x63" + bytes([53, 1, kind, 255])


@pytest.mark.parametrize(("asked", "answered"), [(1, 2), (3, 5)])
def test_dhcp_offers_and_acknowledges(asked: int, answered: int) -> None:
    reply = known(dhcp.make_answer(request(asked), LEASE))
    assert reply[0] == 2
    assert reply[4:8] == b"abcd"
    assert socket.inet_ntoa(reply[16:20]) == LEASE.address
    assert reply[28:34] == bytes.fromhex("525400123456")
    assert reply[108:236].rstrip(b"\0").decode() == LEASE.bootfile
    assert reply[240:243] == bytes([53, 1, answered])


@pytest.mark.parametrize(
    "packet", [b"", b"\x01" * 100, request(8), request(1)[:236], b"\x02" + request(1)[1:]]
)
def test_dhcp_is_silent_about_the_rest(packet: bytes) -> None:
    assert dhcp.make_answer(packet, LEASE) is None


def test_truncated_options_end_the_reading() -> None:
    assert dhcp.make_answer(request(1)[:-2], LEASE) is None


def test_scripts_name_every_file() -> None:
    script = control.build_fetch_script("http://c", "http://d", range(3, 5))
    assert script.startswith("#!ipxe\n")
    assert "http://d/3 " in script
    assert "http://d/4 " in script
    assert "http://d/5" not in script


def test_files_of_a_run_differ_at_every_place() -> None:
    content = make_content(1 << 20)
    try:
        files = [
            b"".join(content.view[part] for part in content.split_file(number)) for number in range(1, 6)
        ]
    finally:
        content.close()
    assert len(set(files)) == 5
    assert all(len(content) == 1 << 20 for content in files)
    assert serve.find_content_offset(1 << 20, 1) != serve.find_content_offset(1 << 20, 2)


def test_boot_logs(tmp_path: Path) -> None:
    def frame(to: int) -> bytes:
        return (
            bytes(12) + b"\x08\x00\x45" + bytes(8) + b"\x11" + bytes(10) + struct.pack(">HHHH", 0, to, 8, 0)
        )

    def log(*frames: bytes) -> Path:
        records = b"".join(struct.pack("<IIII", 0, 0, len(frame), len(frame)) + frame for frame in frames)
        return written(tmp_path, bytes(24) + records)

    assert "sent nothing" in machine.describe_failure(tmp_path / "none", asked=False)
    assert "sent nothing" in machine.describe_failure(log(), asked=False)
    hung = "iPXE initialising devices..."
    assert "hangs while it initialises" in machine.describe_failure(log(), asked=False, screen=hung)
    told = machine.describe_failure(log(), asked=False, screen=hung, invariant_tsc=False)
    assert "no invariant TSC" in told
    silent = "iPXE (PCI 00:02.0) starting execution...ok"  # a build without console
    assert "no invariant TSC" in machine.describe_failure(
        log(), asked=False, screen=silent, invariant_tsc=False
    )
    told = machine.describe_failure(log(), asked=False, screen="SeaBIOS", invariant_tsc=False)
    assert "sent nothing" in told
    assert "console=vga" not in told
    assert "console=vga" in machine.describe_failure(log(), asked=False, screen="\n")
    assert "1 DHCP requests, no answer" in machine.describe_failure(log(frame(67)), asked=False)
    assert "got an address" in machine.describe_failure(log(frame(67), frame(68)), asked=False)
    assert "did not ask" in machine.describe_failure(log(b"\xff" * 60), asked=False)
    assert "went silent" in machine.describe_failure(log(), asked=True)
