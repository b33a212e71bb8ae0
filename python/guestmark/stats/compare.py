"""Verdicts: every cell of a table against its baseline, paired by block."""

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
from guestmark.stats.noise import Null, bias_from_nulls, floor_from_nulls
from guestmark.stats.paired import log_ratios, median_interval, t_interval, t_p, t_quantile
from guestmark.stats.special import student_t_cdf

Array = NDArray[np.float64]

MIN_BLOCKS = paired.MIN_BLOCKS  # below, no test here can reach .05
WIDENED_REASON = "noise of this host (equal cells, other programs, order) widens the interval"
_BLOCKS_FOR_RANKS = (
    8  # blocks from which on the signed-rank test reaches what one of several questions is held to
)
BOUNDED_RATIO = 1.25  # a ratio that is known to lie between this and its inverse is an answer
MANY_QUESTIONS_REASON = "may be chance, as many questions were asked"
UNLIKE_SPREAD = 1.5  # times the spread of a null copy, from which a cell scatters on its own account


class Verdict(StrEnum):
    """What a comparison says; where higher is better "faster" means higher."""

    FASTER = "faster"
    SLOWER = "slower"
    NO_DIFFERENCE = "no difference"
    INCONCLUSIVE = "inconclusive"


class Estimand(StrEnum):
    """What is asked of a cell. Each has its own estimate, interval, test and verdict."""

    TYPICAL = "typical"  # the typical run: a robust centre
    TOTAL = "total"  # the mean: what a batch costs
    SLOW = "slow"  # how often a run takes much longer than is typical
    FIRST = "first"  # the first run on a fresh machine


_EARLY_ESTIMANDS = frozenset(
    {Estimand.TYPICAL, Estimand.FIRST}
)  # what few blocks may answer, see `paired.early_p`


@dataclass(frozen=True, slots=True)
class Comparison:
    """One cell against the baseline over the `n` blocks that hold both; ratios are cell / baseline.

    `ratio` and its 95 % interval `ci` are of the estimand: Hodges–Lehmann's for the typical run (below six blocks,
    where it has no interval, the t interval of the mean log ratio; None below two), the ratio of means with Fieller's
    interval for the total. `median_ratio` is exp(median d) with `median_ci` (None below six). `p` is of the exact test
    of no difference, `equivalence_p` of that for equivalence, `q` and `equivalence_q` the same adjusted over the
    family. `noise_floor` is |ratio - 1| that null comparisons reach (None: unknown). `ci` of a total is of the runs
    that were measured; `unseen_ci` is its interval with what so few machines cannot have shown, see
    `total.with_unseen`. `stretch` is the log by which each end of `ci` lies further out than chance alone puts it, see
    `widen_interval`. `alike` is True where the typical run lies within the margin and rarer slow runs are not excluded:
    that is less than no difference. Without a ratio (see `log_ratios`) everything but `n`, `noise_floor`, `verdict` and
    `reason` is None. `reason` says in a few words why the verdict is what it is; empty when nothing need be said.
    `withdrawn` is True where a severe finding took the verdict back: then the interval is not of what was asked.
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
    alike: bool = False
    withdrawn: bool = False

    @property
    def differs(self) -> bool:
        """Whether a difference is claimed."""
        return self.verdict in {Verdict.FASTER, Verdict.SLOWER}

    def excludes_ratio(self, ratio: float) -> bool:
        """Whether these blocks show that the ratio is another one: by their interval, where they are enough for one."""
        known = (self.n >= MIN_BLOCKS or self.differs) and self.ci is not None and not self.withdrawn
        return known and self.ci is not None and not self.ci[0] <= ratio <= self.ci[1]

    @property
    def stated_interval(self) -> tuple[float, float] | None:
        """The 95 % interval to state: of a total the one that allows for events that so few runs cannot have shown."""
        return self.unseen_ci if self.estimand is Estimand.TOTAL else self.ci

    @property
    def typical_is_equal(self) -> bool:
        """Whether at least the typical run is shown to be as on the baseline."""
        return self.alike or self.verdict is Verdict.NO_DIFFERENCE

    @property
    def is_undecided(self) -> bool:
        """Whether nothing is shown, not even that the typical run is alike."""
        return self.verdict is Verdict.INCONCLUSIVE and not self.alike

    @property
    def is_bounded(self) -> bool:
        """Whether the interval says enough although no verdict is given: any difference lies within `BOUND`."""
        known = (
            self.is_undecided
            and not self.withdrawn
            and self.n >= MIN_BLOCKS
            and self.stated_interval is not None
        )
        return (
            known
            and self.stated_interval is not None
            and self.stated_interval[0] >= 1 / BOUNDED_RATIO
            and self.stated_interval[1] <= BOUNDED_RATIO
        )


def invert_comparison(comparison: Comparison) -> Comparison:
    """Return the same comparison the other way round, of the baseline over the cell."""

    def turned(ends: tuple[float, float] | None) -> tuple[float, float] | None:
        return None if ends is None else (1 / ends[1], 1 / ends[0] if ends[0] > 0 else math.inf)

    return replace(
        comparison,
        ratio=None if comparison.ratio is None else 1 / comparison.ratio,
        ci=turned(comparison.ci),
        median_ratio=None if comparison.median_ratio is None else 1 / comparison.median_ratio,
        median_ci=turned(comparison.median_ci),
        unseen_ci=turned(comparison.unseen_ci),
        verdict=_OPPOSITE_VERDICTS.get(comparison.verdict, comparison.verdict),
    )


_OPPOSITE_VERDICTS = {Verdict.FASTER: Verdict.SLOWER, Verdict.SLOWER: Verdict.FASTER}


@dataclass(frozen=True, slots=True)
class Table:
    """The cells of one metric and their baseline; `values` maps cell ids to shape (K,), NaN for missing trials.

    `null_pairs` are the values of cells that are copies of each other, `history` null comparisons of earlier runs;
    both make the noise floor. Null cells are left out of `values`: they are known not to differ. A block holds `runs`
    independent runs of a cell: its iterations where nothing boots, else 1.
    """

    values: Mapping[str, Array]
    baseline: str
    better: Better
    margin: float
    null_pairs: Sequence[tuple[Array, Array]] = ()
    history: Sequence[Null] = ()
    runs: int = 1


class _Evidence(NamedTuple):
    """What one pair of cells says of an estimand, before anything is adjusted or decided."""

    ratio: float
    ci: tuple[float, float] | None
    p: float
    equivalence_p: float
    median_ratio: float | None = None
    median_ci: tuple[float, float] | None = None
    unseen_ci: tuple[float, float] | None = None
    refused: str = ""  # why equality cannot be claimed whatever the test says
    unlike: bool = False  # it scatters more than copies of one cell do


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
    """Compare every cell of one metric's table with `baseline`, as `compare_tables` does for several."""
    table = Table(values, baseline, better, margin, null_pairs, history, runs)
    return compare_tables({"": table}, alpha=alpha, estimand=estimand)[""]


def compare_tables(
    tables: Mapping[str, Table], *, alpha: float = 0.05, estimand: Estimand = Estimand.TYPICAL
) -> dict[str, dict[str, Comparison]]:
    """Compare the cells of several tables with their baselines, p values adjusted over all of them together.

    One table is the usual family; the tables of the secondary metrics make one more, so that a run with many metrics
    makes no more false claims than one with few (Benjamini and Hochberg 1995, over cells and metrics). The order of
    `tables` and of their cells is kept. `estimand` is typical, total or first; `margin` is relative (0.03: ratios from
    1/1.03 to 1.03 are equivalent). Where higher is better totals are compared as times per unit, which is what a batch
    costs.

    Faster or slower is said when q is below `alpha` and the interval excludes 1; no difference when equivalence is
    shown and, for the total, there are enough runs to have seen rare events; inconclusive otherwise. What a whole
    report may claim is decided over all its questions together, see `family`. Raises ValueError for an unknown
    baseline or arrays that do not pair.
    """
    evidence_of = _estimate_total if estimand is Estimand.TOTAL else _estimate_typical_run
    found: dict[tuple[str, str], _Evidence] = {}
    sizes: dict[tuple[str, str], int] = {}
    for name, table in tables.items():
        if table.baseline not in table.values:
            raise ValueError(f"the baseline {table.baseline!r} is not among the values")
        reference = np.asarray(table.values[table.baseline], dtype=np.float64)
        for cell, given in table.values.items():
            if cell == table.baseline:
                continue
            array = np.asarray(given, dtype=np.float64)
            evidence = evidence_of(array, reference, table)
            sizes[name, cell] = int((~(np.isnan(array) | np.isnan(reference))).sum())
            if evidence is not None:
                found[name, cell] = evidence
    q = adjust_benjamini_hochberg(np.array([one.p for one in found.values()]))
    same_q = adjust_benjamini_hochberg(np.array([one.equivalence_p for one in found.values()]))
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
    )
    level = min(alpha, 1 - paired.NOMINAL) / (2 if evidence.unlike else 1)
    verdict, reason = _decide_verdict(
        undecided, table, alpha, cells=cells, refused=evidence.refused, same=level
    )
    return replace(undecided, verdict=verdict, reason=reason)


def _estimate_typical_run(cell: Array, baseline: Array, table: Table) -> _Evidence | None:
    d = log_ratios(cell, baseline)
    if d is None or not d.size:
        return None
    walsh = paired.walsh_averages(d)
    if d.size >= MIN_BLOCKS:
        low, high = paired.signed_rank_interval(walsh)
        ends: tuple[float, float] | None = (float(low), float(high))
    else:
        ends = t_interval(d, paired.NOMINAL) if d.size >= 2 else None
    return _Evidence(
        ratio=float(np.exp(paired.hodges_lehmann(walsh))),
        ci=_exponentiate_interval(ends),
        p=_typical_run_p(d, walsh) if d.size >= MIN_BLOCKS else paired.early_p(d, _pooled_spread(table)),
        equivalence_p=paired.equivalence_p(walsh, table.margin),
        median_ratio=float(np.exp(np.median(d))),
        median_ci=_exponentiate_interval(median_interval(d)),
        unlike=_scatters_more_than_copies(cell, baseline, table),
    )


def _typical_run_p(d: Array, walsh: Array) -> float:
    """The signed-rank p. Few blocks cannot make that small enough: where all of them agree, Student's t decides."""
    p = paired.signed_rank_p(walsh)
    agree = bool((d > 0).all() or (d < 0).all())
    return min(p, t_p(d)) if agree and d.size < _BLOCKS_FOR_RANKS else p


def _pooled_spread(table: Table) -> float:
    """The standard deviation of a block's log ratio over all cells of a table; 0 where it is not known."""
    reference = np.asarray(table.values[table.baseline], dtype=np.float64)
    known = [
        d
        for name, cell in table.values.items()
        if name != table.baseline
        and (d := log_ratios(np.asarray(cell, dtype=np.float64), reference)) is not None
    ]
    free = sum(max(d.size - 1, 0) for d in known)
    return math.sqrt(sum(float(((d - d.mean()) ** 2).sum()) for d in known if d.size) / free) if free else 0.0


def _scatters_more_than_copies(cell: Array, baseline: Array, table: Table) -> bool:
    """Return True if the cell's log ratios scatter over `UNLIKE_SPREAD` times as widely as those of null copies.

    False without null copies. A run stops where its intervals happen to be narrow. Where the copies are quiet and the
    cell is not, that luck is the cell's, and its equality needs more evidence.
    """
    own = _typical_null_interval(cell, baseline)
    copies = [found for pair in table.null_pairs if (found := _typical_null_interval(*pair)) is not None]
    if own is None or not copies:
        return False
    quiet = math.sqrt(sum(half**2 * blocks for _, half, blocks in copies) / len(copies))
    return own[1] * math.sqrt(own[2]) > UNLIKE_SPREAD * quiet


def _estimate_total(cell: Array, baseline: Array, table: Table) -> _Evidence | None:
    pair = total.complete_pairs(cell, baseline)
    if pair is None or not pair[0].size:
        return None
    rate = table.better is Better.HIGHER
    x, y = (1 / pair[0], 1 / pair[1]) if rate else pair

    def shown(ends: tuple[float, float] | None) -> tuple[float, float] | None:
        if ends is None or not rate:
            return ends
        return (1 / ends[1], 1 / ends[0]) if ends[0] > 0 else None

    ratio, ends = total.ratio_of_means(x, y), total.ratio_interval(x, y)
    needed = math.ceil(total.runs_for_equal_totals(table.margin) / table.runs)
    return _Evidence(
        ratio=1 / ratio if rate else ratio,
        ci=shown(ends),
        p=total.total_p(x, y),
        equivalence_p=total.total_equivalence_p(x, y, table.margin),
        unseen_ci=shown(total.with_unseen(ends, x.size * table.runs)) if ends else None,
        refused=f"it takes {needed} blocks to exclude rare slow runs" if x.size < needed else "",
    )


def _typical_null_interval(a: Array, b: Array) -> tuple[float, float, int] | None:
    """The log ratio of two copies, the half-width of its interval and the blocks; None below six."""
    d = log_ratios(a, b)
    if d is None or d.size < MIN_BLOCKS:
        return None
    walsh = paired.walsh_averages(d)
    low, high = paired.signed_rank_interval(walsh, 0.95)
    return float(paired.hodges_lehmann(walsh)), float(high - low) / 2, d.size


def _total_null_interval(a: Array, b: Array) -> tuple[float, float, int] | None:
    pair = total.complete_pairs(a, b)
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
    """Return the size |ratio - 1| that comparisons of `n_blocks` blocks without any difference reach, of an estimand.

    See `noise.floor_from_nulls`, to which this gives the estimand's own interval of a null pair.
    """
    interval = _total_null_interval if estimand is Estimand.TOTAL else _typical_null_interval
    return floor_from_nulls(null_pairs, n_blocks, history, interval=interval)


def bias_between_runs(null_pairs: Sequence[tuple[Array, Array]], history: Sequence[Null]) -> float:
    """Return the half-width of the 95 % interval of what equal cells of one run differ by, as a log, from earlier runs.

    See `noise.bias_from_nulls`; 0 without history.
    """
    return bias_from_nulls(null_pairs, history, interval=_typical_null_interval)


def _decide_verdict(
    c: Comparison, table: Table, alpha: float, *, cells: int, refused: str, same: float
) -> tuple[Verdict, str]:
    few = c.n < MIN_BLOCKS
    if c.ratio is None or c.ci is None or c.q is None or c.equivalence_q is None:
        return Verdict.INCONCLUSIVE, f"fewer than {MIN_BLOCKS} blocks" if few else "interval too wide"
    higher = c.ratio > 1
    excludes_one = c.ci[0] > 1 or c.ci[1] < 1
    if few and not (c.estimand in _EARLY_ESTIMANDS and c.q < alpha and excludes_one):
        return Verdict.INCONCLUSIVE, f"fewer than {MIN_BLOCKS} blocks"
    margin = table.margin
    equivalent = c.equivalence_q < same
    if c.q < alpha and excludes_one:
        faster = higher == (table.better is Better.HIGHER)
        return (
            Verdict.FASTER if faster else Verdict.SLOWER,
            f"by less than the margin of {margin:.3g}" if equivalent else "",
        )
    if equivalent:
        equal = Verdict.NO_DIFFERENCE, f"within the margin of {margin:.3g}"
        return (Verdict.INCONCLUSIVE, refused) if refused else equal
    if excludes_one and c.n < blocks_to_claim(cells, alpha):
        return Verdict.INCONCLUSIVE, f"{cells} cells need {blocks_to_claim(cells, alpha)} blocks"
    return Verdict.INCONCLUSIVE, MANY_QUESTIONS_REASON if excludes_one else "interval too wide"


def _exponentiate_interval(interval: tuple[float, float] | None) -> tuple[float, float] | None:
    """Return the interval of the ratio; None if it cannot be said in floats (two wildly different blocks)."""
    if interval is None:
        return None
    with np.errstate(over="ignore"):
        low, high = (float(np.exp(end)) for end in interval)
    return (low, high) if math.isfinite(high) else None


def null_differs(null: Comparison, alpha: float = 0.01) -> bool:
    """Return whether a null comparison (A against A) shows a difference, which widens the intervals of the run.

    `alpha` is below that of verdicts because a sound run should not be doubted one time in twenty.
    """
    return null.p is not None and null.ci is not None and null.p < alpha and not null.ci[0] <= 1 <= null.ci[1]


def downgrade_verdict(comparison: Comparison, reason: str = "a null comparison differs") -> Comparison:
    """Return the comparison with its verdict taken back; the figures stay."""
    return replace(comparison, verdict=Verdict.INCONCLUSIVE, reason=reason)


def withdraw_verdict(comparison: Comparison, reason: str) -> Comparison:
    """Return the comparison with its verdict taken back by a severe finding about what was measured."""
    return replace(downgrade_verdict(comparison, reason), withdrawn=True)


def widen_interval(
    comparison: Comparison,
    margin: float,
    reason: str,
    *,
    spread: float = 0.0,
    reach: float = 0.0,
    freedom: int | None = None,
) -> Comparison:
    """Return the comparison with its interval widened by what may systematically add to the log of its ratio.

    `spread` is the half-width of a 95 % interval of something independent of the blocks (the bias of equal cells in
    earlier runs, the error of a correction) and adds in quadrature; `reach` is a bound and adds at each end. `freedom`
    are its degrees of freedom where these are fewer than those of the blocks. p and q
    rise with it: what is claimed at a level of its own needs more than an interval that excludes 1. A verdict that the
    longer interval no longer bears out becomes inconclusive with `reason`.
    """
    if comparison.ci is None or comparison.ratio is None or not (spread or reach):
        return comparison
    middle = math.log(comparison.ratio)

    def further(end: float) -> float:
        if end <= 0:
            return end
        away = math.log(end) - middle
        return math.exp(middle + math.copysign(math.hypot(away, spread) + reach, away or end - 1))

    low, high = further(comparison.ci[0]), further(comparison.ci[1])
    if comparison.ci[0] == comparison.ci[1]:
        low, high = (math.exp(middle + sign * (spread + reach)) for sign in (-1, 1))
    unseen = comparison.unseen_ci
    if unseen is not None:
        unseen = (min(unseen[0], low), max(unseen[1], high))
    before = math.log(comparison.ci[1] / comparison.ci[0]) if comparison.ci[0] > 0 else 0.0
    stretch = (math.log(high / low) - before) / 2 if low > 0 else 0.0
    nearest = comparison.ci[0] if middle > 0 else comparison.ci[1]
    half = math.hypot(abs(math.log(nearest) - middle), spread) if nearest > 0 else math.inf
    p = 0.0
    if comparison.n >= MIN_BLOCKS:  # of fewer p is not by their scatter
        p = _p_from_half_width(
            max(abs(middle) - reach, 0.0), half, comparison.n - 1 if freedom is None else freedom
        )
    longer = replace(
        comparison,
        ci=(low, high),
        p=None if comparison.p is None else max(comparison.p, p),
        q=None
        if not comparison.p or comparison.q is None
        else max(comparison.q, min(p * comparison.q / comparison.p, 1.0)),
        unseen_ci=unseen,
        stretch=comparison.stretch + stretch,
    )
    differs = low > 1 or high < 1
    equal = 1 / (1 + margin) < low and high < 1 + margin
    borne_out = {Verdict.FASTER: differs, Verdict.SLOWER: differs, Verdict.NO_DIFFERENCE: equal}
    return longer if borne_out.get(comparison.verdict, True) else downgrade_verdict(longer, reason)


def _p_from_half_width(distance: float, half: float, freedom: int) -> float:
    """The two-sided p by Student's t of a log ratio so far from 0, with an interval of `NOMINAL` of this half-width."""
    if freedom < 1 or half <= 0:
        return 0.0
    return 2 * float(student_t_cdf(freedom, -distance / half * t_quantile(freedom, (1 + paired.NOMINAL) / 2)))


_TIME_UNITS = frozenset({"s", "ms", "us", "µs", "ns", "min", "h"})
_PROCESSOR_TIME = frozenset({USER.name, SYSTEM.name})
_SIZE_UNITS = frozenset({"b", "byte", "bytes", "kb", "mb", "gb", "kib", "mib", "gib", "pages"})


def is_processor_time(metric: Metric) -> bool:
    """Return whether a kernel counts it of a program; a guest's goes on while its hypervisor waits."""
    return metric.name in _PROCESSOR_TIME


def waits_for_processor(metric: Metric) -> bool:
    """Return whether the metric gets worse while others have the processors: clock times and rates do.

    Processor time, counts, sizes and figures without a unit of time do not wait.
    """
    if is_processor_time(metric):
        return False
    unit = metric.unit.lower()
    return unit in _TIME_UNITS or unit.endswith(("/s", "ps"))


def label_verdict(verdict: Verdict, metric: Metric) -> str:
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


def adjust_benjamini_hochberg(p: Array) -> Array:
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


def adjust_holm(p: Array) -> Array:
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
