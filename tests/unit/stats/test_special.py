"""The distribution functions, compared with those of scipy."""

import itertools
import math
import random

import pytest
from scipy import special as theirs
from scipy import stats

from guestmark.stats import special
from guestmark.stats.machines import detect_machine_drift, trend_p

FREEDOM = (1, 2, 2.5, 3, 7, 19, 98, 999, 10_000)
SHARES = (1e-12, 1e-6, 0.001, 0.025, 0.3, 0.5, 0.8, 0.975, 0.9975, 1 - 1e-6)


@pytest.mark.parametrize("freedom", FREEDOM)
def test_students_distribution(freedom: float) -> None:
    for t in (-1e6, -40.0, -3.7, -1.0, -1e-9, 0.0, 1e-9, 0.2, 2.1, 15.0, 1e4):
        assert special.student_t_cdf(freedom, t) == pytest.approx(
            float(theirs.stdtr(freedom, t)), rel=1e-9, abs=1e-290
        )
    for share in SHARES:
        assert special.student_t_quantile(freedom, share) == pytest.approx(
            float(theirs.stdtrit(freedom, share)), rel=1e-9, abs=1e-12
        )


@pytest.mark.parametrize(
    ("a", "b"), [*itertools.product((0.3, 1.0, 4.5, 60.0, 1000.0), repeat=2), (1e-3, 2.0)]
)
def test_the_beta_distribution(a: float, b: float) -> None:
    for x in (1e-9, 0.01, 0.2, 0.5, 0.77, 0.999):
        assert special.regularized_beta(a, b, x) == pytest.approx(
            float(theirs.betainc(a, b, x)), rel=1e-9, abs=1e-290
        )
    for share in SHARES:
        expected = float(theirs.betaincinv(a, b, share))
        assert special.inverse_regularized_beta(a, b, share) == pytest.approx(expected, rel=1e-9, abs=1e-290)


def test_fishers_distribution() -> None:
    for numerator, denominator in itertools.product((1, 2, 5, 30), (4, 17, 300)):
        for f in (0.0, 0.01, 0.9, 3.3, 40.0):
            expected = float(theirs.fdtrc(numerator, denominator, f))
            assert special.f_survival(numerator, denominator, f) == pytest.approx(
                expected, rel=1e-9, abs=1e-290
            )


def test_the_normal_distribution() -> None:
    for z in (-37.0, -8.0, -1.96, 0.0, 0.3, 5.0, 40.0):
        assert special.normal_cdf(z) == pytest.approx(float(theirs.ndtr(z)), rel=1e-12)


def test_ends_and_nonsense() -> None:
    assert special.student_t_cdf(3, math.inf) == 1
    assert special.student_t_cdf(3, -math.inf) == 0
    assert math.isnan(special.student_t_cdf(3, math.nan))
    assert special.student_t_quantile(3, 0) == -math.inf
    assert (special.regularized_beta(2, 3, 0), special.regularized_beta(2, 3, 1)) == (0, 1)
    assert (special.inverse_regularized_beta(2, 3, 0), special.inverse_regularized_beta(2, 3, 1)) == (0, 1)


@pytest.mark.parametrize("size", [6, 9, 20, 33, 34, 80])
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("slope", [0.0, 0.02, -0.2])
def test_the_trend_of_a_machine(size: int, ties: bool, slope: float) -> None:
    chance = random.Random(f"{size} {ties} {slope}")
    values = [5 + slope * at + chance.gauss(0, 0.1) for at in range(size)]
    if ties:
        values = [round(value, 1) for value in values]
    expected = stats.kendalltau(range(size), values).pvalue
    assert trend_p(values) == pytest.approx(expected, rel=1e-9)
    moved = detect_machine_drift([math.exp(value) for value in values])
    if not expected < 0.01:
        assert moved is None
    else:
        line = stats.theilslopes(values, range(size)).slope * (size - 1)
        assert moved == pytest.approx(math.expm1(line), rel=1e-9)
