"""What is found out before the first trial: workloads check the plan, and groups keep a baseline."""

from dataclasses import replace

import pytest

from guestmark.core import registry
from guestmark.core.errors import GuestmarkError, UsageError
from guestmark.core.model import Cell, LeftOut, Plan, Policy, Trial, TrialStatus, WorkloadSpec, runnable
from guestmark.core.platform_spec import PlatformSpec
from guestmark.core.workload_kind import WorkloadKind
from guestmark.experiment import preflight
from guestmark.experiment.estimate import estimate
from guestmark.ledger import open_ledger


class Roomy:
    """A workload that needs room for all its cells."""

    seen: tuple[str, ...] = ()
    error: GuestmarkError | None = None

    @classmethod
    def preflight(cls, plan, cells):
        cls.seen = tuple(cell.id for cell in cells)
        if cls.error is not None:
            raise cls.error
        return ["images take 4 GB", "images take 4 GB"]


class Tools(Roomy):
    """Another one."""


class Exec:
    """One that checks nothing."""


@pytest.fixture
def plan(monkeypatch):
    kinds = {
        name: WorkloadKind(name, "", params="", run=f"{__name__}:{run}", metrics=lambda _params: ())
        for name, run in (("roomy", "Roomy"), ("tools", "Tools"), ("exec", "Exec"))
    }
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
    return Plan("p", cells, Policy(blocks=4), (), {"cost": {"host": 2.0}})


def test_every_workload_sees_its_own_cells_that_can_be_measured(plan):
    cells = runnable(plan.cells, [LeftOut("kvm", "no KVM")])
    assert preflight.remarks_on(plan, cells) == ["images take 4 GB"]
    assert (Roomy.seen, Tools.seen) == (("roomy host",), ("tools host",))


def test_one_error_is_raised_as_it_is(plan, monkeypatch):
    error = GuestmarkError("no room", hint="8 GB are needed in /dev/shm")
    monkeypatch.setattr(Roomy, "error", error)
    with pytest.raises(GuestmarkError) as caught:
        preflight.remarks_on(plan, plan.cells)
    assert caught.value is error


def test_several_errors_are_told_at_once(plan, monkeypatch):
    monkeypatch.setattr(Roomy, "error", GuestmarkError("no room", hint="free some"))
    monkeypatch.setattr(Tools, "error", UsageError("mkfs.xfs is missing"))
    with pytest.raises(UsageError) as caught:
        preflight.remarks_on(plan, plan.cells)
    assert caught.value.hint.splitlines() == ["no room (free some)", "mkfs.xfs is missing"]


def test_a_group_without_its_baseline_gets_another_from_its_own(plan):
    cells = tuple(replace(cell, group="both", baseline=cell.id == "roomy kvm") for cell in plan.cells[:4])
    null = replace(cells[1], id="roomy kvm#2", baseline=False, null_of="roomy kvm")
    other = replace(plan.cells[4], group="alone", baseline=True)
    changed, notes = preflight.with_usable_baselines(
        replace(plan, cells=(*cells, null, other)), [LeftOut("kvm", "no KVM")]
    )
    baselines = [cell.id for cell in changed.cells if cell.baseline]
    assert baselines == ["roomy host", "exec host"]
    assert [(cell.id, cell.group) for cell in changed.cells if cell.null_of] == [("roomy host#2", "both")]
    assert "everything is compared with roomy host" in notes[0]


def test_time_is_what_it_took_here_before_else_what_the_plan_declares(plan, tmp_path):
    alone = estimate(plan, None)
    assert (alone.seconds, alone.declared, alone.unknown, alone.measured) == (24.0, 3, 3, 0)
    assert alone.origin == "as declared by the plan, 3 cells unknown and not counted"
    with open_ledger(str(tmp_path / "ledger.sqlite")) as ledger:
        for scale, seconds in ((1.0, 5.0), (0.5, 100.0)):
            run = ledger.create_run(replace(plan, context={"scale": scale}), {}, 0)
            for block in range(2):
                ok = Trial("exec host", block, 0, TrialStatus.OK, duration_s=seconds + block)
                ledger.append(run, ok)
                ledger.append(run, replace(ok, cell_id="tools host", status=TrialStatus.FAILED))
        found = estimate(plan, ledger)
        assert (found.block_s, found.measured, found.declared) == (2 + 2 + 5.5, 1, 2)
        small = estimate(replace(plan, context={"scale": 0.5}), ledger)
        assert (small.block_s, small.measured, small.unknown) == (100.5, 1, 5)
