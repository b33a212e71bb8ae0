"""The figures by which `guestmark.stats` is accepted, each from many simulated runs."""

from dataclasses import dataclass

import numpy as np
from scenarios import Scenario

from guestmark.core.model import Better
from guestmark.stats import (
    Verdict,
    adjust,
    compare_table,
    equivalence_p,
    half_width,
    log_ratios,
    median_interval,
    null_differs,
    sign_flip_p,
    t_interval,
)

DIFFERENT = (Verdict.FASTER, Verdict.SLOWER)


@dataclass(frozen=True, slots=True)
class Fixed:
    """Rates over simulated comparisons of a fixed number of blocks without a difference in the cells."""

    false_positives: float  # p <= .05
    coverage: float  # of the t interval of the mean
    median_coverage: float
    mean_width: float  # average relative half-width of the interval


def fixed_blocks(scenario: Scenario, blocks: int, sims: int, seed: int, effect: float = 0.0) -> Fixed:
    """Compare one cell whose true log ratio is `effect`; false positives are only such when it is 0."""
    values = scenario.blocks(np.random.default_rng(seed), sims, blocks, (0.0, effect))
    mean_truth, median_truth = _truth(scenario, effect)
    positives, covered, covered_median, widths = 0, 0, 0, 0.0
    for run in values:
        d = log_ratios(run[:, 1], run[:, 0])
        assert d is not None
        positives += sign_flip_p(d) <= 0.05
        low, high = t_interval(d)
        covered += low <= mean_truth <= high
        widths += (high - low) / 2
        median = median_interval(d)
        covered_median += median is None or median[0] <= median_truth <= median[1]
    return Fixed(positives / sims, covered / sims, covered_median / sims, widths / sims)


def _truth(scenario: Scenario, effect: float) -> tuple[float, float]:
    """Return the true mean and median of d; known when cell and baseline differ by `effect` alone."""
    if scenario.own is None or scenario.name == "unequal variance":
        return effect, effect
    values = scenario.blocks(np.random.default_rng(0), 1, 1_000_000, (0.0, effect))[0]
    d = np.log(values[:, 1] / values[:, 0])
    return float(d.mean()), float(np.median(d))


def coverage_at_stop(
    scenario: Scenario, precision: float, sims: int, seed: int, *, first: int = 10, cap: int = 120
) -> tuple[float, float]:
    """Return coverage and mean number of blocks when a run stops at `precision`, looked at after every block."""
    values = scenario.blocks(np.random.default_rng(seed), sims, cap)
    covered, used = 0, 0
    for run in values:
        d = log_ratios(run[:, 1], run[:, 0])
        assert d is not None
        for n in range(first, d.size + 1):
            low, high = t_interval(d[:n])
            ends = (float(np.exp(low)), float(np.exp(high)))
            if half_width(ends, float(np.exp(d[:n].mean()))) <= precision:
                break
        covered += low <= 0 <= high
        used += n
    return covered / sims, used / sims


def false_positives_at_first_p(sims: int, seed: int, scenario: Scenario) -> float:
    """Return how often p < .05 is met when it is looked for after every block from 5 to 60: what not to do."""
    values = scenario.blocks(np.random.default_rng(seed), sims, 60)
    d = np.log(values[:, :, 1] / values[:, :, 0])
    n = np.arange(1, 61)
    means = np.cumsum(d, axis=1) / n
    variances = (np.cumsum(d**2, axis=1) - n * means**2) / np.maximum(n - 1, 1)
    from scipy.special import stdtr

    t = np.abs(means[:, 4:]) / np.sqrt(variances[:, 4:] / n[4:])
    return float((2 * stdtr(n[4:] - 1, -t) < 0.05).any(axis=1).mean())


@dataclass(frozen=True, slots=True)
class Table:
    """Rates over simulated tables of many cells against one baseline."""

    fdr: float  # mean share of false claims among the claims
    any_false: float  # share of tables with a false claim
    power: float  # share of the true differences that are claimed
    uncorrected_any_false: float


def many_cells(
    scenario: Scenario,
    blocks: int,
    sims: int,
    seed: int,
    *,
    cells: int = 40,
    slower: int = 8,
    effect: float = 0.02,
    method: str = "bh",
) -> Table:
    """Compare `cells` cells, the first `slower` of them truly slower by `effect`, with one baseline."""
    effects = (0.0, *([np.log1p(effect)] * slower), *([0.0] * (cells - slower)))
    generator = np.random.default_rng(seed)
    share, any_false, found, uncorrected = 0.0, 0, 0, 0
    for _ in range(sims):
        run = scenario.blocks(generator, 1, blocks, effects)[0]
        d = [log_ratios(run[:, i], run[:, 0]) for i in range(1, cells + 1)]
        p = np.array([sign_flip_p(x) for x in d if x is not None])
        claimed = adjust(p, method) < 0.05  # type: ignore[arg-type]
        wrong = int(claimed[slower:].sum())
        share += wrong / max(1, int(claimed.sum()))
        any_false += wrong > 0
        found += int(claimed[:slower].sum())
        uncorrected += bool((p[slower:] < 0.05).any())
    return Table(share / sims, any_false / sims, found / sims / slower if slower else 0.0, uncorrected / sims)


@dataclass(frozen=True, slots=True)
class Verdicts:
    """Rates of the verdicts of whole runs: baseline, its null copy, a cell; noise floor from the null copy."""

    floor: float  # true 95th percentile of |ratio - 1| over null comparisons
    power: float  # "slower" for a cell slower by twice that
    wrong_way: float  # "faster" for it
    false_claims: float  # faster or slower for a cell without difference
    null_differs: float  # runs downgraded although all is well


def verdicts(scenario: Scenario, blocks: int, sims: int, seed: int, margin: float = 0.03) -> Verdicts:
    """Decide whole runs with `compare_table`."""
    generator = np.random.default_rng(seed)
    null = scenario.blocks(generator, sims, blocks, (0.0, 0.0, 0.0))
    d = np.log(null[:, :, 2] / null[:, :, 0])
    floor = float(np.quantile(np.abs(np.expm1(np.nanmean(d, axis=1))), 0.95))
    slow = scenario.blocks(generator, sims, blocks, (0.0, 0.0, float(np.log1p(2 * floor))))
    counts = {"power": 0, "wrong": 0, "false": 0, "null": 0}
    for run, with_effect in zip(null, slow, strict=True):
        c = _verdict(run, margin)
        counts["false"] += c in DIFFERENT
        c = _verdict(with_effect, margin)
        counts["power"] += c is Verdict.SLOWER
        counts["wrong"] += c is Verdict.FASTER
        copy = compare_table({"a": run[:, 0], "b": run[:, 1]}, "a", better=Better.LOWER, margin=margin)["b"]
        counts["null"] += null_differs(copy)
    return Verdicts(
        floor, counts["power"] / sims, counts["wrong"] / sims, counts["false"] / sims, counts["null"] / sims
    )


def _verdict(run: np.ndarray, margin: float) -> Verdict:
    base, copy, cell = run.T
    # The copy's noise is compared with nothing else: a run holds its null pair apart from the cells.
    table = compare_table(
        {"base": base, "cell": cell}, "base", better=Better.LOWER, margin=margin, null_pairs=[(base, copy)]
    )
    return table["cell"].verdict


def equivalence(scenario: Scenario, blocks: int, sims: int, seed: int, margin: float) -> tuple[float, float]:
    """Return how often equivalence is claimed for a cell exactly at the margin (wrongly), and for an equal cell."""
    generator = np.random.default_rng(seed)
    rates = []
    for effect in (float(np.log1p(margin)), 0.0):
        values = scenario.blocks(generator, sims, blocks, (0.0, effect))
        d = (log_ratios(run[:, 1], run[:, 0]) for run in values)
        rates.append(sum(equivalence_p(x, margin) < 0.05 for x in d if x is not None) / sims)
    return rates[0], rates[1]
