"""`--find`: slow runs that are to be found, how many blocks that takes, and what is said of it."""

import math
from dataclasses import replace

import numpy as np
import pytest

from guestmark.core.errors import UsageError
from guestmark.core.metric import Better
from guestmark.core.model import Plan, RunState, Trial
from guestmark.core.rare import Rare
from guestmark.engine.trial_schedule import count_iterations
from guestmark.stats import slow_run_power, stopping
from guestmark.stats.analysis import analyse_run
from guestmark.stats.cell_answers import SlowComparison, compare_slow_runs
from guestmark.stats.family import FAMILY_LEVEL, SLOW
from guestmark.stats.sensitivity import is_informative_about_slow_runs
from guestmark.stats.slow_run_power import (
    compute_power_to_find,
    count_blocks_to_find,
    count_blocks_to_see,
    find_detectable_share,
)
from guestmark.stats.tails import excess_counts_p
from guestmark.workloads.exec.plan import ExecOptions, build_plan
from tests.framework.preloaded import call as guestmark


def test_slow_runs_as_they_are_typed() -> None:
    assert Rare.parse("x2 in 5%") == Rare(2.0, 0.05)
    assert Rare.parse("×1.8 in 1 of 20") == Rare(1.8, 0.05)
    assert Rare.parse("x5 in 2% of starts") == Rare(5.0, 0.02, starts=True)
    assert Rare.parse("x2 in 5%").frequency_text == "1 of 20 runs"
    assert Rare.parse("x2 in 3% of starts").frequency_text == "3.00 % of starts"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2 in 5%",
        "x2",
        "x1.5 in 5%",
        "x2 in 60%",
        "x2 in 0%",
        "x2 in 1 of 0",
        "x2 in 5",
        "xinf in 5%",
        "x1..2 in 5%",
        "x2 in 0.01%",
    ],
)
def test_what_is_no_slow_run_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"slow run|share"):
        Rare.parse(text)


@pytest.mark.parametrize(
    ("blocks", "runs", "share", "background"),
    [(60, 3, 0.05, 0.0), (100, 3, 0.05, 0.02), (200, 1, 0.05, 0.02), (20, 15, 0.05, 0.0)],
)
def test_the_power_is_that_of_the_test_that_claims_slow_runs(
    blocks: int, runs: int, share: float, background: float
) -> None:
    """With slow runs on both sides the exact test also knows by how many, and may find up to a sixth more."""
    generator = np.random.default_rng(5)
    hits, sims = 0, 500
    for _ in range(sims):
        cell = generator.binomial(runs, 1 - (1 - share) * (1 - background), blocks)
        excess = cell - generator.binomial(runs, background, blocks)
        hits += excess_counts_p(excess) <= FAMILY_LEVEL * SLOW and excess.sum() > 0
    told = compute_power_to_find(share, blocks, runs, background=background)
    noise = 3 * math.sqrt(told * (1 - told) / sims)
    assert told - noise <= hits / sims <= told + noise + (0.16 if background else 0.0)


def test_blocks_shares_and_power_agree() -> None:
    for runs in (1, 4, 15):
        for background in (0.0, 0.02):
            blocks = count_blocks_to_find(0.05, runs, background=background)
            assert blocks is not None
            assert compute_power_to_find(0.05, blocks, runs, background=background) >= 0.9
            assert compute_power_to_find(0.05, blocks - 2, runs, background=background) < 0.91
            share = find_detectable_share(blocks, runs, background=background)
            assert share == pytest.approx(0.05, rel=0.06)
    more = count_blocks_to_find(0.05, 4, cells=10)
    assert more is not None
    assert more > (count_blocks_to_find(0.05, 4) or 0)
    assert find_detectable_share(7, 20) is None  # seven blocks cannot claim any
    assert 1 - 0.95 ** (3 * count_blocks_to_see(0.05, 3)) >= 0.9


def a_pair(find: str) -> Plan:
    return build_plan(ExecOptions(commands=[["new"]], timing=True, find=Rare.parse(find), seed=1), ["old"])


def trials_of(plan: Plan, blocks: int, slow: float) -> list[Trial]:
    from tests.framework.runs import constructed

    generator = np.random.default_rng(3)
    made = constructed([(cell, 1.0) for cell in plan.cells], blocks=blocks)
    trials = []
    for trial in made.trials:
        runs = 0.1 * np.exp(generator.normal(0, 0.01, 4))
        if trial.cell_id == plan.cells[1].id:
            runs *= np.where(generator.random(4) < slow, 2, 1)
        value = replace(trial.measurements[0], value=float(np.median(runs)), iterations=tuple(runs.tolist()))
        trials.append(replace(trial, measurements=(value,), run_s=tuple(runs.tolist()), duration_s=0.42))
    return trials


@pytest.mark.parametrize("slow", [0.0, 0.05])
def test_a_run_ends_when_they_would_have_been_found_whether_there_are_any_or_not(slow: float) -> None:
    plan = a_pair("x2 in 5%")
    assert plan.policy.enough_s is None
    assert not any(cell.null_of for cell in plan.cells)
    needed = count_blocks_to_find(0.05, 4)
    assert needed is not None
    for blocks, ended in ((12, False), (needed - 1, False), (needed, True)):
        trials = trials_of(plan, blocks, slow)
        found = stopping.decide(plan, trials, blocks, analyse_run(plan, trials))
        assert (found.state is RunState.COMPLETE) is ended
        assert found.goal == needed


def test_iterations_are_what_finds_them_soonest() -> None:
    trials = [
        replace(trial, run_s=(0.1,), duration_s=0.115) for trial in trials_of(a_pair("x2 in 5%"), 1, 0.0)
    ]
    plan = a_pair("x2 in 5%")
    chosen = count_iterations(plan, plan.cells[0], 1, trials)

    def seconds(runs: int) -> float:
        return (count_blocks_to_find(0.05, runs) or 0) * (0.015 + 0.1 * runs)

    assert seconds(chosen) == min(seconds(runs) for runs in range(1, 21))
    of_starts = replace(plan, policy=replace(plan.policy, find=Rare(2.0, 0.05, starts=True)))
    assert count_iterations(of_starts, plan.cells[0], 1, trials) == 1


def test_two_goals_and_what_cannot_be_are_refused() -> None:
    for more in ({"blocks": 10}, {"precision": 0.01}, {"quick": True}):
        with pytest.raises(UsageError):
            build_plan(ExecOptions(timing=True, find=Rare(2.0, 0.05), **more), ["true"])
    with pytest.raises(UsageError, match="requires guests"):
        build_plan(ExecOptions(find=Rare(2.0, 0.05, starts=True)), ["true"])
    done = guestmark("exec", "--find", "x1.2 in 5%", "--", "true")
    assert done.returncode == 2
    assert "--find" in done.stderr


def test_what_to_expect_is_said_from_the_fourth_block_on() -> None:
    plan = a_pair("x2 in 5%")
    for blocks in (2, 12):
        trials = trials_of(plan, blocks, 0.0)
        analysis = analyse_run(plan, trials)
        decision = stopping.decide(plan, trials, blocks, analysis)
        found = stopping.forecast_end(plan, trials, blocks, analysis, decision)
        if blocks < stopping.FEWEST_FOR_FORECAST:
            assert found is None
        else:
            assert found is not None
            assert found.rare_left_s == pytest.approx(found.left.most_s)
            assert found.left.least_s == found.left.most_s
            assert 0.001 < found.half_width < 0.02


@pytest.mark.parametrize("level", [0.05, 0.01, 0.001])
def test_the_sign_tests_critical_number_is_that_of_the_binomial(level: float) -> None:
    from scipy.stats import binom

    for blocks in (1, 5, 8, 9, 20, 61, 500, 1000, 1001):
        wanted = next(
            (k for k in range(blocks // 2, blocks + 1) if 2 * binom.sf(k - 1, blocks, 0.5) <= level),
            blocks + 1,
        )
        assert slow_run_power._sign_test_critical(blocks, level) == wanted


def test_a_pair_of_long_commands_does_not_speak_of_slow_runs() -> None:
    def compared(blocks: int, runs: int) -> SlowComparison:
        values = np.random.default_rng(1).normal(1, 0.01, (2, blocks, runs))
        return compare_slow_runs({"a": values[0], "b": values[1]}, "a", better=Better.LOWER, boots=False)["b"]

    assert not is_informative_about_slow_runs(compared(14, 2))
    assert not is_informative_about_slow_runs(compared(26, 1))
    assert is_informative_about_slow_runs(compared(26, 5))
    # Eight starts could show them only if all of the eight had some.
    assert not is_informative_about_slow_runs(compared(8, 8))
    assert is_informative_about_slow_runs(compared(20, 7))
