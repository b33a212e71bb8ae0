"""Many cells against one baseline: p values adjusted over the whole table."""

import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Method = Literal["bh", "holm"]


def adjust(p: Array, method: Method) -> Array:
    """Return p values of shape (m,) adjusted over the table, each at most 1.

    "bh" (Benjamini and Hochberg 1995) bounds the share of false claims and suits a table that is read; "holm"
    (Holm 1979) bounds the chance of any false claim and suits a pass/fail gate.
    """
    if method not in ("bh", "holm"):
        raise ValueError(f"unknown method {method!r}")
    m = p.size
    if m == 0:
        return p.copy()
    order = np.argsort(p, kind="stable")
    if method == "bh":
        scaled = p[order] * m / np.arange(1, m + 1)
        monotone = np.minimum.accumulate(scaled[::-1])[::-1]
    else:
        monotone = np.maximum.accumulate(p[order] * np.arange(m, 0, -1))
    adjusted = np.empty(m)
    adjusted[order] = np.minimum(monotone, 1.0)
    return adjusted


def blocks_to_claim(cells: int, alpha: float = 0.05) -> int:
    """Return the fewest blocks with which one differing cell among `cells` can be claimed at all.

    The smallest sign-flip p is 2^(1-K), multiplied by the number of cells by either method: 6 blocks for one
    cell, 11 for 40.
    """
    if cells < 1 or not 0 < alpha < 1:
        raise ValueError("needs at least one cell and an alpha between 0 and 1")
    return math.ceil(1 + math.log2(cells / alpha))
