"""Verdicts: which data give which, and why."""

import math
from collections.abc import Callable
from dataclasses import astuple, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from guestmark.core.metric import Better, Metric
from guestmark.stats import (
    Comparison,
    Estimand,
    Table,
    Verdict,
    compare_table,
    compare_tables,
    count_needed_blocks,
    downgrade_verdict,
    half_width,
    is_precise_enough,
    label_verdict,
    null_differs,
    predict_half_width,
    reduce_iterations,
    summarise_trials,
)
from guestmark.stats.compare import MIN_BLOCKS, Widening, widen_interval
from guestmark.stats.family import TYPICAL
from tests.framework.known import known


def test_estimands_are_called_as_in_documents() -> None:
    assert [str(estimand) for estimand in Estimand] == ["typical", "total", "slow", "first"]


def noisy(seed: int, n: int = 12, level: float = 1.0, spread: float = 0.01) -> np.ndarray:
    return level * np.exp(np.random.default_rng(seed).normal(0, spread, n))


def compared(
    cell: np.ndarray, baseline: np.ndarray, better: Better = Better.LOWER, **more: object
) -> Comparison:
    options: dict[str, Any] = {"margin": 0.03, **more}
    return compare_table({"base": baseline, "cell": cell}, "base", better=better, **options)["cell"]


@pytest.mark.parametrize(
    ("level", "better", "verdict"),
    [
        (1.1, Better.LOWER, Verdict.SLOWER),
        (0.9, Better.LOWER, Verdict.FASTER),
        (1.1, Better.HIGHER, Verdict.FASTER),
        (0.9, Better.HIGHER, Verdict.SLOWER),
    ],
)
def test_direction_follows_the_metric(level: float, better: Better, verdict: Verdict) -> None:
    c = compared(noisy(1, level=level), noisy(2), better)
    assert (c.verdict, c.reason) == (verdict, "")
    assert c.ratio == pytest.approx(level, rel=0.01)
    (low, high), (median_low, median_high) = known(c.ci), known(c.median_ci)
    assert low < known(c.ratio) < high
    assert median_low <= known(c.median_ratio) <= median_high


def test_equal_within_the_margin_is_no_difference() -> None:
    c = compared(noisy(1, spread=0.005), noisy(2, spread=0.005))
    assert (c.verdict, c.reason) == (Verdict.NO_DIFFERENCE, "within the margin of 0.03")
    assert known(c.p) > 0.05 > known(c.equivalence_p)


def test_not_significant_is_not_the_same_as_equal() -> None:
    c = compared(noisy(1, spread=0.1), noisy(2, spread=0.1))
    assert known(c.p) > 0.05
    assert (c.verdict, c.reason) == (Verdict.INCONCLUSIVE, "interval too wide")


def test_a_small_but_sure_difference_is_a_difference_and_says_it_is_small() -> None:
    c = compared(noisy(1, level=1.01, spread=0.001), noisy(2, spread=0.001))
    assert (c.verdict, c.reason) == (Verdict.SLOWER, "by less than the margin of 0.03")


@pytest.mark.parametrize(("n", "level"), [(1, 50.0), (2, 2.0), (3, 4.0), (5, 1.3)])
def test_few_blocks_do_not_decide_what_chance_can_make(n: int, level: float) -> None:
    c = compared(noisy(1, n, level=level), noisy(2, n))
    assert (c.verdict, c.reason) == (Verdict.INCONCLUSIVE, "fewer than 6 blocks")
    assert c.ratio == pytest.approx(level, rel=0.05)
    assert (c.ci is None) == (n < 2)
    assert c.median_ci is None


@pytest.mark.parametrize(("n", "level"), [(2, 50.0), (2, 8.0), (3, 8.0), (4, 3.5), (5, 2.0)])
@pytest.mark.parametrize("cells", [1, 8])
def test_what_lies_far_beyond_any_scatter_is_told_at_once(n: int, level: float, cells: int) -> None:
    spread = 0.02
    values = {"base": noisy(0, n, spread=spread)}
    values |= {f"cell {k}": noisy(k + 1, n, level=level, spread=spread) for k in range(cells)}
    for better, verdict in ((Better.LOWER, Verdict.SLOWER), (Better.HIGHER, Verdict.FASTER)):
        for c in compare_table(values, "base", better=better, margin=0.03).values():
            assert c.verdict is verdict
            assert c.differs
            assert c.is_ratio_excluded(1)
            assert known(c.q) <= 0.05 * TYPICAL  # what the typical run is held to in a report


Law = Callable[[np.random.Generator, tuple[int, int]], np.ndarray]


def _modes(factor: float, share: float) -> Law:
    return lambda g, n: g.normal(0, 0.03, n) + math.log(factor) * (g.random(n) < share)


LAWS: dict[str, Law] = {
    "starts vary by a third": lambda g, n: g.normal(0, 0.3, n),
    "starts vary by a factor of two": lambda g, n: g.normal(0, 0.8, n),
    "two modes, x2": _modes(2, 0.5),
    "two modes, x5": _modes(5, 0.5),
    "a rare mode, x5": _modes(5, 0.1),
    "Pareto 2.5": lambda g, n: np.log1p(g.pareto(2.5, n)),
    "Pareto 1.5": lambda g, n: np.log1p(g.pareto(1.5, n)),
    "Student 3": lambda g, n: 0.1 * g.standard_t(3, n),
    "two of them scatter": lambda g, n: g.normal(0, 1, n) * np.where(np.arange(n[1]) < 2, 0.5, 0.02),
}


@pytest.mark.parametrize("cells", [2, 8, 30])
@pytest.mark.parametrize("law", LAWS)
def test_few_blocks_of_equal_cells_differ_in_one_report_of_twenty_at_most(law: str, cells: int) -> None:
    """A look after each of two to five blocks: what a reader may be told at any of them."""
    generator = np.random.default_rng(cells)
    reports = 100
    false = 0
    for _ in range(reports):
        values = np.exp(LAWS[law](generator, (5, cells)))
        looks = (
            compare_table(
                {str(k): values[:n, k] for k in range(cells)}, "0", better=Better.LOWER, margin=0.03
            ).values()
            for n in (2, 3, 4, 5)
        )
        false += any(c.differs and known(c.q) <= 0.05 * TYPICAL for look in looks for c in look)
    assert false <= 11  # more in one of 100 such tests at .05


def test_noisy_copies_are_reported_and_refuse_nothing() -> None:
    cell, baseline = noisy(1, level=1.02), noisy(2)
    c = compared(cell, baseline, null_pairs=[(noisy(3, spread=0.06), noisy(4, spread=0.06))], margin=0.005)
    assert known(c.noise_floor) > known(c.ratio) - 1
    assert c.verdict is Verdict.SLOWER


def test_a_cell_that_scatters_on_its_own_account_needs_more_evidence_of_equality() -> None:
    quiet = (noisy(8, spread=0.004), noisy(9, spread=0.004))
    as_noisy = (noisy(8, spread=0.02), noisy(9, spread=0.02))
    seeds = range(200)
    pairs = [(noisy(2 * seed, spread=0.022), noisy(2 * seed + 1, spread=0.022)) for seed in seeds]
    plain = [compared(*pair) for pair in pairs]
    between = [i for i, c in enumerate(plain) if 0.02 <= known(c.equivalence_p) < 0.04 and known(c.p) > 0.05]
    sure = [i for i, c in enumerate(plain) if known(c.equivalence_p) < 0.02 and known(c.p) > 0.05]
    assert between
    assert sure
    for i in between:
        alone = compared(*pairs[i], null_pairs=[quiet])
        assert (alone.verdict, alone.reason) == (Verdict.INCONCLUSIVE, "interval too wide")
        assert compared(*pairs[i], null_pairs=[as_noisy]).verdict is Verdict.NO_DIFFERENCE
        assert plain[i].verdict is Verdict.NO_DIFFERENCE
    assert all(compared(*pairs[i], null_pairs=[quiet]).verdict is Verdict.NO_DIFFERENCE for i in sure)


def test_an_interval_is_widened_by_what_may_add_to_the_ratio() -> None:
    slower = compared(noisy(1, level=1.1), noisy(2))
    low, high = known(slower.ci)
    middle = known(slower.ratio)
    down = widen_interval(slower, Widening(0.03, reach=0.01, reason="why"))
    assert known(down.ci) == pytest.approx((low * math.exp(-0.01), high * math.exp(0.01)))
    assert (down.ratio, down.verdict) == (slower.ratio, Verdict.SLOWER)
    assert down.stretch == pytest.approx(0.01)
    quicker = compared(noisy(1, level=0.5), noisy(2))
    assert widen_interval(quicker, Widening(0.03, reach=0.01, reason="why")).stretch == pytest.approx(0.01)
    without_end = replace(slower, ci=(0.0, high))
    assert known(widen_interval(without_end, Widening(0.03, reach=0.01, reason="why")).ci)[0] == 0
    both = widen_interval(slower, Widening(0.03, spread=0.02, reason="why"))
    assert math.log(known(both.ci)[1] / middle) == pytest.approx(math.hypot(math.log(high / middle), 0.02))
    lost = widen_interval(slower, Widening(0.03, spread=0.2, reason="why"))
    assert (lost.verdict, lost.reason) == (Verdict.INCONCLUSIVE, "why")
    large = compared(noisy(1, level=9.8), noisy(2))
    assert widen_interval(large, Widening(0.03, spread=0.2, reason="why")).verdict is Verdict.SLOWER
    equal = compared(noisy(1, spread=0.005), noisy(2, spread=0.005))
    assert widen_interval(equal, Widening(0.03, reach=0.001, reason="why")).verdict is Verdict.NO_DIFFERENCE
    assert widen_interval(equal, Widening(0.03, reach=0.04, reason="why")).reason == "why"
    assert widen_interval(equal, Widening(0.03, reason="why")) is equal
    # What no block can shrink neither keeps a run going nor is foretold to shrink.
    assert is_precise_enough(down, half_width((low, high)) * 1.0001)
    assert not is_precise_enough(
        compared(noisy(1, level=1.1, spread=0.03), noisy(2)), half_width((low, high))
    )
    assert count_needed_blocks(down, 0.001) == pytest.approx(count_needed_blocks(slower, 0.001), abs=1)
    assert predict_half_width(down, 12) == pytest.approx(known(predict_half_width(slower, 12)) + 0.01)


def test_what_an_interval_excludes_is_shown_by_enough_blocks() -> None:
    slower = compared(noisy(1, level=1.1), noisy(2))
    assert slower.is_ratio_excluded(1)
    assert not slower.is_ratio_excluded(known(slower.ratio))
    assert not slower.is_ratio_excluded(known(slower.ci)[0])
    undecided = replace(slower, verdict=Verdict.INCONCLUSIVE)
    assert undecided.is_ratio_excluded(1)
    assert not replace(undecided, n=MIN_BLOCKS - 1).is_ratio_excluded(1)
    assert not replace(slower, withdrawn=True).is_ratio_excluded(1)
    assert not replace(slower, ci=None).is_ratio_excluded(1)


def test_a_total_of_rates_is_that_of_the_times_they_stand_for() -> None:
    cell, baseline = noisy(1, 25, level=1.2), noisy(2, 25)
    times = compared(cell, baseline, estimand=Estimand.TOTAL)
    rates = compared(1 / cell, 1 / baseline, Better.HIGHER, estimand=Estimand.TOTAL)
    assert rates.verdict is times.verdict is Verdict.SLOWER
    assert 1 < known(times.ci)[0] < known(times.ratio) < known(times.ci)[1]
    assert known(rates.ratio) == pytest.approx(1 / known(times.ratio))
    for ours, theirs in ((rates.ci, times.ci), (rates.unseen_ci, times.unseen_ci)):
        assert known(ours) == pytest.approx((1 / known(theirs)[1], 1 / known(theirs)[0]))


def test_a_few_very_slow_blocks_do_not_decide_the_typical_run() -> None:
    cell = noisy(1, 25)
    cell[:3] *= 4.0
    c = compared(cell, noisy(2, 25))
    assert c.ratio == pytest.approx(1, abs=0.01)
    assert c.verdict is Verdict.NO_DIFFERENCE
    total = compared(cell, noisy(2, 25), estimand=Estimand.TOTAL)
    assert known(total.ratio) > 1.2
    assert total.verdict is not Verdict.NO_DIFFERENCE


def test_too_few_blocks_for_so_many_cells_is_said() -> None:
    values = {
        "base": noisy(0, 8),
        **{f"same{i}": noisy(i + 1, 8) for i in range(39)},
        "cell": noisy(99, 8, 1.5),
    }
    c = compare_table(values, "base", better=Better.LOWER, margin=0.03)["cell"]
    assert (c.verdict, c.reason) == (Verdict.INCONCLUSIVE, "40 cells need 11 blocks")
    assert known(c.p) < 0.05 < known(c.q)


def test_metrics_are_adjusted_together() -> None:
    values = {"base": noisy(0), **{f"c{i}": noisy(i + 1, level=1 + i / 500) for i in range(10)}}
    table = Table(values, "base", Better.LOWER, 0.03)
    quiet = Table({"base": noisy(50), "c": noisy(51)}, "base", Better.LOWER, 0.03)
    alone = compare_tables({"wall": table})["wall"]
    together = compare_tables({"wall": table, **{f"m{i}": quiet for i in range(20)}})["wall"]
    assert list(alone) == [f"c{i}" for i in range(10)]
    clearest = min(alone, key=lambda name: known(alone[name].p))
    assert together[clearest].p == alone[clearest].p
    assert known(alone[clearest].p) < known(alone[clearest].q) < known(together[clearest].q)
    assert alone["c5"] == compare_table(values, "base", better=Better.LOWER, margin=0.03)["c5"]


def test_pairing_removes_what_blocks_have_in_common() -> None:
    host = np.linspace(1, 3, 12)  # the host becomes three times slower
    c = compared(noisy(1, level=1.05) * host, noisy(2) * host)
    assert c.verdict is Verdict.SLOWER
    assert c.ratio == pytest.approx(1.05, rel=0.01)


def test_missing_blocks_reduce_n_only() -> None:
    cell, baseline = noisy(1, level=1.1), noisy(2)
    cell[3] = baseline[5] = np.nan
    c = compared(cell, baseline)
    assert (c.n, c.verdict) == (10, Verdict.SLOWER)
    assert compared(np.full(12, np.nan), baseline).reason == "no complete block"


@pytest.mark.parametrize(
    ("cell", "baseline"),
    [(0.0, 0.0), (0.5, 0.0), (0.0, 0.5), (-1.0, 1.0)],
)
def test_values_without_a_ratio_give_none_and_no_verdict(cell: float, baseline: float) -> None:
    c = compared(np.full(12, cell), np.full(12, baseline))
    assert astuple(c)[:9] == (12, *[None] * 8)
    assert (c.verdict, c.reason) == (Verdict.INCONCLUSIVE, "a value is not above zero: no ratio")


def test_identical_values_are_no_difference_and_constant_factors_a_difference() -> None:
    same = compared(np.full(10, 0.25), np.full(10, 0.25))
    assert (same.verdict, same.ratio, same.ci, same.p) == (Verdict.NO_DIFFERENCE, 1, (1, 1), 1)
    assert known(same.equivalence_p) > 0
    double = compared(np.full(10, 0.5), np.full(10, 0.25))
    assert (double.verdict, double.p) == (Verdict.SLOWER, 2.0**-9)


def test_intervals_that_floats_cannot_hold_are_left_out() -> None:
    c = compared(np.array([1e300, 1e-300]), np.array([1.0, 1.0]))
    assert c.ratio == pytest.approx(1, rel=1e-9)
    assert c.ci is None


def test_one_wild_block_decides_no_total() -> None:
    wild = np.array([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1e6])
    c = compared(np.ones(7), wild, estimand=Estimand.TOTAL)
    assert list(known(c.ci)) == [pytest.approx(2e-6, rel=0.01), 1.0]
    assert (c.verdict, c.reason) == (Verdict.INCONCLUSIVE, "interval too wide")


def test_bad_tables_are_refused() -> None:
    with pytest.raises(ValueError, match="baseline"):
        compare_table({"a": np.ones(3)}, "b", better=Better.LOWER, margin=0.03)
    with pytest.raises(ValueError, match="do not pair"):
        compare_table({"a": np.ones(20), "b": np.ones(21)}, "a", better=Better.LOWER, margin=0.03)
    assert compare_table({"a": np.ones(3)}, "a", better=Better.LOWER, margin=0.03) == {}


VALUES = st.lists(st.integers(50, 200), min_size=12, max_size=12).map(lambda x: np.array(x) / 100)


@given(VALUES, VALUES)
def test_swapping_cell_and_baseline_swaps_the_verdict(a: np.ndarray, b: np.ndarray) -> None:
    there, back = compared(a, b), compared(b, a)
    assert there.ratio == pytest.approx(1 / known(back.ratio))
    assert there.p == back.p
    swapped = {Verdict.FASTER: Verdict.SLOWER, Verdict.SLOWER: Verdict.FASTER}
    assert there.verdict is swapped.get(back.verdict, back.verdict)


@given(VALUES, VALUES, st.floats(1e-9, 1e9))
def test_verdicts_do_not_depend_on_the_unit(a: np.ndarray, b: np.ndarray, unit: float) -> None:
    here, there = compared(a, b), compared(a * unit, b * unit)
    assert there.ratio == pytest.approx(here.ratio)
    assert there.p == here.p
    assert there.equivalence_p == pytest.approx(here.equivalence_p, rel=1e-4, abs=1e-9)


def test_a_null_comparison_that_differs_downgrades() -> None:
    quiet = compared(noisy(1), noisy(2))
    assert not null_differs(quiet)
    loud = compared(noisy(1, level=1.05), noisy(2))
    assert null_differs(loud)
    assert not null_differs(compared(np.zeros(12), np.zeros(12)))
    taken_back = downgrade_verdict(loud)
    assert (taken_back.verdict, taken_back.ratio) == (Verdict.INCONCLUSIVE, loud.ratio)
    assert taken_back.reason == "a null comparison differs"


@pytest.mark.parametrize(
    ("verdict", "unit", "better", "word"),
    [
        (Verdict.FASTER, "s", Better.LOWER, "faster"),
        (Verdict.SLOWER, "MB/s", Better.HIGHER, "slower"),
        (Verdict.FASTER, "bytes", Better.LOWER, "less"),
        (Verdict.SLOWER, "bytes", Better.LOWER, "more"),
        (Verdict.FASTER, "MiB", Better.HIGHER, "more"),
        (Verdict.FASTER, "", Better.HIGHER, "better"),
        (Verdict.SLOWER, "points", Better.HIGHER, "worse"),
        (Verdict.NO_DIFFERENCE, "bytes", Better.LOWER, "no difference"),
        (Verdict.INCONCLUSIVE, "s", Better.LOWER, "inconclusive"),
    ],
)
def test_words_suit_the_metric(verdict: Verdict, unit: str, better: Better, word: str) -> None:
    assert label_verdict(verdict, Metric("m", unit, better)) == word


def test_iterations_reduce_to_the_typical_one() -> None:
    assert reduce_iterations([1, 2, 9]) == 2
    with pytest.raises(ValueError, match="without iterations"):
        reduce_iterations([])
    with pytest.raises(ValueError, match="not a number"):
        reduce_iterations([1.0, float("nan")])


def test_summaries_narrow_with_the_root_of_n() -> None:
    values = np.array([1.0, 2.0, 3.0, np.nan])
    s = summarise_trials(values)
    assert (s.n, s.mean, s.median) == (3, 2, 2)
    # t(.975, 2) / √3 = 2.484, of the mean on the log scale; z·SD would be 1.96 for a thousand values as well
    assert s.ci == pytest.approx((2 / np.exp(2.48414 / 2), 2 * np.exp(2.48414 / 2)), rel=1e-4)
    many = summarise_trials(np.tile([1.0, 2.0, 3.0], 300))
    low, high = known(many.ci)
    assert high - low < 0.11
    assert summarise_trials(np.array([5.0])).ci is None
    assert summarise_trials(np.array([np.nan])).n == 0
