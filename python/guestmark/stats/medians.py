"""Medians. NumPy's own function imports `numpy.ma`, which takes as long as all statistics of a short run."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

# The median absolute deviation of a normal distribution, times this, is its standard deviation.
NORMAL_SPREAD = 1.4826


def find_median(values: ArrayLike) -> float:
    """Return the median of all values; NaN if there are none, or one is NaN."""
    ordered = np.sort(np.asarray(values, dtype=np.float64), axis=None)
    return float(_take_middle(ordered)) if ordered.size else float("nan")


def find_row_medians(rows: ArrayLike) -> NDArray[np.float64]:
    """Return the median of each row of a table that has columns."""
    return _take_middle(np.sort(np.asarray(rows, dtype=np.float64), axis=1))


def _take_middle(ordered: NDArray[np.float64]) -> NDArray[np.float64]:
    last = ordered[..., -1]
    half, is_odd = divmod(ordered.shape[-1], 2)
    middle = ordered[..., half] if is_odd else (ordered[..., half - 1] + ordered[..., half]) / 2
    # NaN is sorted behind all numbers.
    return np.asarray(np.where(np.isnan(last), last, middle), dtype=np.float64)
