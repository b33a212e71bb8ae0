"""Many cells against one baseline: p values adjusted over the whole table."""

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def adjust(p: Array) -> Array:
    """Return p values of shape (m,) adjusted over their family, each at most 1.

    At a limit of .05 at most one claim in twenty is false on average (Benjamini and Hochberg 1995).
    """
    m = p.size
    if m == 0:
        return p.copy()
    order = np.argsort(p, kind="stable")
    scaled = p[order] * m / np.arange(1, m + 1)
    adjusted = np.empty(m)
    adjusted[order] = np.minimum(np.minimum.accumulate(scaled[::-1])[::-1], 1.0)
    return adjusted


def holm(p: Array) -> Array:
    """Return p values of shape (m,) adjusted so that even one false claim among all is as rare as the limit.

    Holm's step-down method (1979), which holds whatever depends on what: for gates, where each claim is acted upon.
    """
    m = p.size
    if m == 0:
        return p.copy()
    order = np.argsort(p, kind="stable")
    adjusted = np.empty(m)
    adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * (m - np.arange(m))), 1.0)
    return adjusted


def blocks_to_claim(cells: int, alpha: float = 0.05) -> int:
    """Return the fewest blocks with which one differing cell among `cells` can be claimed at all.

    The smallest p is 2^(1-K), multiplied by the number of cells: 6 blocks for one
    cell, 11 for 40.
    """
    if cells < 1 or not 0 < alpha < 1:
        raise ValueError("needs at least one cell and an alpha between 0 and 1")
    return math.ceil(1 + math.log2(cells / alpha))
