"""From iterations to one value per trial, and from trials to the summary of a cell."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from guestmark.stats.paired import t_interval

Array = NDArray[np.float64]
_MOST = 20.0  # of a log: two values may be powers of ten apart


@dataclass(frozen=True, slots=True)
class Summary:
    """One metric of one cell over its trials, in the metric's own unit.

    `ci` is the 95 % interval of the mean over trials (never over iterations), None below two values. Where all values
    are above zero it is the t interval of the mean's log (by the delta method), so that it never reaches zero. It
    describes the cell alone; a comparison is made from paired blocks, never from two of these.
    """

    n: int
    mean: float
    median: float
    ci: tuple[float, float] | None


def reduce_iterations(values: Sequence[float]) -> float:
    """Reduce the iterations of one trial to its typical one: the median.

    Iterations of one boot are not independent, so they are one replicate however many there are. Raises
    ValueError without values or with a value that is not a number.
    """
    iterations = np.asarray(values, dtype=np.float64)
    if iterations.size == 0:
        raise ValueError("a trial without iterations has no value")
    if np.isnan(iterations).any():
        raise ValueError("an iteration is not a number")
    return float(np.median(iterations))


def summarise(values: Array) -> Summary:
    """Summarise `values` of shape (K,), one per block, NaN where the trial is missing or failed."""
    present = np.asarray(values, dtype=np.float64)
    present = present[~np.isnan(present)]
    if present.size == 0:
        return Summary(n=0, mean=float("nan"), median=float("nan"), ci=None)
    ci = t_interval(present) if present.size >= 2 else None
    mean = float(present.mean())
    if ci is not None and bool((present > 0).all()):
        away = min((ci[1] - ci[0]) / 2 / mean, _MOST)
        ci = (mean * math.exp(-away), mean * math.exp(away))
    return Summary(n=present.size, mean=mean, median=float(np.median(present)), ci=ci)
