"""Tests of whether a run's own data contradict the assumptions of its statistics.

Comparisons are valid if only chance decides the conditions of a trial. Order inside a block is random, and a block
begins with the cell that ended the one before, so traces that a guest leaves (a warm cache, an awake processor, dirty
pages) affect all cells alike. Runs of earlier versions, and machines that share a plan, lack this balance. So order,
trends and clocks are tested here on the run's own values.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from guestmark.core.units import format_share
from guestmark.stats.medians import NORMAL_SPREAD, find_median
from guestmark.stats.special import f_survival, student_t_cdf, student_t_quantile

Array = NDArray[np.float64]
Index = NDArray[np.int64]

# Below .05, because a sound run should not get a warning one time in twenty.
ALPHA = 0.01
# A carry-over is corrected below this p; there is a warning only below `ALPHA`.
CORRECTED = 0.05
# With fewer degrees of freedom, nothing is tested.
MIN_TRIALS_LEFT = 8
CLOCKS_APART = 0.01
CLOCKS_FAR_APART = 0.05
# The clocks are compared by messages, which a busy host may delay this long.
CLOCK_READING_S = 0.001
_ROUNDING = 1e-12
# Values are winsorized to this many spreads, so that a spike neither hides an order effect nor causes one.
_WINSOR = 3.0


class OrderFinding(StrEnum):
    """Findings of statistical tests on the run's values; each has an error rate."""

    CARRY_OVER = "carry-over"
    POSITION = "position"
    TREND = "trend"


class Severity(StrEnum):
    """A finding's consequence: it is shown in the report, shown beside the verdict, or withdraws the verdict."""

    NOTE = "note"
    WARNING = "warning"
    SEVERE = "severe"


@dataclass(frozen=True, slots=True)
class Finding:
    """A limit on what a run shows: `message` states it and `advice` says what to do, in one line each.

    - `effect`: its relative size (0.05: 5 %); `p`: the p value of its absence (None: not a test).
    - `corrected`: if the effect could be allowed for, each cell's corrected ratio to the baseline and the ends of its
      95 % interval; `carried` is what to subtract.
    - `widens`: by cell, the log by which the finding may explain a ratio of clock times; intervals are wider by that.
      `slows`: the same for processor time that a guest's own clock counted, from which the baseline may not suffer.
    - `cells`: those whose verdicts a severe finding withdraws, for all metrics or, with `primary_only`, for the
      primary one.
    """

    name: str
    severity: Severity
    message: str
    effect: float = 0.0
    p: float | None = None
    corrected: Mapping[str, tuple[float, float, float]] = field(default_factory=dict)
    cells: tuple[str, ...] = ()
    advice: str = ""
    primary_only: bool = False
    widens: Mapping[str, float] = field(default_factory=dict)
    slows: Mapping[str, float] = field(default_factory=dict)
    carried: "CarryOver | None" = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class CarryOver:
    """Carry-over: effects on trials of the cell that ran before them, as logarithms by cell.

    `owed`, shape (K,), is what to subtract from each trial's log value. `error` is the half-width of the 95 % interval
    of what that does to the cell's log ratio to the baseline.
    """

    owed: Mapping[str, Array]
    error: Mapping[str, float]


def find_carry_over(findings: Iterable[Finding]) -> CarryOver | None:
    """Return the carry-over that the first of these findings allows for; None if none does."""
    for finding in findings:
        if finding.carried is not None:
            return finding.carried
    return None


def subtract_carry_over(values: Array, carried: CarryOver | None, cell_id: str) -> Array:
    """Return a cell's values, shape (K,) or (K, m), without the effect of the cell that ran before."""
    if carried is None or cell_id not in carried.owed:
        return values
    factor = np.exp(-carried.owed[cell_id])
    if values.ndim > 1:
        factor = factor[:, None]
    return np.asarray(values * factor, dtype=np.float64)


def list_severe_by_cell(findings: Iterable[Finding]) -> dict[str, list[str]]:
    """Return the names of the severe findings, each once, by the cell whose verdicts they withdraw."""
    names: dict[str, dict[str, None]] = {}
    for finding in findings:
        if finding.severity is Severity.SEVERE:
            for cell_id in finding.cells:
                names.setdefault(cell_id, {})[finding.name] = None
    return {cell_id: list(found) for cell_id, found in names.items()}


_ADVICE = {
    OrderFinding.CARRY_OVER: (
        "compare fewer cells at once, or let each clean up after itself (caches, dirty pages)"
    ),
    OrderFinding.POSITION: "order is random, so this costs precision but causes no bias: run more blocks",
    OrderFinding.TREND: "find out what changed meanwhile (heat, a filling disk, other work), then measure again",
}


def detect_order_effects(
    values: Mapping[str, Array],
    positions: Mapping[str, Array],
    baseline: str,
    *,
    kind: Mapping[str, str] | None = None,
    alpha: float = ALPHA,
) -> tuple[Finding, ...]:
    """Test whether a trial depends on which cell ran before it (carry-over) or on its position in the block.

    `values` and `positions` map cell ids to arrays of shape (K,): the value, above 0 (NaN: missing), and the position
    from 0 at which it ran in its block (NaN: it did not run). `kind` maps cells to what they are; a null copy is of the
    same kind as the cell it copies. Each effect is tested by the F test of its columns in the linear model log value =
    block + cell + effect, on values winsorized to three spreads (median polish; Tukey 1977); their p values are
    doubled, as there are two. A carry-over is corrected for: `corrected` has the ratios that the model leaves (Jones
    and Kenward, "Design and Analysis of Cross-Over Trials", 3rd ed., 5), `carried` what the comparisons subtract. A
    position effect costs precision but gives no bias, since order is random.
    """
    names = list(values)
    data = np.array([values[name] for name in names], dtype=np.float64).T
    place = np.array([positions[name] for name in names], dtype=np.float64).T
    kinds = [(kind or {}).get(name, name) for name in names]
    with np.errstate(invalid="ignore", divide="ignore"):
        logs = np.where(data > 0, np.log(data), np.nan)
    levels = sorted(set(kinds))
    before = _find_preceding_kinds(place, np.array([levels.index(name) for name in kinds]))
    block, cell = (np.asarray(index) for index in np.indices(logs.shape))
    drawn_in = _winsorize(logs)

    def fit(factor: Array, below: float) -> _OrderFit | None:
        use = ~np.isnan(logs) & ~np.isnan(factor)
        return _run_f_test(drawn_in[use], block[use], cell[use], factor[use].astype(np.int64), below / 2)

    findings = []
    fitted = fit(before, max(alpha, CORRECTED))
    if fitted is not None:
        findings.append(_report_carry_over(fitted, names, baseline, before, alpha))
    fitted = fit(place, alpha)
    if fitted is not None:
        effect = float(np.expm1(fitted.effect))
        message = f"a trial depends on its position in the block, by {format_share(effect, 1)}"
        name = OrderFinding.POSITION
        findings.append(
            Finding(
                name, Severity.WARNING, message, effect, 2 * fitted.p, advice=_ADVICE[name], primary_only=True
            )
        )
    return tuple(findings)


def _report_carry_over(
    fitted: "_OrderFit", names: Sequence[str], baseline: str, before: Array, alpha: float
) -> Finding:
    p, effect = 2 * fitted.p, float(np.expm1(fitted.effect))
    corrected, carried, moved = _correct_carry_over(fitted, names, baseline, before)
    return Finding(
        OrderFinding.CARRY_OVER,
        Severity.WARNING if p < alpha else Severity.NOTE,
        f"a trial depends on what ran before it, by {format_share(effect, 1)}; ratios are corrected for it, by up to "
        f"{format_share(moved, 1)}",
        effect,
        p,
        corrected,
        advice=_ADVICE[OrderFinding.CARRY_OVER],
        primary_only=True,
        carried=carried,
    )


def _correct_carry_over(
    fitted: "_OrderFit", names: Sequence[str], baseline: str, before: Array
) -> tuple[dict[str, tuple[float, float, float]], CarryOver, float]:
    """Return the corrected ratios, what to subtract from each trial, and the largest relative change of a ratio."""
    owed = fitted.list_carried_effects(before)
    origin = names.index(baseline)
    shares = fitted.count_level_shares(before)
    quantile = float(student_t_quantile(fitted.left, 0.975))
    corrected: dict[str, tuple[float, float, float]] = {}
    errors: dict[str, float] = {}
    moved = 0.0
    for i, other in enumerate(names):
        if i != origin and {i, origin} <= set(fitted.cells):
            plain, allowed, half = fitted.compute_cell_difference(i, origin)
            moved = max(moved, abs(allowed - plain))
            low, high = allowed - half, allowed + half
            corrected[other] = (float(np.exp(allowed)), float(np.exp(low)), float(np.exp(high)))
            apart = shares[i] - shares[origin]
            errors[other] = quantile * float(np.sqrt(max(apart @ fitted.shift_scatter @ apart, 0.0)))
    return (
        corrected,
        CarryOver({name: owed[:, i] for i, name in enumerate(names)}, errors),
        float(np.expm1(moved)),
    )


def _find_preceding_kinds(place: Array, kinds: Index) -> Array:
    """Return the kind that ran before each trial, shape (K, cells); NaN for the run's first and for missing trials."""
    before = np.full(place.shape, np.nan)
    previous = np.nan
    for row in range(place.shape[0]):
        for cell in np.argsort(place[row]).tolist():
            if not np.isnan(place[row, cell]):
                before[row, cell] = previous
                previous = float(kinds[cell])
    return before


def _winsorize(logs: Array) -> Array:
    """Return the values, winsorized to three spreads from the fit of cell and block."""
    with np.errstate(all="ignore"):
        fit = np.zeros_like(logs)
        # Two sweeps are enough for a fit that spikes do not pull.
        for _ in range(2):
            fit += _find_nan_median(logs - fit, 0)
            fit += _find_nan_median(logs - fit, 1)
        residual = logs - fit
        away = np.abs(residual[~np.isnan(residual)])
        # Medians of small blocks leave many residuals of exactly 0, which do not reflect the spread.
        away = away[away > _ROUNDING]
        reach = _WINSOR * NORMAL_SPREAD * find_median(away) if away.size else 0.0
    if not reach > 0:
        return logs
    return np.asarray(fit + np.clip(residual, -reach, reach), dtype=np.float64)


def _find_nan_median(values: Array, axis: int) -> Array:
    ordered = np.sort(values, axis=axis)
    count = (~np.isnan(values)).sum(axis=axis, keepdims=True)
    low = np.take_along_axis(ordered, np.maximum((count - 1) // 2, 0), axis=axis)
    high = np.take_along_axis(ordered, np.minimum(count // 2, values.shape[axis] - 1), axis=axis)
    return np.where(count > 0, (low + high) / 2, 0.0)


@dataclass(frozen=True, slots=True)
class _OrderFit:
    """The F test of a factor, and the cell effects of the models without and with it.

    `shifts` are the effects of the factor's `levels`, the first one being 0, and `shift_scatter` their covariance.
    `plain` and `allowed` are the effects of `cells` without and with the factor, `scatter` the covariance of the
    latter.
    """

    p: float
    effect: float
    levels: Array
    shifts: Array
    shift_scatter: Array
    cells: list[int]
    plain: Array
    allowed: Array
    scatter: Array
    left: int  # degrees of freedom

    def compute_cell_difference(self, cell: int, origin: int) -> tuple[float, float, float]:
        """Return the log ratio of two cells without and with the factor, and the latter's 95 % half-width."""
        i, j = self.cells.index(cell), self.cells.index(origin)
        variance = self.scatter[i, i] + self.scatter[j, j] - 2 * self.scatter[i, j]
        half = float(student_t_quantile(self.left, 0.975)) * float(np.sqrt(max(variance, 0.0)))
        return float(self.plain[i] - self.plain[j]), float(self.allowed[i] - self.allowed[j]), half

    def list_carried_effects(self, factor: Array) -> Array:
        """Return the factor's effect at each element of `factor`; the mean effect if its level is unknown."""
        found = np.full(factor.shape, np.nan)
        for level, shift in zip(self.levels, self.shifts, strict=True):
            found[factor == level] = shift
        return np.where(np.isnan(found), np.nanmean(found), found)

    def count_level_shares(self, factor: Array) -> Array:
        """Return how often each column of `factor`, shape (K, cells), has each level, shape (cells, levels)."""
        counts = np.stack([(factor == level).sum(axis=0) for level in self.levels], axis=1)
        return np.asarray(counts / np.maximum(counts.sum(axis=1, keepdims=True), 1), dtype=np.float64)


def _run_f_test(y: Array, block: Index, cell: Index, factor: Index, below: float) -> _OrderFit | None:
    """Return the F test of the factor beside blocks and cells; None unless p is `below`, or with too few trials."""
    plain, cells = _make_design_columns(block, cell)
    full = np.hstack([plain, *[(factor == level)[:, None] for level in _find_levels(factor)[1:]]])
    if full.shape[1] == plain.shape[1]:
        return None
    reduced_fit, reduced_rss, reduced_rank = _fit_least_squares(plain, y)
    full_fit, full_rss, full_rank = _fit_least_squares(full, y)
    left = y.size - full_rank
    # A perfect fit has no residual variance to compare with.
    if full_rank == reduced_rank or left < MIN_TRIALS_LEFT or full_rss <= 1e-24 * max(float(y @ y), 1e-300):
        return None
    f = (reduced_rss - full_rss) / (full_rank - reduced_rank) / (full_rss / left)
    p = float(f_survival(full_rank - reduced_rank, left, max(f, 0.0)))
    if p >= below:
        return None
    shifts = np.append(0.0, full_fit[plain.shape[1] :])
    mine = slice(plain.shape[1] - len(cells), plain.shape[1])
    # Blocks, cells and levels may be linearly dependent, so only a pseudo-inverse exists.
    covariance = np.linalg.pinv(full.T @ full) * full_rss / left
    shift_scatter = np.zeros((shifts.size, shifts.size))
    shift_scatter[1:, 1:] = covariance[plain.shape[1] :, plain.shape[1] :]
    return _OrderFit(
        p=p,
        effect=float(np.ptp(shifts)),
        levels=_find_levels(factor).astype(np.float64),
        shifts=shifts,
        shift_scatter=shift_scatter,
        cells=cells,
        plain=reduced_fit[mine],
        allowed=full_fit[mine],
        scatter=covariance[mine, mine],
        left=left,
    )


def _find_levels(index: Index) -> Index:
    """Return the distinct values in ascending order. `np.unique` would import `numpy.ma`, as `np.median` does."""
    return np.asarray(sorted(set(index.tolist())), dtype=index.dtype)


def _make_design_columns(block: Index, cell: Index) -> tuple[Array, list[int]]:
    """Return the indicator columns of blocks (but the first) and cells, and the cells."""
    blocks, cells = _find_levels(block), _find_levels(cell)
    columns = [block[:, None] == blocks[None, 1:], cell[:, None] == cells[None, :]]
    return np.hstack(columns).astype(np.float64), [int(index) for index in cells]


def _fit_least_squares(design: Array, y: Array) -> tuple[Array, float, int]:
    """Return coefficients, residual sum of squares and rank."""
    fit, _, rank, _ = np.linalg.lstsq(design, y, rcond=None)
    residual = y - design @ fit
    return np.asarray(fit, dtype=np.float64), float(residual @ residual), int(rank)


def detect_trend(d: Array, margin: float, *, alpha: float = ALPHA) -> Finding | None:
    """Test whether the ratio changed in the course of the run: Spearman's rank correlation of d with the block.

    `d`, shape (K,), are log ratios, NaN if missing. A host that gets slower for all cells alike cancels, and is no
    finding. Returns None unless p is below `alpha`. The change over the run is Theil and Sen's median slope (Sen 1968):
    a warning if it exceeds `margin`, since no single ratio then describes the run, else a note.
    """
    block = np.flatnonzero(~np.isnan(d)).astype(np.float64)
    x = d[~np.isnan(d)]
    n = x.size
    if n < MIN_TRIALS_LEFT or np.ptp(x) == 0:
        return None
    ranks = _compute_average_ranks(x)
    rho = float(np.corrcoef(ranks, block)[0, 1])
    t = abs(rho) * np.sqrt((n - 2) / max(1 - rho**2, 1e-12))
    p = 2 * float(student_t_cdf(n - 2, -t))
    if p >= alpha:
        return None
    first, second = np.triu_indices(n, 1)
    change = find_median((x[second] - x[first]) / (block[second] - block[first])) * float(np.ptp(block))
    severity = Severity.WARNING if abs(change) > np.log1p(margin) else Severity.NOTE
    moved = float(np.expm1(change))
    return Finding(
        OrderFinding.TREND, severity,
        f"the ratio changed by {format_share(moved, 1, signed=True)} in the course of the run",
        moved, p, advice=_ADVICE[OrderFinding.TREND], primary_only=True,
    )  # fmt: skip


def _compute_average_ranks(x: Array) -> Array:
    """Return ranks from 1; ties have their average."""
    ordered = np.sort(x)
    return (np.searchsorted(ordered, x, "left") + np.searchsorted(ordered, x, "right") + 1) / 2


def detect_clock_disagreement(host_s: Sequence[float], guest_s: Sequence[float]) -> Finding | None:
    """Compare the durations in seconds that the host's and the guest's clock gave for the same iterations.

    By the median of |guest / host - 1|: a warning above 1 %, severe above 5 %, when the guest's own figures (processor
    time, a tool's rate) cannot be believed; None otherwise. Pairs that are not finite and above 0 are left out, and
    differences of up to `CLOCK_READING_S` count as 0.
    """
    host, guest = np.asarray(host_s, dtype=np.float64), np.asarray(guest_s, dtype=np.float64)
    usable = np.isfinite(host) & np.isfinite(guest) & (host > 0) & (guest > 0)
    if not usable.any():
        return None
    host, guest = host[usable], guest[usable]
    apart = np.where(np.abs(guest - host) <= CLOCK_READING_S, 0.0, guest / host - 1)
    middle = find_median(np.abs(apart))
    if middle <= CLOCKS_APART:
        return None
    return Finding(
        "clocks disagree",
        Severity.SEVERE if middle > CLOCKS_FAR_APART else Severity.WARNING,
        f"the guest's clock is off by {format_share(find_median(apart), 1, signed=True)} in a typical iteration",
        middle,
        advice="give the guest another clock source (its kernel's clocksource=), or keep its processors free",
    )
