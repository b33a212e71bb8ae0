"""A run that is taken further is the same run: the same iterations, so that all of it is in its answers."""

import json
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from guestmark.core.metric import Measurement, Metric
from guestmark.core.model import Plan, Policy, RunState, Trial, TrialStatus
from guestmark.core.platform_spec import HOST
from guestmark.core.rare import Rare
from guestmark.engine.stored_run import ExtensionRequest, make_extended_plan
from guestmark.engine.trial_schedule import count_iterations
from guestmark.ledger.model import StoredRun
from guestmark.stats.estimands import arrange_iterations
from tests.framework.command_line import CommandLine
from tests.framework.runs import host_uml_tcg

WALL = Metric("wall_s", "s")
POLICIES = {
    "timed": Policy(enough_s=3.0, min_blocks=6),
    "precise": Policy(precision=0.02),
    "counted": Policy(blocks=5),
    "slow runs": Policy(find=Rare(2.0, 0.05)),
    "given": Policy(iterations=3),
}
FURTHER = [
    ExtensionRequest(blocks=12),
    ExtensionRequest(precision=0.001),
    ExtensionRequest(time_limit_s=600.0),
]


def measured(plan: Plan, blocks: range, before: Sequence[Trial] = (), run_s: float = 0.02) -> list[Trial]:
    """The trials of these blocks, with as many iterations as the run gives each."""
    trials = list(before)
    for block in blocks:
        for order, cell in enumerate(plan.cells):
            held = (run_s,) * count_iterations(plan, cell, block, trials)
            value = Measurement(WALL, run_s, held)
            trials.append(
                Trial(
                    cell.id,
                    block,
                    order,
                    TrialStatus.OK,
                    measurements=(value,),
                    run_s=held,
                    duration_s=sum(held) + 0.1,
                )
            )
    return trials


@pytest.mark.parametrize("started", [True, False], ids=["guests", "host"])
@pytest.mark.parametrize("done", [1, 2, 5])
@pytest.mark.parametrize("further", FURTHER, ids=["blocks", "precision", "time"])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_run_that_goes_on_keeps_its_iterations(
    policy: str, further: ExtensionRequest, done: int, started: bool
) -> None:
    run = host_uml_tcg()
    plan = replace(run.plan, policy=POLICIES[policy])
    if not started:
        plan = replace(plan, cells=tuple(replace(cell, platform=HOST) for cell in plan.cells))
    whole = measured(plan, range(14))
    half = [trial for trial in whole if trial.block < done]
    stored = replace(run, plan=plan, trials=tuple(half), state=RunState.STOPPED)
    assert measured(make_extended_plan(stored, further), range(done, 14), half) == whole
    again = _further(stored, further, whole, done)
    assert measured(again, range(done + 2, 14), [trial for trial in whole if trial.block < done + 2]) == whole


def _further(stored: StoredRun, further: ExtensionRequest, whole: Sequence[Trial], done: int) -> Plan:
    """Taken further twice."""
    once = replace(stored, plan=make_extended_plan(stored, further))
    once = replace(once, trials=tuple(trial for trial in whole if trial.block < done + 2))
    return make_extended_plan(once, ExtensionRequest(blocks=14))


def test_nothing_of_a_run_that_went_on_is_left_out(guestmark: CommandLine) -> None:
    """Its longer trials made those before it count for nothing: "slow runs 14 of 190" of 20 blocks."""
    first = guestmark(
        "exec", "--time-limit", "2s", "--json", "-", "--", "sleep", "0.01", "---", "sleep", "0.012"
    )
    done = len(json.loads(first.stdout)["cells"][0]["trials"])
    more = guestmark("resume", "last", "--blocks", done + 4, "--json", "-")
    trials = json.loads(more.stdout)["cells"][0]["trials"]
    held = {trial["block"]: len(trial["iterations"]["wall_s"]) for trial in trials}
    assert len(held) == done + 4
    assert len(set(list(held.values())[1:])) == 1, held


def test_what_is_left_out_of_answers_is_at_most_the_pilot() -> None:
    plan = replace(host_uml_tcg().plan, policy=POLICIES["timed"])
    trials = [trial for trial in measured(plan, range(10)) if trial.cell_id == plan.cells[0].id]
    matrix = arrange_iterations("wall_s", trials, {block: block for block in range(10)})
    assert matrix is not None
    assert (~np.isnan(matrix)).all(axis=1).sum() >= 9


@pytest.mark.parametrize(
    "further", [ExtensionRequest(blocks=500), *FURTHER[1:]], ids=["blocks", "precision", "time"]
)
def test_a_budget_that_is_used_up_begins_anew(further: ExtensionRequest) -> None:
    """Otherwise all cells are left out, and the run that was to go on ends at once."""
    run = host_uml_tcg()
    plan = replace(run.plan, context=replace(run.plan.context, budget_s=100.0, elapsed_s=99.0))

    extended = make_extended_plan(replace(run, plan=plan), further)

    assert extended.context.budget_s == 99.0 + (further.time_limit_s or 100.0)
    assert make_extended_plan(run, further).context.budget_s is None
