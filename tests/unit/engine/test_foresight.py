"""What earlier runs in the ledger say before a run begins: how trials scatter, and what to expect."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from guestmark.core.model import Cell, Plan, RunState, Trial
from guestmark.core.platform_spec import HOST, PlatformSpec
from guestmark.engine.forecast import RunForecast, forecast_run
from guestmark.engine.trial_schedule import count_iterations
from guestmark.ledger import open_ledger
from guestmark.ledger.run_history import analyse_with_history, store_ratios
from guestmark.ledger.store import Ledger
from guestmark.stats.repetition import Pilot, choose_iterations
from tests.framework.known import known
from tests.framework.runs import EXEC, constructed
from tests.unit.stats.test_history import ENVIRONMENT

CELLS = (Cell("host", EXEC, HOST, {}, True), Cell("uml", EXEC, PlatformSpec.read("uml"), {}, processors=1))
START_S, RUN_S, RUNS = 2.0, 0.1, 5


def measured(ledger: Ledger, within: float, between: float, blocks: int = 24) -> Plan:
    """Stores a run whose trials scatter so; its plan."""
    generator = np.random.default_rng(2)
    copy = replace(Cell("host#2", EXEC, HOST), null_of="host")
    made = constructed([(CELLS[0], 1.0), (CELLS[1], 2.0), (copy, 1.0)], blocks=blocks)
    run_id = ledger.create_run(made.plan, ENVIRONMENT, 1)
    for trial in made.trials:
        level = RUN_S * np.exp(generator.normal(0, between))
        runs = level * np.exp(generator.normal(0, within, RUNS))
        value = replace(trial.measurements[0], value=float(np.median(runs)), iterations=tuple(runs.tolist()))
        ledger.store_trial(run_id, replace(trial, measurements=(value,), run_s=tuple(runs.tolist())))
    ledger.set_run_state(run_id, RunState.COMPLETE)
    plan = replace(made.plan, context=replace(made.plan.context, elapsed_s=40.0))
    ledger.set_plan(run_id, plan)
    stored = ledger.load_run(run_id)
    store_ratios(ledger, stored, analyse_with_history(ledger, stored))
    return plan


@pytest.mark.parametrize(("within", "between"), [(0.04, 0.01), (0.01, 0.04)])
def test_iterations_follow_from_what_earlier_runs_scattered_by(
    tmp_path: Path, within: float, between: float
) -> None:
    with open_ledger(tmp_path / "ledger.sqlite") as ledger:
        plan = measured(ledger, within, between)
        found = known(forecast_run(plan, ledger, ENVIRONMENT))
        ratio = known(found.within)
        assert ratio == pytest.approx((within / between) ** 2, rel=0.9)
        assert (ratio > 1) is (within > between)
        assert "in about 40 s, as in 1 earlier run here" in found.sentence
        new = replace(plan, context=replace(plan.context, within=ratio))
        pilots = [pilot(cell) for cell in CELLS]
        usual, chosen = (count_iterations(each, CELLS[0], 1, pilots) for each in (plan, new))
        assert (chosen > usual) is (within > between)
        other = replace(
            plan, cells=tuple(replace(cell, workload=replace(EXEC, name="disk")) for cell in CELLS)
        )
        assert forecast_run(other, ledger, ENVIRONMENT) is None  # another workload altogether
        alike = replace(EXEC, params={**EXEC.params, "command": ["another"]})
        kin = known(
            forecast_run(
                replace(plan, cells=tuple(replace(cell, workload=alike) for cell in CELLS)),
                ledger,
                ENVIRONMENT,
            )
        )
        assert kin.within == found.within
        assert not kin.sentence  # how well another command was known says nothing of this one
        assert forecast_run(plan, ledger, {**ENVIRONMENT, "machine": "another"}) is None


def pilot(cell: Cell) -> Trial:
    made = constructed([(cell, 1.0)], blocks=1).trials[0]
    return replace(made, run_s=(RUN_S,), duration_s=START_S + RUN_S)


def test_few_starts_teach_nothing_and_the_host_alone_is_not_looked_up(tmp_path: Path) -> None:
    with open_ledger(tmp_path / "ledger.sqlite") as ledger:
        plan = measured(ledger, 0.04, 0.01, blocks=8)
        assert known(forecast_run(plan, ledger, ENVIRONMENT)).within is None
        assert forecast_run(replace(plan, cells=(CELLS[0],)), ledger, ENVIRONMENT) is None
    assert RunForecast(2).sentence == ""


def test_equal_variances_choose_what_they_always_did() -> None:
    pilots = {"a": Pilot(2.0, 0.1), "b": Pilot(2.5, 0.12)}
    chosen = [choose_iterations(pilots, 1, within=within) for within in (1 / 16, 0.5, 1.0, 2.0, 16.0)]
    assert chosen == sorted(chosen)
    assert chosen[2] == choose_iterations(pilots, 1)
    assert chosen[0] < chosen[2] < chosen[4]
