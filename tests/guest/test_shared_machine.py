"""Cells of a block that share a machine, on real guests."""

import json
import os
import signal
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from guestmark.core.errors import MachineError
from guestmark.core.model import Cell, Plan, Policy
from guestmark.engine.shared_machine import BlockMachines, Lease, group_cells
from guestmark.platforms import registry
from guestmark.platforms.guest import Guest
from guestmark.workloads import base as workloads
from tests.framework.cells import cell_of
from tests.framework.command_line import CommandLine

PLAN = """
schema = "guestmark-plan/1"
name = "sharing"
title = "Who shares a machine?"
platforms = ["uml"]
baseline = {{ workload = "zeroes" }}
compare_within = ["platform"]
[factors]
size = "32M"
filesystem = "ext2"
location = "/dev/shm"
[workloads.zeroes]
kind = "fill"
params.amount = "1M"
params.content = "zero"
[workloads.ones]
kind = "fill"
params.amount = "{amount}"
params.content = "one"
[workloads.copy]
kind = "dd"
params.amount = "1M"
[workloads.written]
kind = "filewrite"
params.amount = "1M"
[repetition]
blocks = 2
iterations = 1
warmup = 0
share_machine = true
"""


def run_plan(guestmark: CommandLine, folder: Path, amount: str) -> dict[str, list[dict[str, Any]]]:
    """Return the trials of each cell, by what the cell is called."""
    plan, document = folder / "plan.toml", folder / "result.json"
    plan.write_text(PLAN.format(amount=amount))
    guestmark("run", plan, "--json", document, "--quiet", timeout=200)
    found = json.loads(document.read_text())
    cells = (*found["cells"], *found["null_cells"])
    return {cell["id"]: [merge(cell["shared"], trial) for trial in cell["trials"]] for cell in cells}


def merge(common: Any, own: Any) -> Any:
    """Return a trial of a document with what it has in common with the cell's others."""
    if isinstance(common, dict) and isinstance(own, dict):
        return {key: merge(common.get(key), own.get(key)) for key in {**common, **own}}
    return common if own is None else own


def boots(trials: list[dict[str, Any]]) -> list[str]:
    return [trial["attestation"]["guest"]["boot_id"] for trial in trials]


@pytest.mark.usefixtures("guests_known")
def test_cells_of_a_block_boot_once_and_a_null_copy_boots_by_itself(
    guestmark: CommandLine, tmp_path: Path
) -> None:
    found = run_plan(guestmark, tmp_path, "1M")

    (null,) = [name for name in found if "#" in name]
    shared = [boots(trials) for name, trials in found.items() if name != null]
    assert len(shared) == 4
    assert all(each == shared[0] for each in shared)
    every = {*shared[0], *boots(found[null])}
    assert len(every) == 4
    positions = sorted(
        trials[0]["attestation"]["shared_position"] for name, trials in found.items() if name != null
    )
    assert positions == [1, 2, 3, 4]
    assert "shared_machine" not in found[null][0]["attestation"]
    assert found["written uml"][0]["attestation"]["asked"]["filesystem"] == "ext2"


@pytest.mark.usefixtures("guests_known")
def test_a_failed_trial_costs_itself_alone(guestmark: CommandLine, tmp_path: Path) -> None:
    found = run_plan(guestmark, tmp_path, "60M")

    assert {trial["status"] for trial in found["ones uml"]} == {"failed"}
    assert "do not fit" in found["ones uml"][0]["reason"]
    others = [trial for name, trials in found.items() if name != "ones uml" for trial in trials]
    assert {trial["status"] for trial in others} == {"ok"}


def plan_of_three(platform: str) -> Plan:
    first = cell_of(platform, "fill", {"size": "32M", "location": "/dev/shm"}, amount="1M", content="zero")
    cells = tuple(replace(first, id=f"cell {number}", factors={**first.factors}) for number in range(3))
    return Plan("test", cells, Policy(share_machine=True), ())


def find_boot(lease: Lease) -> str:
    """Return the boot of the machine, which shows a trial its own disk alone."""
    assert [disk.spec.role for disk in lease.machine.disks] == ["target"]
    return lease.machine.agent.hello().boot_id


def kill_in_use(taken: AbstractContextManager[Lease], before: str) -> None:
    with taken as lease:
        assert find_boot(lease) == before
        assert isinstance(lease.machine, Guest)
        assert lease.machine.vmm_pid is not None
        os.kill(lease.machine.vmm_pid, signal.SIGKILL)
        lease.machine.agent.sync()


@pytest.mark.parametrize("platform", ["uml", "tcg"])
def test_a_machine_that_dies_is_replaced_for_the_cells_that_are_left(platform: str) -> None:
    plan = plan_of_three(platform)
    first, second, third = plan.cells
    groups = group_cells(plan, plan.cells)
    assert groups == [plan.cells]
    machines = BlockMachines.make_for_block(groups, {cell.id for cell in plan.cells})

    def take(cell: Cell) -> Any:
        return machines.take_machine(
            workloads.create_trial(plan, cell), registry.get_platform(cell.platform), cell
        )

    with take(first) as lease:
        before = find_boot(lease)
    with pytest.raises(MachineError, match=r"the guest (was killed|ended)"):
        kill_in_use(take(second), before)
    with take(third) as lease:
        assert find_boot(lease) != before
        assert lease.shared is None
    machines.end()
