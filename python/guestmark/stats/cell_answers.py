"""Answers to four questions about a cell from its raw iterations: typical run, total, slow runs, first run."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from guestmark.core.metric import Better
from guestmark.core.units import format_share
from guestmark.stats.compare import (
    MIN_BLOCKS,
    Comparison,
    Estimand,
    Table,
    Verdict,
    Widening,
    adjust_benjamini_hochberg,
    compare_tables,
    widen_interval,
    withdraw_verdict,
)
from guestmark.stats.medians import find_row_medians
from guestmark.stats.noise import Null
from guestmark.stats.tails import (
    SHARE_MARGIN,
    TAIL_BLOCKS,
    TAIL_RUNS,
    CellRuns,
    Unseen,
    bound_unseen_events,
    convert_to_costs,
    count_slow_runs,
    derive_common_scale,
    describe_cell_runs,
    estimate_quantile_ratio,
    estimate_share_difference,
)
from guestmark.stats.total import count_trials_to_see

Array = NDArray[np.float64]
_WIDEST_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class SlowComparison:
    """The comparison of a cell's slow runs with the baseline's over `n` complete blocks.

    `difference` is the cell's share of slow iterations minus the baseline's, `ci` its interval. `ratio` is the ratio of
    the 95th percentiles with `ratio_ci` (None if these blocks do not bound it). `p` is of the exact test that slow
    iterations fall equally on both cells of a block, `q` the same adjusted over the cells. `unseen` is how frequent an
    event may be that no run of the cell showed.
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
    # To decide, a run continues up to this total number of blocks.
    worth: int = TAIL_BLOCKS

    @property
    def differs(self) -> bool:
        """True if the verdict claims more or fewer slow runs."""
        return self.verdict.is_difference

    @property
    def is_informative(self) -> bool:
        """True if the interval of the shares' difference is narrow enough to say anything: at most half of all runs."""
        return self.n >= MIN_BLOCKS and self.ci[1] - self.ci[0] <= _WIDEST_SHARE

    @property
    def is_unsettled(self) -> bool:
        """True if slow runs were seen, too few blocks decide about them, and a few more may."""
        seen = max(self.cell.slow_trials, self.baseline.slow_trials)
        return self.verdict is Verdict.INCONCLUSIVE and seen >= 2 and self.n < self.worth


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers about one cell and one metric; `total` and `slow` need raw iterations, `first` needs first runs."""

    typical: Comparison
    total: Comparison | None = None
    slow: SlowComparison | None = None
    first: Comparison | None = None

    @property
    def differing_questions(self) -> tuple[Estimand, ...]:
        """The questions whose answers add something to the answer about the typical run.

        These are: more or fewer slow runs; a total with another verdict or ratio than the typical run, or without a
        verdict where the typical run has one; a first run with a verdict of its own.
        """
        found = []
        if self.total and self._total_differs_from_typical(self.total):
            found.append(Estimand.TOTAL)
        if self.slow and self.slow.differs:
            found.append(Estimand.SLOW)
        both_equal = self.first is not None and self.first.typical_is_equal and self.typical.typical_is_equal
        known = (self.typical.verdict, Verdict.INCONCLUSIVE)
        if self.first and self.first.verdict not in known and not both_equal:
            found.append(Estimand.FIRST)
        return tuple(found)

    def map_ratios(self, change: Callable[[Comparison], Comparison]) -> "Answers":
        """Return the answers with `change` applied to every comparison of ratios, but not to that of slow runs."""
        total, first = self.total, self.first
        if total is not None:
            total = change(total)
        if first is not None:
            first = change(first)
        return replace(self, typical=change(self.typical), total=total, first=first)

    def _total_differs_from_typical(self, total: Comparison) -> bool:
        if are_disjoint(total.ci, self.typical.ci):
            return True
        if total.verdict is self.typical.verdict:
            return False
        # An undecided total adds nothing, unless the typical run's verdict would be mistaken for the whole answer.
        return self.typical.differs or total.verdict is not Verdict.INCONCLUSIVE


def are_disjoint(one: tuple[float, float] | None, other: tuple[float, float] | None) -> bool:
    """Return whether two intervals have no value in common; False if one of them is unknown."""
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
    means: Mapping[str, Array] | None = None,
    alpha: float = 0.05,
    boots: bool = True,
) -> dict[str, Answers]:
    """Compare every cell except null copies with `baseline`, from raw iterations.

    `iterations` maps cell ids to arrays of shape (K, m), equal for all cells: m iterations in each of K blocks, a row
    of NaN if the trial is missing or failed. `null_pairs` are pairs of a copy and the cell it copies; copies are not
    compared here. `first` maps cell ids to each trial's first run on its fresh machine, shape (K,); `means` to each
    trial's mean cost, shape (K,), where trials hold unequal numbers of iterations: their means are still the same
    quantity. Without `boots` no machine is started for a trial, so each iteration is an independent chance to see a
    rare event. Each question is its own family: the p values of its cells are adjusted together. Raises ValueError for
    unequal shapes: a median of seven runs and a single run are different quantities, which differ by 3 % for equal
    cells.
    """
    shapes = {array.shape for array in iterations.values()}
    if len(shapes) != 1 or len(next(iter(shapes))) != 2:
        raise ValueError(f"cannot compare cells with unequal iterations: shapes {sorted(shapes)}")
    copies = {copy for copy, _ in null_pairs}
    runs = 1 if boots else next(iter(shapes))[1]

    def make_table(values: Mapping[str, Array]) -> Table:
        return Table(
            values={name: array for name, array in values.items() if name not in copies},
            baseline=baseline,
            better=better,
            margin=margin,
            null_pairs=[(values[a], values[b]) for a, b in null_pairs if a in values and b in values],
            history=history,
            runs=runs,
        )

    medians = make_table({name: find_row_medians(array) for name, array in iterations.items()})
    if means is None:
        means = {name: compute_cost_means(array, better) for name, array in iterations.items()}
    typical = _compare_estimand(medians, Estimand.TYPICAL, alpha)
    total = _compare_estimand(make_table(means), Estimand.TOTAL, alpha)
    firsts = {}
    if first and baseline in first:
        firsts = _compare_estimand(make_table(first), Estimand.FIRST, alpha)
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

    Arrays are as in `compare_trials`. A run is slow relative to what is normal for both cells, see `CommonScale`; if
    higher is better, slow means low. More or fewer slow runs are claimed if q, adjusted over the cells, is below
    `alpha`; no difference if the 90 % interval of the difference of shares lies within ±5 points; inconclusive
    otherwise.
    """
    found: dict[str, tuple[SlowComparison, tuple[float, float]]] = {}
    for name, array in iterations.items():
        if name == baseline:
            continue
        pair = _compare_slow_pair(array, iterations[baseline], better, alpha, boots)
        if pair is not None:
            found[name] = pair
    adjusted = adjust_benjamini_hochberg(np.array([slow.p for slow, _ in found.values()]))
    decided = {}
    for (name, (slow, narrow)), q in zip(found.items(), adjusted, strict=True):
        verdict, reason = _decide_slow(slow, float(q), narrow, alpha)
        decided[name] = replace(slow, q=float(q), verdict=verdict, reason=reason)
    return decided


def _compare_slow_pair(
    cell: Array, baseline: Array, better: Better, alpha: float, boots: bool
) -> tuple[SlowComparison, tuple[float, float]] | None:
    """Return an undecided comparison and the interval of the difference of shares at 1 - 2 `alpha`.

    None without a complete block, or with a value that is not finite and above 0.
    """
    costs, base_costs = convert_to_costs(cell, better), convert_to_costs(baseline, better)
    both = ~(np.isnan(costs).any(axis=1) | np.isnan(base_costs).any(axis=1))
    x, y = costs[both], base_costs[both]
    pooled = np.concatenate((x, y))
    if not pooled.size or not (np.isfinite(pooled) & (pooled > 0)).all():
        return None
    trials, m = x.shape
    scale = derive_common_scale(x, y)
    level, base_level = scale.normal_levels
    counts, base_counts = count_slow_runs(x, level=level), count_slow_runs(y, level=base_level)
    difference, ci = estimate_share_difference(counts, base_counts, m)
    # Two one-sided tests at `alpha` reject exactly if the interval at 1 - 2 alpha lies within the margin.
    narrow = estimate_share_difference(counts, base_counts, m, 1 - 2 * alpha)[1]
    ratio, ratio_ci = estimate_quantile_ratio(x, y)
    if better is Better.HIGHER:
        ratio = 1 / ratio
        if ratio_ci is not None:
            ratio_ci = 1 / ratio_ci[1], 1 / ratio_ci[0]
    runs = describe_cell_runs(cell[both], better, level)
    worth = TAIL_BLOCKS if boots else max(TAIL_BLOCKS, math.ceil(TAIL_RUNS / m))
    slow = SlowComparison(
        n=trials,
        cell=runs,
        baseline=describe_cell_runs(baseline[both], better, base_level),
        difference=difference,
        ci=ci,
        ratio=ratio,
        ratio_ci=ratio_ci,
        p=scale.compute_equal_shares_p(),
        q=1.0,
        verdict=Verdict.INCONCLUSIVE,
        reason="",
        unseen=bound_unseen_events(trials, m, runs.correlation or 0.0),
        worth=worth,
    )
    return slow, narrow


def _decide_slow(
    slow: SlowComparison, q: float, narrow: tuple[float, float], alpha: float
) -> tuple[Verdict, str]:
    if slow.n < MIN_BLOCKS:
        return Verdict.INCONCLUSIVE, f"fewer than {MIN_BLOCKS} blocks"
    if q < alpha:
        return (Verdict.SLOWER if slow.difference > 0 else Verdict.FASTER), ""
    if max(abs(end) for end in narrow) < SHARE_MARGIN:
        return Verdict.NO_DIFFERENCE, f"shares within {format_share(SHARE_MARGIN)} of each other"
    if not slow.cell.slow and not slow.baseline.slow:
        needed = count_trials_to_see(SHARE_MARGIN)
        return Verdict.INCONCLUSIVE, f"no slow runs seen; {needed} blocks could rule them out"
    return Verdict.INCONCLUSIVE, "too few slow runs to decide"


def withdraw_answers(answers: Answers, reason: str) -> Answers:
    """Return the answers with every verdict withdrawn for this reason; the figures stay."""
    slow = answers.slow
    if slow is not None:
        slow = replace(slow, verdict=Verdict.INCONCLUSIVE, reason=reason)
    return replace(answers.map_ratios(lambda comparison: withdraw_verdict(comparison, reason)), slow=slow)


def widen_answers(answers: Answers, by: Widening) -> Answers:
    """Return the answers with the intervals of their ratios widened, see `compare.widen_interval`."""
    return answers.map_ratios(lambda comparison: widen_interval(comparison, by))


def _compare_estimand(table: Table, estimand: Estimand, alpha: float) -> dict[str, Comparison]:
    return compare_tables({"": table}, alpha=alpha, estimand=estimand)[""]


def compute_cost_means(array: Array, better: Better) -> Array:
    """Return each trial's mean, shape (K,); of rates the harmonic mean, whose inverse is the mean time per unit."""
    if better is Better.LOWER:
        return np.asarray(array.mean(axis=1), dtype=np.float64)
    with np.errstate(divide="ignore"):
        return np.asarray(1 / (1 / array).mean(axis=1), dtype=np.float64)
