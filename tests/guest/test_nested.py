"""A guest inside a guest. `tcg/kvm` runs the real KVM code path on any machine."""

import time

import pytest
from command_line import CommandLine
from conftest import start

from guestmark.errors import MachineError, PlatformUnusableError


def test_kvm_inside_tcg_is_kvm():
    with start("tcg/kvm", memory="256M") as guest:
        attested = guest.attest()
        assert attested["outer"]["vmm"]["accelerator"] == "tcg"
        assert attested["inner"]["vmm"]["accelerator"] == "kvm"
        assert attested["inner"]["vmm"]["cpu"] == "host"
        assert attested["inner"]["guest"]["boot_id"] != attested["outer"]["guest"]["boot_id"]
        result = guest.agent.exec(["sh", "-c", "sleep 0.5; uname -r"], timeout_s=60)
        assert result.status == 0
        assert result.wall_s == pytest.approx(result.guest_wall_s, abs=0.1 + result.wall_error_s)
        assert list(guest.phases)[-1] == "ready"


def test_exec_on_a_nested_platform(tmp_path):
    guestmark = CommandLine(tmp_path)
    result = guestmark.measure(
        "--on", "tcg/uml", "--set", "memory=256M", "--null", "none", "--blocks", 1, "--warmup", 0,
        "--iterations", 1, "--", "sh", "-c", "grep -q UML /proc/cpuinfo", timeout=240,
    )  # fmt: skip
    assert result.status == 0, result.stderr
    (cell,) = result.document()["cells"]
    assert cell["trials"][0]["attestation"]["inner"]["guest"]["cpu"] == "UML"


def test_an_inner_guest_that_cannot_start_is_told_from_the_outer():
    with (
        pytest.raises(MachineError, match=r"inside tcg: .*no-such-model"),
        start("tcg/tcg", memory="256M", cpu="no-such-model"),
    ):
        pass


def test_too_little_memory_is_known_before_anything_starts():
    begin = time.monotonic()
    with pytest.raises(PlatformUnusableError, match=r"tcg/kvm needs .* free"), start("tcg/kvm", memory="4T"):
        pass
    assert time.monotonic() - begin < 60
