"""Power of the test of slow runs: the share of slow runs that some blocks find, and the blocks that find a share.

A block counts for more slow runs in a cell if more of the cell's runs than of the baseline's are slow in it, and
against that if fewer are. If both have the same distribution, either is equally likely, so the claim is a sign test
over blocks. Without slow runs on the baseline this is exactly the test of `tails.excess_counts_p`; otherwise that test,
which also counts by how many runs the two differ, finds a little more. The level is that of slow runs in a cell's
table, see `family`.
"""

import bisect
import functools
import math
from collections.abc import Callable

from guestmark.core.rare import Rare
from guestmark.stats.family import FAMILY_LEVEL, SLOW
from guestmark.stats.special import regularized_beta

POWER = 0.9
_MOST = 10_000  # blocks
# Numbers of blocks more than this many standard deviations from their mean are ignored as too rare.
_REACH = 4.0


@functools.lru_cache(maxsize=1024)
def count_blocks_to_find(
    share: float, iterations: int, *, background: float = 0.0, cells: int = 1, power: float = POWER
) -> int | None:
    """Return the fewest blocks that find such slow runs with probability `power`; None beyond about 10,000.

    `share` of the cell's runs are slow, each independently, and `background` of both the baseline's and the cell's. A
    trial has `iterations` runs. `cells` are compared with the baseline; their p values are adjusted together.
    """

    def suffice(blocks: int) -> bool:
        return compute_power_to_find(share, blocks, iterations, background=background, cells=cells) >= power

    low, high = 1, 16
    while not suffice(high):
        if high >= _MOST:
            return None
        low, high = high, 2 * high
    return bisect.bisect_left(range(high), True, lo=low, key=suffice)


def count_blocks_to_see(share: float, iterations: int, power: float = POWER) -> int:
    """Return the fewest blocks in which a single cell shows at least one such run with probability `power`."""
    return math.ceil(math.log1p(-power) / (iterations * math.log1p(-share)))


def count_blocks_to_find_rare(
    rare: Rare, iterations: int, *, background: float = 0.0, cells: int = 1
) -> int | None:
    """Return the blocks that find `rare`: `count_blocks_to_find`, or without cells to compare `count_blocks_to_see`."""
    runs = 1 if rare.starts else iterations
    if not cells:
        return count_blocks_to_see(rare.share, runs)
    return count_blocks_to_find(rare.share, runs, background=background, cells=cells)


def find_cheapest_iterations(rare: Rare, cells: int, most: int, block_s: Callable[[int], float]) -> int:
    """Return how many iterations per trial, from 1 to `most`, find `rare` soonest.

    A block of trials with n iterations takes `block_s(n)` seconds.
    """
    found = {number: count_blocks_to_find_rare(rare, number, cells=cells) for number in range(1, most + 1)}
    costs = {number: blocks * block_s(number) for number, blocks in found.items() if blocks is not None}
    return min(costs, key=lambda number: costs[number], default=most)


def find_detectable_share(
    blocks: int, iterations: int, *, background: float = 0.0, cells: int = 1, power: float = POWER
) -> float | None:
    """Return the smallest share of slow runs that `blocks` blocks find with probability `power`; None above 1/2."""
    low, high = 0.0, 0.5
    if compute_power_to_find(high, blocks, iterations, background=background, cells=cells) < power:
        return None
    while high - low > 1e-3 * high:
        middle = (low + high) / 2
        found = compute_power_to_find(middle, blocks, iterations, background=background, cells=cells)
        low, high = (low, middle) if found >= power else (middle, high)
    return high


def compute_power_to_find(
    share: float, blocks: int, iterations: int, *, background: float = 0.0, cells: int = 1
) -> float:
    """Return the probability that `blocks` blocks show a cell's slow runs; arguments as in `count_blocks_to_find`."""
    more, fewer = _compute_block_chances(1 - (1 - share) * (1 - background), background, iterations)
    level = FAMILY_LEVEL * SLOW / cells
    if fewer < 1e-12:
        needed = math.ceil(1 - math.log2(level))  # 2^(1 - k) is at most the level
        return _binomial_tail(needed, blocks, more)
    either = more + fewer
    spread = _REACH * math.sqrt(blocks * either * (1 - either)) + 1
    first, last = max(round(blocks * either - spread), 1), min(round(blocks * either + spread), blocks)
    found = 0.0
    for decisive in range(first, last + 1):
        probability = _binomial_probability(decisive, blocks, either)
        critical = _sign_test_critical(decisive, level)
        found += probability * _binomial_tail(critical, decisive, more / either)
    return min(found, 1.0)


def _compute_block_chances(slow: float, baseline: float, iterations: int) -> tuple[float, float]:
    """Return the chances that a block has more slow runs of the cell than of the baseline, and that it has fewer."""
    mine, theirs = _list_binomial_weights(slow, iterations), _list_binomial_weights(baseline, iterations)
    more = sum(p * sum(theirs[:count]) for count, p in enumerate(mine))
    fewer = sum(p * sum(mine[:count]) for count, p in enumerate(theirs))
    return more, fewer


def _list_binomial_weights(share: float, iterations: int) -> list[float]:
    """Return the probabilities of 0 to `iterations` slow runs."""
    return [
        math.comb(iterations, count) * share**count * (1 - share) ** (iterations - count)
        for count in range(iterations + 1)
    ]


def _binomial_probability(successes: int, trials: int, share: float) -> float:
    """Return the probability of exactly `successes` successes, for a share that is neither 0 nor 1."""
    ways = math.lgamma(trials + 1) - math.lgamma(successes + 1) - math.lgamma(trials - successes + 1)
    return math.exp(ways + successes * math.log(share) + (trials - successes) * math.log1p(-share))


def _binomial_tail(successes: int, trials: int, share: float) -> float:
    """Return the probability of at least `successes` successes."""
    if successes <= 0:
        return 1.0
    return regularized_beta(successes, trials - successes + 1, share) if successes <= trials else 0.0


# Up to this many blocks the terms of the sign test's tail are floats above 0.
_SUMMED = 1_000


@functools.lru_cache(maxsize=4096)
def _sign_test_critical(blocks: int, level: float) -> int:
    """Return the number of blocks that must agree for the two-sided sign test to claim a difference."""
    if blocks <= _SUMMED:
        # Adding up the tail from its end takes a hundredth of the time of as many incomplete beta functions.
        term, tail, agreeing = 2.0**-blocks, 0.0, blocks + 1
        while agreeing > blocks // 2 and 2 * (tail + term) <= level:
            tail += term
            agreeing -= 1
            term *= agreeing / (blocks - agreeing + 1)
        return agreeing

    def claims(agreeing: int) -> bool:
        return 2 * _binomial_tail(agreeing, blocks, 0.5) <= level

    return bisect.bisect_left(range(blocks + 1), True, lo=blocks // 2, key=claims)
