"""The exact signed-rank test, its estimate and its interval, held against scipy and against counting."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from guestmark.stats import paired

DISTINCT = st.lists(st.integers(-10_000, 10_000).filter(bool), min_size=1, max_size=10, unique_by=abs).map(
    lambda x: np.array(x) / 10_000
)


def p_of(d: np.ndarray, shift: float = 0.0) -> float:
    return paired.signed_rank_p(paired.walsh_averages(d), shift)


def counted(d: np.ndarray) -> float:
    """The two-sided p by going through every sign vector."""
    ranks = np.argsort(np.argsort(np.abs(d))) + 1
    seen = min(ranks[d > 0].sum(), ranks[d < 0].sum())
    signs = np.array(list(itertools.product((0, 1), repeat=d.size)))
    return min(1.0, 2 * float((signs @ ranks <= seen).mean()))


@given(DISTINCT)
def test_p_counts_every_sign_vector(d: np.ndarray) -> None:
    assert p_of(d) == pytest.approx(counted(d), abs=1e-12)
    assert p_of(-d) == p_of(d)


@pytest.mark.parametrize("blocks", [5, 8, 12, 30])
def test_p_is_scipys(blocks: int) -> None:
    from scipy.stats import wilcoxon

    d = np.random.default_rng(blocks).normal(0.01, 0.02, blocks)
    assert p_of(d) == pytest.approx(float(wilcoxon(d, method="exact").pvalue), rel=1e-9)


@pytest.mark.parametrize("blocks", [6, 11, 30, 60])
def test_the_smallest_p_is_reached(blocks: int) -> None:
    assert p_of(np.linspace(1, 2, blocks)) == pytest.approx(2.0 ** (1 - blocks))


def test_ties_count_against_the_claim() -> None:
    coarse = np.array([0.01] * 6 + [-0.01, 0.0])
    # Of the 36 averages 27 are above, 2 below and 7 at 0: P(W <= 2 + 7) · 2
    assert p_of(coarse) == pytest.approx(2 * float(paired.signed_rank_cdf(8)[9]))
    assert p_of(np.zeros(10)) == 1


def test_the_normal_approximation_joins_the_exact_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = paired.signed_rank_cdf(100)
    paired.signed_rank_cdf.cache_clear()
    monkeypatch.setattr(paired, "EXACT_RANKS", 0)
    approximate = paired.signed_rank_cdf(100)
    paired.signed_rank_cdf.cache_clear()
    assert np.abs(exact - approximate).max() < 1e-3
    assert exact[-1] == pytest.approx(1)


@pytest.mark.parametrize("blocks", [6, 8, 10, 17])
def test_the_interval_holds_what_the_test_does_not_reject(blocks: int) -> None:
    d = np.random.default_rng(blocks).normal(0.01, 0.02, blocks)
    walsh = paired.walsh_averages(d)
    low, high = (float(end) for end in paired.signed_rank_interval(walsh, 0.95))
    for shift, inside in ((low - 1e-6, False), (low + 1e-6, True), (high - 1e-6, True), (high + 1e-6, False)):
        assert (p_of(d, shift) > 0.05) is inside


def test_below_six_blocks_there_is_no_interval() -> None:
    assert paired.count_averages_outside(5, 0.95) is None
    assert paired.count_averages_outside(6, 0.95) == 0
    low, high = paired.signed_rank_interval(paired.walsh_averages(np.arange(5.0)))
    assert math.isnan(low)
    assert math.isnan(high)


def test_the_estimate_is_the_median_of_the_averages() -> None:
    d = np.array([0.0, 1.0, 5.0])  # averages: 0 .5 1 2.5 3 5
    assert float(paired.hodges_lehmann(paired.walsh_averages(d))) == 1.75
    spiked = np.concatenate([np.random.default_rng(1).normal(0, 0.01, 20), [5.0] * 4])
    assert abs(float(paired.hodges_lehmann(paired.walsh_averages(spiked)))) < 0.02


def test_runs_are_computed_together_and_missing_blocks_left_out() -> None:
    generator = np.random.default_rng(2)
    d = generator.normal(0, 1, (40, 12))
    d[generator.random(d.shape) < 0.2] = np.nan
    walsh = paired.walsh_averages(d)
    low, high = paired.signed_rank_interval(walsh)
    for i, row in enumerate(d):
        alone = paired.walsh_averages(row[~np.isnan(row)])
        assert paired.hodges_lehmann(walsh)[i] == paired.hodges_lehmann(alone)
        ends = paired.signed_rank_interval(alone)
        assert (low[i], high[i]) == pytest.approx((float(ends[0]), float(ends[1])), nan_ok=True)
        assert paired.signed_rank_p(walsh[i]) == paired.signed_rank_p(alone)


def test_equivalence_is_two_one_sided_tests() -> None:
    from scipy.stats import wilcoxon

    d = np.random.default_rng(3).normal(0.005, 0.02, 15)
    margin = math.log1p(0.03)
    expected = max(
        wilcoxon(d - margin, alternative="less", method="exact").pvalue,
        wilcoxon(d + margin, alternative="greater", method="exact").pvalue,
    )
    assert paired.equivalence_p(paired.walsh_averages(d), 0.03) == pytest.approx(expected, rel=1e-9)


def test_equivalence_is_no_certainty() -> None:
    flat = paired.walsh_averages(np.full(10, 0.01))
    assert paired.equivalence_p(flat, 0.03) == 2.0**-10
    assert paired.equivalence_p(flat + 0.03, 0.03) == 1
    with pytest.raises(ValueError, match="margin"):
        paired.equivalence_p(flat, 0)
