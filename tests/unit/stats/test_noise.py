"""Noise floor, flagged blocks, repetition."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from guestmark.core.metric import Better
from guestmark.stats import (
    THRESHOLDS,
    Comparison,
    Estimand,
    Null,
    Pilot,
    choose_iterations,
    compare_table,
    compute_wanted_half_width,
    count_needed_blocks,
    count_needed_warmups,
    estimate_noise_floor,
    flag_blocks,
    half_width,
    is_precise_enough,
    predict_half_width,
)
from guestmark.stats.repetition import MAX_ITERATIONS, Scatter, estimate_scatter, find_best_iterations
from tests.framework.known import known


def noisy(seed: int, n: int = 12, spread: float = 0.01) -> np.ndarray:
    return np.exp(np.random.default_rng(seed).normal(0, spread, n))


def test_noise_floor_is_what_null_comparisons_reach() -> None:
    generator = np.random.default_rng(1)
    d = generator.normal(0, 0.02, (4_000, 20)) - generator.normal(0, 0.02, (4_000, 20))
    truth = np.quantile(np.abs(np.expm1(d.mean(axis=1))), 0.95)
    floors = [
        estimate_noise_floor([(noisy(2 * i, 20, 0.02), noisy(2 * i + 1, 20, 0.02))], 20) for i in range(200)
    ]
    assert (
        truth < np.mean([known(floor) for floor in floors]) < 1.25 * truth
    )  # not below what the pair itself showed
    many = [(noisy(1, 200), noisy(2, 200))]
    assert known(estimate_noise_floor(many, 5)) > 1.5 * known(estimate_noise_floor(many, 50))


@pytest.mark.parametrize("estimand", [Estimand.TYPICAL, Estimand.TOTAL])
def test_noise_floor_is_not_below_a_null_pair_that_is_off(estimand: Estimand) -> None:
    floor = estimate_noise_floor([(1.05 * noisy(1), noisy(2))], 12, estimand=estimand)
    assert floor == pytest.approx(0.05, abs=0.01)


def test_noise_floor_needs_enough_null_blocks_or_history() -> None:
    assert estimate_noise_floor([], 10) is None
    assert estimate_noise_floor([(noisy(1, 5), noisy(2, 5))], 10) is None
    assert estimate_noise_floor([(np.zeros(10), np.zeros(10))], 10) is None
    history = [Null(math.log(ratio), 10) for ratio in (*[1.0] * 14, *[1.04] * 6)]
    assert estimate_noise_floor([], 10, history[:-1]) is None
    assert estimate_noise_floor([], 10, history) == pytest.approx(0.04)
    assert estimate_noise_floor([(noisy(1), noisy(2))], 0) is None


def test_earlier_null_comparisons_raise_the_floor_as_far_as_they_can_be_believed() -> None:
    pair = [(noisy(1), noisy(2))]
    alone = known(estimate_noise_floor(pair, 12))
    generator = np.random.default_rng(3)
    quiet = [Null(float(g), 12) for g in generator.normal(0, 0.001, 40)]
    assert estimate_noise_floor(pair, 12, quiet) == alone
    far = [Null(float(g), 12) for g in generator.normal(0, 0.05, 40)]
    few, many = known(estimate_noise_floor(pair, 12, far[:2])), known(estimate_noise_floor(pair, 12, far))
    assert alone < few < many
    assert many == pytest.approx(1.96 * 0.05, rel=0.25)


def test_blocks_are_flagged_by_any_trial_whatever_its_cell() -> None:
    quiet = np.zeros((5, 3))
    delayed = quiet.copy()
    delayed[1, 2] = delayed[4, 0] = THRESHOLDS["run_queue_delay"] * 2
    unknown = np.full(5, np.nan)
    noise = {
        "run_queue_delay": delayed,
        "psi_cpu_some": quiet,
        "steal": unknown,
        "room_temperature": unknown + 90,
    }
    assert flag_blocks(noise).tolist() == [False, True, False, False, True]
    assert flag_blocks({}).tolist() == []
    with pytest.raises(ValueError, match="different lengths"):
        flag_blocks({"steal": np.zeros(3), "throttled": np.zeros(4)})


@given(
    st.lists(st.lists(st.floats(0, 0.2), min_size=3, max_size=3), min_size=1, max_size=8),
    st.permutations(range(3)),
)
def test_flags_do_not_know_the_cells(rows: list[list[float]], order: list[int]) -> None:
    series = np.array(rows)
    flags = flag_blocks({"steal": series})
    assert (flag_blocks({"steal": series[:, order]}) == flags).all()
    assert (flags == (series.max(axis=1) > THRESHOLDS["steal"])).all()


def comparison_of(ratio: float, n: int = 12, spread: float = 0.01) -> Comparison:
    values = {"a": noisy(1, n, spread), "b": ratio * noisy(2, n, spread)}
    return compare_table(values, "a", better=Better.LOWER, margin=0.03)["b"]


def test_precision_is_the_half_width_of_the_log() -> None:
    assert half_width((math.exp(-0.02), math.exp(0.02))) == pytest.approx(0.02)
    assert half_width((0.0, 1.0)) == math.inf
    c = comparison_of(1.0)
    width = half_width(known(c.ci))
    assert is_precise_enough(c, width * 1.001)
    assert not is_precise_enough(c, width * 0.999)
    none = compare_table({"a": np.zeros(9), "b": np.zeros(9)}, "a", better=Better.LOWER, margin=0.03)["b"]
    assert not is_precise_enough(none, 1e9)
    assert count_needed_blocks(none, 0.01) is None
    assert predict_half_width(none, 5) is None


def test_a_large_ratio_need_not_be_known_as_closely() -> None:
    assert compute_wanted_half_width(1.01, 0.02) == 0.02
    assert compute_wanted_half_width(7.6, 0.02) == pytest.approx(0.05 * math.log(7.6))
    assert compute_wanted_half_width(1 / 7.6, 0.02) == pytest.approx(compute_wanted_half_width(7.6, 0.02))
    assert is_precise_enough(comparison_of(7.6, spread=0.07), 0.02)
    assert not is_precise_enough(comparison_of(1.1, spread=0.07), 0.02)


def test_more_time_buys_what_was_foretold() -> None:
    early = comparison_of(1.1, 30, 0.05)
    later = comparison_of(1.1, 120, 0.05)
    foretold = known(predict_half_width(early, 90))
    assert foretold < 0.6 * half_width(known(early.ci))
    assert half_width(known(later.ci)) == pytest.approx(foretold, rel=0.25)
    assert predict_half_width(early, 0) == pytest.approx(half_width(known(early.ci)))


def test_blocks_needed_is_where_precision_is_reached() -> None:
    values = {"a": noisy(1, 400, 0.03), "b": noisy(2, 400, 0.03)}
    early = compare_table({k: v[:200] for k, v in values.items()}, "a", better=Better.LOWER, margin=0.03)["b"]
    needed = known(count_needed_blocks(early, 0.005))
    assert 220 < needed < 400  # (2.05 · 0.042 / 0.005)² = 303, and the signed rank's efficiency of .95
    for n, enough in ((round(needed * 0.7), False), (min(round(needed * 1.3), 400), True)):
        part = {k: v[:n] for k, v in values.items()}
        later = compare_table(part, "a", better=Better.LOWER, margin=0.03)["b"]
        assert is_precise_enough(later, 0.005) is enough
    assert count_needed_blocks(early, 0.5) == 200  # already there
    assert count_needed_blocks(early, 1e-9) is None
    assert count_needed_blocks(early, 0) is None


def test_one_number_of_iterations_is_the_most_at_a_twentieth_above_the_least_cost_of_all_cells() -> None:
    start, level = {"host": 0.05, "tcg": 4.0}, {"host": 0.05, "tcg": 0.4}
    pilots = {name: Pilot(start[name], level[name]) for name in start}

    def variance_times_cost(r: float, warmup: int) -> float:
        cost = sum(start[name] + (warmup + r) * level[name] for name in start)
        return (1 + 1 / r) * cost

    for warmup in (0, 1, 6):
        least = min(variance_times_cost(r / 100, warmup) for r in range(50, 4000))
        most = max(r for r in range(1, 40) if variance_times_cost(r, warmup) <= 1.05 * least)
        assert choose_iterations(pilots, warmup) == most
    assert choose_iterations(pilots, 6) > choose_iterations(pilots, 0)


def test_scatter_divides_into_that_of_iterations_and_that_of_starts() -> None:
    generator = np.random.default_rng(5)
    within, between = 0.04, 0.02
    cells = []
    blocks = generator.normal(0, 0.3, (200, 1))  # what a whole block shares cancels
    for level in (1.0, 1.5, 4.0):
        starts = blocks + generator.normal(0, between, (200, 1))
        cells.append(level * np.exp(starts + generator.normal(0, within, (200, 5))))
    cells[0][7, 2] = np.nan
    found = estimate_scatter(cells)
    assert found is not None
    assert found.starts == 2 * 198
    assert math.sqrt(found.within) == pytest.approx(within, rel=0.05)
    assert math.sqrt(found.between) == pytest.approx(between, rel=0.1)
    assert (
        find_best_iterations(Scatter(within**2, between**2, 9), start_s=9.0, iteration_s=1.0) == 6
    )  # √9 · 0.04 / 0.02
    assert find_best_iterations(Scatter(1e-4, 1e-2, 9), start_s=9.0, iteration_s=1.0) == 1
    assert find_best_iterations(Scatter(1e-2, 0.0, 9), start_s=9.0, iteration_s=1.0) == MAX_ITERATIONS


def test_scatter_of_too_little_is_unknown() -> None:
    assert estimate_scatter([np.ones((3, 2))]) is None
    assert estimate_scatter([np.ones((3, 1)), np.ones((3, 1))]) is None
    assert estimate_scatter([np.ones((1, 3)), np.ones((1, 3))]) is None
    assert estimate_scatter([np.ones((3, 2)), np.ones((3, 4))]) is None


def test_iterations_are_bounded() -> None:
    assert choose_iterations({"a": Pilot(100, 0.01)}, 1, block_limit_s=1e9) == 20
    assert choose_iterations({"a": Pilot(30, 5)}, 1) == 4
    assert choose_iterations({"a": Pilot(30, 5)}, 1, block_limit_s=45) == 2
    assert choose_iterations({"a": Pilot(1, 40)}, 1) == 1
    assert choose_iterations({"a": Pilot(2.0, 0.02)}, 1) == 20
    with pytest.raises(ValueError, match="no pilot"):
        choose_iterations({}, 1)


def test_the_warm_up_is_as_long_as_runs_take_longer_than_those_after_them() -> None:
    generator = np.random.default_rng(5)
    assert count_needed_warmups([[0.1] * 6]) == 0
    assert count_needed_warmups([[0.3, 0.2, 0.1, 0.1, 0.1, 0.1]]) == 2
    assert count_needed_warmups([[2.0**-i for i in range(8)]]) == 3  # no steady state
    assert count_needed_warmups([[2.0, 1.0]] * 9) is None
    assert count_needed_warmups([]) is None
    once = [[0.1] * 6] * 9 + [[0.3, 0.2, 0.1, 0.1, 0.1, 0.1]]
    assert count_needed_warmups(once) == 0  # of ten starts one
    noisy_starts = np.exp(generator.normal(0, 0.05, (20, 8)))
    assert count_needed_warmups(noisy_starts.tolist()) == 0
    noisy_starts[:, 0] *= 1.8
    assert count_needed_warmups(noisy_starts.tolist()) == 1
