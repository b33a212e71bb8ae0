"""What is found out before the first trial: workloads check the plan, and groups keep a baseline."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from guestmark.core import registry
from guestmark.core.context import Context
from guestmark.core.errors import GuestmarkError, UsageError
from guestmark.core.metric import Measurement, Metric
from guestmark.core.model import (
    Cell,
    LeftOut,
    Plan,
    Policy,
    Trial,
    TrialStatus,
    WorkloadSpec,
    select_runnable,
)
from guestmark.core.platform_spec import PlatformSpec
from guestmark.engine import preflight
from guestmark.engine.time_estimate import estimate_time
from guestmark.ledger import open_ledger
from guestmark.platforms.base import Platform, Unusable, Usable
from guestmark.stats.analysis import analyse_run
from guestmark.stats.stopping import decide
from guestmark.workloads.base import Workload
from tests.framework.command_line import CommandLine


class Roomy(Workload[Any]):
    """A workload that needs room for all its cells."""

    seen: tuple[str, ...] = ()
    error: GuestmarkError | None = None

    @classmethod
    def preflight(cls, plan: Plan, cells: Sequence[Cell]) -> Sequence[str]:
        cls.seen = tuple(cell.id for cell in cells)
        if cls.error is not None:
            raise cls.error
        return ["images take 4 GB", "images take 4 GB"]


class Tools(Roomy):
    """Another one."""


class Exec(Workload[Any]):
    """One that checks nothing."""


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch) -> Plan:
    kinds = {"roomy": Roomy, "tools": Tools, "exec": Exec}
    monkeypatch.setattr(registry, "workload_kind", kinds.__getitem__)
    monkeypatch.setattr(Roomy, "error", None)
    monkeypatch.setattr(Tools, "error", None)
    cells = tuple(
        Cell(
            f"{name} {platform}",
            WorkloadSpec(name),
            PlatformSpec.read(platform),
            baseline=name == "roomy",
            group=platform,
        )
        for name in ("roomy", "tools", "exec")
        for platform in ("host", "kvm")
    )
    return Plan("p", cells, Policy(blocks=4), (), Context(cost={"host": 2.0}))


def test_every_workload_sees_its_own_cells_that_can_be_measured(plan: Plan) -> None:
    cells = select_runnable(plan.cells, [LeftOut("kvm", "no KVM")])
    assert preflight.check_workloads(plan, cells) == ["images take 4 GB"]
    assert (Roomy.seen, Tools.seen) == (("roomy host",), ("tools host",))


def test_one_error_is_raised_as_it_is(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    error = GuestmarkError("no room", hint="8 GB are needed in /dev/shm")
    monkeypatch.setattr(Roomy, "error", error)
    with pytest.raises(GuestmarkError) as caught:
        preflight.check_workloads(plan, plan.cells)
    assert caught.value is error


def test_several_errors_are_told_at_once(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Roomy, "error", GuestmarkError("no room", hint="free some"))
    monkeypatch.setattr(Tools, "error", UsageError("mkfs.xfs is missing"))
    with pytest.raises(UsageError) as caught:
        preflight.check_workloads(plan, plan.cells)
    assert caught.value.hint.splitlines() == ["no room (free some)", "mkfs.xfs is missing"]


def test_a_group_without_its_baseline_gets_another_from_its_own(plan: Plan) -> None:
    cells = tuple(replace(cell, group="both", baseline=cell.id == "roomy kvm") for cell in plan.cells[:4])
    null = replace(cells[1], id="roomy kvm#2", baseline=False, null_of="roomy kvm")
    other = replace(plan.cells[4], group="alone", baseline=True)
    changed, notes = preflight.replace_unusable_baselines(
        replace(plan, cells=(*cells, null, other)), [LeftOut("kvm", "no KVM")]
    )
    baselines = [cell.id for cell in changed.cells if cell.baseline]
    assert baselines == ["roomy host", "exec host"]
    assert [(cell.id, cell.group) for cell in changed.cells if cell.null_of] == [("roomy host#2", "both")]
    assert "everything is compared with roomy host" in notes[0]


def test_time_is_what_it_took_here_before_else_what_the_plan_declares(plan: Plan, tmp_path: Path) -> None:
    alone = estimate_time(plan, None)
    assert (alone.seconds, alone.declared, alone.unknown, alone.measured) == (24.0, 3, 3, 0)
    assert alone.origin == "as declared by the plan, 3 cells of unknown cost not counted"
    with open_ledger(str(tmp_path / "ledger.sqlite")) as ledger:
        for scale, seconds in ((1.0, 5.0), (0.5, 100.0)):
            run = ledger.create_run(replace(plan, context=Context(scale=scale)), {}, 0)
            for block in range(2):
                ok = Trial("exec host", block, 0, TrialStatus.OK, duration_s=seconds + block)
                ledger.store_trial(run, ok)
                ledger.store_trial(run, replace(ok, cell_id="tools host", status=TrialStatus.FAILED))
        found = estimate_time(plan, ledger)
        assert (found.block_s, found.measured, found.declared) == (2 + 2 + 5.5, 1, 2)
        small = estimate_time(replace(plan, context=Context(scale=0.5)), ledger)
        assert (small.block_s, small.measured, small.unknown) == (100.5, 1, 5)


@pytest.mark.parametrize(
    ("policy", "block_s", "blocks", "expected"),
    [
        (Policy(blocks=4), 2.0, 4, "8 s for 4 blocks"),
        (Policy(min_blocks=10), 2.0, 10, "20 s to 6 min 40 s for 10 to 200 blocks"),
        (Policy(min_blocks=10), 30.0, 10, "5 min to 10 min 30 s for 10 to 21 blocks"),
        (Policy(min_blocks=10), 59.0, 10, "9 min 50 s to 10 min 49 s for 10 to 11 blocks"),
        (Policy(min_blocks=10), 240.0, 3, "12 min for 3 of 10 blocks: its time limit of 10 min ends it then"),
        (Policy(min_blocks=10), 6e3, 1, "1 h 40 min for 1 of 10 blocks: its time limit of 10 min ends it then"),
    ],
)  # fmt: skip
def test_an_expected_time_agrees_with_the_time_limit(
    plan: Plan, policy: Policy, block_s: float, blocks: int, expected: str
) -> None:
    """As many blocks are expected as `decide` lets happen."""
    wall = Metric("wall_s", "s")
    alone = Plan(
        "p", (replace(plan.cells[0], baseline=True),), policy, (wall,), Context(cost={"host": block_s})
    )
    found = estimate_time(alone, None)
    assert found.expectation == expected
    assert found.seconds == block_s * blocks
    (cell,) = alone.cells
    trials = [
        Trial(
            cell.id,
            number,
            0,
            TrialStatus.OK,
            measurements=(Measurement(wall, value, (value,)),),
            duration_s=block_s,
        )
        for number, value in enumerate((1.0, 9.0))
    ]
    never_precise = analyse_run(alone, trials)
    trials = trials[:1]
    while decide(alone, trials, len(trials), never_precise).state is None:
        trials.append(replace(trials[0], block=len(trials)))
    assert len(trials) == found.blocks_in_time


@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        ("memory-backing --on tcg,tcg/kvm --set thp=on", "tcg"),
        ("memory-backing --on tcg --set hugepages=off,1G", "hugepages=off"),
        ("density --on tcg --set memory=1T,256M", "memory=256M"),
    ],
)
def test_list_offers_no_cell_that_cannot_run(guestmark: CommandLine, typed: str, shown: str) -> None:
    """Of those that it leaves out it says why; those are what a run would leave out, too."""
    plan, *options = typed.split()
    done = guestmark("run", plan, *options, "--list")
    assert done.status == 0, done.stderr
    cells = [line.partition("  #")[0].split() for line in done.stdout.splitlines()]
    assert cells
    assert all(shown in words for words in cells)
    assert "cannot be measured here: " in done.stderr


def test_a_guest_that_takes_a_minute_to_start_is_not_started_to_see_whether_it_does() -> None:
    asked: list[str] = []

    def probe(platforms: Sequence[Platform]) -> dict[str, Usable | Unusable]:
        asked.extend(platform.name for platform in platforms)
        return {platform.name: Usable(1.0) for platform in platforms}

    cells = [
        Cell(name, WorkloadSpec("exec"), PlatformSpec.read(name), {"memory": "256M"})
        for name in ("tcg/tcg", "tcg/kvm", "tcg/tcg/uml")
    ]
    assert preflight.find_unusable_platforms(cells, probe) == ()
    assert asked == ["tcg/kvm"]


def test_what_such_a_guest_lacks_is_found_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    cell = Cell("it", WorkloadSpec("exec"), PlatformSpec.read("tcg/tcg/uml"), {"memory": "256M"})
    (left_out,) = preflight.find_unusable_platforms([cell], lambda _: {})
    assert "linux.uml is not installed" in left_out.reason


def test_list_of_nothing_that_can_run_ends_as_the_run_does(guestmark: CommandLine) -> None:
    for more in (["--list"], ["--blocks", "1", "-q"]):
        done = guestmark("run", "density", "--on", "tcg/kvm", "--set", "thp=on", *more)
        assert (done.status, done.stdout) == (3, "")
        assert "thp cannot be attested in a nested guest" in done.stderr
