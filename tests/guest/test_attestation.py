"""What was asked for is what is there, or the machine is refused."""

import shutil

import pytest
from fresh_guest import start
from msgspec.structs import asdict

from guestmark.core.errors import AttestationError, MachineError


@pytest.mark.parametrize(
    ("factors", "found"),
    [
        (
            {"memory": "512M", "smp": "2", "machine": "pc", "cpu": "qemu64"},
            {"processors": 2, "cpu": "qemu64"},
        ),
        ({"machine": "q35", "cpu": "max,avx2=off"}, {"processors": 1, "cpu": "max"}),
        ({"machine": "microvm"}, {"processors": 1, "cpu": "max"}),
    ],
)
def test_factors_reach_the_guest(factors, found):
    with start("tcg", **factors) as guest:
        attested = guest.attest()
        assert attested.vmm.accelerator == "tcg"
        assert asdict(attested.vmm).items() >= found.items()
        asked = 512 if factors.get("memory") == "512M" else 1024
        assert attested.vmm.memory_bytes == asked << 20


def test_uml_has_the_memory_it_was_given():
    with start("uml", memory="300M") as guest:
        inside = guest.attest().guest
        assert 250 << 20 < inside.memory_bytes <= 300 << 20
        assert inside.processors == 1


@pytest.mark.parametrize(
    ("platform", "factors", "what"),
    [
        ("tcg", {"smp": "2", "kernel_args": "maxcpus=1"}, r"processors \(guest\).*asked 2, found 1"),
        ("tcg", {"memory": "1G", "kernel_args": "mem=500M"}, r"memory \(guest\)"),
        ("uml", {"memory": "512M", "kernel_args": "mem=200M"}, r"memory \(guest\)"),
    ],
)
def test_a_guest_that_is_something_else_is_refused(platform, factors, what):
    with start(platform, **factors) as guest, pytest.raises(AttestationError, match=what):
        guest.attest()


def test_a_kernel_that_cannot_boot_says_so():
    with pytest.raises(MachineError) as caught, start("tcg", kernel_args="init=/none rdinit=/none"):
        pass
    assert "panic" in caught.value.message
    assert "Kernel panic" in caught.value.console


def test_an_argument_qemu_refuses_is_quoted():
    with pytest.raises(MachineError, match="no-such-model"), start("tcg", cpu="no-such-model"):
        pass


def test_features_that_cannot_be_had_are_not_dropped_silently():
    with pytest.raises(MachineError, match="TCG doesn't support requested feature"), start("tcg", cpu="EPYC"):
        pass
    with start("tcg", cpu="EPYC,enforce=off") as guest:
        assert guest.attest().vmm.cpu == "EPYC"


def test_a_kernel_given_by_path_is_the_one_that_boots():
    with start("uml", kernel=shutil.which("linux.uml")) as guest:
        assert guest.attest().guest.cpu == "UML"
