"""Shows how methods were chosen: rivals for the typical run, adjustments of large tables, floors from earlier runs.

The rates of whole runs, with the program's own stopping rule, are in `shipped`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scenarios import BY_NAME, OWN, QUIET, Scenario
from scipy.special import stdtrit

from guestmark.core.metric import Better
from guestmark.stats import Table, Verdict, compare_tables, paired
from guestmark.stats.across_runs import ChangeVerdict, PastRatio, compare_with_earlier, detect_drift

Array = np.ndarray
DIFFERENT = (Verdict.FASTER, Verdict.SLOWER)
MARGIN = 0.03


@dataclass(frozen=True, slots=True)
class Candidate:
    """Rates of one way to estimate and test the typical run, at a fixed number of blocks."""

    false: float
    coverage: float
    power: float  # at +5 %
    width: float  # median half-width of the log ratio


def candidates(scenario: Scenario, blocks: int, sims: int, seed: int) -> dict[str, Candidate]:
    """Return the rates of all methods that were tried, on the same runs, by name."""
    generator = np.random.default_rng(seed)
    values, _ = scenario.run(generator, sims, blocks)
    many, _ = scenario.run(generator, 10, 5_000)
    result = {}
    for name, reduce, interval, centre in (
        ("signed rank", np.median, _signed_rank, _pseudo_median),
        ("mean of logs, t", np.median, _t, np.mean),
        ("sign test", np.median, _sign, np.median),
        ("two-level, t", _geometric_mean, _t, np.mean),
    ):
        d = _differences(values, reduce)
        truth_d = _differences(many, reduce).ravel()
        true = float(centre(truth_d[~np.isnan(truth_d)]))
        low, high = interval(d)
        moved = np.log(1.05)
        result[name] = Candidate(
            float(np.mean((low > 0) | (high < 0))),
            float(np.mean((low <= true) & (true <= high))),
            float(np.mean(low + moved > 0)),
            float(np.nanmedian((high - low) / 2)),
        )
    return result


def _differences(values: Array, reduce: Callable[..., Array]) -> Array:
    logs = np.log(reduce(values, axis=3))
    differences: Array = logs[:, :, OWN] - logs[:, :, 0]
    return differences


def _geometric_mean(values: Array, axis: int) -> Array:
    """Return the two-level model's estimate.

    With equal counts it is the mean over trials of the mean log, and its test is a t test.
    """
    estimates: Array = np.exp(np.log(values).mean(axis=axis))
    return estimates


def _pseudo_median(d: Array) -> float:
    return float(np.median((d + np.random.default_rng(1).permutation(d)) / 2))


def _signed_rank(d: Array) -> tuple[Array, Array]:
    low, high = paired.signed_rank_interval(paired.walsh_averages(d))
    return np.where(np.isnan(low), -np.inf, low), np.where(np.isnan(high), np.inf, high)


def _t(d: Array) -> tuple[Array, Array]:
    n = (~np.isnan(d)).sum(axis=1)
    half = stdtrit(n - 1, 0.975) * np.nanstd(d, axis=1, ddof=1) / np.sqrt(n)
    return np.nanmean(d, axis=1) - half, np.nanmean(d, axis=1) + half


def _sign(d: Array) -> tuple[Array, Array]:
    from scipy.stats import binom

    ordered, n = np.sort(d, axis=1), (~np.isnan(d)).sum(axis=1)
    rank = binom.ppf(0.025, n, 0.5).astype(int) - 1
    low = np.take_along_axis(ordered, np.maximum(rank, 0)[:, None], axis=1)[:, 0]
    high = np.take_along_axis(ordered, (n - 1 - np.maximum(rank, 0))[:, None], axis=1)[:, 0]
    return np.where(rank < 0, -np.inf, low), np.where(rank < 0, np.inf, high)


@dataclass(frozen=True, slots=True)
class OverRuns:
    """How often a constant ratio is called changed or drifting, and how often a rise of 10 % is found."""

    changed: float
    found: float
    drifts: float
    drift_found: float


def over_runs(runs: int, sims: int, seed: int, between: float = 0.02) -> OverRuns:
    """Simulate `runs` runs of one question, whose ratios vary by `between` beyond the 1 % standard error of each."""
    generator = np.random.default_rng(seed)
    logs = generator.normal(0, np.hypot(between, 0.01), (sims, runs + 1))
    slope = np.linspace(0, np.log(1.1), runs)
    counts = np.zeros(4)
    for each in logs:
        earlier, last = _past(each[:-1]), each[-1]
        for place, effect in enumerate((0.0, float(np.log(1.1)))):
            found = compare_with_earlier(_past([last + effect])[0], earlier)
            counts[place] += found is not None and found.verdict in {
                ChangeVerdict.HIGHER,
                ChangeVerdict.LOWER,
            }
        for place, series in enumerate((earlier, _past(each[:-1] + slope)), start=2):
            trend = detect_drift(series)
            counts[place] += trend is not None and trend.verdict in {
                ChangeVerdict.HIGHER,
                ChangeVerdict.LOWER,
            }
    return OverRuns(*(counts / sims).tolist())


def _past(logs: Sequence[float] | Array) -> list[PastRatio]:
    half = 0.01 * float(stdtrit(9, 0.975))
    return [
        PastRatio("", number, float(np.exp(log)), float(np.exp(log - half)), float(np.exp(log + half)), 10)
        for number, log in enumerate(logs)
    ]


@dataclass(frozen=True, slots=True)
class Family:
    """Rates over simulated tables of many cells and metrics against one baseline."""

    fdr: float  # mean share of false claims among the claims
    any_false: float  # share of tables with a false claim
    power: float  # share of the true differences that are claimed
    uncorrected_any_false: float


def many_cells(
    blocks: int, sims: int, seed: int, *, cells: int = 40, slower: int = 8, effect: float = 0.02, metrics: int = 1,
    scenario: Scenario = QUIET,
) -> Family:  # fmt: skip
    """Compare `cells` cells, the first `slower` of them truly slower by `effect`, in `metrics` metrics, with one
    baseline; the p values of all are adjusted together. There is no noise floor here: the correction is what is tested.
    """
    effects = (0.0, 0.0, *([np.log1p(effect)] * slower), *([0.0] * (cells - slower)))
    generator = np.random.default_rng(seed)
    share, any_false, found, raw = 0.0, 0, 0, 0
    for _ in range(sims):
        tables = {}
        for metric in range(metrics):
            run = np.median(scenario.run(generator, 1, blocks, effects, 1)[0][0], axis=2)
            values = {"base": run[:, 0]} | {f"c{i}": run[:, OWN + i] for i in range(cells)}
            tables[f"m{metric}"] = Table(values, "base", Better.LOWER, MARGIN)
        compared = compare_tables(tables)
        claims = [[c.verdict in DIFFERENT for c in table.values()] for table in compared.values()]
        wrong = sum(sum(row[slower:]) for row in claims)
        right = sum(sum(row[:slower]) for row in claims)
        share += wrong / max(1, wrong + right)
        any_false += wrong > 0
        found += right
        raw += any(
            c.p is not None and c.p < 0.05
            for table in compared.values()
            for c in list(table.values())[slower:]
        )
    differing = sims * metrics * slower
    return Family(share / sims, any_false / sims, found / differing if differing else 0.0, raw / sims)


def false_positives_at_first_p(sims: int, seed: int) -> float:
    """Return how often p falls below .05 if it is examined after every block from 6 to 60, which is wrong."""
    values, _ = BY_NAME["iid"].run(np.random.default_rng(seed), sims, 60)
    d = _differences(values, np.median)
    met = np.zeros(sims, dtype=np.bool_)
    for n in range(6, 61):
        low, high = _signed_rank(d[:, :n])
        met |= (low > 0) | (high < 0)
    return float(met.mean())


def inside_the_floor(between: float, earlier: int, blocks: int, sims: int, seed: int) -> float:
    """Return the share of equal cells whose typical ratio lies within the noise floor; it should be .95.

    Every cell of a run is off by its own constant, with standard deviation `between` (log); `earlier` null comparisons
    are known.
    """
    from guestmark.stats import Null, estimate_noise_floor

    generator = np.random.default_rng(seed)
    inside = 0
    for _ in range(sims):
        values, _ = QUIET.run(generator, 1 + earlier, blocks)
        run = np.log(np.median(values, axis=3)) + generator.normal(
            0, between / np.sqrt(2), (1 + earlier, 1, 3)
        )
        walsh = paired.walsh_averages(run[:, :, 1] - run[:, :, 0])
        history = [Null(float(ratio), blocks) for ratio in paired.hodges_lehmann(walsh)[1:]]
        floor = estimate_noise_floor([(np.exp(run[0, :, 1]), np.exp(run[0, :, 0]))], blocks, history)
        cell = float(paired.hodges_lehmann(paired.walsh_averages(run[0, :, 2] - run[0, :, 0])))
        assert floor is not None
        inside += abs(cell) <= np.log1p(floor)
    return inside / sims
