"""The whole rule on simulated hosts: false claims, coverage, power (bench/statistics/RESULTS.md has all of it).

Seeds are fixed, so these either always pass or always fail. Limits are what is wanted (.05, .93) plus what so few
simulated runs scatter; `python bench/statistics` prints the figures in full.
"""

import math
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench" / "statistics"))

from acceptance import (
    MARGIN,
    Outcome,
    Rule,
    candidates,
    false_positives_at_first_p,
    inside_the_floor,
    many_cells,
    whole_rule,
)
from scenarios import BY_NAME, SCENARIOS, TAILS

FEW, MANY = 200, 2_000
TAIL_NAMES = [scenario.name for scenario in TAILS]
# One of each kind of trouble; the others, and ten times the runs, are for `./test --long`.
REPRESENTATIVE = ["iid", "AR .8", "heavy tails", "10 % failures", "carry-over", *TAIL_NAMES]


def scatter(sims: int, rate: float) -> float:
    """Three standard errors of a rate."""
    return 3 * math.sqrt(rate * (1 - rate) / sims)


def check_equal_cells(outcome: Outcome, name: str, sims: int) -> None:
    assert outcome.typical.claims <= 0.05 + scatter(sims, 0.05)
    assert outcome.typical.share("covered") >= 0.93 - scatter(sims, 0.07)
    if name != "x2 in 10 % of iterations":  # there they are right
        assert outcome.slow.claims <= 0.05
    assert outcome.total.share("equal") == 0  # rare events cannot be excluded with so few blocks
    assert outcome.total.share("covered_with_unseen") >= 0.93
    if name not in TAIL_NAMES:
        assert outcome.total.claims <= 0.05 + scatter(sims, 0.05)
        assert outcome.total.share("covered") >= 0.93 - scatter(sims, 0.07)


@pytest.mark.parametrize("name", REPRESENTATIVE)
def test_equal_cells_are_seldom_called_different(name: str) -> None:
    check_equal_cells(whole_rule(BY_NAME[name], 0.0, FEW, 1), name, FEW)


@pytest.mark.long
@pytest.mark.parametrize("name", BY_NAME)
def test_equal_cells_are_seldom_called_different_anywhere(name: str) -> None:
    check_equal_cells(whole_rule(BY_NAME[name], 0.0, MANY, 2), name, MANY)


@pytest.mark.parametrize("name", ["iid", "x2 in 5 % of trials"])
def test_cells_at_the_margin_are_seldom_called_equal(name: str) -> None:
    outcome = whole_rule(BY_NAME[name], math.log1p(MARGIN), FEW, 3)
    assert outcome.typical.share("equal") <= 0.05 + scatter(FEW, 0.05)
    assert outcome.typical.share("covered") >= 0.93 - scatter(FEW, 0.07)


@pytest.mark.long
@pytest.mark.parametrize("name", BY_NAME)
def test_cells_at_the_margin_are_seldom_called_equal_anywhere(name: str) -> None:
    outcome = whole_rule(BY_NAME[name], math.log1p(MARGIN), MANY, 4)
    assert outcome.typical.share("equal") <= 0.05 + scatter(MANY, 0.05)


@pytest.mark.parametrize(
    "name", ["iid", "10 % failures", pytest.param("unequal durations", marks=pytest.mark.long)]
)
def test_a_large_ratio_is_known_after_eight_blocks_or_a_few_more(name: str) -> None:
    outcome = whole_rule(BY_NAME[name], math.log(5), FEW, 5)
    assert outcome.blocks < 9
    assert outcome.typical.share("slower") >= 0.97
    assert outcome.typical.share("covered") >= 0.93 - scatter(FEW, 0.07)
    assert outcome.total.share("covered") >= 0.93 - scatter(FEW, 0.07)


@pytest.mark.long
def test_a_large_ratio_is_covered_where_what_ran_before_matters() -> None:
    outcome = whole_rule(BY_NAME["carry-over"], math.log(5), MANY, 15)
    assert outcome.typical.share("covered") >= 0.93
    assert outcome.total.share("covered") >= 0.93
    assert outcome.typical.share("slower") >= 0.97


@pytest.mark.long
def test_a_cell_that_scatters_more_than_the_baseline_is_seldom_called_equal_at_the_margin() -> None:
    assert (
        whole_rule(BY_NAME["unequal variance"], math.log1p(MARGIN), MANY, 16).typical.share("equal") <= 0.05
    )


@pytest.mark.parametrize("sims", [FEW, pytest.param(MANY, marks=pytest.mark.long)])
def test_five_percent_are_seen_through_spikes_in_one_trial_of_ten(sims: int) -> None:
    outcome = whole_rule(BY_NAME["spikes"], math.log(1.05), sims, 6, Rule(blocks=20))
    assert outcome.typical.share("slower") >= 0.85 - scatter(sims, 0.15)


def test_a_guest_that_is_twice_as_slow_in_one_iteration_of_ten() -> None:
    outcome = whole_rule(BY_NAME["x2 in 10 % of iterations"], 0.0, FEW, 7)
    assert outcome.typical.share("equal") >= 0.85
    assert outcome.slow.share("slower") >= 0.9
    assert outcome.total.share("slower") >= 0.9
    assert outcome.slow.share("equal") == 0


@pytest.mark.parametrize("name", ["x2 in 5 % of trials", "x5 in 2 % of trials"])
@pytest.mark.parametrize("sims", [FEW // 2, pytest.param(MANY, marks=pytest.mark.long)])
def test_rare_slow_machines_are_never_called_equal_in_total(name: str, sims: int) -> None:
    outcome = whole_rule(BY_NAME[name], 0.0, sims, 8, Rule(blocks=40))
    assert outcome.total.share("equal") == 0
    assert outcome.total.share("covered_with_unseen") >= 0.93


def test_a_carry_over_takes_verdicts_back() -> None:
    outcome = whole_rule(BY_NAME["carry-over"], 0.0, FEW, 9, Rule(blocks=20))
    assert outcome.refused >= 0.9
    assert outcome.any_claim <= 0.05


def test_the_signed_rank_test_was_chosen_for_what_spikes_do_to_means() -> None:
    found = candidates(BY_NAME["spikes"], 20, MANY, 10)
    assert found["signed rank"].power > 0.85 > found["mean of logs, t"].power + 0.1
    assert found["signed rank"].false <= 0.06
    tail = candidates(BY_NAME["x2 in 5 % of trials"], 10, MANY, 11)
    assert tail["signed rank"].coverage >= 0.93
    assert tail["mean of logs, t"].coverage < 0.6
    quiet = candidates(BY_NAME["iid"], 10, MANY, 12)
    assert quiet["signed rank"].width < 1.15 * quiet["mean of logs, t"].width
    assert quiet["sign test"].width > 1.3 * quiet["signed rank"].width


def test_why_significance_never_stops_a_run() -> None:
    assert false_positives_at_first_p(FEW, 1) > 0.2


@pytest.mark.parametrize(
    ("slower", "cells", "metrics"),
    [(0, 10, 1), (2, 10, 1), (0, 2, 5)],
)
@pytest.mark.parametrize("sims", [FEW, pytest.param(MANY, marks=pytest.mark.long)])
def test_false_discoveries_among_cells_and_metrics(slower: int, cells: int, metrics: int, sims: int) -> None:
    family = many_cells(12, sims, 13, effect=0.05, slower=slower, cells=cells, metrics=metrics)
    assert family.fdr <= 0.05 + scatter(sims, 0.05) / 2
    assert family.uncorrected_any_false > 2 * family.any_false
    if slower:
        assert family.power > 0.9


@pytest.mark.long
@pytest.mark.parametrize("blocks", [10, 20])
def test_false_discoveries_among_40_cells(blocks: int) -> None:
    assert many_cells(blocks, MANY, blocks).fdr <= 0.05
    assert many_cells(blocks, MANY, blocks, slower=0).any_false <= 0.05 + scatter(MANY, 0.05)


def test_earlier_runs_teach_the_floor_what_one_run_cannot_know() -> None:
    alone, taught = (inside_the_floor(0.03, earlier, 12, 400, 14) for earlier in (0, 20))
    assert alone < 0.7
    assert taught >= 0.92
    assert inside_the_floor(0.0, 0, 12, 400, 15) >= 0.95 - scatter(400, 0.05)


def test_scenarios_have_names_of_their_own() -> None:
    assert len(BY_NAME) == len(SCENARIOS) + len(TAILS)
