"""Starts and ends of real guests, phase by phase."""

import shutil
from collections.abc import Mapping
from typing import Any

import pytest

from guestmark.core.context import Context
from guestmark.platforms import registry
from guestmark.platforms.base import Machine
from guestmark.platforms.qemu.nested.outer import OUTERS
from guestmark.workloads import base, boot
from guestmark.workloads.base import Workload
from guestmark.workloads.boot import Boot
from tests.framework.cells import cell_of, plan_of
from tests.framework.known import known
from tests.framework.processes import alive

CALLER = Context(cwd="/", env={"PATH": "/usr/bin:/bin"})


def trial(
    platform: str, kind: str = "boot", limit_s: float = 300.0, **params: Any
) -> tuple[dict[str, float], Machine, Workload[Any]]:
    """One trial as the experiment runs it: its measurements by name, its machine, its workload."""
    cell = cell_of(platform, kind, {"memory": "512M"}, **params)
    plan = plan_of(cell, limit_s=limit_s, context=CALLER)
    workload = base.create_trial(plan, cell)
    started = base.choose_started_cell(cell)
    with base.start_machine(workload, registry.get_platform(started.platform), cell) as machine:
        machine.attest()
        workload.prepare(machine)
        try:
            measured = workload.run(machine)
        finally:
            workload.cleanup(machine)
    return {measurement.metric.name: measurement.value for measurement in measured}, machine, workload


def assert_adds_up(values: Mapping[str, float]) -> None:
    parts = [values[metric.name] for metric in boot.PHASES if metric.name in values]
    assert min(parts) >= 0
    assert sum(parts) == pytest.approx(values["total_s"], rel=0.02)
    starting = boot.PHASES[: boot.PHASES.index(boot.WORK)]
    assert sum(values.get(metric.name, 0) for metric in starting) == pytest.approx(
        values["ready_s"], rel=0.02
    )


def test_a_start_on_qemu_with_the_slowest_initcalls() -> None:
    values, machine, workload = trial("tcg", initcalls=True)
    assert set(values) == {metric.name for metric in boot.ALL}
    assert_adds_up(values)
    assert values["kernel_s"] > values["poweroff_s"] > 0
    assert known(workload.facts.facts().find_fact(Boot)).initcalls.count > 100
    assert "reboot: Power down" in machine.console()
    assert machine.vmm_pid is None


def test_a_start_of_user_mode_linux_with_work() -> None:
    values, machine, workload = trial("uml", command=["sleep", "0.3"])
    assert {"firmware_s", "entry_s"}.isdisjoint(values)
    assert_adds_up(values)
    assert values["work_s"] >= 0.3
    assert workload.warnings == []
    assert machine.vmm_pid is None


@pytest.mark.long
@pytest.mark.parametrize("platform", ["tcg/kvm", "tcg/uml"])
def test_a_start_inside_a_guest(platform: str) -> None:
    with OUTERS.share_in_block([cell_of(platform, "boot", {"memory": "512M"})]):
        values, machine, _ = trial(platform)
        assert alive(known(machine.vmm_pid))  # its outer guest: only the inner one was switched off
    assert_adds_up(values)
    assert values["ready_s"] < machine.phases["outer_ready"] + values["ready_s"]


@pytest.mark.long
def test_libguestfs_beside() -> None:
    if shutil.which("guestfish") is None:
        pytest.fail("guestfish is not installed: ./test installs it")
    values, _, workload = trial("tcg", kind="guestfs-run")
    assert workload.warnings == []
    assert values["ready_s"] < values["total_s"]
    starting = boot.PHASES[: boot.PHASES.index(boot.WORK)]
    assert {metric.name for metric in starting} <= set(values)
    ready_s = workload.facts.facts().kept["traced_ready_s"]
    assert sum(values[metric.name] for metric in starting) == pytest.approx(ready_s)
