"""Four answers about a cell: typical run, total, slow runs, first run."""

import math
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pytest

from guestmark.core.metric import Better
from guestmark.stats import (
    Answers,
    Comparison,
    Estimand,
    SlowComparison,
    Verdict,
    bound_unseen_events,
    compare_slow_runs,
    compare_trials,
    describe_cell_runs,
    sign_flip_p,
)
from guestmark.stats.cell_answers import withdraw_answers
from guestmark.stats.tails import (
    compute_effective_size,
    compute_share_interval,
    count_slow_runs,
    estimate_quantile_ratio,
    estimate_share_difference,
    excess_counts_p,
    intraclass_correlation,
)
from guestmark.stats.total import (
    bound_unseen_share,
    count_runs_for_equal_totals,
    count_trials_to_see,
    fieller_interval,
    ratio_interval,
    total_equivalence_p,
    total_p,
    widen_for_unseen,
)
from tests.framework.known import known


def trials(seed: int, blocks: int = 12, m: int = 7, level: float = 1.0, spread: float = 0.01) -> np.ndarray:
    generator = np.random.default_rng(seed)
    return level * np.exp(generator.normal(0, spread, (blocks, 1)) + generator.normal(0, spread, (blocks, m)))


def with_tail(values: np.ndarray, share: float = 0.1, factor: float = 2.0, seed: int = 99) -> np.ndarray:
    hit = np.random.default_rng(seed).random(values.shape) < share
    return np.where(hit, factor * values, values)


@dataclass(frozen=True)
class Whole:
    """`Answers` from raw iterations, which tell of totals and slow runs as well."""

    typical: Comparison
    total: Comparison
    slow: SlowComparison

    @classmethod
    def of(cls, answers: Answers) -> Self:
        return cls(answers.typical, known(answers.total), known(answers.slow))


def told(cell: np.ndarray, baseline: np.ndarray, better: Better = Better.LOWER, **more: Any) -> Answers:
    return compare_trials({"base": baseline, "cell": cell}, "base", better=better, margin=0.03, **more)[
        "cell"
    ]


def answers(cell: np.ndarray, baseline: np.ndarray, better: Better = Better.LOWER) -> Whole:
    return Whole.of(told(cell, baseline, better))


def test_a_tail_changes_total_and_slow_runs_and_not_the_typical_run() -> None:
    found = answers(with_tail(trials(1, 20)), trials(2, 20))
    assert found.typical.verdict is Verdict.NO_DIFFERENCE
    assert found.total.verdict is Verdict.SLOWER
    assert found.total.ratio == pytest.approx(1.1, abs=0.04)
    assert found.slow.verdict is Verdict.SLOWER
    assert found.slow.difference == pytest.approx(0.1, abs=0.04)
    assert found.slow.baseline.slow == 0
    assert found.slow.ratio == pytest.approx(2, abs=0.1)
    assert not found.slow.is_unsettled


def test_equal_cells_are_equal_in_the_typical_run_alone() -> None:
    found = answers(trials(1), trials(2))
    assert found.typical.verdict is Verdict.NO_DIFFERENCE
    assert (found.total.verdict, found.slow.verdict) == (Verdict.INCONCLUSIVE, Verdict.INCONCLUSIVE)
    assert found.total.reason == "398 blocks are needed to exclude rare slow runs"
    assert found.slow.reason == "no slow runs seen; 59 blocks could rule them out"
    (low, high), (inner_low, inner_high) = known(found.total.unseen_ci), known(found.total.ci)
    assert low < inner_low < inner_high < high
    by_run = compare_trials(
        {"cell": trials(1, 80, 5), "base": trials(2, 80, 5)},
        "base",
        better=Better.LOWER,
        margin=0.03,
        boots=False,
    )["cell"]
    assert known(by_run.total).verdict is Verdict.NO_DIFFERENCE  # each of 400 runs counts where nothing boots
    many = answers(trials(1, 400, 1), trials(2, 400, 1))
    assert many.total.verdict is Verdict.NO_DIFFERENCE
    assert many.slow.verdict is Verdict.NO_DIFFERENCE


def test_everything_is_slower_where_all_iterations_are() -> None:
    found = answers(trials(1, level=1.5), trials(2))
    assert (found.typical.verdict, found.total.verdict) == (Verdict.SLOWER, Verdict.SLOWER)
    assert found.slow.difference == 0  # slow is relative to the cell's own typical run
    assert found.typical.ratio == pytest.approx(1.5, rel=0.01)


def test_rates_are_what_their_times_are() -> None:
    cell, baseline = with_tail(trials(1, 20)), trials(2, 20)
    times = answers(cell, baseline)
    rates = answers(1 / cell, 1 / baseline, Better.HIGHER)
    assert rates.typical.ratio == pytest.approx(1 / known(times.typical.ratio))
    assert rates.total.ratio == pytest.approx(1 / known(times.total.ratio))
    low, high = known(times.total.ci)
    assert rates.total.ci == pytest.approx((1 / high, 1 / low))
    assert (rates.total.verdict, rates.slow.verdict) == (times.total.verdict, times.slow.verdict)
    assert rates.slow.p == times.slow.p
    assert rates.slow.ratio == pytest.approx(1 / known(times.slow.ratio))
    for name in ("typical", "total", "p95", "worst"):
        assert getattr(rates.slow.cell, name) == pytest.approx(1 / getattr(times.slow.cell, name))
    assert rates.slow.cell.slow == times.slow.cell.slow


def test_failed_trials_and_null_copies_are_left_out() -> None:
    cell, copy = trials(1), trials(3)
    cell[3] = np.nan
    found = compare_trials(
        {"base": trials(2), "copy": copy, "cell": cell},
        "base",
        better=Better.LOWER,
        margin=0.03,
        null_pairs=[("copy", "base")],
    )
    assert list(found) == ["cell"]
    whole = Whole.of(found["cell"])
    assert (whole.typical.n, whole.total.n, whole.slow.n) == (11, 11, 11)
    assert whole.typical.noise_floor is not None
    assert whole.total.noise_floor is not None


def test_unequal_iterations_are_refused() -> None:
    with pytest.raises(ValueError, match="unequal iterations"):
        answers(trials(1, m=7), trials(2, m=1))


def test_first_runs_are_compared_where_they_are_known() -> None:
    generator = np.random.default_rng(4)
    first = {
        "base": np.exp(generator.normal(0, 0.02, 12)),
        "cell": 1.8 * np.exp(generator.normal(0, 0.02, 12)),
    }
    found = known(told(trials(1), trials(2), first=first).first)
    assert found.estimand is Estimand.FIRST
    assert found.verdict is Verdict.SLOWER
    assert found.ratio == pytest.approx(1.8, rel=0.05)
    assert told(trials(1), trials(2)).first is None


def test_verdicts_can_be_withheld_and_figures_stay() -> None:
    answered = told(with_tail(trials(1, 20)), trials(2, 20))
    found, taken = Whole.of(answered), Whole.of(withdraw_answers(answered, "carry-over"))
    assert {taken.typical.verdict, taken.total.verdict, taken.slow.verdict} == {Verdict.INCONCLUSIVE}
    assert (taken.total.ratio, taken.slow.p) == (found.total.ratio, found.slow.p)
    assert taken.slow.reason == "carry-over"


# --- slow runs ---


def test_slow_runs_are_counted_against_the_cells_own_typical_run() -> None:
    values = np.ones((10, 5))
    values[0, 0], values[3, 1], values[3, 2] = 1.6, 2.5, 1.4
    found = describe_cell_runs(7 * values)
    assert (found.slow, found.over_twice, found.slow_trials) == (2, 1, 2)
    assert (found.trials, found.iterations, found.typical) == (10, 50, 7)
    assert found.worst == 17.5
    assert found.total == pytest.approx(7 * (47 + 1.6 + 2.5 + 1.4) / 50)
    assert found.slow_share == 0.04
    assert found.share_ci[0] < 0.04 < found.share_ci[1]
    with pytest.raises(ValueError, match="no trial"):
        describe_cell_runs(np.full((3, 2), np.nan))


def test_a_slow_trial_is_one_event_however_many_iterations_it_holds() -> None:
    whole = np.array([0.0, 0, 0, 7, 0, 0, 0, 7, 0, 0])
    scattered = np.array([1.0, 2, 1, 1, 2, 1, 2, 1, 1, 2])
    assert intraclass_correlation(whole, 7) == pytest.approx(1)
    assert intraclass_correlation(scattered, 7) == 0
    assert intraclass_correlation(np.array([0.0] * 9 + [7]), 7) is None  # one event says nothing
    assert compute_effective_size(10, 7, 1.0) == 10
    assert compute_effective_size(10, 7, 0.0) == 70
    assert compute_effective_size(10, 7, None) == 10
    wide, narrow = compute_share_interval(whole, 7, 1.0), compute_share_interval(scattered, 7, 0.0)
    assert wide[1] - wide[0] > 2 * (narrow[1] - narrow[0])


def test_the_interval_of_a_share_is_clopper_and_pearsons() -> None:
    from scipy.stats import binomtest

    counts = np.array([1.0, 0, 0, 2, 0, 0, 0, 1, 0, 0])
    expected = binomtest(4, 30).proportion_ci(method="exact")
    assert compute_share_interval(counts, 3, 0.0) == pytest.approx((expected.low, expected.high))
    assert compute_share_interval(np.zeros(10), 3, None) == pytest.approx((0.0, 1 - 0.025**0.1))
    d, (low, high) = estimate_share_difference(counts, np.zeros(10), 3)
    assert low < d < high


def test_too_few_slow_trials_decide_nothing_and_are_worth_going_on_for() -> None:
    cell = trials(1, 10)
    cell[2] *= 2
    cell[5, 3] *= 2
    found = answers(cell, trials(2, 10)).slow
    assert (found.verdict, found.reason) == (Verdict.INCONCLUSIVE, "too few slow runs to decide")
    assert found.is_unsettled
    longer = trials(1, 20)
    longer[2] *= 2
    longer[5, 3] *= 2
    assert not answers(longer, trials(2, 20)).slow.is_unsettled  # 20 blocks are as many as that is worth
    once = trials(1, 10)
    once[2] *= 2
    assert not answers(once, trials(2, 10)).slow.is_unsettled


def test_slow_runs_of_whole_machines_are_not_claimed_from_few_machines() -> None:
    """Three slow machines of 12 hold 21 slow iterations: Fisher's test on iterations would be sure."""
    cell = trials(1)
    cell[[1, 4, 9]] *= 2
    found = answers(cell, trials(2)).slow
    assert found.cell.slow == 21
    assert found.p >= 0.25
    assert found.verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize("scale", [1.0, 3.0])
@pytest.mark.parametrize("factor", [1.6, 2.0, 5.0])
@pytest.mark.parametrize("share", [0.2, 0.45, 0.5, 0.55])
@pytest.mark.parametrize("whole", [False, True], ids=["runs", "starts"])
def test_cells_with_two_modes_have_equally_many_slow_runs(
    whole: bool, share: float, factor: float, scale: float
) -> None:
    """Where nearly half of the runs are slow a cell's own median jumps from one mode to the other."""
    generator = np.random.default_rng(3)
    claims = 0
    for _ in range(40):
        sides = []
        for _ in range(2):
            slow = generator.random((12, 1) if whole else (12, 7)) < share
            sides.append(trials(int(generator.integers(2**31)), 12) * np.where(slow, factor, 1.0))
        found = compare_slow_runs({"base": sides[0], "cell": scale * sides[1]}, "base", better=Better.LOWER)[
            "cell"
        ]
        claims += found.q <= 0.01
    assert claims <= 3  # at .01: more than three in one of 1,000 such tests


def test_slow_runs_that_only_the_cell_has_are_found() -> None:
    found = [
        compare_slow_runs(
            {"base": trials(2 * seed, 20), "cell": scale * with_tail(trials(2 * seed + 1, 20), seed=seed)},
            "base",
            better=Better.LOWER,
        )["cell"].q
        <= 0.01
        for seed in range(20)
        for scale in (1.0, 3.0)
    ]
    assert sum(found) >= 30  # .86 of simulated ones


def test_cells_without_ratios_have_no_slow_runs() -> None:
    values = {"base": trials(1), "zero": np.zeros((12, 7)), "gone": np.full((12, 7), np.nan)}
    assert compare_slow_runs(values, "base", better=Better.LOWER) == {}
    assert compare_slow_runs(values, "base", better=Better.HIGHER) == {}


@pytest.mark.parametrize("blocks", [3, 10, 20])
def test_the_test_of_counts_is_the_sign_flip_test(blocks: int) -> None:
    generator = np.random.default_rng(blocks)
    for _ in range(50):
        excess = generator.integers(-3, 8, blocks)
        assert excess_counts_p(excess) == pytest.approx(sign_flip_p(excess.astype(float)), rel=1e-9)
    assert excess_counts_p(np.zeros(blocks, dtype=np.int64)) == 1
    assert excess_counts_p(np.full(blocks, 7)) == 2.0 ** (1 - blocks)


def test_slow_counts_leave_missing_trials_missing() -> None:
    values = np.ones((3, 2))
    values[1] = np.nan
    assert np.isnan(count_slow_runs(values)).tolist() == [False, True, False]


def test_the_interval_of_a_quantiles_ratio_holds_it() -> None:
    covered = 0
    for seed in range(200):
        cell, base = trials(2 * seed, 30, 3, 1.3, 0.05), trials(2 * seed + 1, 30, 3, 1.0, 0.05)
        ratio, ends = estimate_quantile_ratio(cell, base)
        assert ends is None or ends[0] <= ratio <= ends[1]
        covered += ends is None or ends[0] <= 1.3 <= ends[1]
    assert covered >= 186
    assert estimate_quantile_ratio(trials(1, 3, 3), trials(2, 3, 3))[1] is None


# --- total ---


def test_fiellers_interval_is_where_the_t_test_does_not_reject() -> None:
    from scipy.stats import ttest_1samp

    generator = np.random.default_rng(1)
    x, y = generator.normal(3, 0.4, 10), generator.normal(2, 0.3, 10)
    low, high = known(fieller_interval(x, y, 0.95))
    assert [ttest_1samp(x - end * y, 0).pvalue for end in (low, high)] == pytest.approx([0.05, 0.05])
    assert low < x.mean() / y.mean() < high
    huge = fieller_interval(1e200 * x, 1e-200 * y, 0.95)
    assert huge is None or math.isinf(huge[1])


@pytest.mark.parametrize("blocks", [6, 8, 12])
def test_the_totals_interval_is_where_the_sign_flip_test_does_not_reject(blocks: int) -> None:
    generator = np.random.default_rng(blocks)
    x, y = np.exp(generator.normal(0.1, 0.2, blocks)), np.exp(generator.normal(0, 0.3, blocks))
    low, high = known(ratio_interval(x, y, 0.95))
    assert low < x.mean() / y.mean() < high
    for inside, outside in ((low * 1.0001, low * 0.9999), (high * 0.9999, high * 1.0001)):
        assert sign_flip_p(x - inside * y) > 0.05 >= sign_flip_p(x - outside * y)


def test_the_totals_interval_by_random_subsets_is_that_of_all_of_them() -> None:
    generator = np.random.default_rng(2)
    x, y = np.exp(generator.normal(0.1, 0.2, 20)), np.exp(generator.normal(0, 0.3, 20))
    low, high = known(ratio_interval(x, y, 0.95))
    for end in (low, high):
        assert sign_flip_p(x - end * y) == pytest.approx(0.05, abs=0.012)


@pytest.mark.parametrize("blocks", [8, 14])
@pytest.mark.parametrize("law", ["even", "bimodal", "rare and far", "heavy"])
def test_the_totals_interval_holds_nineteen_times_in_twenty_and_no_more(law: str, blocks: int) -> None:
    generator = np.random.default_rng(blocks)

    def draw() -> np.ndarray:
        logs = generator.normal(0, 0.02, blocks)
        if law == "bimodal":
            logs += math.log(2) * (generator.random(blocks) < 0.3)
        elif law == "rare and far":
            logs += math.log(5) * (generator.random(blocks) < 0.1)
        elif law == "heavy":
            logs += np.log1p(0.03 * generator.pareto(2.5, blocks))
        return np.exp(logs)

    held = 0
    for _ in range(800):
        low, high = known(ratio_interval(1.3 * draw(), draw(), 0.95))
        held += low <= 1.3 <= high
    # Two standard errors around .93 to .97; Fieller's held .99 of rare and far events, bootstrap-t .93.
    assert 0.93 - 0.015 <= held / 800 <= 0.97 + 0.015


def test_the_total_counts_the_pilot_whose_iterations_are_fewer() -> None:
    base, cell = trials(1, 8), trials(2, 8, level=1.02)
    means = {"base": base.mean(axis=1), "cell": cell.mean(axis=1)}
    base[0] = cell[0] = np.nan
    found = compare_trials(
        {"base": base, "cell": cell}, "base", better=Better.LOWER, margin=0.03, means=means
    )["cell"]
    assert (found.typical.n, known(found.total).n) == (7, 8)


def test_a_baseline_that_may_be_nothing_has_no_interval() -> None:
    assert ratio_interval(np.array([1.0, 1.1]), np.array([0.01, 3.0])) is None
    assert ratio_interval(np.array([1.0]), np.array([1.0])) is None


def test_totals_test_is_exact_and_equivalence_no_certainty() -> None:
    x = np.array([1.1, 1.2, 1.15, 1.3, 1.12, 1.18])
    assert total_p(x, np.ones(6)) == 2.0**-5
    assert total_equivalence_p(np.ones(6), np.ones(6), 0.03) == 2.0**-6
    assert total_equivalence_p(x, np.ones(6), 0.03) > 0.9
    assert total_equivalence_p(np.ones(1), np.ones(1), 0.03) == 1


# --- what could not be seen ---


@pytest.mark.parametrize("trials_run", [1, 10, 59, 99])
def test_the_largest_share_that_stays_unseen_with_five_percent(trials_run: int) -> None:
    assert (1 - bound_unseen_share(trials_run)) ** trials_run == pytest.approx(0.05)
    assert count_trials_to_see(bound_unseen_share(trials_run)) == trials_run


def test_what_could_not_be_seen_shrinks_with_the_trials() -> None:
    assert bound_unseen_share(0) == 1
    assert widen_for_unseen((0.9, 1.1), 10, 2.0) == pytest.approx((0.9 / 1.2589, 1.1 * 1.2589), rel=1e-4)
    assert widen_for_unseen((0.9, 1.1), 10)[1] == pytest.approx(1.1 * (1 + 4 * 0.2589), rel=1e-4)
    assert count_runs_for_equal_totals(0.03) == 398
    assert count_runs_for_equal_totals(0.03, 2.0) == 99
    with pytest.raises(ValueError, match="share"):
        count_trials_to_see(0)


def test_rare_iterations_and_rare_machines_are_two_things() -> None:
    each_by_chance = bound_unseen_events(10, 7)
    assert each_by_chance.machines == pytest.approx(1 - 0.05**0.1)
    assert each_by_chance.iterations == pytest.approx(1 - 0.05 ** (1 / 70))
    assert bound_unseen_events(10, 7, None).iterations == pytest.approx(each_by_chance.machines)
    assert each_by_chance.iterations < bound_unseen_events(10, 7, 0.3).iterations < each_by_chance.machines
    assert bound_unseen_events(0, 7).machines == 1
