"""Real iPXE guests: what is measured, what is checked, and whether others read the captures alike."""

import mmap
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from guestmark.capture.binary import Selection, analyse_capture, analyse_file
from guestmark.capture.startup import find_startup
from guestmark.core.errors import MachineError, PlatformUnusableError, WorkloadError
from guestmark.core.metric import Measurement
from guestmark.core.model import Plan, Policy
from guestmark.core.platform_spec import PlatformSpec
from guestmark.platforms import registry
from guestmark.workloads import netboot
from guestmark.workloads.netboot import figures, network, serve, tap_setup
from guestmark.workloads.netboot import trial as workloads
from guestmark.workloads.netboot.content import Content
from guestmark.workloads.netboot.machine import NetbootMachine
from tests.framework.known import known
from tests.framework.netboot import prepared, workload
from tests.framework.processes import gone

MIB = 1 << 20


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where captures are kept."""
    monkeypatch.setenv(workloads.KEEP, str(tmp_path))
    return tmp_path


def values_of(measurements: Iterable[Measurement]) -> dict[str, float]:
    return {measurement.metric.name: measurement.value for measurement in measurements}


def check_values(values: Mapping[str, float], size: int, files: int = 1) -> None:
    assert list(values)
    assert set(values) == {
        metric.name for metric in netboot.list_round_metrics(netboot.NetbootParams(size="1M", files=files))
    }
    assert values["throughput"] == pytest.approx(size / values["download_s"], rel=0.2)
    assert 0 < values["client_share"] <= 1
    assert 0 < values["server_share"] <= 1
    assert values["client_share"] + values["server_share"] <= 1.0001
    assert values["client_p50_s"] <= values["client_p99_s"] <= values["client_max_s"] * 1.01
    # Two clocks: packets' time stamps, and the host's when iPXE said that it was done.
    assert values["wall_s"] > values["download_s"] * 0.9


def test_files_arrive_and_others_count_the_same_packets(kept: Path) -> None:
    with prepared(files=2) as (booting, machine):
        facts = machine.attest()
        assert facts.vmm.accelerator == "tcg"
        assert facts.ipxe["platform"] == "pcbios"
        assert facts.nic.type == "e1000"
        assert len(facts.rom_sha256) == 64
        values = values_of(booting.run(machine))
        again = values_of(booting.run(machine))  # a second iteration on the same machine
        assert "iPXE" in machine.console()
        assert not hasattr(machine, "agent")
        pid, scratch = machine.vmm_pid, machine.scratch
        phases, lease = machine.phases, known(machine.lease)
    assert list(phases) == [figures.CARD, figures.LINK, figures.ADDRESS, figures.READY]
    assert sum(values[metric.name] for metric in netboot.START) == pytest.approx(phases[figures.READY])
    assert all(values[metric.name] > 0 for metric in netboot.START)
    # The firmware's part is short, and iPXE waits for a second offer before it takes one.
    assert values["rom_s"] < values["dhcp_s"]
    assert [step.kind for step in lease.steps][-2:] == ["request", "ack"]
    assert lease.client_s > 0.9 * lease.duration_s
    assert values["file_1_s"] + values["file_2_s"] == pytest.approx(2 * values["download_s"])
    check_values(values, 2 * MIB, 2)
    check_values(again, 2 * MIB, 2)
    assert booting.facts.facts().kept["server_bytes_per_s"] > values["throughput"]
    assert gone(known(pid))
    assert not scratch.exists()
    captures = sorted(kept.glob("*-round*.pcap"))
    assert len(captures) == 2
    # Read alone, as of a physical machine, the packets tell the same phases.
    (boot,) = kept.glob("*-boot-*.pcap")
    (whole,) = analyse_capture(Selection((str(boot), *map(str, captures)), merge=True))[0].files
    alone = known(find_startup(whole))
    assert alone.address_s == pytest.approx(values["dhcp_s"], abs=0.001)
    assert 0 < alone.waiting_s < values["script_s"]
    assert alone.bytes >= 4 * 2 * MIB
    assert alone.fetching_s > 2 * (values["download_s"] + again["download_s"])
    for capture in captures:
        _agree(capture)


def _agree(capture: Path) -> None:
    """tcptrace's packets, payload, repeated payload and durations of each whole connection are ours."""
    assert shutil.which("tcptrace"), "this test needs tcptrace"
    said = subprocess.run(
        ["tcptrace", "-n", "-l", str(capture)], capture_output=True, text=True, check=True
    ).stdout
    theirs: dict[frozenset[int], dict[int, tuple[int, ...]]] = {}
    for part in re.split(r"TCP connection \d+:", said)[1:]:
        if "complete conn: yes" not in part:
            continue
        ports = re.findall(r"host \w+:\s+\S+:(\d+)", part)
        for port, *counts in zip(ports, *(_both(part, name) for name in _COUNTED), strict=True):
            theirs.setdefault(frozenset(map(int, ports)), {})[int(port)] = tuple(counts)
    trace = analyse_file(capture)
    whole = [connection for connection in trace.connections if connection.captured == "whole"]
    assert len(whole) == len(theirs) >= 4
    for connection in whole:
        sides = theirs[frozenset((connection.client.port, connection.server.port))]
        for side in (connection.client, connection.server):
            packets, unique, repeated = sides[side.port]
            assert side.packets == packets
            assert side.unique_bytes == unique
            assert 0 <= repeated - side.retransmitted_bytes <= 2  # it counts a repeated FIN as a byte


_COUNTED = ("total packets", "unique bytes sent", "rexmt data bytes")


def _both(part: str, name: str) -> Iterator[int]:
    return map(int, known(re.search(rf"{name}:\s+(\d+)\s+{name}:\s+(\d+)", part)).groups())


@pytest.mark.long
def test_a_wrong_byte_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[int] = []
    find_fetched_file = workloads.find_fetched_file

    def check(machine: NetbootMachine, content: Content, number: int) -> int:
        address = find_fetched_file(machine, content, number)
        found.append(address)
        other = mmap.mmap(-1, len(content))
        other[:] = content.view[:]
        other[(serve.find_content_offset(len(other), number) - 1) % len(other)] ^= 1  # the file's last byte
        wrong = Content(-1, other, "")
        memory_says = pytest.raises(WorkloadError, match="not in the guest's memory")
        with memory_says:
            find_fetched_file(machine, wrong, number)
        with memory_says:  # the next file is not there yet
            find_fetched_file(machine, content, number + 1)
        return address

    monkeypatch.setattr(workloads, "find_fetched_file", check)
    with prepared(console="none") as (booting, machine):
        booting.run(machine)
    assert len(found) == 1


@pytest.mark.long
def test_a_boot_ends_in_a_kernel_that_answers() -> None:
    with prepared(kernel=True) as (booting, machine):
        values = values_of(booting.run(machine))
    # The kernel has no root, so that the machine may have ended by now.
    assert booting.ONCE
    assert values["kernel_s"] > 0
    assert values["handover_s"] > 0.3  # a kernel that starts under TCG
    assert booting.facts.facts().kept["booted_kernel"]


@pytest.mark.long
@pytest.mark.parametrize("network", ["user", "tap"])
def test_files_over_tftp(network: str, kept: Path) -> None:
    with prepared(files=2, size="1M", protocol="tftp", network=network) as (booting, machine):
        values = values_of(booting.run(machine))
    expected = {
        metric.name for metric in netboot.list_round_metrics(netboot.NetbootParams(size="1M", files=2))
    }
    assert expected - set(values) == {"handshake_s", "zero_windows"}  # of TCP alone
    assert values["throughput"] == pytest.approx(MIB / values["download_s"], rel=0.01)
    (capture,) = kept.glob("*-round*.pcap")
    transfers = [exchange for exchange in analyse_file(capture).exchanges if exchange.protocol == "tftp"]
    assert [(transfer.bytes, transfer.unanswered) for transfer in transfers] == [(MIB, 0), (MIB, 0)]


@pytest.mark.long
def test_a_delay_of_the_server_is_found_whole() -> None:
    """0.2 s before each file, and before each of some hundred blocks over TFTP."""
    values = {}
    for delay in ("0ms", "200ms"):
        with prepared(size="4M", server_delay=delay) as (booting, machine):
            values[delay] = min(values_of(booting.run(machine))["download_s"] for _ in range(3))
    assert values["200ms"] - values["0ms"] == pytest.approx(0.2, abs=0.08)


@pytest.mark.long
def test_over_ipv6() -> None:
    with prepared(ip="6") as (booting, machine):
        check_values(values_of(booting.run(machine)), 2 * MIB)


@pytest.mark.long
def test_a_protocol_that_the_rom_was_built_without(tmp_path: Path) -> None:
    key = tmp_path / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=10.0.2.2", "-days", "2",
         "-keyout", key, "-out", tmp_path / "certificate.pem"], check=True, capture_output=True,
    )  # fmt: skip
    both = tmp_path / "both.pem"
    both.write_bytes((tmp_path / "certificate.pem").read_bytes() + key.read_bytes())
    with (
        prepared(protocol="https", certificate=str(both)) as (booting, machine),
        pytest.raises(MachineError, match="this build of iPXE cannot fetch files over HTTPS"),
    ):
        booting.run(machine)


@pytest.mark.long
def test_uefi() -> None:
    with prepared(firmware="uefi") as (booting, machine):
        assert machine.attest().ipxe["platform"] == "efi"
        check_values(values_of(booting.run(machine)), 2 * MIB)


@pytest.mark.long
def test_tap_in_a_namespace_of_its_own() -> None:
    try:
        for fd in network.make_tap(0):
            os.close(fd)
    except PlatformUnusableError as error:
        pytest.skip(error.message)
    with prepared(network="tap", nic="virtio-net") as (booting, machine):
        assert machine.attest().ipxe["ip"] == network.GUEST
        values = values_of(booting.run(machine))
    check_values(values, 2 * MIB)
    devices = Path("/proc/net/dev").read_text()
    assert tap_setup.NAME not in devices


@pytest.mark.long
def test_screen_text_and_picture() -> None:
    with prepared(console="vga") as (booting, machine):
        text = machine.console()
        assert "boot.ipxe" in text
        assert machine.screenshot().startswith("iVBORw0KGgo")  # PNG in base64
        booting.run(machine)


@pytest.mark.long
def test_kvm_inside_tcg() -> None:
    booting = workload(size="1M")
    cell = replace(booting.cell, platform=PlatformSpec.read("tcg/kvm"))
    plan = Plan("test", (cell,), Policy(blocks=1, trial_limit_s=120.0), netboot.ALL)
    nested = workloads.NetbootTrial(plan, cell)
    with nested.machine(registry.get_platform("tcg/kvm")) as machine:
        machine.attest()
        nested.prepare(machine)
        check_values(values_of(nested.run(machine)), MIB)
    assert nested.facts.facts().kept["inner"]["attestation"]["vmm"]["accelerator"] == "kvm"
