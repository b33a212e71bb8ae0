"""Whether a run repeats what was published about two of its cells."""

import math
from enum import StrEnum

from guestmark.stats.compare import Comparison


class Repeated(StrEnum):
    """What became of a published ratio."""

    SAME = "agrees"  # the published ratio lies in the interval of today's
    DIRECTION = "same way"
    OPPOSITE = "opposite"
    EQUAL = "equal now"  # it was different
    DIFFERS = "differs now"  # it was equal
    OPEN = "open"


def judge_repetition(now: Comparison | None, then: float, margin: float) -> Repeated:
    """Hold a comparison of today against the published ratio `then`, of the same metric and the same two cells.

    Published ratios within the relative `margin` of 1 count as equal. Raises ValueError unless `then` is above 0.
    """
    if not then > 0:
        raise ValueError("a ratio must be above 0")
    if now is None or now.ratio is None or now.is_undecided:
        return Repeated.OPEN
    was_equal = abs(math.log(then)) <= math.log1p(margin)
    if now.typical_is_equal:
        return Repeated.SAME if was_equal else Repeated.EQUAL
    if now.ci is not None and now.ci[0] <= then <= now.ci[1]:
        return Repeated.SAME
    if was_equal:
        return Repeated.DIFFERS
    return Repeated.DIRECTION if (now.ratio > 1) == (then > 1) else Repeated.OPPOSITE
