"""Order, iterations, giving up, stopping: everything a run decides follows from the plan and its trials."""

import itertools
import math
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guestmark.core import registry
from guestmark.core.cause import Cause
from guestmark.core.errors import PlatformUnusableError, WorkloadError
from guestmark.core.metric import Better, Measurement, Metric
from guestmark.core.model import Cell, LeftOut, Plan, Policy, RunState, Trial, TrialStatus, WorkloadSpec
from guestmark.core.platform_spec import HOST, PlatformSpec, parse_platforms
from guestmark.engine import preflight
from guestmark.engine.trial import merge_iterations
from guestmark.engine.trial_schedule import count_iterations, find_missing_trials, order_cells
from guestmark.plan.matrix import NullCells, expand_workload
from guestmark.platforms.base import Unusable, Usable
from guestmark.stats import stopping
from guestmark.stats.analysis import analyse_run
from guestmark.stats.stopping import MOST_FAILURES, is_given_up, is_hopeless
from tests.framework.known import known
from tests.framework.runs import EXEC, constructed

WALL = Metric("wall_s", "s")


def make_plan(
    on: str = "host,uml", null: NullCells = NullCells.BASELINE, settings: Sequence[str] = (), **policy: Any
) -> Plan:
    matrix = expand_workload(
        WorkloadSpec("exec", {"argv": ["true"]}),
        parse_platforms([on]),
        registry.parse_settings(settings),
        null=null,
    )
    return Plan("exec", matrix.cells, Policy(**policy), (WALL,))


def good(cell: str, block: int, value: float = 1.0, duration: float = 2.0) -> Trial:
    return Trial(
        cell,
        block,
        0,
        TrialStatus.OK,
        measurements=(Measurement(WALL, value, (value,)),),
        duration_s=duration,
    )


def bad(cell: str, block: int) -> Trial:
    return Trial(cell, block, 0, TrialStatus.FAILED, reason="x", duration_s=2.0)


def decide(plan: Plan, trials: Sequence[Trial], blocks: int) -> stopping.Decision:
    return stopping.decide(plan, trials, blocks, analyse_run(plan, trials, metrics={"wall_s"}))


# --- order ---


@given(st.integers(0, 2**64), st.integers(0, 1000), st.integers(1, 12))
def test_a_block_holds_every_cell_once_in_an_order_of_its_own(seed: int, block: int, count: int) -> None:
    cells = make_plan(",".join(["host"] * count)).cells
    order = order_cells(seed, block, cells)
    assert sorted(cell.id for cell in order) == sorted(cell.id for cell in cells)
    assert order == order_cells(seed, block, cells)


def test_turns_do_not_fall_together_with_machines_that_share_a_run() -> None:
    """Dealt to two machines in turn, A B B A would give each machine one of the orders alone."""
    cells = make_plan("host,host").cells
    for first in (0, 1):
        orders = Counter(order_cells(7, block, cells, chained=False)[0].id for block in range(first, 400, 2))
        assert min(orders.values()) > 70, orders


def test_every_order_comes_up_about_equally_often() -> None:
    cells = make_plan("host,host,host").cells
    counts: dict[tuple[str, ...], int] = {}
    for block in range(6000):
        order = tuple(cell.id for cell in order_cells(5, block, cells))
        counts[order] = counts.get(order, 0) + 1
    assert len(counts) == 6
    assert all(850 < count < 1150 for count in counts.values())  # 5 sigma around 1000


@pytest.mark.parametrize("count", [2, 3, 5])
def test_a_cell_runs_as_often_after_itself_as_after_each_other_one(count: int) -> None:
    cells = make_plan(",".join(["host"] * count)).cells
    ran = [cell.id for block in range(8000) for cell in order_cells(7, block, cells)]
    pairs = Counter(itertools.pairwise(ran))
    assert len(pairs) == count**2
    assert all(abs(found / len(ran) * count**2 - 1) < 0.15 for found in pairs.values()), pairs


@given(st.integers(0, 99), st.sets(st.integers(0, 3)))
def test_what_is_missing_keeps_its_place(seed: int, done: set[int]) -> None:
    cells = make_plan("host,host,host,host").cells
    everything = list(find_missing_trials(seed, 0, cells, {}))
    ended = {(0, cell.id): good(cell.id, 0) for position, cell in everything if position in done}
    assert list(find_missing_trials(seed, 0, cells, ended)) == [
        placed for placed in everything if placed[0] not in done
    ]


# --- iterations ---


def piloted(cell_id: str, run_s: float, block: int = 0, start_s: float = 1.0) -> Trial:
    """A good trial of the first block: one warm-up and one iteration."""
    return replace(good(cell_id, block, duration=start_s + 2 * run_s), run_s=(run_s, run_s))


def test_the_first_block_is_the_pilot() -> None:
    plan = make_plan("host,uml")
    assert {count_iterations(plan, cell, 0, [piloted("host", 0.01)]) for cell in plan.cells} == {1}


def test_cells_that_are_compared_hold_the_same_number_of_iterations() -> None:
    plan = make_plan("host,uml,tcg")
    pilots = [piloted("host", 0.02, start_s=0.05), piloted("uml", 0.2), piloted("tcg", 0.4)]
    numbers = {count_iterations(plan, cell, block, pilots) for cell in plan.cells for block in (1, 7)}
    assert len(numbers) == 1
    assert numbers.pop() > 1
    quick = [piloted("host", 1e-4), piloted("uml", 1e-4), piloted("tcg", 1e-4)]
    slow = [piloted("host", 60.0), piloted("uml", 60.0), piloted("tcg", 60.0)]
    assert count_iterations(plan, plan.cells[0], 1, quick) > 5
    assert count_iterations(plan, plan.cells[0], 1, slow) == 1


def test_the_number_of_iterations_does_not_change_with_later_trials() -> None:
    plan = make_plan("host,uml")
    pilots = [piloted("host", 0.02), piloted("uml", 0.2)]
    later = [piloted("host", 9.0, block=1), piloted("uml", 9.0, block=1)]
    chosen = count_iterations(plan, plan.cells[0], 1, pilots)
    assert count_iterations(plan, plan.cells[0], 2, [*pilots, *later]) == chosen


@given(st.floats(0.001, 5.0), st.floats(0.001, 20.0), st.floats(10.0, 2000.0))
def test_the_blocks_of_an_answer_fit_into_a_budget(quick_s: float, slow_s: float, budget_s: float) -> None:
    """The quickest cell sets the number of iterations, for which the slowest one needs the time, too."""
    plan = make_plan("host,host")
    pilots = [
        piloted(cell.id, run_s, start_s=0.3)
        for cell, run_s in zip(plan.cells, (quick_s, slow_s), strict=True)
    ]
    within = replace(plan, context=replace(plan.context, budget_s=budget_s))
    free, chosen = (count_iterations(each, plan.cells[0], 1, pilots) for each in (plan, within))
    assert 1 <= chosen <= free
    block_s = 0.6 + chosen * (quick_s + slow_s)
    assert chosen == 1 or 6 * block_s <= 0.7 * budget_s


def test_what_failed_in_the_first_block_leaves_the_choice_to_the_others() -> None:
    plan = make_plan("host,uml")
    assert count_iterations(plan, plan.cells[0], 1, [bad("host", 0), bad("uml", 0)]) == 1
    assert count_iterations(plan, plan.cells[0], 1, [bad("host", 0), piloted("uml", 0.001)]) > 1


def test_a_number_given_by_hand_holds_from_the_first_block_on() -> None:
    plan = make_plan("host,uml")
    plan = replace(plan, policy=replace(plan.policy, iterations=4))
    assert {count_iterations(plan, cell, 0, []) for cell in plan.cells} == {4}


def test_a_run_begun_by_an_older_version_goes_on_as_it_was_begun() -> None:
    plan = make_plan("host,uml")
    trial = Trial("uml", 0, 0, TrialStatus.OK, measurements=(Measurement(WALL, 1.0, (1.0, 1.0, 1.0)),))
    uml = next(cell for cell in plan.cells if cell.id == "uml")
    assert count_iterations(plan, uml, 1, [trial]) == 3


def test_a_trial_is_reduced_to_its_typical_iteration() -> None:
    rate = Metric("rate", "1/s", Better.HIGHER)
    rounds = [[Measurement(WALL, v, (v,)), Measurement(rate, v, (v,))] for v in (1.0, 2.0, 9.0)]
    wall, per_second = merge_iterations(rounds)
    assert (wall.value, per_second.value, wall.iterations) == (2.0, 2.0, (1.0, 2.0, 9.0))


def test_a_metric_that_an_iteration_lacks_is_an_error() -> None:
    with pytest.raises(WorkloadError, match="1 of 2 iterations"):
        merge_iterations([[Measurement(WALL, 1.0, (1.0,))], []])


# --- giving up ---


def test_a_cell_is_given_up_only_when_it_never_succeeded() -> None:
    assert not is_given_up([])
    assert not is_given_up([bad("a", block) for block in range(MOST_FAILURES - 1)])
    assert is_given_up([bad("a", block) for block in range(MOST_FAILURES)])
    assert not is_given_up([good("a", 0), *(bad("a", block) for block in range(1, 9))])


def test_a_run_of_which_nothing_works_is_over_early() -> None:
    """After one block of many cells, after three of one; what may pass by itself is tried again."""
    for cells in (["a"], ["a", "b"], list("abcdefgh")):
        first = [bad(cell, 0) for cell in cells]
        assert is_hopeless(cells, first) == (len(cells) >= MOST_FAILURES)
        every = [bad(cell, block) for block in range(MOST_FAILURES) for cell in cells]
        assert is_hopeless(cells, every)
        assert not is_hopeless(cells, [*every, good("a", 3)])
        assert not is_hopeless([*cells, "other"], every)
        assert not is_hopeless(cells, [replace(trial, cause=Cause.LATE) for trial in every])
        assert not is_hopeless(cells, [replace(trial, status=TrialStatus.LOST) for trial in every])


# --- stopping ---


def noisy(plan: Plan, blocks: int, spread: float, seed: int = 1) -> list[Trial]:
    chance = random.Random(seed)
    return [
        good(cell.id, block, math.exp(chance.gauss(0, spread)))
        for block in range(blocks)
        for cell in plan.cells
    ]


def test_a_fixed_number_of_blocks_is_kept_to() -> None:
    plan = make_plan(blocks=3, time_limit_s=0.1)
    assert decide(plan, noisy(plan, 2, 0.5), 2).state is None
    assert decide(plan, noisy(plan, 3, 0.5), 3).state is RunState.COMPLETE


def test_not_before_eight_blocks_however_precise() -> None:
    plan = make_plan(precision=0.02, time_limit_s=1e9)
    assert decide(plan, noisy(plan, 7, 0.0001), 7).state is None
    assert decide(plan, noisy(plan, 8, 0.0001), 8).state is RunState.COMPLETE


def test_on_until_precise_then_never_on_significance() -> None:
    plan = make_plan(precision=0.02, time_limit_s=1e9)
    decision = decide(plan, noisy(plan, 12, 0.1), 12)
    assert decision.state is None
    assert known(decision.goal) > 12

    def slower(factor: float) -> list[Trial]:
        return [
            good(t.cell_id, t.block, t.measurements[0].value * (factor if t.cell_id == "uml" else 1))
            for t in noisy(plan, 12, 0.1)
        ]

    assert decide(plan, slower(1.5), 12).state is None  # significant, but not precise
    assert decide(plan, slower(9), 12).state is RunState.COMPLETE  # known to a small part of what it is


def test_on_while_slow_runs_are_seen_that_so_few_blocks_cannot_call() -> None:
    plan = make_plan(precision=0.02, time_limit_s=1e9)

    def trials(blocks: int, slow_blocks: Iterable[int]) -> list[Trial]:
        return [
            replace(trial, measurements=(Measurement(WALL, 1.0, (1.0, 1.0, 2.2 if hit else 1.0)),))
            for trial in noisy(plan, blocks, 0.0001)
            for hit in [trial.cell_id == "uml" and trial.block in slow_blocks]
        ]

    assert decide(plan, trials(10, {3}), 10).state is RunState.COMPLETE  # once is no pattern
    going_on = decide(plan, trials(10, {3, 7}), 10)
    assert going_on.state is None
    assert going_on.goal == 20
    assert (
        decide(plan, trials(10, {0, 1, 2, 3, 4, 5, 7, 9}), 10).state is RunState.COMPLETE
    )  # called: 8 against 0
    assert decide(plan, trials(20, {3, 7}), 20).state is RunState.COMPLETE  # as many as it is worth


def test_the_time_limit_ends_a_run_between_blocks() -> None:
    plan = make_plan(precision=0.0001, time_limit_s=100.0)  # a block costs 6 s
    assert decide(plan, noisy(plan, 15, 0.1), 15).state is None
    assert decide(plan, noisy(plan, 17, 0.1), 17).state is RunState.STOPPED


def test_the_number_of_blocks_is_bounded() -> None:
    plan = make_plan(precision=0.0001, time_limit_s=1e9, max_blocks=12)
    assert decide(plan, noisy(plan, 12, 0.1), 12).state is RunState.STOPPED


def test_cells_that_are_given_up_do_not_keep_a_run_alive() -> None:
    plan = make_plan(precision=0.02, time_limit_s=1e9)
    trials = [bad(t.cell_id, t.block) if t.cell_id == "uml" else t for t in noisy(plan, 10, 0.0001)]
    trials = [t for t in trials if t.status is TrialStatus.OK or t.block < MOST_FAILURES]
    assert decide(plan, trials, 10).state is RunState.COMPLETE


def test_a_single_cell_is_measured_until_its_mean_is_precise() -> None:
    plan = make_plan("host", null=NullCells.NONE, precision=0.02, time_limit_s=1e9)
    assert decide(plan, noisy(plan, 10, 0.0001), 10).state is RunState.COMPLETE
    assert decide(plan, noisy(plan, 10, 0.5), 10).state is None


def test_the_cost_of_a_block() -> None:
    trials = [good("a", 0, duration=1), good("a", 1, duration=3), good("b", 0, duration=5)]
    assert stopping.estimate_block_cost(trials) == 8  # the pilot of a has fewer iterations than what follows


# --- before the run ---


def prober(**answers: Usable | Unusable) -> preflight.Probe:
    return lambda platforms: {platform.name: answers[platform.name] for platform in platforms}


def test_unusable_platforms_are_found_and_the_host_is_really_tried() -> None:
    found = preflight.find_unusable_platforms(
        make_plan("host,uml,tcg").cells, prober(uml=Unusable("no", "try"), tcg=Usable(1.0))
    )
    assert found == (LeftOut("uml", "no", "try"),)


def test_a_foreign_architecture_is_tried_like_any_other() -> None:
    answers = {"tcg@arm64": Unusable("no", "try")}
    found = preflight.find_unusable_platforms(make_plan("host,tcg@arm64").cells, prober(**answers))
    assert found == (LeftOut("tcg@arm64", "no", "try"),)


def test_the_first_usable_cell_becomes_the_baseline_with_a_null_copy() -> None:
    plan, notes = preflight.replace_unusable_baselines(make_plan("kvm,uml,tcg"), [LeftOut("kvm", "no")])
    assert [cell.id for cell in plan.cells if cell.baseline] == ["uml"]
    assert [cell.null_of for cell in plan.cells if cell.id == "uml#2"] == ["uml"]
    assert "compared with uml instead" in notes[0]


def test_nothing_changes_when_the_baseline_is_usable() -> None:
    plan = make_plan("host,kvm")
    assert preflight.replace_unusable_baselines(plan, [LeftOut("kvm", "no")]) == (plan, [])


def test_all_reasons_are_given_when_nothing_is_left() -> None:
    with pytest.raises(PlatformUnusableError) as caught:
        preflight.replace_unusable_baselines(
            make_plan("kvm,uml"), [LeftOut("kvm", "a", "b"), LeftOut("uml", "c", "b")]
        )
    assert "kvm: a" in caught.value.message
    assert "uml: c" in caught.value.message
    assert caught.value.hint == "b"


def test_a_block_with_a_failed_trial_is_none_of_the_fewest() -> None:
    """One of 8 failed, and 7 are left to judge by: too many of those that ended so were narrow by luck."""
    cells = (Cell("host", EXEC, HOST, {}, True), Cell("uml", EXEC, PlatformSpec.read("uml")))
    for failing, state in (((), RunState.COMPLETE), ((("uml", 3),), None)):
        run = constructed([(cells[0], 1.0), (cells[1], 2.0)], blocks=8, failing=failing)
        plan = replace(run.plan, policy=replace(run.plan.policy, blocks=None, min_blocks=8, fine_s=0.0))
        assert decide(plan, run.trials, 8).state is state


def test_what_passes_between_two_trials_counts_as_harness() -> None:
    plan = make_plan("host", enough_s=6.0)
    first, second = (
        replace(piloted(cell.id, 0.01, start_s=0.01), order=at) for at, cell in enumerate(plan.cells)
    )
    chosen = []
    for pause_s in (0.0, 0.005, 60.0):
        later = replace(second, started_at=first.started_at + first.duration_s + pause_s)
        chosen.append(count_iterations(plan, plan.cells[0], 1, [first, later]))
    # A pause of a minute is an interruption.
    assert chosen == [9, 14, 9]
