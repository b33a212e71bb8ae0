"""Comparison of runs of the same cells: whether their ratios differ by more than those of unchanged cells.

Only ratios to each run's own baseline are compared, never times, because a host that is slower today is slower for
both. Even so, ratios of identical cells measured on different days differ by more than the blocks within a run show. By
how much is estimated from earlier runs of the same question on the same host; without any, nothing can be claimed.

If the host restarts in between, or runs took place at other times or on other machines, the boot or the session is the
replicate. Whatever is fixed for its duration (where the kernel lies in memory, which neighbours a machine has) is the
same for everything measured in it, so its blocks do not show how much sessions vary.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from guestmark.core.metric import Metric
from guestmark.core.model import Cell
from guestmark.stats.medians import find_median
from guestmark.stats.noise import Null
from guestmark.stats.paired import Summary
from guestmark.stats.special import student_t_critical, student_t_quantile

# With fewer earlier runs, their variance is so uncertain that no change would ever be shown.
FEWEST_RUNS = 4
CONFIDENCE = 0.95
# The comparison with earlier runs adds this error rate to the error rate of the run's own report.
_CHANGE_ERROR = 0.02
# Sessions (or boots) that each side needs, because a single one does not show how much they vary.
FEWEST_SESSIONS = 2
# With fewer null comparisons, their variance is so uncertain that the floor of a sound run would nearly triple.
FEWEST_NULLS = 3
# An earlier null comparison only counts if its runs were at most this many times as long or as short, because short
# runs are noisier.
_SIMILAR_FACTOR = 3.0


@dataclass(frozen=True, slots=True)
class PastRatio:
    """The same ratio in an earlier run: the ratio, the ends of its interval, and the number of its blocks."""

    run_id: str
    created_at: float  # Unix time, seconds
    ratio: float
    low: float
    high: float
    blocks: int

    @property
    def log_ratio(self) -> float:
        """Natural logarithm of the ratio."""
        return math.log(self.ratio)

    @property
    def log_variance(self) -> float:
        """Variance of the log ratio, from its interval."""
        half = math.log(self.high / self.low) / 2
        return (half / student_t_critical(max(self.blocks - 1, 1), 1 - CONFIDENCE)) ** 2


@dataclass(frozen=True, slots=True)
class PastNull:
    """An earlier null comparison of a kind of cell; `typical` is the median of the copied cell's trials."""

    log_ratio: float
    blocks: int
    typical: float


@dataclass(frozen=True, slots=True)
class History:
    """Results of earlier runs of this host, by the ids of this run's cells, oldest first.

    `ratios` are of cells against their baseline, `nulls` of copies against the cell with that id. `changed` is what
    differs in the environment since the last of these runs, `between` what differed among them, as `old → new`.
    """

    ratios: Mapping[str, Sequence[PastRatio]] = field(default_factory=dict)
    nulls: Mapping[str, Sequence[PastNull]] = field(default_factory=dict)
    changed: Mapping[str, str] = field(default_factory=dict)
    between: Mapping[str, str] = field(default_factory=dict)

    def find_nulls(
        self, cells: Sequence[Cell], summaries: Mapping[str, Mapping[str, Summary]], metric: Metric
    ) -> list[Null]:
        """Return earlier null comparisons of the cells that are copied here; without copies, of the baseline."""
        copied = {cell.null_of for cell in cells if cell.null_of is not None}
        kinds = copied or {cell.id for cell in cells if cell.baseline}
        nulls = []
        for cell_id in sorted(kinds):
            summary = summaries.get(cell_id, {}).get(metric.name)
            if summary is not None:
                nulls += self.find_similar_nulls(cell_id, summary.median)
        return nulls

    def find_similar_nulls(self, cell_id: str, typical: float) -> list[Null]:
        """Return earlier null comparisons of this kind of cell whose runs took about as long; none if too few."""
        found = []
        for null in self.nulls.get(cell_id, ()):
            if typical > 0 and typical / _SIMILAR_FACTOR <= null.typical <= typical * _SIMILAR_FACTOR:
                found.append(Null(null.log_ratio, null.blocks))
        return found if len(found) >= FEWEST_NULLS else []


NO_HISTORY = History()


class ChangeVerdict(StrEnum):
    """Verdicts on a cell that was measured in two runs."""

    HIGHER = "higher"
    LOWER = "lower"
    ALIKE = "no difference shown"
    UNKNOWN = "no verdict"


@dataclass(frozen=True, slots=True)
class Change:
    """The ratio of two runs' ratios to their baselines; `ci` allows for the variation between runs.

    `within` is the interval that the blocks alone would give. `spread` is the relative variation between runs (one
    standard deviation), estimated from `runs` earlier ones; None if they are too few.
    """

    ratio: float
    within: tuple[float, float]
    ci: tuple[float, float] | None
    spread: float | None
    runs: int
    verdict: ChangeVerdict
    # `ci` is at the level of one of so many claims.
    claims: int = 1


def _judge_change(low: float, high: float) -> ChangeVerdict:
    """Return the verdict that the interval of a ratio supports."""
    if low > 1:
        return ChangeVerdict.HIGHER
    return ChangeVerdict.LOWER if high < 1 else ChangeVerdict.ALIKE


def compare_two_runs(
    before: PastRatio, after: PastRatio, earlier: Sequence[PastRatio], claims: int = 1
) -> Change:
    """Compare a cell's ratio in two runs, given `earlier` runs of the same question, other than these two.

    With J earlier log ratios y, the variance between runs is the excess of their variance over the variance within each
    run, t² = max(var(y) - mean(v), 0), after DerSimonian and Laird (1986). The difference of two runs has the variance
    v1 + v2 + 2 t², and its interval uses Student's quantile with J - 1 degrees of freedom, as t² is known no better
    than that. Several `claims` of one report share its level (Bonferroni), as they share the runs they are estimated
    from.
    """
    d = math.log(after.ratio / before.ratio)
    own = before.log_variance + after.log_variance
    half = 1.96 * math.sqrt(own)
    within = (math.exp(d - half), math.exp(d + half))
    if len(earlier) < FEWEST_RUNS:
        return Change(math.exp(d), within, None, None, len(earlier), ChangeVerdict.UNKNOWN)
    between = _estimate_variance_between(earlier)
    reach = student_t_critical(len(earlier) - 1, 1 - CONFIDENCE, claims) * math.sqrt(own + 2 * between)
    low, high = math.exp(d - reach), math.exp(d + reach)
    verdict = _judge_change(low, high)
    return Change(
        math.exp(d), within, (low, high), math.expm1(math.sqrt(between)), len(earlier), verdict, claims
    )


def compare_with_earlier(now: PastRatio, earlier: Sequence[PastRatio], claims: int = 1) -> Change | None:
    """Compare a cell's ratio in a run with the mean of all earlier ones; None below `FEWEST_RUNS` of them.

    The mean of J earlier log ratios has the variance (t² + v)/J, with t² as in `compare_two_runs`; this run adds its
    own variance and another t² to that of the difference. Student's t with J - 1 degrees of freedom: a longer history
    makes the test stronger. `claims` of one report share an error of `_CHANGE_ERROR`.
    """
    if len(earlier) < FEWEST_RUNS:
        return None
    logs, inside = _list_log_ratios(earlier), _list_log_variances(earlier)
    between = _estimate_variance_between(earlier)
    d = math.log(now.ratio) - float(logs.mean())
    own = now.log_variance + float(inside.mean()) / len(earlier)
    half = 1.96 * math.sqrt(own)
    reach = student_t_critical(len(earlier) - 1, _CHANGE_ERROR, claims) * math.sqrt(
        own + between * (1 + 1 / len(earlier))
    )
    low, high = math.exp(d - reach), math.exp(d + reach)
    verdict = _judge_change(low, high)
    spread = math.expm1(math.sqrt(between))
    within = (math.exp(d - half), math.exp(d + half))
    return Change(math.exp(d), within, (low, high), spread, len(earlier), verdict)


def _list_log_ratios(runs: Iterable[PastRatio]) -> NDArray[np.float64]:
    return np.array([run.log_ratio for run in runs])


def _list_log_variances(runs: Iterable[PastRatio]) -> NDArray[np.float64]:
    return np.array([run.log_variance for run in runs])


def _estimate_variance_between(runs: Sequence[PastRatio]) -> float:
    """Return t² of `compare_two_runs`: the variance of the log ratios beyond that within each run."""
    inside = float(_list_log_variances(runs).mean())
    return max(float(_list_log_ratios(runs).var(ddof=1)) - inside, 0.0)


# With five runs, only a strictly monotonic series could show a drift.
FEWEST_IN_DRIFT = 6
# Up to this many runs the orders are counted exactly.
_EXACT_ORDER = 60


@dataclass(frozen=True, slots=True)
class Drift:
    """The change of a ratio from the first of some runs to the last, if it changed steadily, with its interval."""

    ratio: float
    ci: tuple[float, float] | None
    runs: int
    verdict: ChangeVerdict


def detect_drift(runs: Sequence[PastRatio], claims: int = 1) -> Drift | None:
    """Test whether the ratio goes up or down over these runs, in their order; None below `FEWEST_IN_DRIFT`.

    Kendall's exact test of order, which is valid for exchangeable runs of any distribution, and Theil and Sen's slope
    with the matching interval (Hollander, Wolfe and Chicken, 3rd ed., 9.2 and 9.3). Several `claims` of one report
    share its level; there is no interval if so few runs cannot reach their part of it.
    """
    n = len(runs)
    if n < FEWEST_IN_DRIFT:
        return None
    logs = _list_log_ratios(runs)
    first, second = np.triu_indices(n, 1)
    slopes = np.sort((logs[second] - logs[first]) / (second - first))
    outside = _find_critical_discordances(n, (1 - CONFIDENCE) / 2 / claims)
    middle = find_median(slopes) * (n - 1)
    if outside < 0:
        return Drift(math.exp(middle), None, n, ChangeVerdict.ALIKE)
    low, high = (math.exp(float(slope) * (n - 1)) for slope in (slopes[outside], slopes[-1 - outside]))
    return Drift(math.exp(middle), (low, high), n, _judge_change(low, high))


def _find_critical_discordances(n: int, tail: float) -> int:
    """Return the largest number of discordant pairs that is not exceeded in at most the share `tail` of all orders.

    -1 if there is none.
    """
    pairs = n * (n - 1) // 2
    if n > _EXACT_ORDER:
        spread = math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
        return math.floor((pairs - NormalDist().inv_cdf(1 - tail) * spread) / 2 - 1)
    # The share of orders of k runs with each number of discordances: run k is put before any number of the others.
    shares = np.ones(1)
    for k in range(2, n + 1):
        shares = np.convolve(shares, np.full(k, 1 / k))
    return int(np.searchsorted(np.cumsum(shares), tail, side="right")) - 1


@dataclass(frozen=True, slots=True)
class SidesComparison:
    """The second side over the first: the ratio of geometric means over sessions, and its interval (None: too few).

    `spread` is the variation between sessions of one side, as one relative standard deviation. `sessions` counts those
    of each side; in a campaign they are boots of the host.
    """

    ratio: float
    ci: tuple[float, float] | None
    spread: float | None
    sessions: tuple[int, int]
    verdict: ChangeVerdict
    # `ci` is at the level of one of so many claims.
    claims: int = 1


@dataclass(frozen=True, slots=True)
class SessionsMean:
    """One ratio measured in several sessions: the geometric mean, and its interval (None: too few sessions)."""

    ratio: float
    ci: tuple[float, float] | None
    spread: float | None
    sessions: int


def alternate_sides(rounds: int) -> str:
    """Return the order of boots in a campaign: A B B A, reversed in every second round so that trends cancel."""
    return "".join("ABBA" if number % 2 == 0 else "BAAB" for number in range(rounds))


def compare_two_sides(first: Sequence[float], second: Sequence[float], claims: int = 1) -> SidesComparison:
    """Compare one value per session of two sides: Student's t interval on logarithms with the pooled variance.

    With several `claims` the level of the interval is divided among them (Bonferroni). Raises ValueError for a value
    without a logarithm, or a side without sessions.
    """
    a, b = _compute_checked_logs(first), _compute_checked_logs(second)
    d = float(b.mean() - a.mean())
    sessions = (a.size, b.size)
    if min(sessions) < FEWEST_SESSIONS:
        return SidesComparison(math.exp(d), None, None, sessions, ChangeVerdict.UNKNOWN)
    free = a.size + b.size - 2
    pooled = (float(a.var()) * a.size + float(b.var()) * b.size) / free
    reach = student_t_critical(free, 1 - CONFIDENCE, claims) * math.sqrt(pooled * (1 / a.size + 1 / b.size))
    low, high = math.exp(d - reach), math.exp(d + reach)
    verdict = _judge_change(low, high)
    return SidesComparison(math.exp(d), (low, high), math.expm1(math.sqrt(pooled)), sessions, verdict, claims)


def mean_over_sessions(ratios: Sequence[float], claims: int = 1) -> SessionsMean:
    """Return the mean of a ratio over sessions with Student's t interval on logarithms, as in `compare_two_sides`.

    The variance of these ratios includes what varies inside sessions, so a session's blocks enter only by its ratio.
    Raises ValueError as `compare_two_sides` does.
    """
    logs = _compute_checked_logs(ratios)
    ratio = math.exp(float(logs.mean()))
    if logs.size < FEWEST_SESSIONS:
        return SessionsMean(ratio, None, None, logs.size)
    deviation = float(logs.std(ddof=1))
    reach = student_t_critical(logs.size - 1, 1 - CONFIDENCE, claims) * deviation / math.sqrt(logs.size)
    ends = (ratio * math.exp(-reach), ratio * math.exp(reach))
    return SessionsMean(ratio, ends, math.expm1(deviation), logs.size)


def estimate_single_session_error(earlier: Sequence[PastRatio]) -> float | None:
    """Return the relative distance from the mean of many sessions within which 95 of 100 single sessions lie.

    Student's prediction interval for one more session after J earlier ones; None below `FEWEST_RUNS` of them.
    """
    if len(earlier) < FEWEST_RUNS:
        return None
    logs = _compute_checked_logs([run.ratio for run in earlier])
    return math.expm1(
        student_t_critical(logs.size - 1, 1 - CONFIDENCE)
        * float(logs.std(ddof=1))
        * math.sqrt(1 + 1 / logs.size)
    )


def compute_detectable_over_sessions(earlier: Sequence[PastRatio], sessions: int) -> float:
    """Return the log distance beyond a limit at which `sessions` detect a ratio at least 3 times in 4.

    By Student's t from the scatter of at least `FEWEST_RUNS` earlier sessions. That scatter is itself uncertain, so the
    quantile of the test is stretched by the ratio of Student's quantile to the normal one.
    """
    logs = _compute_checked_logs([run.ratio for run in earlier])
    unsure = float(student_t_quantile(logs.size - 1, 0.9)) / NormalDist().inv_cdf(0.9)
    quantiles = student_t_critical(sessions - 1, 1 - CONFIDENCE) * unsure + float(
        student_t_quantile(sessions - 1, 1 - 0.1 / 3)
    )
    return quantiles * float(logs.std(ddof=1)) / math.sqrt(sessions)


def _compute_checked_logs(values: Sequence[float]) -> NDArray[np.float64]:
    """Return the logs of `values`; raises ValueError unless all are finite and above 0."""
    if not values or not all(math.isfinite(value) and value > 0 for value in values):
        raise ValueError("every session needs a value above 0")
    return np.log(np.array(values, dtype=np.float64))
