"""The whole rule on simulated hosts: false claims, coverage, power (bench/statistics/RESULTS.md has all of it).

Seeds are fixed, so these either always pass or always fail. Error rates are examined run by run until it is known
whether they keep their limit or are twice as high (`bench/statistics/sequential.py`); other limits are what is wanted
plus what so few simulated runs scatter. `python bench/statistics` prints the figures in full.
"""

import math
import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "bench" / "statistics"))

import drawn
import forecasts
from acceptance import candidates, false_positives_at_first_p, inside_the_floor, many_cells
from scenarios import BY_NAME, MODES, SCENARIOS, TAILS
from sequential import examine_rates
from shipped import CASES, Case, Counts, Truth, simulate_runs

from guestmark.core.model import Policy
from guestmark.stats import family
from tests.framework.marks import long, thorough

FEW, MANY = 120, 1_000
SOME = 40  # of whole runs, which take longer
# Of cells with two modes and of tables of 12 cells these few stand for all, which `bench/statistics` simulates.
MODAL = [
    "guest: x2 in 45% of runs, alike",
    "guest: x5 in 60% of starts, alike",
    "timed pair, 20 ms: x2 in 45% of starts, alike",
    "timed pair, 20 ms: x1.2 in 30% of runs, alike",
]
EQUAL = [
    name
    for name, case in CASES.items()
    if case.equal and not case.more and (case.scenario not in MODES or name in MODAL)
]
UNLIKE = [name for name, case in CASES.items() if not case.equal]


def tried(name: str) -> Any:
    """Leave to the thorough run what is tried at 20 ms, too, and the kind of cells that takes longest by far."""
    alike = name.replace("100 ms", "20 ms")
    is_left = (alike != name and alike in CASES) or name == "guest: switching in blocks"
    return (thorough if is_left else long)(name)


EACH, TOGETHER = (
    24,
    0.026,
)  # runs of each kind, and the share of them that claimed something when this was written
# The others are for `./test --long`.
REPRESENTATIVE = ["guest: unequal variance"]
CLAIMS, UNCOVERED, EQUAL_CALLED = 0.05, 0.07, 0.05  # error rates that are promised


def scatter(sims: int, rate: float) -> float:
    """Three standard errors of a rate."""
    return 3 * math.sqrt(rate * (1 - rate) / sims)


# Two standard errors: a rule that is twice as lax claims in .044, which 95 % of such examinations find.
TOGETHER_AT_MOST = TOGETHER + scatter(EACH * len(EQUAL), TOGETHER) * 2 / 3


def broken_promises(case: Case, seed: int) -> list[str]:
    """The error rates of equal cells that are not kept, each with what was found."""
    limits = {"claims": CLAIMS, "not covered": UNCOVERED, "total not covered": UNCOVERED}

    def outcome(number: int) -> dict[str, bool]:
        found = simulate_runs(case, 1, seed, number)
        if not found.runs:
            return {}
        return {
            "claims": bool(found.found["with secondary"]),
            "not covered": not found.found["covered"],
            "total not covered": not found.found["total covered"],
        }

    return [f"{name}: {test}" for name, test in examine_rates(limits, outcome).items() if not test.kept]


@pytest.mark.parametrize("name", [name if name in REPRESENTATIVE else tried(name) for name in EQUAL])
def test_a_report_of_equal_cells_seldom_claims_anything(name: str) -> None:
    assert broken_promises(CASES[name], 2) == []


@pytest.mark.parametrize("factor", [1, 2])
def test_a_doubled_error_rate_is_found_in_nine_of_ten(factor: int) -> None:
    """The examination itself, on rates that are known."""
    chance, examined = random.Random(1), 400
    called_broken = 0
    for _ in range(examined):
        tests = examine_rates({"it": CLAIMS}, lambda _: {"it": chance.random() < factor * CLAIMS})
        called_broken += not tests["it"].kept
    if factor == 1:
        assert called_broken <= 2  # one in a thousand
    else:
        assert called_broken >= 0.9 * examined


def claims_of_equal_cells(runs: int) -> float:
    """The share of reports with a claim, over all kinds of equal cells: `runs` of each, with draws of their own."""
    kinds = (simulate_runs(CASES[name], runs, 100 + number) for number, name in enumerate(EQUAL))
    return sum(kinds, Counts()).share("with secondary")


@pytest.mark.long
@pytest.mark.timeout(900)
def test_equal_cells_together_claim_no_more_than_they_did() -> None:
    """Most kinds stay well below what is promised: that would hide a rule that has become twice as lax."""
    assert claims_of_equal_cells(EACH) <= TOGETHER_AT_MOST


@pytest.mark.long
@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_a_rule_that_is_twice_as_lax_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    lax = 2 * family.FAMILY_LEVEL
    monkeypatch.setattr(family, "FAMILY_LEVEL", lax)
    monkeypatch.setattr(family.select_claimable_questions, "__defaults__", (lax,))
    assert claims_of_equal_cells(EACH) > TOGETHER_AT_MOST


@pytest.mark.long
@pytest.mark.parametrize("name", ["guest: +5 %, carry-over", "guest: +5 %"])
def test_five_percent_are_found_also_where_what_ran_before_matters(name: str) -> None:
    found = simulate_runs(CASES[name], SOME, 3)
    assert found.share("typical slower") >= 0.95 - scatter(found.runs, 0.05)
    assert found.share("covered") >= 0.93 - scatter(found.runs, 0.07)


@pytest.mark.long
def test_five_percent_are_seen_through_spikes_in_one_trial_of_ten() -> None:
    case = replace(CASES["guest: +5 %, spikes"], policy=Policy(blocks=20))
    assert simulate_runs(case, SOME, 6).share("typical slower") >= 0.85 - scatter(SOME, 0.15)


@pytest.mark.parametrize("name", list(map(tried, UNLIKE)))
def test_cells_that_differ_somewhere_are_seldom_called_equal(name: str) -> None:
    def outcome(number: int) -> dict[str, bool]:
        found = simulate_runs(CASES[name], 1, 4, number)
        return {"called equal": bool(found.found["typical no difference"])} if found.runs else {}

    (test,) = examine_rates({"called equal": EQUAL_CALLED}, outcome).values()
    assert test.kept, str(test)


@pytest.mark.long
def test_cells_at_the_margin_are_seldom_called_alike() -> None:
    case = Case("at the margin", BY_NAME["iid"], math.log1p(0.03), iterations=5)
    assert simulate_runs(case, SOME, 5).share("alike") <= 0.05 + scatter(SOME, 0.05)


def test_a_large_ratio_is_known_after_eight_blocks_or_a_few_more() -> None:
    found = simulate_runs(Case("x5", BY_NAME["iid"], math.log(5), iterations=5), SOME, 7)
    assert found.share("blocks") < 9
    assert found.share("typical slower") >= 0.97
    assert found.share("covered") >= 0.93 - scatter(SOME, 0.07)


@pytest.mark.long
def test_a_guest_that_is_twice_as_slow_in_one_iteration_of_ten() -> None:
    found = simulate_runs(CASES["guest: x2 in 10 % of iterations"], SOME, 8)
    # As published in bench/statistics/RESULTS.md: seven tenths is what one error rate over all answers leaves.
    assert found.share("slow slower") >= 0.64 - scatter(SOME, 0.36)
    assert found.share("any") >= 0.71 - scatter(SOME, 0.29)


def test_the_signed_rank_test_was_chosen_for_what_spikes_do_to_means() -> None:
    found = candidates(BY_NAME["spikes"], 20, 2_000, 10)
    assert found["signed rank"].power > 0.85 > found["mean of logs, t"].power + 0.1
    assert found["signed rank"].false <= 0.06
    tail = candidates(BY_NAME["x2 in 5 % of trials"], 10, 2_000, 11)
    assert tail["signed rank"].coverage >= 0.93
    assert tail["mean of logs, t"].coverage < 0.6
    quiet = candidates(BY_NAME["iid"], 10, 2_000, 12)
    assert quiet["signed rank"].width < 1.15 * quiet["mean of logs, t"].width
    assert quiet["sign test"].width > 1.3 * quiet["signed rank"].width


def test_why_significance_never_stops_a_run() -> None:
    assert false_positives_at_first_p(FEW, 1) > 0.15  # three times what is meant


@pytest.mark.parametrize(
    ("slower", "cells", "metrics"),
    [(0, 10, 1), (2, 10, 1), (0, 2, 5)],
)
@pytest.mark.parametrize("sims", [FEW, long(MANY)])
def test_false_discoveries_among_cells_and_metrics(slower: int, cells: int, metrics: int, sims: int) -> None:
    family = many_cells(12, sims, 13, effect=0.05, slower=slower, cells=cells, metrics=metrics)
    assert family.fdr <= 0.05 + scatter(sims, 0.05) / 2
    assert family.uncorrected_any_false > 1.5 * family.any_false
    if slower:
        assert family.power > 0.9


@pytest.mark.parametrize("blocks", [thorough(10), long(20)])
def test_false_discoveries_among_40_cells(blocks: int) -> None:
    assert many_cells(blocks, MANY, blocks).fdr <= 0.05
    assert many_cells(blocks, MANY, blocks, slower=0).any_false <= 0.05 + scatter(MANY, 0.05)


def test_earlier_runs_teach_the_floor_what_one_run_cannot_know() -> None:
    alone, taught = (inside_the_floor(0.03, earlier, 12, 400, 14) for earlier in (0, 20))
    assert alone < 0.7
    assert taught >= 0.92
    assert inside_the_floor(0.0, 0, 12, 400, 15) >= 0.95 - scatter(400, 0.05)


def test_scenarios_have_names_of_their_own() -> None:
    assert len(BY_NAME) == len(SCENARIOS) + len(TAILS) + len(MODES)


@pytest.mark.parametrize(
    ("text", "of", "false"),
    [
        ("new 44 ± 2 2.2 times faster [1.5, 2.3]", "typical run differs", True),
        ("new 44 ± 2 ×1.05 [1.01, 1.09] slower", "interval of typical run", True),
        ("new 44 ± 2 at most 8 % slower, 6 % faster", "at most", False),
        ("new 44 ± 2 at most 8 % slower", "at most", False),
        ("Slow runs: 2 of 90 in old; 23 of 90 in new: more slow runs", "more or fewer slow runs", True),
        (
            "Measured here before: new: 5 earlier runs here, ×1; this one is ×1.1 of them: changed",
            "changed",
            True,
        ),
        ("Typical run as on old, within 3 %: new.", "no difference, or alike", False),
    ],
)
def test_a_sentence_about_equal_cells_is_held_against_the_truth(text: str, of: str, false: bool) -> None:
    tally = drawn.Tally()
    case = CASES["timed pair, 20 ms: iid"]
    drawn.judge_sentence("row", text, Truth(0.0, 0.0, 0.0), case, tally, "a run")
    assert (tally.printed[of], bool(tally.false[of])) == (1, false)


@pytest.mark.long
@pytest.mark.parametrize("name", ["guest: iid", "guest: spikes", "host, 100 ms: iid"])
def test_nine_in_ten_forecasts_hold(name: str) -> None:
    held = [
        forecasts.holds(decision.left, left_s, block_s)
        for number in range(20)
        for _, decision, left_s, block_s in forecasts.looks(CASES[name], number)
        if decision.left is not None
    ]
    # Of one run all forecasts hold, or most do not, so twenty runs say it within .07.
    assert sum(held) / len(held) > 0.9 - 0.07
