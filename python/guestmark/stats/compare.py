"""Verdicts: comparisons of every cell of a table with the table's baseline, paired by block.

The methods and their sources are in docs/reference/statistics.md.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from guestmark.core.metric import Better, Metric
from guestmark.core.metric_spec import SYSTEM, USER
from guestmark.stats import paired, total
from guestmark.stats.medians import NORMAL_SPREAD, find_median
from guestmark.stats.noise import Null, estimate_bias_from_nulls, estimate_floor_from_nulls
from guestmark.stats.paired import log_ratios, median_interval, t_interval, t_p, t_quantile
from guestmark.stats.special import student_t_cdf

Array = NDArray[np.float64]

# The smallest signed-rank p is 2^(1 - n): with fewer blocks no test here can reach .05.
MIN_BLOCKS = paired.MIN_BLOCKS
# With at least this many blocks, 2^(1 - n) is below the level that `family` leaves to the typical run.
_BLOCKS_FOR_RANKS = 8
# A ratio whose interval lies between this and its inverse is reported as bounded, even without a verdict.
BOUNDED_RATIO = 1.25
# If a cell scatters this many times as widely as null copies, the cell is the reason, not the host.
UNLIKE_SPREAD = 1.5
WIDENED_REASON = "noise of this host (equal cells, other programs, order) widens the interval"
MANY_QUESTIONS_REASON = "may be chance, as many questions were asked"


class Verdict(StrEnum):
    """Verdicts of a comparison; where higher is better, "faster" means higher."""

    FASTER = "faster"
    SLOWER = "slower"
    NO_DIFFERENCE = "no difference"
    INCONCLUSIVE = "inconclusive"

    @property
    def is_difference(self) -> bool:
        """True if this verdict claims a difference, in either direction."""
        return self in {Verdict.FASTER, Verdict.SLOWER}


class Estimand(StrEnum):
    """A question about a cell; each has its own estimate, interval, test and verdict."""

    TYPICAL = "typical"  # the typical run: a robust centre
    TOTAL = "total"  # the mean: what a batch costs
    # How often a run takes much longer than is typical.
    SLOW = "slow"
    FIRST = "first"  # the first run on a fresh machine


# Fewer than `MIN_BLOCKS` blocks may answer these, by `paired.early_p`.
_EARLY_ESTIMANDS = frozenset({Estimand.TYPICAL, Estimand.FIRST})


@dataclass(frozen=True, slots=True)
class Comparison:
    """The comparison of one cell with the baseline over the `n` blocks that hold both; ratios are cell / baseline.

    - `ratio`, `ci`: estimate and 95 % interval. For the typical run Hodges–Lehmann's; below six blocks, where that has
      no interval, the t interval of the mean log ratio; None below two. For the total the ratio of means, see
      `total.ratio_interval`; `unseen_ci` is its range if events stayed unseen, see `total.widen_for_unseen`.
    - `median_ratio`, `median_ci`: exp(median d) with its distribution-free interval (None below six blocks).
    - `p`: of the exact test of no difference; `equivalence_p`: of the test of equivalence; `q` and `equivalence_q`: the
      same, adjusted over the family.
    - `noise_floor`: |ratio - 1| that null comparisons reach (None: unknown).
    - `stretch`: the log by which each end of `ci` was moved outward beyond chance alone, see `widen_interval`.
    - `scatter`: standard deviation of a block's log ratio, estimated robustly by the median absolute deviation.
    - `alike`: the typical run lies within the margin, but rarer slow runs are not excluded: weaker than no difference.
    - `withdrawn`: a severe finding withdrew the verdict, because the interval does not answer the question.
    - `reason`: the reason for the verdict in a few words; empty if it needs none.

    Without a ratio (see `log_ratios`) everything but `n`, `noise_floor`, `verdict` and `reason` is None.
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
    estimand: Estimand = Estimand.TYPICAL
    unseen_ci: tuple[float, float] | None = None
    stretch: float = 0.0
    scatter: float | None = None
    alike: bool = False
    withdrawn: bool = False

    @property
    def differs(self) -> bool:
        """True if a difference is claimed."""
        return self.verdict.is_difference

    def is_ratio_excluded(self, ratio: float) -> bool:
        """Return True if the interval rules out `ratio`; False if there are too few blocks for an interval."""
        if self.ci is None or self.withdrawn or (self.n < MIN_BLOCKS and not self.differs):
            return False
        return not self.ci[0] <= ratio <= self.ci[1]

    @property
    def has_enough_blocks(self) -> bool:
        """True if there are as many blocks as a verdict needs."""
        return self.n >= MIN_BLOCKS

    @property
    def typical_is_equal(self) -> bool:
        """True if at least the typical run is shown to equal the baseline's."""
        return self.alike or self.verdict is Verdict.NO_DIFFERENCE

    @property
    def is_undecided(self) -> bool:
        """True if nothing is shown, not even that the typical runs are equal."""
        return self.verdict is Verdict.INCONCLUSIVE and not self.alike

    @property
    def is_open(self) -> bool:
        """True if there is neither a verdict nor a bound on the difference."""
        return self.is_undecided and not self.is_bounded

    @property
    def is_bounded(self) -> bool:
        """True if there is no verdict, but the interval bounds any difference by `BOUNDED_RATIO`."""
        if self.ci is None or self.withdrawn or not self.is_undecided or self.n < MIN_BLOCKS:
            return False
        return self.ci[0] >= 1 / BOUNDED_RATIO and self.ci[1] <= BOUNDED_RATIO


def invert_comparison(comparison: Comparison) -> Comparison:
    """Return the same comparison with the sides swapped: the baseline over the cell."""

    def invert_ratio(ratio: float | None) -> float | None:
        return None if ratio is None else 1 / ratio

    def invert_interval(ends: tuple[float, float] | None) -> tuple[float, float] | None:
        if ends is None:
            return None
        highest = 1 / ends[0] if ends[0] > 0 else math.inf
        return 1 / ends[1], highest

    return replace(
        comparison,
        ratio=invert_ratio(comparison.ratio),
        ci=invert_interval(comparison.ci),
        median_ratio=invert_ratio(comparison.median_ratio),
        median_ci=invert_interval(comparison.median_ci),
        unseen_ci=invert_interval(comparison.unseen_ci),
        verdict=_OPPOSITE_VERDICTS.get(comparison.verdict, comparison.verdict),
    )


_OPPOSITE_VERDICTS = {Verdict.FASTER: Verdict.SLOWER, Verdict.SLOWER: Verdict.FASTER}


@dataclass(frozen=True, slots=True)
class Table:
    """The cells of one metric and their baseline; `values` maps cell ids to shape (K,), NaN for missing trials.

    `null_pairs` are the values of cells that are copies of each other, `history` the null comparisons of earlier runs;
    both determine the noise floor. Null cells are not in `values`, since they are known not to differ. A block holds
    `runs` independent runs of a cell: its iterations if nothing boots, else 1.
    """

    values: Mapping[str, Array]
    baseline: str
    better: Better
    margin: float
    null_pairs: Sequence[tuple[Array, Array]] = ()
    history: Sequence[Null] = ()
    runs: int = 1


class _Evidence(NamedTuple):
    """Estimates and tests for one pair of cells and one estimand, before adjustment and verdict."""

    ratio: float
    ci: tuple[float, float] | None
    p: float
    equivalence_p: float
    median_ratio: float | None = None
    median_ci: tuple[float, float] | None = None
    unseen_ci: tuple[float, float] | None = None
    # The reason not to claim equality, whatever the test shows; empty if there is none.
    refused: str = ""
    # The cell scatters more than copies of one cell do.
    unlike: bool = False
    scatter: float | None = None


class _TableScatter(NamedTuple):
    """How widely the log ratios of a table's blocks scatter, computed once for all its cells."""

    # Standard deviation over all cells; 0 if unknown.
    pooled: float
    # Half-width of a null copy's interval times the root of its blocks; None without copies.
    copies: float | None


def compare_table(
    values: Mapping[str, Array],
    baseline: str,
    *,
    better: Better,
    margin: float,
    null_pairs: Sequence[tuple[Array, Array]] = (),
    history: Sequence[Null] = (),
    alpha: float = 0.05,
    estimand: Estimand = Estimand.TYPICAL,
    runs: int = 1,
) -> dict[str, Comparison]:
    """Compare every cell of one table with `baseline`; see `compare_tables` for arguments, decisions and errors."""
    table = Table(values, baseline, better, margin, null_pairs, history, runs)
    return compare_tables({"": table}, alpha=alpha, estimand=estimand)[""]


def compare_tables(
    tables: Mapping[str, Table], *, alpha: float = 0.05, estimand: Estimand = Estimand.TYPICAL
) -> dict[str, dict[str, Comparison]]:
    """Compare the cells of several tables with their baselines; p values are adjusted over all tables together.

    Usually one table is one family. The tables of all secondary metrics form another one, so that a run with many
    metrics makes no more false claims than a run with few (Benjamini and Hochberg 1995, over cells and metrics). The
    result keeps the order of `tables` and of their cells. `estimand` is typical, total or first. A table's `margin` is
    relative: with 0.03, ratios from 1/1.03 to 1.03 are equivalent. If higher is better, totals are compared as times
    per unit, which is what a batch costs.

    The verdict is faster or slower if q is below `alpha` and the interval excludes 1; no difference if equivalence is
    shown and, for a total, there are enough runs to have seen rare events; inconclusive otherwise. What a whole report
    may claim is decided later over all its questions, see `family`. Raises ValueError for an unknown baseline or for
    arrays that do not pair.
    """
    found: dict[tuple[str, str], _Evidence] = {}
    sizes: dict[tuple[str, str], int] = {}
    for name, table in tables.items():
        if table.baseline not in table.values:
            raise ValueError(f"the baseline {table.baseline!r} is not among the values")
        reference = np.asarray(table.values[table.baseline], dtype=np.float64)
        scatter = _measure_scatter(table, reference)
        for cell, given in table.values.items():
            if cell == table.baseline:
                continue
            array = np.asarray(given, dtype=np.float64)
            if estimand is Estimand.TOTAL:
                evidence = _estimate_total(array, reference, table)
            else:
                evidence = _estimate_typical_run(array, reference, table.margin, scatter)
            sizes[name, cell] = int((~(np.isnan(array) | np.isnan(reference))).sum())
            if evidence is not None:
                found[name, cell] = evidence
    # Differences and equivalences are two claims, each adjusted over its own family.
    q = adjust_benjamini_hochberg(np.array([evidence.p for evidence in found.values()]))
    same_q = adjust_benjamini_hochberg(np.array([evidence.equivalence_p for evidence in found.values()]))
    adjusted = {key: (float(a), float(b)) for key, a, b in zip(found, q, same_q, strict=True)}
    result: dict[str, dict[str, Comparison]] = {name: {} for name in tables}
    floors: dict[tuple[str, int], float | None] = {}
    for (name, cell), n in sizes.items():
        table = tables[name]
        if (name, n) not in floors:
            floors[name, n] = estimate_noise_floor(table.null_pairs, n, table.history, estimand)
        result[name][cell] = _build_comparison(
            found.get((name, cell)),
            n,
            floors[name, n],
            adjusted.get((name, cell), (1.0, 1.0)),
            table=table,
            alpha=alpha,
            cells=len(found),
            estimand=estimand,
        )
    return result


def _build_comparison(
    evidence: _Evidence | None,
    n: int,
    floor: float | None,
    adjusted: tuple[float, float],
    *,
    table: Table,
    alpha: float,
    cells: int,
    estimand: Estimand,
) -> Comparison:
    if evidence is None:
        reason = "no complete block" if n == 0 else "a value is not above zero: no ratio"
        return Comparison(
            n=n, ratio=None, ci=None, median_ratio=None, median_ci=None, p=None, q=None, equivalence_p=None,
            equivalence_q=None, noise_floor=floor, verdict=Verdict.INCONCLUSIVE, reason=reason, estimand=estimand,
        )  # fmt: skip
    undecided = Comparison(
        n=n,
        ratio=evidence.ratio,
        ci=evidence.ci,
        median_ratio=evidence.median_ratio,
        median_ci=evidence.median_ci,
        p=evidence.p,
        q=adjusted[0],
        equivalence_p=evidence.equivalence_p,
        equivalence_q=adjusted[1],
        noise_floor=floor,
        verdict=Verdict.INCONCLUSIVE,
        reason="",
        estimand=estimand,
        unseen_ci=evidence.unseen_ci,
        scatter=evidence.scatter,
    )
    # Equivalence has the level that the interval leaves out, since both are examined after every block.
    level = min(alpha, 1 - paired.NOMINAL)
    if evidence.unlike:
        level /= 2
    verdict, reason = _decide_verdict(
        undecided, table, alpha, cells=cells, refused=evidence.refused, same=level
    )
    return replace(undecided, verdict=verdict, reason=reason)


def _measure_scatter(table: Table, reference: Array) -> _TableScatter:
    copies = []
    for pair in table.null_pairs:
        if (found := _compute_typical_null_interval(*pair)) is not None:
            copies.append(found)
    quiet = None
    if copies:
        quiet = math.sqrt(sum(half**2 * blocks for _, half, blocks in copies) / len(copies))
    return _TableScatter(_pool_spread(table, reference), quiet)


def _estimate_typical_run(
    cell: Array, baseline: Array, margin: float, scatter: _TableScatter
) -> _Evidence | None:
    d = log_ratios(cell, baseline)
    if d is None or not d.size:
        return None
    walsh, middle = paired.walsh_averages(d), find_median(d)
    ends: tuple[float, float] | None = None
    if d.size >= MIN_BLOCKS:
        low, high = paired.signed_rank_interval(walsh)
        ends, p = (float(low), float(high)), _compute_typical_run_p(d, walsh)
    else:
        # Below six blocks the signed-rank test has no interval; Student's t test has one, but assumes more.
        if d.size >= 2:
            ends = t_interval(d, paired.NOMINAL)
        p = paired.early_p(d, scatter.pooled)
    return _Evidence(
        ratio=float(np.exp(paired.hodges_lehmann(walsh))),
        ci=_exponentiate_interval(ends),
        p=p,
        equivalence_p=paired.equivalence_p(walsh, margin),
        median_ratio=float(np.exp(middle)),
        median_ci=_exponentiate_interval(median_interval(d)),
        unlike=_has_more_scatter_than_copies(cell, baseline, scatter.copies),
        scatter=NORMAL_SPREAD * find_median(np.abs(d - middle)),
    )


def _compute_typical_run_p(d: Array, walsh: Array) -> float:
    """Return the signed-rank p, or Student's if that is smaller and few blocks all agree."""
    p = paired.signed_rank_p(walsh)
    agree = bool((d > 0).all() or (d < 0).all())
    # Six or seven ranks cannot reach the level of the typical run, however far apart the cells are.
    if agree and d.size < _BLOCKS_FOR_RANKS:
        return min(p, t_p(d))
    return p


def _pool_spread(table: Table, reference: Array) -> float:
    """Return the standard deviation of a block's log ratio, pooled over all cells of a table; 0 if unknown."""
    squares, freedom = 0.0, 0
    for name, cell in table.values.items():
        if name == table.baseline:
            continue
        d = log_ratios(np.asarray(cell, dtype=np.float64), reference)
        if d is not None and d.size:
            squares += float(((d - d.mean()) ** 2).sum())
            freedom += d.size - 1
    return math.sqrt(squares / freedom) if freedom else 0.0


def _has_more_scatter_than_copies(cell: Array, baseline: Array, quiet: float | None) -> bool:
    """Return True if the cell's log ratios scatter over `UNLIKE_SPREAD` times as widely as those of null copies.

    `quiet` is `_TableScatter.copies`; False without any.
    """
    # A run stops when its intervals happen to be narrow. If copies scatter little and the cell does, that luck is the
    # cell's own, so a claim that it is equal needs more evidence.
    own = _compute_typical_null_interval(cell, baseline)
    if own is None or quiet is None:
        return False
    return own[1] * math.sqrt(own[2]) > UNLIKE_SPREAD * quiet


def _estimate_total(cell: Array, baseline: Array, table: Table) -> _Evidence | None:
    pair = total.select_complete_pairs(cell, baseline)
    if pair is None or not pair[0].size:
        return None
    # A batch costs the sum of its times, so rates are compared by their inverses and the result is inverted again.
    is_rate = table.better is Better.HIGHER
    x, y = pair
    if is_rate:
        x, y = 1 / x, 1 / y
    ratio, ends = total.ratio_of_means(x, y), total.ratio_interval(x, y)
    unseen = None
    if ends:
        unseen = total.widen_for_unseen(ends, x.size * table.runs)
    p, equivalence_p = total.total_p(x, y), total.total_equivalence_p(x, y, table.margin)
    needed = math.ceil(total.count_runs_for_equal_totals(table.margin) / table.runs)
    refused = ""
    if x.size < needed:
        refused = f"{needed} blocks are needed to exclude rare slow runs"
    if is_rate:
        ratio, ends, unseen = 1 / ratio, _invert_bounded(ends), _invert_bounded(unseen)
    return _Evidence(
        ratio=ratio, ci=ends, p=p, equivalence_p=equivalence_p, unseen_ci=unseen, refused=refused
    )


def _invert_bounded(ends: tuple[float, float] | None) -> tuple[float, float] | None:
    """Return the interval of the inverse; None if that is unbounded."""
    if ends is None or not ends[0] > 0:
        return None
    return 1 / ends[1], 1 / ends[0]


def _compute_typical_null_interval(a: Array, b: Array) -> tuple[float, float, int] | None:
    """Return the log ratio of two copies, the half-width of its 95 % interval and the blocks; None below six."""
    d = log_ratios(a, b)
    if d is None or d.size < MIN_BLOCKS:
        return None
    walsh = paired.walsh_averages(d)
    low, high = paired.signed_rank_interval(walsh, 0.95)
    return float(paired.hodges_lehmann(walsh)), float(high - low) / 2, d.size


def _compute_total_null_interval(a: Array, b: Array) -> tuple[float, float, int] | None:
    """Return the same as `_compute_typical_null_interval` for the total; None also if the interval reaches 0."""
    pair = total.select_complete_pairs(a, b)
    if pair is None or pair[0].size < MIN_BLOCKS:
        return None
    ends = total.ratio_interval(*pair, 0.95)
    if ends is None or ends[0] <= 0:
        return None
    return math.log(total.ratio_of_means(*pair)), math.log(ends[1] / ends[0]) / 2, pair[0].size


def estimate_noise_floor(
    null_pairs: Sequence[tuple[Array, Array]],
    n_blocks: int,
    history: Sequence[Null] = (),
    estimand: Estimand = Estimand.TYPICAL,
) -> float | None:
    """Return |ratio - 1| that comparisons of equal cells over `n_blocks` blocks reach; None if unknown.

    See `noise.estimate_floor_from_nulls`; each estimand uses its own interval of a null pair.
    """
    interval = _compute_typical_null_interval
    if estimand is Estimand.TOTAL:
        interval = _compute_total_null_interval
    return estimate_floor_from_nulls(null_pairs, n_blocks, history, interval=interval)


def estimate_bias_between_runs(null_pairs: Sequence[tuple[Array, Array]], history: Sequence[Null]) -> float:
    """Return the half-width of the 95 % interval of the log ratio of equal cells, estimated from earlier runs.

    See `noise.estimate_bias_from_nulls`; 0 without history.
    """
    return estimate_bias_from_nulls(null_pairs, history, interval=_compute_typical_null_interval)


def _decide_verdict(
    c: Comparison, table: Table, alpha: float, *, cells: int, refused: str, same: float
) -> tuple[Verdict, str]:
    """Return the verdict and its reason; `same` is the level of equivalence, `refused` a reason not to claim it."""
    few = c.n < MIN_BLOCKS
    too_few = f"fewer than {MIN_BLOCKS} blocks"
    if c.ratio is None or c.ci is None or c.q is None or c.equivalence_q is None:
        return Verdict.INCONCLUSIVE, too_few if few else "interval too wide"
    excludes_one = c.ci[0] > 1 or c.ci[1] < 1
    different = c.q < alpha and excludes_one
    if few and not (different and c.estimand in _EARLY_ESTIMANDS):
        return Verdict.INCONCLUSIVE, too_few
    margin = table.margin
    equivalent = c.equivalence_q < same
    if different:
        faster = (c.ratio > 1) == (table.better is Better.HIGHER)
        reason = ""
        if equivalent:
            reason = f"by less than the margin of {margin:.3g}"
        return Verdict.FASTER if faster else Verdict.SLOWER, reason
    if equivalent and refused:
        return Verdict.INCONCLUSIVE, refused
    if equivalent:
        return Verdict.NO_DIFFERENCE, f"within the margin of {margin:.3g}"
    return Verdict.INCONCLUSIVE, _explain_inconclusive(c.n, excludes_one, cells, alpha)


def _explain_inconclusive(n: int, excludes_one: bool, cells: int, alpha: float) -> str:
    if not excludes_one:
        return "interval too wide"
    needed = count_blocks_to_claim(cells, alpha)
    if n < needed:
        return f"{cells} cells need {needed} blocks"
    return MANY_QUESTIONS_REASON


def _exponentiate_interval(interval: tuple[float, float] | None) -> tuple[float, float] | None:
    """Return the interval of a ratio, given that of its log; None if it overflows (two wildly different blocks)."""
    if interval is None:
        return None
    with np.errstate(over="ignore"):
        low, high = (float(np.exp(end)) for end in interval)
    return (low, high) if math.isfinite(high) else None


def null_differs(null: Comparison, alpha: float = 0.01) -> bool:
    """Return True if a null comparison (A against A) shows a difference, which widens the intervals of the run.

    `alpha` is below the level of verdicts, so that a sound run is not doubted one time in twenty.
    """
    return null.p is not None and null.ci is not None and null.p < alpha and not null.ci[0] <= 1 <= null.ci[1]


def downgrade_verdict(comparison: Comparison, reason: str = "a null comparison differs") -> Comparison:
    """Return the comparison with an inconclusive verdict and this reason; the figures stay."""
    return replace(comparison, verdict=Verdict.INCONCLUSIVE, reason=reason)


def withdraw_verdict(comparison: Comparison, reason: str) -> Comparison:
    """Return the comparison with its verdict withdrawn because of a severe finding about what was measured."""
    return replace(downgrade_verdict(comparison, reason), withdrawn=True)


@dataclass(frozen=True, slots=True)
class Widening:
    """Systematic errors by which a ratio's interval is widened, as logs, and the reason.

    `spread` is the half-width of a 95 % interval of something independent of the blocks (the bias of equal cells in
    earlier runs, the error of a correction); it adds in quadrature. `reach` is a bound and adds at each end. `freedom`
    are the degrees of freedom, if fewer than the blocks have.
    """

    margin: float
    spread: float = 0.0
    reach: float = 0.0
    freedom: int | None = None
    reason: str = WIDENED_REASON


def widen_interval(comparison: Comparison, by: Widening) -> Comparison:
    """Return the comparison with its interval widened.

    A verdict that the wider interval does not support becomes inconclusive, with the reason. p and q rise with the
    interval, because a claim held to a level of its own needs more than an interval that excludes 1.
    """
    margin, spread, reach = by.margin, by.spread, by.reach
    if comparison.ci is None or comparison.ratio is None or not (spread or reach):
        return comparison
    middle = math.log(comparison.ratio)

    def move_outward(end: float) -> float:
        if end <= 0:
            return end
        away = math.log(end) - middle
        return math.exp(middle + math.copysign(math.hypot(away, spread) + reach, away or end - 1))

    low, high = move_outward(comparison.ci[0]), move_outward(comparison.ci[1])
    if comparison.ci[0] == comparison.ci[1]:
        # Without any scatter both ends are the estimate, and their distance from it has no sign.
        low, high = (math.exp(middle + sign * (spread + reach)) for sign in (-1, 1))
    unseen = comparison.unseen_ci
    if unseen is not None:
        unseen = (min(unseen[0], low), max(unseen[1], high))
    before = stretch = 0.0
    if comparison.ci[0] > 0:
        before = math.log(comparison.ci[1] / comparison.ci[0])
    if low > 0:
        stretch = (math.log(high / low) - before) / 2
    least_p = _find_smallest_p(comparison, middle, by)
    p, q = comparison.p, None
    if p and comparison.q is not None:
        # The adjustment multiplies p, so the same factor holds for the larger one.
        q = max(comparison.q, min(least_p * comparison.q / p, 1.0))
    if p is not None:
        p = max(p, least_p)
    stretch += comparison.stretch
    longer = replace(comparison, ci=(low, high), p=p, q=q, unseen_ci=unseen, stretch=stretch)
    differs = low > 1 or high < 1
    equal = 1 / (1 + margin) < low and high < 1 + margin
    supported = {Verdict.FASTER: differs, Verdict.SLOWER: differs, Verdict.NO_DIFFERENCE: equal}
    if not supported.get(comparison.verdict, True):
        return downgrade_verdict(longer, by.reason)
    return longer


def _find_smallest_p(comparison: Comparison, middle: float, by: Widening) -> float:
    """Return the smallest p that a widened comparison can have; 0 below `MIN_BLOCKS` blocks."""
    # The p of so few blocks does not come from their scatter, see `paired.early_p`.
    if comparison.ci is None or comparison.n < MIN_BLOCKS:
        return 0.0
    nearest = comparison.ci[0] if middle > 0 else comparison.ci[1]
    half = math.inf
    if nearest > 0:
        half = math.hypot(abs(math.log(nearest) - middle), by.spread)
    distance = max(abs(middle) - by.reach, 0.0)
    freedom = comparison.n - 1 if by.freedom is None else by.freedom
    return _convert_half_width_to_p(distance, half, freedom)


def _convert_half_width_to_p(distance: float, half: float, freedom: int) -> float:
    """Return Student's two-sided p of a log ratio `distance` from 0, whose `NOMINAL` interval has half-width `half`."""
    if freedom < 1 or half <= 0:
        return 0.0
    return 2 * float(student_t_cdf(freedom, -distance / half * t_quantile(freedom, (1 + paired.NOMINAL) / 2)))


_TIME_UNITS = frozenset({"s", "ms", "us", "µs", "ns", "min", "h"})
_PROCESSOR_TIME = frozenset({USER.name, SYSTEM.name})
_SIZE_UNITS = frozenset({"b", "byte", "bytes", "kb", "mb", "gb", "kib", "mib", "gib", "pages"})


def is_processor_time(metric: Metric) -> bool:
    """Return True for user and system time, which a guest's kernel counts on even while its hypervisor waits."""
    return metric.name in _PROCESSOR_TIME


def waits_for_processor(metric: Metric) -> bool:
    """Return True if the metric gets worse while other programs have the processors: clock times and rates do.

    Processor time, counts, sizes and figures without a unit of time do not.
    """
    if is_processor_time(metric):
        return False
    unit = metric.unit.lower()
    return unit in _TIME_UNITS or unit.endswith(("/s", "ps"))


def label_verdict(verdict: Verdict, metric: Metric) -> str:
    """Return the word for a verdict: faster/slower for times and rates, less/more for sizes, else better/worse."""
    if not verdict.is_difference:
        return verdict.value
    good = verdict is Verdict.FASTER
    unit = metric.unit.lower()
    if unit in _TIME_UNITS or unit.endswith(("/s", "ps")):
        return verdict.value
    if unit in _SIZE_UNITS:
        return "more" if good == (metric.better is Better.HIGHER) else "less"
    return "better" if good else "worse"


def adjust_benjamini_hochberg(p: Array) -> Array:
    """Return p values of shape (m,), adjusted over their family to control the false discovery rate; each at most 1.

    If claims are made at q below .05, on average at most one in twenty is false (Benjamini and Hochberg 1995).
    """
    m = p.size
    if m == 0:
        return p.copy()
    order = np.argsort(p, kind="stable")
    scaled = p[order] * m / np.arange(1, m + 1)
    adjusted = np.empty(m)
    adjusted[order] = np.minimum(np.minimum.accumulate(scaled[::-1])[::-1], 1.0)
    return adjusted


def adjust_holm(p: Array) -> Array:
    """Return p values of shape (m,), adjusted to control the chance of even one false claim; each at most 1.

    Holm's step-down method (1979), which is valid under any dependence. For gates, where each claim is acted upon.
    """
    m = p.size
    if m == 0:
        return p.copy()
    order = np.argsort(p, kind="stable")
    adjusted = np.empty(m)
    adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * (m - np.arange(m))), 1.0)
    return adjusted


def count_blocks_to_claim(cells: int, alpha: float = 0.05) -> int:
    """Return the fewest blocks with which one differing cell among `cells` can be claimed at all.

    The smallest p is 2^(1 - K), multiplied by the number of cells: 6 blocks for one cell, 11 for 40. Raises ValueError
    without a cell or for an `alpha` that is not between 0 and 1.
    """
    if cells < 1 or not 0 < alpha < 1:
        raise ValueError("needs at least one cell and an alpha between 0 and 1")
    return math.ceil(1 + math.log2(cells / alpha))
