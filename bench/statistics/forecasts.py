"""Measures how often the displayed time left of a run is right.

Simulated runs are examined after every block from the fourth on. The displayed time is compared with the time that was
really left: one time ("about 2 min") is right within a factor of 1.5, a range ("40 s to 3 min") from end to end; both
may be off by one more block.
"""

import math
from collections import defaultdict

import numpy as np
from scenarios import BY_NAME
from shipped import CASES, Case, one_run

from guestmark.stats.stopping import NARROW_FACTOR, Decision, TimeLeft

AT = (4, 6, 8, 12)  # blocks
RUNS = (
    *(
        CASES[f"guest: {name}"]
        for name in (
            "iid", "bimodal", "spikes", "unequal variance", "heavy tails", "1 % noise", "AR .8", "regime",
            "switching in blocks", "missing blocks", "10 % failures", "unequal durations", "+5 %",
        )
    ),
    CASES["host, 100 ms: iid"],
    CASES["host, 20 ms: iid"],
    CASES["host, 1 s: iid"],
    CASES["host, 100 ms: spikes"],
    Case("guest: 12 cells, iid", BY_NAME["iid"], more=11),
    Case("guest: 12 cells, spikes", BY_NAME["spikes"], more=11),
)  # fmt: skip


def looks(case: Case, number: int) -> list[tuple[int, Decision, float, float]]:
    """Return, for each look at one run, blocks, decision, seconds left and seconds per block."""
    seen: list[tuple[int, float, Decision]] = []
    _, whole = one_run(case, np.random.default_rng((7, number)), lambda *look: seen.append(look))
    block_s = whole / seen[-1][0]
    return [(blocks, decision, whole - seconds, block_s) for blocks, seconds, decision in seen[:-1]]


def holds(shown: TimeLeft, left_s: float, block_s: float) -> bool:
    """Return whether the displayed time left holds, or misses by a block at most."""
    least, most = shown.least_s, shown.most_s
    if shown.is_narrow:
        middle = math.sqrt(least * most)
        least, most = middle / NARROW_FACTOR, middle * NARROW_FACTOR
    return least - 1.01 * block_s <= left_s <= most + 1.01 * block_s


def figures(case: Case, sims: int) -> list[str]:
    """Return a row's cells: shares that hold by block and in all, how many show one time, and the usual width."""
    held: dict[int, list[bool]] = defaultdict(list)
    narrow, widths = 0, []
    for number in range(sims):
        for blocks, decision, left_s, block_s in looks(case, number):
            if (shown := decision.left) is None:
                continue
            held[blocks].append(holds(shown, left_s, block_s))
            narrow += shown.is_narrow
            if not shown.is_narrow:
                widths.append(shown.most_s / max(shown.least_s, block_s))
    every = [each for at in held.values() for each in at]
    shares = [f"{np.mean(held[blocks]):.2f}" if held[blocks] else "-" for blocks in AT]
    width = f"×{np.median(widths):.1f}" if widths else "-"
    return [*shares, f"{np.mean(every):.2f}", f"{narrow / len(every):.2f}", width] if every else ["-"] * 7
