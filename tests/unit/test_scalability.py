"""The Universal Scalability Law finds what a throughput was made of."""

import math

import numpy as np
import pytest

from guestmark.stats.scalability import fit, law, slope

NUMBERS = (1.0, 2.0, 4.0, 8.0, 16.0)


def made(number: float, contention: float, coherence: float, rate: float = 10.0) -> float:
    return rate * number / (1 + contention * (number - 1) + coherence * number * (number - 1))


@pytest.mark.parametrize(("contention", "coherence"), [(0.0, 0.0), (0.1, 0.02), (0.5, 0.0), (0.0, 0.05)])
def test_a_known_law_is_found(contention: float, coherence: float) -> None:
    found = law([(number, made(number, contention, coherence)) for number in NUMBERS])
    assert found.rate == pytest.approx(10)
    assert found.contention == pytest.approx(contention, abs=1e-9)
    assert found.coherence == pytest.approx(coherence, abs=1e-9)
    expected = math.sqrt((1 - contention) / coherence) if coherence else math.inf
    assert found.knee == pytest.approx(expected)
    assert found.error < 1e-9


def test_the_interval_holds_the_known_knee() -> None:
    random = np.random.default_rng(3)
    true, held = math.sqrt(0.9 / 0.02), 0
    for _ in range(40):
        blocks = [
            [(n, made(n, 0.1, 0.02) * float(np.exp(random.normal(0, 0.03)))) for n in NUMBERS]
            for _ in range(8)
        ]
        found = fit(blocks)
        assert found.knee is not None
        held += found.knee[0] <= true <= found.knee[1]
    assert held >= 32


def test_a_throughput_that_no_law_describes_says_how_far_it_is_off() -> None:
    assert law([(1, 10.0), (2, 20.0), (4, 5.0), (8, 60.0)]).error > 0.3


def test_more_than_proportional_growth_is_no_negative_contention() -> None:
    found = law([(number, 10 * number**1.2) for number in NUMBERS])
    assert (found.contention, found.coherence) == (0.0, 0.0)
    assert found.error > 0.1


def test_one_number_is_no_law() -> None:
    with pytest.raises(ValueError, match="two numbers"):
        law([(2, 1.0), (2, 1.1)])


def test_a_slope_is_found() -> None:
    assert slope([(number, 7 + 3 * number) for number in NUMBERS]) == pytest.approx(3)
