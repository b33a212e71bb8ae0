"""What a ledger counts of a run, held against the same counted from all of its trials."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from guestmark.core.findings import Facts, MeasuredOn, add_fact
from guestmark.core.model import Cell, Plan, Policy, Trial, TrialStatus, WorkloadSpec
from guestmark.core.platform_spec import HOST
from guestmark.ledger import open_ledger, trial_counts
from guestmark.ledger.attempts import TrialAttempts, record_lost_attempts
from guestmark.ledger.store import Ledger
from tests.framework.ledgers import WALL
from tests.framework.marks import long
from tests.framework.postgresql import Server, postgresql

CELLS = ("a", "b", "c")
PLAN = Plan(
    "exec",
    tuple(Cell(name, WorkloadSpec("exec", {}, "true"), HOST, {}, name == "a") for name in CELLS),
    Policy(),
    (WALL,),
)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with postgresql() as running:
        yield running


@pytest.fixture(params=["file", "server"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ledger]:
    """A new file, or the server's, in which other tests' runs are."""
    where = tmp_path / "ledger.sqlite" if request.param == "file" else request.getfixturevalue("server").url
    with open_ledger(where) as made:
        yield made


def measured(cell: str, block: int, status: TrialStatus, machine: str) -> Trial:
    reason = "" if status is TrialStatus.OK else "it failed"
    return Trial(cell, block, 0, status, reason, facts=add_fact(Facts(), MeasuredOn(machine=machine)))


def filled(ledger: Ledger, seed: int, blocks: int) -> tuple[str, list[Trial]]:
    """A run some of whose blocks lack trials, of which some failed and some were lost; `c` never succeeds."""
    chance, run_id, stored = random.Random(seed), ledger.create_run(PLAN, {}, 1), list[Trial]()
    for block in chance.sample(range(blocks), blocks - 3):
        machine = chance.choice(["m1", "m2"])
        attempts = TrialAttempts(ledger, run_id, machine)
        for cell in CELLS:
            if chance.random() < 0.15:
                continue
            token = attempts.begin_trial(cell, block, 0)
            if cell != "c" and chance.random() < 0.1:
                record_lost_attempts(ledger, run_id, "gone", block=block)
                stored.append(measured(cell, block, TrialStatus.LOST, machine))
                continue
            good = cell != "c" and chance.random() < 0.8
            stored.append(measured(cell, block, TrialStatus.OK if good else TrialStatus.FAILED, machine))
            attempts.store_trial(stored[-1], token)
    return run_id, stored


@pytest.mark.parametrize("seed", [1, *(long(seed) for seed in (2, 3))])
def test_what_is_counted_is_what_the_trials_say(ledger: Ledger, seed: int) -> None:
    run_id, trials = filled(ledger, seed, 24)
    other, _ = filled(ledger, seed + 10, 24)  # which must not count
    assert other != run_id
    there = {(trial.block, trial.cell_id) for trial in trials}
    for cells in (CELLS, ("a", "b"), ("a",)):
        found = trial_counts.find_complete_blocks(ledger, run_id, cells)
        whole = {block for block in range(24) if all((block, cell) in there for cell in cells)}
        assert found.blocks == len(whole)
        for most in (0, 7, 24, 30):
            assert found.find_incomplete(most) == [block for block in range(most) if block not in whole]
    lost = {trial.block for trial in trials if trial.status is TrialStatus.LOST}
    assert trial_counts.count_blocks_with_losses(ledger, run_id) == len(lost)
    assert trial_counts.find_failing_cells(ledger, run_id, CELLS) == {
        "c": sum(trial.cell_id == "c" for trial in trials)
    }
    assert trial_counts.find_failing_cells(ledger, run_id, ("a", "b")) == {}
    last = max(trial.block for trial in trials)
    assert [trial_counts.has_reached_block(ledger, run_id, block) for block in (0, last, last + 1)] == [
        True,
        True,
        False,
    ]
    assert trial_counts.has_good_trial(ledger, run_id)
    for machine in ("m1", "m2"):
        mine = [trial for trial in trials if machine in repr(trial.facts)]
        good = {trial.cell_id for trial in mine if trial.status is TrialStatus.OK}
        assert trial_counts.find_cells_measured_on(ledger, run_id, machine) == good
        statuses = [trial.status for trial in mine]
        assert trial_counts.count_trials(ledger, run_id, machine) == trial_counts.TrialCounts(
            len({trial.block for trial in mine}), len(mine),
            statuses.count(TrialStatus.FAILED), statuses.count(TrialStatus.LOST),
        )  # fmt: skip
    assert trial_counts.count_trials(ledger, run_id).trials == len(trials)
    read = trial_counts.read_block_trials(ledger, run_id, last, ("c",))
    wanted = {(trial.block, trial.cell_id) for trial in trials if trial.block == last or trial.cell_id == "c"}
    assert {(trial.block, trial.cell_id) for trial in read} == wanted


def test_a_run_without_trials_lacks_every_block(ledger: Ledger) -> None:
    run_id = ledger.create_run(PLAN, {}, 1)
    assert trial_counts.find_complete_blocks(ledger, run_id, CELLS).find_incomplete(3) == [0, 1, 2]
    assert trial_counts.find_failing_cells(ledger, run_id, CELLS) == {}
    assert not trial_counts.has_good_trial(ledger, run_id)
    assert trial_counts.find_cells_measured_on(ledger, run_id, "m1") == frozenset()
    assert trial_counts.count_trials(ledger, run_id, "m1") == trial_counts.TrialCounts(0, 0, 0, 0)


def test_a_plan_is_changed_by_one_process_at_a_time(ledger: Ledger) -> None:
    """Iterations that two machines agree on at once must be those of one of them."""
    run_id = ledger.create_run(PLAN, {}, 1)

    def chosen(number: int, plan: Plan) -> Plan:
        if plan.context.iterations:
            return plan
        return replace(plan, context=replace(plan.context, iterations=dict.fromkeys(CELLS, number)))

    ledger.change_plan(run_id, lambda plan: chosen(5, plan))
    ledger.change_plan(run_id, lambda plan: chosen(7, plan))
    assert ledger.load_head(run_id).plan.context.iterations == dict.fromkeys(CELLS, 5)
    assert ledger.load_run(run_id).plan.context.iterations == dict.fromkeys(CELLS, 5)


def test_machines_that_come_at_once_are_all_recorded(ledger: Ledger) -> None:
    """Each environment has a place of its own; two that were given the same used to be an error for one of them."""
    run_id = ledger.create_run(PLAN, {"machine": "first"}, 1)
    names = [f"m{number}" for number in range(8)]

    def come(name: str) -> None:
        with open_ledger(ledger.where) as own:
            for _ in range(3):
                own.add_environment_of(run_id, {"machine": name}, "same", lambda _: True)

    with ThreadPoolExecutor(len(names)) as pool:
        list(pool.map(come, names))
    recorded = [each["machine"] for each in ledger.load_run(run_id).environments]
    assert sorted(recorded) == ["first", *names]
