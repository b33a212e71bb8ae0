"""The Universal Scalability Law finds what a throughput was made of."""

import math

import numpy as np
import pytest

from guestmark.stats.scalability import fit_law, fit_with_intervals, least_squares_slope
from guestmark.workloads.density.sections import _describe_peak
from tests.framework.marks import long

NUMBERS = (1.0, 2.0, 4.0, 8.0, 16.0)


def made(number: float, contention: float, coherence: float, rate: float = 10.0) -> float:
    return rate * number / (1 + contention * (number - 1) + coherence * number * (number - 1))


@pytest.mark.parametrize(("contention", "coherence"), [(0.0, 0.0), (0.1, 0.02), (0.5, 0.0), (0.0, 0.05)])
def test_a_known_law_is_found(contention: float, coherence: float) -> None:
    found = fit_law([(number, made(number, contention, coherence)) for number in NUMBERS])
    assert found.rate == pytest.approx(10)
    assert found.contention == pytest.approx(contention, abs=1e-9)
    assert found.coherence == pytest.approx(coherence, abs=1e-9)
    expected = math.sqrt((1 - contention) / coherence) if coherence else math.inf
    assert found.knee == pytest.approx(expected)
    assert found.error < 1e-9


@pytest.mark.parametrize("blocks", [4, long(8)])
@pytest.mark.parametrize(
    ("contention", "coherence"),
    [(0.1, 0.02), *(long(*law) for law in ((0.3, 0.0), (0.05, 0.002)))],
)
def test_intervals_hold_a_known_law(blocks: int, contention: float, coherence: float) -> None:
    random = np.random.default_rng(3)
    knee = math.sqrt((1 - contention) / coherence) if coherence else math.inf
    held = np.zeros(3)
    for _ in range(800):
        found = fit_with_intervals(noisy(random, blocks, contention, coherence))
        for at, (ends, true) in enumerate(
            zip((found.contention, found.coherence, found.knee), (contention, coherence, knee), strict=True)
        ):
            assert ends is not None
            held[at] += ends[0] <= true <= ends[1]
    assert (held / 800 >= 0.92).all()  # .80 with percentiles of resampled blocks, of four


def noisy(
    random: np.random.Generator,
    blocks: int,
    contention: float,
    coherence: float,
    numbers: tuple[float, ...] = NUMBERS,
) -> list[list[tuple[float, float]]]:
    return [
        [(n, made(n, contention, coherence) * float(np.exp(random.normal(0, 0.03)))) for n in numbers]
        for _ in range(blocks)
    ]


def test_too_little_has_no_interval() -> None:
    random = np.random.default_rng(4)
    assert fit_with_intervals(noisy(random, 3, 0.1, 0.02)).knee is None
    assert (
        fit_with_intervals(noisy(random, 8, 0.1, 0.02, (1.0, 4.0))).coherence is None
    )  # two numbers say nothing of squares
    steady = [[(number, made(number, 0.1, 0.02)) for number in NUMBERS]] * 4
    knee = fit_with_intervals(steady).knee
    assert knee is not None
    assert knee == pytest.approx((math.sqrt(0.9 / 0.02),) * 2)


def test_that_more_would_do_more_needs_a_knee_beyond_what_was_tried() -> None:
    random = np.random.default_rng(5)
    shown = fit_with_intervals(noisy(random, 8, 0.1, 0.0))
    assert "and more machines would do more" in _describe_peak(shown, 16)
    at_the_knee = fit_with_intervals(noisy(random, 8, 0.1, 0.9 / 16.2**2))
    assert "more machines would do more" not in _describe_peak(at_the_knee, 16)
    falling = fit_with_intervals([[(1.0, 10.0), (4.0, 9.0)]] * 5)
    assert falling.law.knee == math.inf
    assert _describe_peak(falling, 4) == "4 of them together reach 0.9 times the throughput of one"


def test_a_throughput_that_no_law_describes_says_how_far_it_is_off() -> None:
    assert fit_law([(1, 10.0), (2, 20.0), (4, 5.0), (8, 60.0)]).error > 0.3


def test_more_than_proportional_growth_is_no_negative_contention() -> None:
    found = fit_law([(number, 10 * number**1.2) for number in NUMBERS])
    assert (found.contention, found.coherence) == (0.0, 0.0)
    assert found.error > 0.1


def test_one_number_is_no_law() -> None:
    with pytest.raises(ValueError, match="two numbers"):
        fit_law([(2, 1.0), (2, 1.1)])


def test_a_slope_is_found() -> None:
    assert least_squares_slope([(number, 7 + 3 * number) for number in NUMBERS]) == pytest.approx(3)
