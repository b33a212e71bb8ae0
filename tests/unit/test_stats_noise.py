"""Noise floor, flagged blocks, repetitions, warm-up."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from guestmark.core.model import Better
from guestmark.stats import (
    THRESHOLDS,
    blocks_needed,
    compare_table,
    flag_blocks,
    half_width,
    iterations_for,
    kalibera_jones,
    noise_floor,
    precise_enough,
    steady_from,
    variance_components,
)
from guestmark.stats.warmup import change_points


def noisy(seed: int, n: int = 12, spread: float = 0.01) -> np.ndarray:
    return np.exp(np.random.default_rng(seed).normal(0, spread, n))


def test_noise_floor_is_the_percentile_of_null_ratios():
    generator = np.random.default_rng(1)
    d = generator.normal(0, 0.02, (4_000, 20)) - generator.normal(0, 0.02, (4_000, 20))
    truth = np.quantile(np.abs(np.expm1(d.mean(axis=1))), 0.95)
    floors = [noise_floor([(noisy(2 * i, 20, 0.02), noisy(2 * i + 1, 20, 0.02))], 20) for i in range(200)]
    assert np.mean(floors) == pytest.approx(truth, rel=0.1)
    assert noise_floor([(noisy(1, 200), noisy(2, 200))], 5) > noise_floor(
        [(noisy(1, 200), noisy(2, 200))], 50
    )


def test_noise_floor_is_not_below_a_null_pair_that_is_off():
    floor = noise_floor([(1.05 * noisy(1), noisy(2))], 12)
    assert floor == pytest.approx(0.05, abs=0.01)


def test_noise_floor_needs_enough_null_blocks_or_history():
    assert noise_floor([], 10) is None
    assert noise_floor([(noisy(1, 5), noisy(2, 5))], 10) is None
    assert noise_floor([(noisy(1, 3), noisy(2, 3))] * 2, 10) is not None
    assert noise_floor([(np.zeros(10), np.zeros(10))], 10) is None
    assert noise_floor([], 10, [1.01] * 19) is None
    assert noise_floor([], 10, [*[1.0] * 14, *[0.96] * 3, *[1.04] * 3]) == pytest.approx(0.04)
    assert noise_floor([(noisy(1), noisy(2))], 0) is None


def test_blocks_are_flagged_by_any_trial_whatever_its_cell():
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
def test_flags_do_not_know_the_cells(rows, order):
    series = np.array(rows)
    flags = flag_blocks({"steal": series})
    assert (flag_blocks({"steal": series[:, order]}) == flags).all()
    assert (flags == (series.max(axis=1) > THRESHOLDS["steal"])).all()


def test_precision_is_the_relative_half_width():
    assert half_width((1.96, 2.04), 2.0) == pytest.approx(0.02)
    c = compare_table({"a": noisy(1), "b": noisy(2)}, "a", better=Better.LOWER, margin=0.03)["b"]
    width = half_width(c.ci, c.ratio)
    assert precise_enough(c, width * 1.001)
    assert not precise_enough(c, width * 0.999)
    none = compare_table({"a": np.zeros(9), "b": np.zeros(9)}, "a", better=Better.LOWER, margin=0.03)["b"]
    assert not precise_enough(none, 1e9)
    assert blocks_needed(none, 0.01) is None


def test_blocks_needed_is_where_precision_is_reached():
    values = {"a": noisy(1, 400, 0.03), "b": noisy(2, 400, 0.03)}
    early = compare_table({k: v[:200] for k, v in values.items()}, "a", better=Better.LOWER, margin=0.03)["b"]
    needed = blocks_needed(early, 0.005)
    assert 220 < needed < 340  # (1.96 · 0.042 / 0.005)² = 277
    for n, enough in ((round(needed * 0.7), False), (round(needed * 1.3), True)):
        later = compare_table({k: v[:n] for k, v in values.items()}, "a", better=Better.LOWER, margin=0.03)[
            "b"
        ]
        assert precise_enough(later, 0.005) is enough
    assert blocks_needed(early, 0.5) == 200  # already there
    assert blocks_needed(early, 1e-9) is None
    assert blocks_needed(early, 0) is None


def test_repetitions_are_kalibera_and_jones():
    # r1 = sqrt(20/0.5 · 1/4) = 3.16, r2 = sqrt(100/20 · 4/0.2) = 10
    assert kalibera_jones((0.5, 20, 100), (1, 4, 0.2)) == (4, 10)
    assert kalibera_jones((1, 1), (0, 1)) == (1,)
    assert kalibera_jones((1, 1), (1, 0)) == (1000,)
    assert iterations_for(2, 0.02) == 10
    assert iterations_for(2, 10) == 1
    assert iterations_for(2, 0.02, variance_ratio=4) == 20
    for costs, variances in (((1,), (1,)), ((1, 2), (1, 2, 3)), ((0, 1), (1, 1)), ((1, 1), (-1, 1))):
        with pytest.raises(ValueError, match="cost"):
            kalibera_jones(costs, variances)


def test_repetitions_minimise_the_variance_for_the_time():
    boot, iteration, between, within = 2.0, 0.05, 0.3, 1.0
    best = kalibera_jones((iteration, boot), (within, between))[0]

    def variance_per_second(r: int) -> float:
        return (between + within / r) * (boot + r * iteration)

    assert best in sorted(range(1, 100), key=variance_per_second)[:2]


def test_variance_components_are_recovered():
    generator = np.random.default_rng(5)
    boots = [
        generator.normal(0, 2) + generator.normal(0, 0.5, generator.integers(2, 9)) for _ in range(3_000)
    ]
    within, between = variance_components(boots)
    assert within == pytest.approx(0.25, rel=0.05)
    assert between == pytest.approx(4, rel=0.1)
    assert variance_components([[1, 3], [1, 3]])[1] == 0
    with pytest.raises(ValueError, match="two boots"):
        variance_components([[1], [2]])


def series(seed: int, n: int) -> np.ndarray:
    return 1 + 0.01 * np.random.default_rng(seed).normal(size=n)


@pytest.mark.parametrize("unit", [1.0, 1e-6, 1e9])
@pytest.mark.parametrize("n", [12, 40, 200])
def test_warm_up_ends_where_the_level_settles_in_any_unit(n, unit):
    x = series(n, n)
    x[: n // 4] += 0.3
    assert steady_from(x * unit) == n // 4


def test_one_slow_first_iteration_is_warm_up():
    x = series(1, 30)
    x[0] = 2.0
    assert steady_from(x) in (1, 2)


def test_a_single_outlier_later_is_not():
    x = series(1, 40)
    x[25] = 1.5
    assert steady_from(x) == 0


def test_a_late_change_is_no_steady_state():
    x = series(1, 100)
    x[85:] += 0.5
    assert steady_from(x) is None
    x = series(2, 100) + np.arange(100) * 0.05
    assert steady_from(x) is None


def test_a_quiet_or_constant_series_is_steady_from_the_start():
    found = [steady_from(series(seed, 30)) for seed in range(100)]
    assert found.count(0) >= 97
    assert steady_from([0.25] * 20) == 0
    with pytest.raises(ValueError, match="10 iterations"):
        steady_from([1.0] * 9)
    with pytest.raises(ValueError, match="finite"):
        steady_from([1.0] * 20 + [float("nan")])


def test_change_points_are_those_ruptures_finds():
    # ruptures 1.1.10: Pelt(model="normal", min_size=2, jump=1).fit(x).predict(pen=8 log n)
    generator = np.random.default_rng(3)
    x = np.concatenate([generator.normal(5, 1, 30), generator.normal(3, 0.2, 50), generator.normal(3, 2, 40)])
    assert change_points(x) == RUPTURES
    assert change_points(np.arange(3)) == ()


RUPTURES = (30, 80)
