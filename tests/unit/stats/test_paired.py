"""Estimates and tests on paired differences, held against scipy.stats and statsmodels."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import stdtrit

from guestmark.stats import (
    adjust_benjamini_hochberg,
    count_blocks_to_claim,
    log_ratios,
    median_interval,
    paired,
    sign_flip_p,
    t_interval,
    t_quantile,
)
from tests.framework.known import known
from tests.framework.marks import long

DIFFERENCES = st.lists(st.floats(-1, 1, allow_subnormal=False), min_size=1, max_size=12).map(np.array)


def brute_force(d: np.ndarray) -> float:
    signs = np.array(list(itertools.product((-1, 1), repeat=d.size)))
    return float((np.abs(signs @ d) >= abs(d.sum()) - 1e-12 * np.abs(d).sum()).mean())


@given(DIFFERENCES)
def test_sign_flip_counts_every_sign_vector(d: np.ndarray) -> None:
    p = sign_flip_p(d)
    assert p == pytest.approx(brute_force(d), abs=1e-12)
    assert 2.0 ** (1 - d.size) <= p <= 1
    assert sign_flip_p(-d) == p


@pytest.mark.parametrize("blocks", [5, 8, 12])
def test_sign_flip_is_scipys_exact_permutation_test(blocks: int) -> None:
    from scipy.stats import permutation_test

    d = np.random.default_rng(blocks).normal(0.01, 0.02, blocks)
    exact = permutation_test(
        (d,), lambda x, axis: x.mean(axis), permutation_type="samples", n_resamples=np.inf, vectorized=True
    )
    assert sign_flip_p(d) == pytest.approx(float(exact.pvalue), rel=1e-12)


@pytest.mark.parametrize("blocks", [2, 6, 11, 30])
def test_smallest_sign_flip_p_is_reached_and_not_undercut(blocks: int) -> None:
    assert sign_flip_p(np.full(blocks, 0.1)) == 2.0 ** (1 - blocks)


@pytest.mark.parametrize("blocks", [31, 60, 200])
def test_p_of_random_sign_vectors_is_never_zero_and_always_the_same(blocks: int) -> None:
    d = np.full(blocks, 0.1)  # no other sign vector among 19,999 is as extreme: k/(n+1) would be 0
    assert sign_flip_p(d) == 1 / 20_000 == sign_flip_p(d)


def test_random_sign_vectors_agree_with_the_exact_test(monkeypatch: pytest.MonkeyPatch) -> None:
    d = np.random.default_rng(4).normal(0.005, 0.02, 24)
    exact = sign_flip_p(d)
    monkeypatch.setattr("guestmark.stats.paired.EXACT_BLOCKS", 0)
    assert sign_flip_p(d) == pytest.approx(exact, abs=4 * math.sqrt(exact * (1 - exact) / 20_000))


def test_no_difference_at_all_has_p_one() -> None:
    assert sign_flip_p(np.zeros(10)) == 1
    assert sign_flip_p(np.array([0.02, -0.02] * 5)) == 1


@pytest.mark.parametrize("n", [2, 3, 10, 40])
def test_t_interval_is_scipys(n: int) -> None:
    from scipy.stats import ttest_1samp

    d = np.random.default_rng(n).normal(0.01, 0.02, n)
    expected = ttest_1samp(d, 0).confidence_interval()
    assert t_interval(d) == pytest.approx((expected.low, expected.high), rel=1e-12)


@pytest.mark.parametrize("n", [*range(6, 40), 199, 500])
def test_median_interval_is_scipys(n: int) -> None:
    from scipy.stats import quantile_test

    d = np.random.default_rng(n).normal(0.01, 0.02, n)
    expected = quantile_test(d, q=0, p=0.5).confidence_interval()
    assert median_interval(d) == (expected.low, expected.high)


def test_median_has_no_interval_below_six_blocks() -> None:
    assert median_interval(np.arange(5.0)) is None
    assert median_interval(np.arange(6.0)) == (0, 5)


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 9, 10, 99, 1000, 9999])
@pytest.mark.parametrize("p", [0.5, 0.6, 0.9, 0.975, 0.995, 0.99999])
def test_t_quantile_is_scipys(freedom: int, p: float) -> None:
    assert t_quantile(freedom, p) == pytest.approx(stdtrit(freedom, p), rel=1e-9, abs=1e-9)


def test_interval_of_one_value_is_refused() -> None:
    with pytest.raises(ValueError, match="two values"):
        t_interval(np.array([1.0]))


def test_blocks_with_a_missing_trial_are_left_out() -> None:
    d = log_ratios(np.array([2.0, np.nan, 4.0, 8.0]), np.array([1.0, 1.0, np.nan, 2.0]))
    assert d == pytest.approx([math.log(2), math.log(4)])


@pytest.mark.parametrize("bad", [0.0, -1.0, np.inf])
def test_a_value_without_a_logarithm_leaves_no_ratio(bad: float) -> None:
    assert log_ratios(np.array([1.0, bad]), np.ones(2)) is None
    assert log_ratios(np.ones(2), np.array([1.0, bad])) is None
    # unless its block does not count anyway
    assert log_ratios(np.array([1.0, bad]), np.array([1.0, np.nan])) == pytest.approx([0.0])


def test_rounding_is_no_difference() -> None:
    third = np.full(8, 0.1 + 0.2)
    assert (third != 0.3).all()
    assert not known(log_ratios(third, np.full(8, 0.3))).any()


def test_unequal_sample_counts_are_an_error() -> None:
    with pytest.raises(ValueError, match="do not pair"):
        log_ratios(np.ones(20), np.ones(21))


# The example of Benjamini and Hochberg's method in statsmodels 0.15.0: multipletests(p, method=...)[1]
RAW = [0.001, 0.008, 0.039, 0.041, 0.042, 0.06, 0.074, 0.205, 0.212, 0.216]


def test_adjusted_p_values_are_statsmodels() -> None:
    bh = [0.01, 0.04, 0.084, 0.084, 0.084, 0.1, 0.10571428571428572, 0.216, 0.216, 0.216]
    shuffled = np.random.default_rng(1).permutation(10)
    assert adjust_benjamini_hochberg(np.array(RAW)[shuffled]) == pytest.approx(np.array(bh)[shuffled])


@given(st.lists(st.floats(0, 1), max_size=50))
def test_benjamini_hochberg_is_scipys(p: list[float]) -> None:
    from scipy.stats import false_discovery_control

    adjusted = adjust_benjamini_hochberg(np.array(p))
    assert adjusted == pytest.approx(false_discovery_control(p) if p else [])


def test_one_difference_among_40_cells_needs_11_blocks() -> None:
    assert count_blocks_to_claim(1) == 6
    assert count_blocks_to_claim(40) == 11
    for blocks, claimed in ((10, False), (11, True)):
        p = np.ones(40)
        p[0] = sign_flip_p(np.full(blocks, 0.5))  # the clearest difference that can be
        assert bool(adjust_benjamini_hochberg(p)[0] < 0.05) is claimed


@pytest.mark.parametrize("n", [3, 8, *(long(n) for n in (20, 100))])
def test_the_typical_value_is_covered_by_its_interval(n: int) -> None:
    generator = np.random.default_rng(n)
    covered = 0
    for _ in range(1000):
        ends = paired.summarise_trials(np.exp(generator.normal(1.0, 0.2, n))).typical_ci
        assert ends is not None
        covered += ends[0] <= math.e <= ends[1]
    assert covered / 1000 >= 0.93


@pytest.mark.parametrize(
    ("n", "of_neighbours", "least"),
    [
        (8, 0.5, 0.88),
        (12, 0.25, 0.93),
        *(long(n, 0.6, 0.92) for n in (27, 90)),
    ],
)
def test_intervals_cover_where_the_state_of_the_host_lasts(
    n: int, of_neighbours: float, least: float
) -> None:
    generator = np.random.default_rng(n)
    covered = np.zeros(2)
    for _ in range(2000):
        noise = generator.normal(0, 0.02, n)
        for at in range(1, n):
            noise[at] = of_neighbours * noise[at - 1] + math.sqrt(1 - of_neighbours**2) * noise[at]
        found = paired.summarise_trials(np.exp(noise))
        for at, ends in enumerate((found.typical_ci, found.ci)):
            assert ends is not None
            covered[at] += ends[0] <= 1 <= ends[1]
    assert (covered / 2000 >= least).all()  # .77 to .88 if values counted as independent


def test_an_interval_is_hardly_longer_where_nothing_lasts() -> None:
    generator = np.random.default_rng(1)
    for n, most in ((8, 1.1), (30, 1.1), (90, 1.1)):
        factors = [paired.autocorrelation_stretch(generator.normal(0, 1, n)) for _ in range(300)]
        assert 1 <= np.median(factors) < most
        assert max(factors) < 3.6
    assert paired.autocorrelation_stretch(np.array([1.0, 2.0, 3.0, 4.0, 5.0])) == 1
    assert paired.autocorrelation_stretch(np.full(9, 7.0)) == 1


def test_one_slow_trial_moves_neither_the_typical_value_nor_its_interval_far() -> None:
    """So that a value and the ratio beside it agree: the quotient of two typical values is the typical ratio."""
    generator = np.random.default_rng(9)
    host = np.exp(generator.normal(0, 0.005, 12))
    guest = 3.65 * np.exp(generator.normal(0, 0.005, 12))
    guest[7] *= 2
    found, base = paired.summarise_trials(guest), paired.summarise_trials(host)
    assert found.typical / base.typical == pytest.approx(3.65, rel=0.01)
    assert found.typical_ci is not None
    assert found.typical_ci[1] / found.typical_ci[0] < 1.03
    assert found.mean / base.mean > 3.9
    assert paired.summarise_trials(np.array([-1.0, 0.0, 3.0])).typical == pytest.approx(0.5)
    assert paired.summarise_trials(np.array([2.0])).typical_ci is None
    assert paired.summarise_trials(np.full(9, 7.0)).typical_ci == pytest.approx((7.0, 7.0))
