"""Verdicts: every cell of a table against its baseline, paired by block."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from guestmark.core.model import Better, Metric
from guestmark.stats.multiple import Method, adjust, blocks_to_claim
from guestmark.stats.noise import noise_floor
from guestmark.stats.paired import equivalence_p, log_ratios, median_interval, sign_flip_p, t_interval

Array = NDArray[np.float64]

MIN_BLOCKS = 6  # below, the sign-flip test cannot reach .05 and no median interval exists


class Verdict(StrEnum):
    """What a comparison says; where higher is better "faster" means higher."""

    FASTER = "faster"
    SLOWER = "slower"
    NO_DIFFERENCE = "no difference"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, slots=True)
class Comparison:
    """One cell against the baseline over the `n` blocks that hold both; ratios are cell / baseline.

    `ratio` is exp(mean d) with its 95 % t interval `ci` (None below two blocks); `median_ratio` is exp(median
    d) with `median_ci` (None below six). `p` is of the sign-flip test and `equivalence_p` of the test for
    equivalence, `q` and `equivalence_q` the same adjusted over the table. `noise_floor` is |ratio - 1| that
    null comparisons reach (None: unknown). Without a ratio (see `log_ratios`) everything but `n`,
    `noise_floor`, `verdict` and `reason` is None. `reason` says in a few words why the verdict is what it is;
    empty when nothing need be said.
    """

    n: int
    ratio: float | None
    ci: tuple[float, float] | None
    median_ratio: float | None
    median_ci: tuple[float, float] | None
    p: float | None
    q: float | None
    equivalence_p: float | None
    equivalence_q: float | None
    noise_floor: float | None
    verdict: Verdict
    reason: str


def compare_table(
    values: Mapping[str, Array],
    baseline: str,
    *,
    better: Better,
    margin: float,
    null_pairs: Sequence[tuple[Array, Array]] = (),
    history: Sequence[float] = (),
    alpha: float = 0.05,
    method: Method = "bh",
) -> dict[str, Comparison]:
    """Compare every cell of one metric's table with `baseline`; the result is in the order of `values`.

    `values` maps cell ids (the baseline's among them) to arrays of shape (K,), indexed by block, NaN where
    the trial is missing or failed. `margin` is relative (0.03: ratios from 1/1.03 to 1.03 are equivalent).
    `null_pairs` and `history` give the noise floor, see `noise_floor`. p values are adjusted over all cells
    of the table that have a ratio; leave null cells out of `values`, they are known not to differ.

    Faster or slower is said when q is below `alpha`, the t interval excludes 1, the median interval does not
    lie on the other side of 1 and |ratio - 1| is above the noise floor; no difference when equivalence is
    shown and the noise floor is within the margin; inconclusive otherwise. Raises ValueError for an unknown
    baseline or arrays that do not pair.
    """
    if baseline not in values:
        raise ValueError(f"the baseline {baseline!r} is not among the values")
    reference = np.asarray(values[baseline], dtype=np.float64)
    cells = {name: np.asarray(cell, dtype=np.float64) for name, cell in values.items() if name != baseline}
    differences = {name: log_ratios(cell, reference) for name, cell in cells.items()}
    claims = {name: d for name, d in differences.items() if d is not None and d.size}
    p = np.array([sign_flip_p(d) for d in claims.values()])
    same = np.array([equivalence_p(d, margin) for d in claims.values()])
    adjusted = dict(
        zip(claims, zip(p, adjust(p, method), same, adjust(same, method), strict=True), strict=True)
    )
    floors: dict[int, float | None] = {}
    table: dict[str, Comparison] = {}
    for name, cell in cells.items():
        n = int((~(np.isnan(cell) | np.isnan(reference))).sum())
        if n not in floors:
            floors[n] = noise_floor(null_pairs, n, history)
        if name not in claims:
            reason = "no complete block" if n == 0 else "a value is not above zero: no ratio"
            table[name] = Comparison(
                n=n, ratio=None, ci=None, median_ratio=None, median_ci=None, p=None, q=None,
                equivalence_p=None, equivalence_q=None, noise_floor=floors[n],
                verdict=Verdict.INCONCLUSIVE, reason=reason,
            )  # fmt: skip
            continue
        d = claims[name]
        p_, q_, same_p, same_q = (float(value) for value in adjusted[name])
        undecided = Comparison(
            n=n,
            ratio=float(np.exp(d.mean())),
            ci=_exponentiated(t_interval(d)) if n >= 2 else None,
            median_ratio=float(np.exp(np.median(d))),
            median_ci=_exponentiated(median_interval(d)),
            p=p_,
            q=q_,
            equivalence_p=same_p,
            equivalence_q=same_q,
            noise_floor=floors[n],
            verdict=Verdict.INCONCLUSIVE,
            reason="",
        )
        verdict, reason = _decide(undecided, better, margin, alpha, len(claims))
        table[name] = replace(undecided, verdict=verdict, reason=reason)
    return table


def _decide(c: Comparison, better: Better, margin: float, alpha: float, cells: int) -> tuple[Verdict, str]:
    if c.n < MIN_BLOCKS or c.ratio is None or c.ci is None or c.q is None or c.equivalence_q is None:
        return Verdict.INCONCLUSIVE, f"fewer than {MIN_BLOCKS} blocks"
    higher = c.ratio > 1
    excludes_one = c.ci[0] > 1 or c.ci[1] < 1
    equivalent = c.equivalence_q < alpha
    blocked = ""
    if c.q < alpha and excludes_one:
        if c.noise_floor is not None and abs(c.ratio - 1) <= c.noise_floor:
            blocked = "inside the noise floor"
        elif c.median_ci is not None and (c.median_ci[1] < 1 if higher else c.median_ci[0] > 1):
            return Verdict.INCONCLUSIVE, "mean and median disagree"
        else:
            faster = higher == (better is Better.HIGHER)
            return (
                Verdict.FASTER if faster else Verdict.SLOWER,
                f"by less than the margin of {margin:.3g}" if equivalent else "",
            )
    if equivalent and c.noise_floor is not None and c.noise_floor > margin:
        return Verdict.INCONCLUSIVE, "noise floor above the margin"
    if equivalent:
        return Verdict.NO_DIFFERENCE, f"within the margin of {margin:.3g}"
    if not blocked and excludes_one and c.n < blocks_to_claim(cells, alpha):
        blocked = f"{cells} cells need {blocks_to_claim(cells, alpha)} blocks"
    return Verdict.INCONCLUSIVE, blocked or "interval too wide"


def _exponentiated(interval: tuple[float, float] | None) -> tuple[float, float] | None:
    """Return the interval of the ratio; None if it cannot be said in floats (two wildly different blocks)."""
    if interval is None:
        return None
    with np.errstate(over="ignore"):
        low, high = (float(np.exp(end)) for end in interval)
    return (low, high) if math.isfinite(high) else None


def null_differs(null: Comparison, alpha: float = 0.01) -> bool:
    """Return whether a null comparison (A against A) shows a difference, which downgrades the whole run.

    `alpha` is below that of verdicts because a sound run should not be downgraded one time in twenty.
    """
    return null.p is not None and null.ci is not None and null.p < alpha and not null.ci[0] <= 1 <= null.ci[1]


def downgraded(comparison: Comparison, reason: str = "a null comparison differs") -> Comparison:
    """Return the comparison with its verdict taken back; the figures stay."""
    return replace(comparison, verdict=Verdict.INCONCLUSIVE, reason=reason)


_TIME_UNITS = frozenset({"s", "ms", "us", "µs", "ns", "min", "h"})
_SIZE_UNITS = frozenset({"b", "byte", "bytes", "kb", "mb", "gb", "kib", "mib", "gib", "pages"})


def label(verdict: Verdict, metric: Metric) -> str:
    """Return the word to show for a verdict: faster/slower for times and rates, less/more for sizes, else
    better/worse.
    """
    if verdict not in (Verdict.FASTER, Verdict.SLOWER):
        return verdict.value
    good = verdict is Verdict.FASTER
    unit = metric.unit.lower()
    if unit in _TIME_UNITS or unit.endswith(("/s", "ps")):
        return verdict.value
    if unit in _SIZE_UNITS:
        return "more" if good == (metric.better is Better.HIGHER) else "less"
    return "better" if good else "worse"
