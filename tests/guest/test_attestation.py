"""What was asked for is what is there, or the machine is refused."""

import os
import shutil

import pytest
from msgspec.structs import asdict

from guestmark.core.errors import AttestationError, MachineError
from guestmark.core.machine_facts import GuestMachine
from guestmark.core.placement import format_processor_list, parse_processor_list
from guestmark.platforms.affinity import find_vcpu_threads
from guestmark.platforms.base import Machine
from tests.framework.guests import start
from tests.framework.known import a, known
from tests.framework.marks import long


def attested(machine: Machine) -> GuestMachine:
    return a(GuestMachine, machine.attest())


@pytest.mark.parametrize(
    ("factors", "found"),
    [
        (
            {"memory": "512M", "smp": "2", "machine": "pc", "cpu": "qemu64"},
            {"processors": 2, "cpu": "qemu64"},
        ),
        long({"machine": "q35", "cpu": "max,avx2=off"}, {"processors": 1, "cpu": "max"}),
        long({"machine": "microvm"}, {"processors": 1, "cpu": "max"}),
    ],
)
def test_factors_reach_the_guest(factors: dict[str, str], found: dict[str, object]) -> None:
    with start("tcg", **factors) as guest:
        vmm = known(attested(guest).vmm)
        assert vmm.accelerator == "tcg"
        assert asdict(vmm).items() >= found.items()
        asked = 512 if factors.get("memory") == "512M" else 1024
        assert vmm.memory_bytes == asked << 20


def test_uml_has_the_memory_it_was_given() -> None:
    with start("uml", memory="300M") as guest:
        inside = attested(guest).guest
        assert 250 << 20 < inside.memory_bytes <= 300 << 20
        assert inside.processors == 1


@pytest.mark.parametrize(
    ("platform", "factors", "what"),
    [
        ("tcg", {"smp": "2", "kernel_args": "maxcpus=1"}, r"processors \(guest\).*asked for 2, found 1"),
        long("tcg", {"memory": "1G", "kernel_args": "mem=500M"}, r"memory \(guest\)"),
        ("uml", {"memory": "512M", "kernel_args": "mem=200M"}, r"memory \(guest\)"),
    ],
)
def test_a_guest_that_is_something_else_is_refused(platform: str, factors: dict[str, str], what: str) -> None:
    with start(platform, **factors) as guest, pytest.raises(AttestationError, match=what):
        guest.attest()


def test_a_kernel_that_cannot_boot_says_so() -> None:
    with pytest.raises(MachineError) as caught, start("tcg", kernel_args="init=/none rdinit=/none"):
        pass
    assert "panic" in caught.value.message
    assert "Kernel panic" in caught.value.console


def test_an_argument_qemu_refuses_is_quoted() -> None:
    with pytest.raises(MachineError, match="no-such-model"), start("tcg", cpu="no-such-model"):
        pass


@pytest.mark.long
def test_features_that_cannot_be_had_are_not_dropped_silently() -> None:
    with pytest.raises(MachineError, match="TCG doesn't support requested feature"), start("tcg", cpu="EPYC"):
        pass
    with start("tcg", cpu="EPYC,enforce=off") as guest:
        assert known(attested(guest).vmm).cpu == "EPYC"


def test_a_kernel_given_by_path_is_the_one_that_boots() -> None:
    with start("uml", kernel=known(shutil.which("linux.uml"))) as guest:
        assert attested(guest).guest.cpu == "UML"


USABLE = sorted(os.sched_getaffinity(0))
apart = pytest.mark.skipif(len(USABLE) < 2, reason="one processor is everybody's")


@pytest.mark.long
@apart
@pytest.mark.parametrize("platform", ["tcg", "uml"])
def test_a_pinned_guest_is_where_it_belongs_and_refused_elsewhere(platform: str) -> None:
    with start(platform, placement="pinned") as guest:
        placement = known(guest.attest().placement)
        assert placement.processors == 1
        assert not set(parse_processor_list(placement.machine)) & set(parse_processor_list(placement.control))
        has_threads_apart = platform == "tcg" and len(USABLE) > 2
        assert (placement.machine != placement.emulator) == has_threads_apart
        os.sched_setaffinity(known(guest.vmm_pid), USABLE)
        found = format_processor_list(USABLE)
        with pytest.raises(AttestationError, match=f"the placement of .* found {found}"):
            guest.attest()
    assert sorted(os.sched_getaffinity(0)) == USABLE


@pytest.mark.long
@apart
def test_every_virtual_processor_has_one_of_its_own() -> None:
    with start("tcg", placement="pinned", smp="2") as guest:
        assert known(guest.attest().placement).machine == format_processor_list(USABLE[-2:])
        threads = find_vcpu_threads(known(guest.query)("query-cpus-fast"), guest.vmm_pid)
        masks = [os.sched_getaffinity(thread) for thread in threads]
        assert all(len(mask) == 1 for mask in masks)
        assert len(set.union(*masks)) == 2


def test_a_guest_without_a_placement_is_left_alone() -> None:
    with start("uml") as guest:
        assert sorted(os.sched_getaffinity(known(guest.vmm_pid))) == USABLE
        assert guest.attest().placement is None


def test_uml_tries_out_no_parity_algorithms_but_for_btrfs() -> None:
    tried = "dmesg | grep -c 'raid6: using algorithm'; true"
    with start("uml") as guest:
        assert guest.agent.exec(["sh", "-c", tried], timeout_s=20).stdout == b"0\n"
        assert any(argument.startswith("initcall_blacklist=raid6") for argument in guest.command_line)
    with start("uml", filesystem="btrfs", size="256M") as guest:
        assert guest.agent.exec(["sh", "-c", tried], timeout_s=20).stdout == b"1\n"
