"""A guest inside a guest. `tcg/kvm` runs the real KVM code path on any machine."""

import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import pytest

from guestmark.agent import syscalls
from guestmark.core import registry as kinds
from guestmark.core.errors import MachineError, PlatformUnusableError, UsageError
from guestmark.core.model import Cell, Plan, Policy, WorkloadSpec
from guestmark.core.platform_spec import PlatformSpec
from guestmark.platforms import registry
from guestmark.platforms.base import Machine
from guestmark.platforms.qemu.nested import images as nested_images
from guestmark.platforms.qemu.nested.outer import OUTERS, compute_outer_memory
from guestmark.platforms.qemu.nested.platform import NestedGuest, NestedPlatform
from guestmark.workloads import base
from tests.framework.command_line import CommandLine
from tests.framework.known import a, known

FACTORS = {"memory": "256M", "size": "64M", "filesystem": "ext2"}


def cell_of(platform: str, amount: str = "4M", variant: str = "full", **factors: str) -> Cell:
    params = kinds.workload_kind("upload").check_params(
        {"amount": amount, "variant": variant, "content": "random"}
    )
    return Cell("test", WorkloadSpec("upload", params), PlatformSpec.read(platform), {**FACTORS, **factors})


def btrfs() -> Cell:
    return cell_of("tcg/uml", amount="256K", filesystem="btrfs", size="128M")


@pytest.fixture(scope="module")
def one_block() -> Iterator[None]:
    """Inner guests of these tests share an outer one, as those of a block do."""
    with OUTERS.share_in_block([cell_of("tcg/kvm"), cell_of("tcg/uml"), cell_of("tcg/tcg"), btrfs()]):
        yield


def start(cell: Cell, deadline_s: float | None = None) -> AbstractContextManager[NestedGuest]:
    return a(NestedPlatform, registry.get_platform(cell.platform)).start(cell, deadline_s)


def uploaded(cell: Cell, machine: Machine) -> tuple[dict[str, float], Mapping[str, Any]]:
    """One upload into the machine's disk: values by metric, and the workload's facts."""
    workload = base.create_trial(Plan("test", (cell,), Policy(trial_limit_s=120.0), ()), cell)
    workload.prepare(machine)
    values = {measurement.metric.name: measurement.value for measurement in workload.run(machine)}
    workload.cleanup(machine)
    return values, workload.facts.facts().kept


@pytest.mark.long
@pytest.mark.usefixtures("one_block")
def test_kvm_inside_tcg_is_kvm_and_has_a_disk() -> None:
    cell = cell_of("tcg/kvm")
    with start(cell) as guest:
        attested = guest.attest()
        outer, inner = known(attested.outer.vmm), known(attested.inner.vmm)
        assert outer.accelerator == "tcg"
        assert inner.accelerator == "kvm"
        assert inner.cpu == "host"
        assert attested.inner.guest.boot_id != attested.outer.guest.boot_id
        assert known(known(attested.inner.disks)["target"].cache)["writeback"]
        result = guest.agent.exec(["sh", "-c", "sleep 0.5; uname -r"], timeout_s=60)
        assert result.status == 0
        assert result.wall_s == pytest.approx(result.guest_wall_s, abs=0.1 + result.wall_error_s)
        assert guest.phases["outer_ready"] > 0
        nothing, _, program = syscalls.measure_syscalls(
            guest.agent,
            operations=20,
            time_s=0.02,
            names=["null", "exec"],
            timeout_s=120.0,
            counters=guest.counters,
        )
        assert program.counted["kvm_exits"] > nothing.counted["kvm_exits"] > 0
        assert program.measured.operations >= 20
        values, facts = uploaded(cell, guest)
        assert values["host_written_bytes"] >= 4 << 20
        assert values["vmm_cpu_s"] > 0
        assert facts["flushes_reached_host"] == "yes"
        assert facts["location_in_memory"]


@pytest.mark.long
@pytest.mark.usefixtures("one_block")
def test_the_next_inner_guest_is_fresh_in_the_same_outer_one() -> None:
    cell = cell_of("tcg/uml", amount="256K")
    with start(cell) as guest:
        attested = guest.attest()
        assert attested.outer.started_for_each == "block"
        assert attested.outer.inner_guest == 2
        assert attested.inner.guest.cpu == "UML"
        assert "outer_ready" not in guest.phases
        values, facts = uploaded(cell, guest)
        assert values["host_written_bytes"] >= 256 << 10
        assert facts["flushes_reached_host"] in {"yes", "no", "unknown"}
        assert guest.remarks() == []


@pytest.mark.long
@pytest.mark.usefixtures("one_block")
def test_a_filesystem_is_checked_where_its_image_is() -> None:
    with start(btrfs()) as guest:
        uploaded(btrfs(), guest)
        guest.disks[0].image.check_filesystem()


@pytest.mark.long
@pytest.mark.usefixtures("one_block")
def test_an_inner_guest_that_cannot_start_is_told_from_the_outer() -> None:
    begin = time.monotonic()
    with (
        pytest.raises(MachineError, match=r"inside tcg: .*no-such-model") as caught,
        registry.get_platform("tcg/tcg").start(cell_of("tcg/tcg", cpu="no-such-model")),
    ):
        pass
    assert "--- outer guest ---" in caught.value.console
    assert time.monotonic() - begin < 60  # its end was noticed: nobody waited for the deadline


def test_an_outer_processor_without_virtualization_is_said() -> None:
    cell = cell_of("tcg/kvm", outer_cpu="max,svm=off")
    with (
        pytest.raises(PlatformUnusableError, match=r"max,svm=off.* does not support nested virtualization"),
        registry.get_platform("tcg/kvm").start(cell),
    ):
        pass


def test_too_little_memory_is_computed_before_anything_starts(guestmark: CommandLine) -> None:
    cell = cell_of("tcg/tcg/uml", size="1G")
    assert compute_outer_memory(cell) > compute_outer_memory(cell, 1) > (256 << 20) + (1 << 30)
    result = guestmark("exec", "--on", "tcg/kvm", "--set", "memory=4T", "--", "true", timeout=30)
    assert result.status == 3
    assert "tcg/kvm needs " in result.stderr
    assert "--set memory=256M" in result.stderr


def test_an_inner_hypervisor_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(PlatformUnusableError, match=r"inside tcg: linux\.uml is not installed") as caught:
        registry.get_platform("tcg/uml").start(
            Cell("test", WorkloadSpec("test"), PlatformSpec.read("tcg/uml"))
        ).__enter__()
    assert "user-mode-linux" in caught.value.hint


def test_direct_io_on_an_image_in_the_outer_guests_memory_is_refused() -> None:
    cell = cell_of("tcg/kvm", cache="none")
    with pytest.raises(UsageError, match="outer guest's memory"):
        nested_images.check_disks(cell)


@pytest.mark.long
@pytest.mark.usefixtures("nested_known")
def test_trials_of_a_block_share_the_outer_guest(guestmark: CommandLine) -> None:
    result = guestmark.measure(
        "--on", "tcg/uml", "--set", "memory=256M", "--null", "baseline", "--blocks", 1, "--warmup", 0,
        "--iterations", 1, "--", "sh", "-c", "grep -q UML /proc/cpuinfo", timeout=300,
    )  # fmt: skip
    assert result.status == 0, result.stderr
    document = result.document()
    trials = [cell["trials"][0] for cell in (*document["cells"], *document["null_cells"])]
    outers = {trial["attestation"]["outer"]["guest"]["boot_id"] for trial in trials}
    inners = {trial["attestation"]["inner"]["guest"]["boot_id"] for trial in trials}
    assert (len(trials), len(outers), len(inners)) == (2, 1, 2)
    assert {trial["attestation"]["outer"]["started_for_each"] for trial in trials} == {"block"}


@pytest.mark.long
@pytest.mark.timeout(600)
def test_three_layers() -> None:
    """The innermost is entered through two others. In `tcg/tcg` it starts, too, but takes over a quarter of an hour."""
    cell = Cell("test", WorkloadSpec("test"), PlatformSpec.read("tcg/kvm/uml"), {"memory": "256M"})
    with start(cell, 500.0) as guest:
        assert guest.attest().inner.guest.cpu == "UML"


@pytest.mark.long
@pytest.mark.alone  # beside three others it starts three times as slowly, which is at its limit
@pytest.mark.timeout(1200)
def test_an_emulator_in_an_emulator_is_started_for_trials_only(guestmark: CommandLine) -> None:
    """It takes a minute or more, so it is not started to see whether it starts, nor again for a copy."""
    begun = time.monotonic()
    done = guestmark.measure("--on", "tcg/tcg", "--set", "memory=256M", "--", "true", timeout=1000)
    took_s = time.monotonic() - begun
    assert done.status == 0, done.stderr
    (cell,) = done.document()["cells"]
    for trial in cell["trials"]:
        assert trial["attestation"]["inner"]["vmm"]["accelerator"] == "tcg"
        assert trial["attestation"]["outer"]["inner_guest"] == 1
    in_trials_s = [trial["duration_s"] for trial in cell["trials"]]
    assert took_s - sum(in_trials_s) < min(in_trials_s) / 2


@pytest.mark.long
def test_the_doctor_says_something_about_kvm_in_tcg_in_any_case(guestmark: CommandLine) -> None:
    result = guestmark("doctor", "--json", timeout=120)
    assert result.status == 0, result.stderr
    found = {platform["name"]: platform for platform in result.document()["platforms"]}
    assert found["tcg/kvm"]["usable"] in {True, None}, found["tcg/kvm"]
    assert (found["tcg/kvm"]["usable"] is True) == (found["tcg/kvm"]["ready_s"] is not None)


@pytest.mark.long
def test_the_doctor_finds_out_about_kvm_in_tcg(guestmark: CommandLine) -> None:
    result = guestmark("doctor", "--nested", "--again", "--json", timeout=250)
    assert result.status == 0, result.stderr
    found = {platform["name"]: platform for platform in result.document()["platforms"]}
    assert found["tcg/kvm"]["usable"] is True, found["tcg/kvm"]
    assert found["tcg/kvm"]["ready_s"] > found["tcg"]["ready_s"]
    remembered = guestmark("doctor", "--json", timeout=60).document()["platforms"]
    assert next(platform for platform in remembered if platform["name"] == "tcg/kvm") == found["tcg/kvm"]
