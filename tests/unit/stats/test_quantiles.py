"""Quantiles of clustered values: exact where values are independent, wide or absent where blocks are alike."""

import numpy as np
import pytest

from guestmark.stats.quantiles import _find_enclosing_ranks, count_needed_values, estimate_quantile


def test_how_many_values_a_quantile_takes() -> None:
    # 0.975 = 1 - p^n solved by hand: 0.99^368 = 0.0248, 0.99^367 = 0.0250.
    assert [count_needed_values(share) for share in (0.5, 0.9, 0.99)] == [6, 36, 368]


def test_too_few_values_have_no_quantile() -> None:
    assert estimate_quantile([[1.0] * 367], 0.99).value is None
    assert estimate_quantile([list(np.arange(368.0))], 0.99).value is not None
    assert estimate_quantile([], 0.5).value is None


def test_the_order_statistics_of_ten_values_are_those_of_the_sign_test() -> None:
    # Binomial(10, 1/2): the second and the ninth value enclose the median with 97.9 %.
    assert _find_enclosing_ranks(10.0, 0.5, 0.95) == (2, 9)


def test_one_block_says_nothing_of_how_others_differ() -> None:
    found = estimate_quantile([[float(number) for number in range(1, 11)]], 0.5)
    assert found.value == 5.0
    assert found.interval is None


@pytest.mark.parametrize(("number", "share"), [(4, 0.5), (10, 0.9), (80, 0.99)])
def test_intervals_of_independent_values_hold_the_quantile(number: int, share: float) -> None:
    random, true, held, shown = np.random.default_rng(1), -np.log(1 - share), 0, 0
    for _ in range(300):
        interval = estimate_quantile(random.exponential(size=(10, number)).tolist(), share).interval
        shown += interval is not None
        held += interval is None or interval[0] <= true <= interval[1]
    assert held / 300 > 0.92
    assert shown > 200


def test_intervals_hold_it_when_blocks_differ() -> None:
    random = np.random.default_rng(2)
    every = np.exp(random.normal(0, 0.3, 200_000) + random.normal(0, 0.3, 200_000))
    true, held = float(np.quantile(every, 0.5)), 0
    for _ in range(200):
        blocks = [np.exp(random.normal(0, 0.3) + random.normal(0, 0.3, 40)).tolist() for _ in range(8)]
        interval = estimate_quantile(blocks, 0.5).interval
        held += interval is not None and interval[0] <= true <= interval[1]
    assert held / 200 > 0.92


def test_blocks_that_are_wholly_alike_are_worth_one_start_each() -> None:
    found = estimate_quantile([[float(block)] * 100 for block in range(8)], 0.5)
    assert found.number == 800
    assert found.effective <= 8
