"""Four answers about a cell from the raw iterations of its trials: typical run, total, slow runs, first run."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from guestmark.core.metric import Better
from guestmark.stats.compare import (
    MIN_BLOCKS,
    Comparison,
    Estimand,
    Table,
    Verdict,
    adjust_benjamini_hochberg,
    compare_table,
    widen_interval,
    withdraw_verdict,
)
from guestmark.stats.noise import Null
from guestmark.stats.tails import (
    SHARE_MARGIN,
    TAIL_BLOCKS,
    TAIL_RUNS,
    CellRuns,
    Unseen,
    as_costs,
    bound_unseen_events,
    count_slow_runs,
    derive_common_scale,
    describe_cell_runs,
    quantile_ratio,
    share_difference,
)
from guestmark.stats.total import trials_to_see

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class SlowComparison:
    """The slow runs of a cell against the baseline's over `n` complete blocks.

    `difference` is the cell's share of slow iterations minus the baseline's, with its interval `ci`; `ratio` is that of
    the 95th percentiles with `ratio_ci` (None: no end within these blocks). `p` is of the exact test that slow
    iterations fall on both cells of a block alike, `q` the same adjusted over the cells. `unseen` says how rare an
    event may have been to escape the cell altogether.
    """

    n: int
    cell: CellRuns
    baseline: CellRuns
    difference: float
    ci: tuple[float, float]
    ratio: float
    ratio_ci: tuple[float, float] | None
    p: float
    q: float
    verdict: Verdict  # slower: more slow runs; faster: fewer
    reason: str
    unseen: Unseen
    worth: int = TAIL_BLOCKS  # blocks in all up to which it is worth going on to call them

    @property
    def is_unsettled(self) -> bool:
        """Whether slow runs were seen that so few blocks could not call, and more are worth it."""
        seen = max(self.cell.slow_trials, self.baseline.slow_trials)
        return self.verdict is Verdict.INCONCLUSIVE and seen >= 2 and self.n < self.worth


@dataclass(frozen=True, slots=True)
class Answers:
    """What is said of one cell of one metric; `total` and `slow` need raw iterations, `first` first runs."""

    typical: Comparison
    total: Comparison | None = None
    slow: SlowComparison | None = None
    first: Comparison | None = None

    @property
    def differing_questions(self) -> tuple[Estimand, ...]:
        """The questions whose answers say more than that about the typical run.

        Slow runs that are more or fewer; a total that differs otherwise than the typical run, or by another amount, or
        that cannot be called where the typical run is; a first run with another verdict of its own.
        """
        typical = self.typical.verdict
        undecided = Verdict.INCONCLUSIVE
        claimed = typical in (Verdict.FASTER, Verdict.SLOWER)
        found = []
        if self.total and (
            (self.total.verdict is not typical and (claimed or self.total.verdict is not undecided))
            or _are_disjoint(self.total.ci, self.typical.ci)
        ):
            found.append(Estimand.TOTAL)
        if self.slow and self.slow.verdict in (Verdict.FASTER, Verdict.SLOWER):
            found.append(Estimand.SLOW)
        both_same = self.first is not None and self.first.typical_is_equal and self.typical.typical_is_equal
        if self.first and self.first.verdict not in (typical, undecided) and not both_same:
            found.append(Estimand.FIRST)
        return tuple(found)


def _are_disjoint(one: tuple[float, float] | None, other: tuple[float, float] | None) -> bool:
    return one is not None and other is not None and (one[1] < other[0] or other[1] < one[0])


def compare_trials(
    iterations: Mapping[str, Array],
    baseline: str,
    *,
    better: Better,
    margin: float,
    null_pairs: Sequence[tuple[str, str]] = (),
    history: Sequence[Null] = (),
    first: Mapping[str, Array] | None = None,
    alpha: float = 0.05,
    boots: bool = True,
) -> dict[str, Answers]:
    """Compare every cell but the null copies with `baseline`, from raw iterations.

    `iterations` maps cell ids to arrays of shape (K, m), the same for all cells: m iterations in each of K blocks, a
    row of NaN where the trial is missing or failed. `null_pairs` name a copy and the cell it copies; copies are not
    compared here. `first` maps cell ids to each trial's first run on its fresh machine, shape (K,). Without `boots` no
    machine is started for a trial, so each iteration counts by itself when it comes to what may not have been seen.
    Each answer is its own family: the p values of its cells are adjusted together. Raises ValueError for unequal
    shapes: medians of seven and single runs are not the same question, their comparison is off by 3 % for equal cells.
    """
    shapes = {array.shape for array in iterations.values()}
    if len(shapes) != 1 or len(next(iter(shapes))) != 2:
        raise ValueError(f"cells with unequal iterations do not compare: shapes {sorted(shapes)}")
    copies = {copy for copy, _ in null_pairs}
    runs = 1 if boots else next(iter(shapes))[1]

    def table(values: Mapping[str, Array]) -> Table:
        return Table(
            values={name: array for name, array in values.items() if name not in copies},
            baseline=baseline,
            better=better,
            margin=margin,
            null_pairs=[(values[a], values[b]) for a, b in null_pairs if a in values and b in values],
            history=history,
            runs=runs,
        )

    typical = _compare_estimand(
        table({name: _row_medians(array) for name, array in iterations.items()}), Estimand.TYPICAL, alpha
    )
    total = _compare_estimand(
        table({name: _row_cost_means(array, better) for name, array in iterations.items()}),
        Estimand.TOTAL,
        alpha,
    )
    firsts = _compare_estimand(table(first), Estimand.FIRST, alpha) if first and baseline in first else {}
    slow = compare_slow_runs(
        {name: array for name, array in iterations.items() if name not in copies},
        baseline,
        better=better,
        alpha=alpha,
        boots=boots,
    )
    return {
        name: Answers(comparison, total[name], slow.get(name), firsts.get(name))
        for name, comparison in typical.items()
    }


def compare_slow_runs(
    iterations: Mapping[str, Array], baseline: str, *, better: Better, alpha: float = 0.05, boots: bool = True
) -> dict[str, SlowComparison]:
    """Compare the slow runs of every cell with those of `baseline`; cells without a complete block are left out.

    Slow is relative to what is normal for both, see `CommonScale`. More or fewer slow runs are called when q, adjusted
    over the cells, is below `alpha`; no difference when the 90 % interval of the difference of shares lies within ±5
    points; inconclusive otherwise. Where higher is better, slow means low.
    """
    reference = as_costs(iterations[baseline], better)
    found: dict[str, tuple[SlowComparison, tuple[float, float]]] = {}
    for name, array in iterations.items():
        if name == baseline:
            continue
        costs = as_costs(array, better)
        both = ~(np.isnan(costs).any(axis=1) | np.isnan(reference).any(axis=1))
        pair = np.concatenate((costs[both], reference[both]))
        if not pair.size or not (np.isfinite(pair) & (pair > 0)).all():
            continue
        rate = better is Better.HIGHER
        x, y = costs[both], reference[both]
        scale = derive_common_scale(x, y)
        level, base_level = scale.normal_levels
        cell_counts, base_counts = count_slow_runs(x, level=level), count_slow_runs(y, level=base_level)
        difference, ci = share_difference(cell_counts, base_counts, x.shape[1])
        narrow = share_difference(cell_counts, base_counts, x.shape[1], 1 - 2 * alpha)[1]
        ratio, ratio_ci = quantile_ratio(x, y)
        if rate:
            ratio, ratio_ci = 1 / ratio, (1 / ratio_ci[1], 1 / ratio_ci[0]) if ratio_ci else None
        runs = describe_cell_runs(array[both], better, level)
        slow = SlowComparison(
            n=x.shape[0],
            cell=runs,
            baseline=describe_cell_runs(iterations[baseline][both], better, base_level),
            difference=difference,
            ci=ci,
            ratio=ratio,
            ratio_ci=ratio_ci,
            p=scale.equal_shares_p(),
            q=1.0,
            verdict=Verdict.INCONCLUSIVE,
            reason="",
            unseen=bound_unseen_events(x.shape[0], x.shape[1], runs.correlation or 0.0),
            worth=TAIL_BLOCKS if boots else max(TAIL_BLOCKS, math.ceil(TAIL_RUNS / x.shape[1])),
        )
        found[name] = (slow, narrow)
    adjusted = adjust_benjamini_hochberg(np.array([slow.p for slow, _ in found.values()]))
    decided = {}
    for (name, (slow, narrow)), q in zip(found.items(), adjusted, strict=True):
        verdict, reason = _decide_slow(slow, float(q), narrow, alpha)
        decided[name] = replace(slow, q=float(q), verdict=verdict, reason=reason)
    return decided


def _decide_slow(
    slow: SlowComparison, q: float, narrow: tuple[float, float], alpha: float
) -> tuple[Verdict, str]:
    if slow.n < MIN_BLOCKS:
        return Verdict.INCONCLUSIVE, f"fewer than {MIN_BLOCKS} blocks"
    if q < alpha:
        return (Verdict.SLOWER if slow.difference > 0 else Verdict.FASTER), ""
    if max(abs(end) for end in narrow) < SHARE_MARGIN:
        return Verdict.NO_DIFFERENCE, f"shares within {SHARE_MARGIN:.0%} of each other"
    if not slow.cell.slow and not slow.baseline.slow:
        return Verdict.INCONCLUSIVE, f"none seen; {trials_to_see(SHARE_MARGIN)} blocks could show that"
    return Verdict.INCONCLUSIVE, "too few slow runs to decide"


def withdraw_answers(answers: Answers, reason: str) -> Answers:
    """Return the answers with every verdict taken back; the figures stay."""
    return Answers(
        withdraw_verdict(answers.typical, reason),
        withdraw_verdict(answers.total, reason) if answers.total else None,
        replace(answers.slow, verdict=Verdict.INCONCLUSIVE, reason=reason) if answers.slow else None,
        withdraw_verdict(answers.first, reason) if answers.first else None,
    )


def widen_answers(
    answers: Answers,
    margin: float,
    reason: str,
    *,
    spread: float = 0.0,
    reach: float = 0.0,
    freedom: int | None = None,
) -> Answers:
    """Return the answers with the intervals of their ratios widened, see `compare.widen_interval`."""

    def longer(comparison: Comparison) -> Comparison:
        return widen_interval(comparison, margin, reason, spread=spread, reach=reach, freedom=freedom)

    return replace(
        answers,
        typical=longer(answers.typical),
        total=longer(answers.total) if answers.total else None,
        first=longer(answers.first) if answers.first else None,
    )


def _compare_estimand(table: Table, estimand: Estimand, alpha: float) -> dict[str, Comparison]:
    return compare_table(
        table.values,
        table.baseline,
        better=table.better,
        margin=table.margin,
        null_pairs=table.null_pairs,
        history=table.history,
        alpha=alpha,
        estimand=estimand,
        runs=table.runs,
    )


def _row_medians(array: Array) -> Array:
    """Return each trial's median, NaN for a row that has one."""
    return np.asarray(np.median(array, axis=1), dtype=np.float64)


def _row_cost_means(array: Array, better: Better) -> Array:
    """Return each trial's mean; for a rate the harmonic mean, whose inverse is the mean time per unit."""
    if better is Better.LOWER:
        return np.asarray(array.mean(axis=1), dtype=np.float64)
    with np.errstate(divide="ignore"):
        return np.asarray(1 / (1 / array).mean(axis=1), dtype=np.float64)
