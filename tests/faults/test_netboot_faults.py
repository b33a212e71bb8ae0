"""Network boots that go wrong, provoked for real: a clear line, what the console showed, and nothing left behind."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from guestmark.agent.confinement import Confinement
from guestmark.core.errors import MachineError, PlatformUnusableError, UsageError, WorkloadError
from guestmark.core.platform_spec import PlatformSpec
from guestmark.platforms import registry
from guestmark.platforms.process import SupervisedProcess
from guestmark.workloads.netboot import machine as machines
from guestmark.workloads.netboot import network
from guestmark.workloads.netboot import trial as workloads
from guestmark.workloads.netboot.machine import NetbootMachine
from guestmark.workloads.netboot.network import NETDEV, Link, open_listener
from guestmark.workloads.netboot.settings import Settings
from tests.framework import IMPORTABLE
from tests.framework.caches import TriedPlatforms
from tests.framework.command_line import CommandLine, Result
from tests.framework.known import known
from tests.framework.netboot import growing, prepared, workload
from tests.framework.processes import gone, wait_until

ROMS = Path("/usr/lib/ipxe/qemu")
PLAN = """
name = "one"
title = "one cell"
platforms = ["tcg"]
[factors]
{factors}
[workloads.netboot]
params = {{ size = "1M", files = 1, port = {port} }}
[repetition]
blocks = 1
warmup = 0
iterations = 1
null = "none"
"""


@pytest.fixture
def run_plan(
    guestmark: CommandLine, tried_platforms: TriedPlatforms, tmp_path: Path
) -> Callable[..., Result]:
    """Runs a plan of one cell as a user would; the cells' factors as TOML lines."""

    guestmark.knows(tried_platforms, "tcg")

    def run(factors: str = "", port: int = 0) -> Result:
        (tmp_path / "plan.toml").write_text(PLAN.format(factors=factors, port=port))
        return guestmark("run", "plan.toml", timeout=120)

    return run


@pytest.mark.long
def test_a_rom_that_is_none(run_plan: Callable[..., Result], tmp_path: Path) -> None:
    (tmp_path / "bad.rom").write_bytes(b"this is not a ROM" * 1000)
    result = run_plan(f'rom = "{tmp_path}/bad.rom"')
    assert result.status == 2
    assert "is not a boot ROM" in result.stderr


def test_a_rom_that_is_cut_short(run_plan: Callable[..., Result], tmp_path: Path) -> None:
    (tmp_path / "short.rom").write_bytes((ROMS / "pxe-e1000.rom").read_bytes()[:-5000])
    result = run_plan(f'nic = "e1000"\nrom = "{tmp_path}/short.rom"')
    assert result.status == 2
    assert "truncated" in result.stderr


def test_a_rom_of_another_card(run_plan: Callable[..., Result]) -> None:
    result = run_plan(f'nic = "e1000"\nrom = "{ROMS}/pxe-rtl8139.rom"')
    assert result.status == 2
    assert "10ec:8139" in result.stderr
    assert "8086:100e" in result.stderr


@pytest.mark.parametrize("card", [f'nic = "e1000"\nrom = "{ROMS}/pxe-e1000.rom"', 'nic = "eepro100"'])
def test_a_card_without_rom_for_the_firmware(run_plan: Callable[..., Result], card: str) -> None:
    """A build of one's own, and the card that the distribution has a BIOS image for only."""
    result = run_plan(f'firmware = "uefi"\n{card}')
    assert result.status == 2
    assert "no image for UEFI" in result.stderr


def test_a_build_that_is_not_there(run_plan: Callable[..., Result]) -> None:
    result = run_plan('rom = "rdtsc"')
    assert result.status == 2
    assert "no build of iPXE called 'rdtsc'" in result.stderr


@pytest.mark.parametrize("platform", ["host", "uml", "tcg/uml", "tcg/tcg/kvm"])
def test_platforms_where_no_firmware_boots(platform: str) -> None:
    cell = replace(workload().cell, platform=PlatformSpec.read(platform), factors={})
    with pytest.raises(UsageError, match=f"cannot be measured on {platform}"):
        Settings.read_settings(cell, 1 << 20)


def test_memory_that_cannot_hold_the_file() -> None:
    with pytest.raises(UsageError, match="cannot hold a file"):
        Settings.read_settings(workload(size="100M", memory="128M").cell, 100 << 20)


def test_the_port_is_in_use(run_plan: Callable[..., Result]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = run_plan(port=port)
    assert result.status == 3
    assert f"port {port} on 127.0.0.1 is in use" in result.stderr


def test_another_factor_of_another_workload(guestmark: CommandLine) -> None:
    result = guestmark("exec", "--on", "tcg", "--set", "nic=e1000", "--", "true")
    assert result.status == 2
    assert "nic" in result.stderr


@pytest.fixture
def short_boot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workloads, "_BOOT_LIMIT_S", {"bios": 30.0, "uefi": 30.0})


@pytest.mark.long
@pytest.mark.usefixtures("short_boot")
def test_no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextlib.contextmanager
    def nobody_there(*_: object) -> Iterator[Link]:
        with open_listener("127.0.0.1", 0) as control, open_listener("127.0.0.1", 0) as data:
            hub = ("-netdev", f"hubport,hubid=0,id={NETDEV}")
            yield Link(hub, (), "10.0.2.2", control, data, socket.socket)

    monkeypatch.setattr(network, "open_link", nobody_there)
    made: list[SupervisedProcess] = []

    def recorded(name: str, confinement: Confinement) -> SupervisedProcess:
        made.append(SupervisedProcess(name, confinement))
        return made[-1]

    monkeypatch.setattr(machines, "SupervisedProcess", recorded)
    with (
        pytest.raises(MachineError, match=r"never got an address \(\d+ DHCP requests, no answer\)") as caught,
        prepared(console="vga"),
    ):
        pytest.fail("it booted")
    assert "iPXE" in caught.value.console  # what stood on the screen
    assert "iVBORw0KGgo" in caught.value.console  # and the picture of it
    assert len(made) == 1
    assert not made[0].is_running()
    assert not made[0].scratch.exists()


@pytest.mark.long
@pytest.mark.usefixtures("short_boot")
def test_a_rom_that_does_not_start(tmp_path: Path) -> None:
    rom = bytearray((ROMS / "pxe-e1000.rom").read_bytes())
    rom[3:6] = b"\xeb\xfe\x00"  # the entry point jumps to itself
    rom[6] = (rom[6] - sum(rom)) & 0xFF  # the checksum is right
    broken = tmp_path / "hangs.rom"
    broken.write_bytes(rom)
    with pytest.raises(MachineError, match="the card sent nothing"), prepared(rom=str(broken)):
        pytest.fail("it booted")


def killing(machine: NetbootMachine, pid: int) -> threading.Thread:
    """A thread that kills the process once the download has begun."""

    def kill() -> None:
        growing(machine, "round1.pcap", 4 << 20)
        os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    return killer


@pytest.mark.long
def test_the_server_dies_in_the_middle() -> None:
    with prepared(size="96M") as (booting, machine):
        killer = killing(machine, known(booting._server).pid)
        with pytest.raises(WorkloadError, match="HTTP server was killed by signal 9"):
            booting.run(machine)
        killer.join()
        pid = machine.vmm_pid
    assert gone(known(pid))


@pytest.mark.long
def test_qemu_dies_in_the_middle() -> None:
    with prepared(size="96M") as (booting, machine):
        killer = killing(machine, known(machine.vmm_pid))
        with pytest.raises(MachineError, match="QEMU"):
            booting.run(machine)
        killer.join()


@pytest.mark.long
def test_the_downloads_take_too_long() -> None:
    with (
        prepared(size="96M", limit_s=0.5, console="vga") as (booting, machine),
        pytest.raises(MachineError, match="took longer than") as caught,
    ):
        booting.run(machine)
    assert "iPXE" in caught.value.console


@pytest.mark.long
def test_a_capture_that_grows_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workloads, "_OVERHEAD", 0.1)
    monkeypatch.setattr(workloads, "_SLACK_BYTES", 0)
    with (
        prepared(size="64M") as (booting, machine),
        pytest.raises(MachineError, match="exceeds its limit of 7 MB for 67 MB"),
    ):
        booting.run(machine)


@pytest.mark.long
def test_no_room_for_captures(monkeypatch: pytest.MonkeyPatch) -> None:
    free = shutil._ntuple_diskusage(1 << 40, 1 << 40, 1 << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: free)
    booting = workload()
    with (
        booting.machine(registry.get_platform("tcg")) as machine,
        pytest.raises(WorkloadError, match="may need"),
    ):
        booting.prepare(machine)


def test_neither_tap_nor_namespaces(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PlatformUnusableError, match="unshare"), network.open_link("tap", 0):
        pytest.fail("there is a tap")


def test_a_tap_that_the_kernel_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    # What the kernel says comes back as the reason.
    monkeypatch.setattr("guestmark.workloads.netboot.network.SERVER", "256.0.0.1")
    with pytest.raises(PlatformUnusableError, match="cannot be used here"), network.open_link("tap", 0):
        pytest.fail("there is a tap")


CONTROLLER = """
import time
from tests.framework.netboot import prepared
with prepared() as (booting, machine):
    print(machine.vmm_pid, booting._server.pid, machine.scratch, flush=True)
    time.sleep(120)
"""


def test_a_killed_controller_leaves_nothing() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", CONTROLLER],
        env={**os.environ, "PYTHONPATH": IMPORTABLE},
        stdout=subprocess.PIPE,
        text=True,
    ) as controller:
        qemu, server, scratch = known(controller.stdout).readline().split()
        controller.send_signal(signal.SIGKILL)
        controller.wait()
    assert gone(int(qemu), int(server))
    assert wait_until(lambda: not Path(scratch).exists(), 5)  # the supervisor removes it once all have ended
