"""libguestfs that is missing, has no such guest, or does something else than it was told."""

import os
import shutil
from pathlib import Path

import pytest

from guestmark.core.model import Cell, CellStatus, Plan, Policy, WorkloadSpec
from guestmark.core.platform_spec import PlatformSpec
from guestmark.engine import preflight
from guestmark.platforms import registry
from guestmark.stats.analysis import analyse_run
from guestmark.workloads.base import create_trial, start_machine
from guestmark.workloads.guestfs import own_guest
from guestmark.workloads.guestfs import session as guestfs_session
from tests.framework.command_line import CommandLine, Result

PLAN = """name = "api"
title = "api"
platforms = ["{platform}"]
[workloads.guestfs-api]
params.rounds = 2
[repetition]
blocks = 2
warmup = 0
iterations = 1
null = "none"
"""
needs_guestfish = pytest.mark.skipif(shutil.which("guestfish") is None, reason="guestfish is not installed")


def run(guestmark: CommandLine, tmp_path: Path, platform: str, **environment: str) -> Result:
    guestmark.environment |= environment
    plan = tmp_path / "api.toml"
    plan.write_text(PLAN.format(platform=platform))
    return guestmark("run", plan, "--json", "-", timeout=120)


def test_a_missing_guestfish_is_said_with_its_package_before_anything_starts(
    guestmark: CommandLine, tmp_path: Path
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for folder in reversed(os.get_exec_path()):
        with os.scandir(folder) if os.path.isdir(folder) else os.scandir(programs) as entries:
            for entry in entries:
                link = programs / entry.name
                if entry.name != "guestfish" and not link.is_symlink():
                    link.symlink_to(entry.path)
    result = run(guestmark, tmp_path, "tcg", PATH=str(programs))
    assert result.status == 3
    assert "guestfish is not installed" in result.stderr
    assert "apt-get install guestfish" in result.stderr
    assert "block 1" not in result.stderr


@needs_guestfish
def test_libguestfs_without_user_mode_linux_is_said_beforehand_and_nothing_is_tried(
    guestmark: CommandLine, tmp_path: Path
) -> None:
    result = run(guestmark, tmp_path, "uml")
    reason = f"{own_guest.read_guestfish_version()} no longer has a backend for User-Mode Linux: invalid backend: uml"
    assert result.status == 3
    assert f"nothing can be measured here: uml: {reason}" in result.stderr
    assert "block 1" not in result.stderr


@needs_guestfish
def test_a_cell_that_can_never_be_filled_is_not_tried_and_another_becomes_the_baseline() -> None:
    cells = [
        Cell(
            name,
            WorkloadSpec("guestfs-api", {"rounds": 1}),
            PlatformSpec.read(name),
            {},
            baseline=name == "uml",
        )
        for name in ("uml", "tcg")
    ]
    plan = Plan("api", tuple(cells), Policy(), ())
    left_out = preflight.find_impossible_cells(plan.cells)
    assert [entry.cell for entry in left_out] == ["uml"]
    plan, notes = preflight.replace_unusable_baselines(plan, left_out)
    assert [(cell.id, cell.baseline) for cell in plan.cells] == [("uml", False), ("tcg", True)]
    assert any("everything is compared with tcg instead" in note for note in notes)
    (workload,) = analyse_run(plan, (), left_out).workloads
    assert [cell.status for cell in workload.cells] == [CellStatus.UNUSABLE, CellStatus.PENDING]
    assert "User-Mode Linux" in workload.cells[0].reason


@pytest.mark.long
@needs_guestfish
def test_a_session_in_the_real_guestfish() -> None:
    cell = Cell(
        "tcg", WorkloadSpec("guestfs-api", {"rounds": 1}), PlatformSpec.read("tcg"), {"memory": "512M"}
    )
    workload = create_trial(Plan("api", (cell,), Policy(trial_limit_s=200.0), ()), cell)
    with start_machine(workload, registry.get_platform("tcg"), cell) as machine:
        workload.prepare(machine)
        values = {measurement.metric.name: measurement.value for measurement in workload.run(machine)}
        calls = guestfs_session.count_calls(1)
        assert workload.facts.facts().kept["calls"] == calls
        assert values["rate"] == pytest.approx(calls / values["wall_s"])
        assert values["launch_s"] > 0
        assert any(
            "accel=tcg" in word or word == "tcg" for word in workload.facts.facts().kept["libguestfs_qemu"]
        )


def test_a_session_that_says_something_else_is_wrong() -> None:
    calls = guestfs_session.build_session_commands(3)
    assert len(calls) == guestfs_session.count_calls(3)
    assert guestfs_session.count_calls(16) > 300
    assert "printed 'ext4' 0 times" in guestfs_session.find_missing_output("", 0)
    assert "printed '05c6e" in guestfs_session.find_missing_output("ext4\n", 3)
