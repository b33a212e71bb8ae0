"""Two sides of a host that needs a restart in between: the boot is the replicate.

What a boot settles for good (where the kernel lies in memory, which pages it got) is the same for all that is measured
in it, so blocks of one boot say nothing of how far boots differ. In the order A B B A a steady drift favours no side.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from guestmark.stats.across_runs import Across

FEWEST_BOOTS = 2  # of each side: one says nothing of how far boots differ
_CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class BetweenBoots:
    """The second side over the first: ratio of geometric means over boots, and its interval (None: too few boots).

    `spread` is how far boots of one side differ, as one relative standard deviation.
    """

    ratio: float
    ci: tuple[float, float] | None
    spread: float | None
    boots: tuple[int, int]
    verdict: Across


def order(rounds: int) -> str:
    """The order of boots: A B B A, and the other way round in every second round."""
    return "".join("ABBA" if number % 2 == 0 else "BAAB" for number in range(rounds))


def between_boots(first: Sequence[float], second: Sequence[float], claims: int = 1) -> BetweenBoots:
    """Compare one value for each boot of both sides: Student's t interval on logarithms with the pooled variance.

    With `claims` cells the interval's level is divided among them (Bonferroni). Raises `ValueError` for a value that
    has no logarithm, or a side without boots.
    """
    if not first or not second or not all(math.isfinite(value) and value > 0 for value in (*first, *second)):
        raise ValueError("every boot needs a value above 0")
    from scipy.special import stdtrit

    a, b = np.log(first), np.log(second)
    d = float(b.mean() - a.mean())
    boots = (a.size, b.size)
    if min(boots) < FEWEST_BOOTS:
        return BetweenBoots(math.exp(d), None, None, boots, Across.UNKNOWN)
    free = a.size + b.size - 2
    pooled = (float(a.var()) * a.size + float(b.var()) * b.size) / free
    quantile = float(stdtrit(free, 1 - (1 - _CONFIDENCE) / (2 * claims)))
    reach = quantile * math.sqrt(pooled * (1 / a.size + 1 / b.size))
    low, high = math.exp(d - reach), math.exp(d + reach)
    verdict = Across.HIGHER if low > 1 else Across.LOWER if high < 1 else Across.ALIKE
    return BetweenBoots(math.exp(d), (low, high), math.expm1(math.sqrt(pooled)), boots, verdict)
