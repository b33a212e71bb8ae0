"""Two runs of the same cells: by what their ratios differ, allowing for how far runs without any change differ.

What is compared are ratios to each run's own baseline, never times: a host that is slower today is slower for both.
Even so, ratios of equal things measured on different days differ by more than the blocks inside each of them say. How
far is learned from earlier runs of the same question on the same host; without any, nothing can be claimed.

Where two sides need a restart of the host, the boot is the replicate. What a boot settles for good (where the
kernel lies in memory, which pages it got) is the same for all that is measured in it, so blocks of one boot say nothing
of how far boots differ. In the order A B B A a steady drift favours no side.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from guestmark.stats.between_runs import Past

FEWEST_RUNS = 4  # earlier runs; from fewer a variance is so uncertain that nothing would ever be shown
CONFIDENCE = 0.95
FEWEST_BOOTS = 2  # of each side: one says nothing of how far boots differ


class Across(StrEnum):
    """What two runs show of a cell."""

    HIGHER = "higher"
    LOWER = "lower"
    ALIKE = "no difference shown"
    UNKNOWN = "cannot be told"


@dataclass(frozen=True, slots=True)
class Change:
    """The ratio of two runs' ratios to their baselines. `ci` allows for the variation between runs.

    `within` is the interval that blocks alone would give; `spread` the relative variation between runs (one standard
    deviation), learned from `runs` earlier ones, None where they are too few.
    """

    ratio: float
    within: tuple[float, float]
    ci: tuple[float, float] | None
    spread: float | None
    runs: int
    verdict: Across


def change(before: Past, after: Past, earlier: Sequence[Past], confidence: float = CONFIDENCE) -> Change:
    """Compare a cell's ratio in two runs, given `earlier` runs of the same question (others than these two).

    With J earlier log ratios y the variance between runs is what their variance has beyond that inside of each,
    t² = max(var(y) - mean(v), 0), after DerSimonian and Laird (1986). The interval of the difference has its variance
    v1 + v2 + 2 t² at Student's quantile with J - 1 degrees of freedom, as t² is no better known than that.
    """
    from scipy.special import stdtrit

    d = math.log(after.ratio / before.ratio)
    own = _variance(before) + _variance(after)
    half = 1.96 * math.sqrt(own)
    within = (math.exp(d - half), math.exp(d + half))
    if len(earlier) < FEWEST_RUNS:
        return Change(math.exp(d), within, None, None, len(earlier), Across.UNKNOWN)
    logs = np.array([math.log(run.ratio) for run in earlier])
    between = max(float(logs.var(ddof=1)) - float(np.mean([_variance(run) for run in earlier])), 0.0)
    reach = float(stdtrit(len(earlier) - 1, (1 + confidence) / 2)) * math.sqrt(own + 2 * between)
    low, high = math.exp(d - reach), math.exp(d + reach)
    verdict = Across.HIGHER if low > 1 else Across.LOWER if high < 1 else Across.ALIKE
    return Change(math.exp(d), within, (low, high), math.expm1(math.sqrt(between)), len(earlier), verdict)


def since(now: Past, earlier: Sequence[Past], confidence: float = CONFIDENCE) -> Change | None:
    """Compare a cell's ratio in a run with that of all earlier ones; None below `FEWEST_RUNS` of them.

    The mean of J earlier log ratios has the variance (t² + v)/J, with t² as in `change`; this run's differs from it by
    its own variance and t² besides. Student's t with J - 1 degrees of freedom: more history makes the test stronger.
    """
    if len(earlier) < FEWEST_RUNS:
        return None
    from scipy.special import stdtrit

    logs = np.array([math.log(run.ratio) for run in earlier])
    inside = np.array([_variance(run) for run in earlier])
    between = max(float(logs.var(ddof=1)) - float(inside.mean()), 0.0)
    d = math.log(now.ratio) - float(logs.mean())
    own = _variance(now) + float(inside.mean()) / len(earlier)
    half = 1.96 * math.sqrt(own)
    reach = float(stdtrit(len(earlier) - 1, (1 + confidence) / 2)) * math.sqrt(
        own + between * (1 + 1 / len(earlier))
    )
    low, high = math.exp(d - reach), math.exp(d + reach)
    verdict = Across.HIGHER if low > 1 else Across.LOWER if high < 1 else Across.ALIKE
    spread = math.expm1(math.sqrt(between))
    within = (math.exp(d - half), math.exp(d + half))
    return Change(math.exp(d), within, (low, high), spread, len(earlier), verdict)


def _variance(run: Past) -> float:
    """Of a log ratio, from its interval."""
    from scipy.special import stdtrit

    half = math.log(run.high / run.low) / 2
    return (half / float(stdtrit(max(run.blocks - 1, 1), (1 + CONFIDENCE) / 2))) ** 2


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
    quantile = float(stdtrit(free, 1 - (1 - CONFIDENCE) / (2 * claims)))
    reach = quantile * math.sqrt(pooled * (1 / a.size + 1 / b.size))
    low, high = math.exp(d - reach), math.exp(d + reach)
    verdict = Across.HIGHER if low > 1 else Across.LOWER if high < 1 else Across.ALIKE
    return BetweenBoots(math.exp(d), (low, high), math.expm1(math.sqrt(pooled)), boots, verdict)
