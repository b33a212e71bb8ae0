"""How good the time left is that a run shows.

Simulated runs are looked at after every block; each estimate of the time left is compared with the time that was left.
One counts as good within a factor of 1.5, or of one block.
"""

from collections import defaultdict

import numpy as np
from scenarios import BY_NAME
from shipped import CASES, Case, one_run

from guestmark.stats.stopping import Decision

AT = (4, 6, 8, 12)  # blocks
FACTOR = 1.5
RUNS = (
    *(
        CASES[f"guest: {name}"]
        for name in ("iid", "bimodal", "spikes", "unequal variance", "heavy tails", "1 % noise")
    ),
    CASES["host, 100 ms: iid"],
    CASES["host, 20 ms: iid"],
    Case("guest: 12 cells, iid", BY_NAME["iid"], more=11),
    Case("guest: 12 cells, spikes", BY_NAME["spikes"], more=11),
)


def looks(case: Case, number: int) -> list[tuple[int, Decision, float, float]]:
    """Blocks, decision, seconds that were left and of a block, at each look at one run."""
    seen: list[tuple[int, float, Decision]] = []
    _, whole = one_run(case, np.random.default_rng((7, number)), lambda *look: seen.append(look))
    block_s = whole / seen[-1][0]
    return [(blocks, decision, whole - seconds, block_s) for blocks, seconds, decision in seen[:-1]]


def good(shown: float, left: float, block_s: float) -> bool:
    """Whether an estimate is within the factor, or a block."""
    return left / FACTOR <= shown <= left * FACTOR or abs(shown - left) <= 1.01 * block_s


def figures(case: Case, sims: int) -> list[str]:
    """The cells of a row: shares of good estimates by block, and in all."""
    hits: dict[int, list[bool]] = defaultdict(list)
    for number in range(sims):
        for blocks, decision, left, block_s in looks(case, number):
            if decision.left_s is not None:
                hits[blocks].append(good(decision.left_s, left, block_s))
    every = [hit for each in hits.values() for hit in each]
    shares = [f"{np.mean(hits[blocks]):.2f}" if hits[blocks] else "-" for blocks in AT]
    return [*shares, f"{np.mean(every):.2f}" if every else "-"]
