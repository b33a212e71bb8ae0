"""The figures by which `guestmark.stats` is accepted: the whole command-line rule on simulated runs.

Blocks arrive; after each from the first look on the typical run's interval is looked at; the run stops when it is
narrow enough and slow runs, if any were seen, are called or as many blocks have run as are worth it. Then the product's
own functions decide: with a noise floor from the null copy, and verdicts taken back where the copy differs or where it
matters what ran before a trial.
"""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from scenarios import BY_NAME, OWN, QUIET, Scenario
from scipy.special import stdtrit

from guestmark.core.model import Better
from guestmark.stats import (
    Answers,
    Table,
    Verdict,
    compare_table,
    compare_tables,
    compare_trials,
    null_differs,
    order_effects,
    sign_flip_p,
    signed_rank,
)
from guestmark.stats.repetition import RELATIVE_PRECISION
from guestmark.stats.tails import TAIL_BLOCKS, slow_counts
from guestmark.stats.trials import allowing_for

Array = np.ndarray
DIFFERENT = (Verdict.FASTER, Verdict.SLOWER)
CELLS = ("baseline", "copy", "cell")
MARGIN = 0.03
FIRST_LOOK = 8
PRECISION = 0.02
CAP = 40


@dataclass(frozen=True, slots=True)
class Rule:
    """When a simulated run stops: `blocks` fixes their number, else precision decides from `first` on."""

    blocks: int | None = None
    first: int = FIRST_LOOK
    precision: float = PRECISION
    cap: int = CAP
    tails: bool = True  # go on while slow runs are unsettled


@dataclass(slots=True)
class Rates:
    """Shares of simulated runs, for one estimand."""

    sims: int = 0
    slower: int = 0
    faster: int = 0
    equal: int = 0
    covered: int = 0
    covered_with_unseen: int = 0

    def share(self, what: str) -> float:
        return getattr(self, what) / self.sims if self.sims else float("nan")

    @property
    def claims(self) -> float:
        return (self.slower + self.faster) / self.sims


@dataclass(slots=True)
class Outcome:
    """What became of the simulated runs of one scenario and effect."""

    blocks: float = 0.0
    refused: float = 0.0  # share of runs whose verdicts a finding or the null copy took back
    any_claim: float = 0.0  # share with any claim in any estimand
    typical: Rates = field(default_factory=Rates)
    total: Rates = field(default_factory=Rates)
    slow: Rates = field(default_factory=Rates)


@dataclass(frozen=True, slots=True)
class Truth:
    typical: float  # pseudo-median of the block log ratio
    total: float  # log ratio of means
    slow: float  # difference of the shares of slow iterations


def truth_of(scenario: Scenario, effect: float) -> Truth:
    """The true values by a large simulation; known exactly where the cells' laws differ by the effect alone."""
    if scenario.own is None and scenario.tail is None:
        return Truth(effect, effect, 0.0)
    if scenario.name in {"unequal variance", "unequal durations"}:
        spread = 0.03 if scenario.own is not None else 0.0
        return Truth(effect, effect + spread**2 / 2, 0.0)
    typical, total, slow = _truth_without_effect(scenario.name)  # an effect is a factor on every value
    return Truth(effect + typical, effect + total, slow)


@functools.cache
def _truth_without_effect(name: str) -> tuple[float, float, float]:
    values, _ = BY_NAME[name].run(np.random.default_rng(0), 20, 20_000, (0.0, 0.0, 0.0))
    medians = np.log(np.median(values, axis=3))
    d = (medians[:, :, OWN] - medians[:, :, 0]).ravel()
    partner = np.random.default_rng(1).permutation(d)
    # Iterations of the quiet law, so a share of slow ones is that of the events that are given.
    slow = [float(slow_counts(values[:, :, c].reshape(-1, values.shape[3])).mean()) for c in (OWN, 0)]
    means = values.mean(axis=3).reshape(-1, values.shape[2]).mean(axis=0)
    return (
        float(np.median((d + partner) / 2)),
        float(np.log(means[OWN] / means[0])),
        (slow[0] - slow[1]) / values.shape[3],
    )


def stops(values: Array, rule: Rule) -> Array:
    """The number of blocks at which each run stops, from values of shape (sims, blocks, cells, iterations)."""
    if rule.blocks is not None:
        return np.full(values.shape[0], rule.blocks)
    medians = np.log(np.median(values, axis=3))
    d = medians[:, :, OWN] - medians[:, :, 0]
    at = np.full(d.shape[0], rule.cap)
    active = np.arange(d.shape[0])
    for n in range(rule.first, rule.cap):
        walsh = signed_rank.walsh_averages(d[active, :n])
        low, high = signed_rank.interval(walsh)
        estimate = np.abs(signed_rank.hodges_lehmann(walsh))
        with np.errstate(invalid="ignore"):
            narrow = (high - low) / 2 <= np.maximum(rule.precision, RELATIVE_PRECISION * estimate)
        if rule.tails and n < TAIL_BLOCKS:
            narrow[narrow] = [not _unsettled(values[run, :n]) for run in active[narrow]]
        at[active[narrow]] = n
        active = active[~narrow]
        if not active.size:
            break
    return at


def _unsettled(run: Array) -> bool:
    """As `SlowComparison.unsettled`, without the figures that decide nothing."""
    both = ~(np.isnan(run[:, OWN]).any(axis=1) | np.isnan(run[:, 0]).any(axis=1))
    cell, base = slow_counts(run[both, OWN]), slow_counts(run[both, 0])
    if max((cell > 0).sum(), (base > 0).sum()) < 2:
        return False
    return sign_flip_p(cell - base) >= 0.05


def decided(
    scenario: Scenario, effect: float, sims: int, seed: int, rule: Rule
) -> Iterator[tuple[int, Answers, bool]]:
    """Run by run: blocks, answers, and whether verdicts were taken back; where a carry-over was found, intervals are
    stretched as the product does.
    """
    generator = np.random.default_rng(seed)
    batch = 500
    for begin in range(0, sims, batch):
        size = min(batch, sims - begin)
        values, position = scenario.run(generator, size, rule.blocks or rule.cap, (0.0, 0.0, effect))
        for run, places, n in zip(values, position, stops(values, rule), strict=True):
            cells = {name: run[:n, i] for i, name in enumerate(CELLS)}
            answers = compare_trials(
                cells, "baseline", better=Better.LOWER, margin=MARGIN, null_pairs=[("copy", "baseline")]
            )["cell"]
            typical = {name: np.median(cells[name], axis=1) for name in CELLS}
            null = compare_table(
                {name: typical[name] for name in ("baseline", "copy")},
                "baseline",
                better=Better.LOWER,
                margin=MARGIN,
            )["copy"]
            findings = order_effects(
                typical,
                {name: places[:n, i].astype(np.float64) for i, name in enumerate(CELLS)},
                "baseline",
                kind={"copy": "baseline"},
            )
            severe = any("cell" in finding.cells for finding in findings)
            shift = sum(finding.shifts.get("cell", 0.0) for finding in findings)
            yield int(n), allowing_for(answers, shift, MARGIN, "carry-over"), severe or null_differs(null)


def whole_rule(scenario: Scenario, effect: float, sims: int, seed: int, rule: Rule | None = None) -> Outcome:
    """Simulate `sims` runs of baseline, null copy and a cell whose true log ratio is `effect`."""
    truth = truth_of(scenario, effect)
    outcome = Outcome()
    for n, answers, refused in decided(scenario, effect, sims, seed, rule or Rule()):
        outcome.blocks += n / sims
        outcome.refused += refused / sims
        assert answers.total is not None
        assert answers.slow is not None
        claimed = False
        for rates, comparison, true in (
            (outcome.typical, answers.typical, truth.typical),
            (outcome.total, answers.total, truth.total),
        ):
            ends = comparison.ci
            _count(rates, comparison.verdict, refused)
            claimed |= comparison.verdict in DIFFERENT and not refused
            rates.covered += ends is None or ends[0] <= np.exp(true) <= ends[1]
            wide = comparison.unseen_ci or ends
            rates.covered_with_unseen += wide is None or wide[0] <= np.exp(true) <= wide[1]
        _count(outcome.slow, answers.slow.verdict, refused)
        claimed |= answers.slow.verdict in DIFFERENT and not refused
        outcome.slow.covered += answers.slow.ci[0] <= truth.slow <= answers.slow.ci[1]
        outcome.any_claim += claimed / sims
    return outcome


def _count(rates: Rates, verdict: Verdict, refused: bool) -> None:
    rates.sims += 1
    if not refused:
        rates.slower += verdict is Verdict.SLOWER
        rates.faster += verdict is Verdict.FASTER
        rates.equal += verdict is Verdict.NO_DIFFERENCE


@dataclass(frozen=True, slots=True)
class Candidate:
    """Rates of one way to estimate and test the typical run, at a fixed number of blocks."""

    false: float
    coverage: float
    power: float  # at +5 %
    width: float  # median half-width of the log ratio


def candidates(scenario: Scenario, blocks: int, sims: int, seed: int) -> dict[str, Candidate]:
    """The ways that were tried, on the same runs: intervals of what each of them estimates."""
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
    """With equal counts the two-level model's estimate is the mean over trials of the mean log, its test a t test."""
    estimates: Array = np.exp(np.log(values).mean(axis=axis))
    return estimates


def _pseudo_median(d: Array) -> float:
    return float(np.median((d + np.random.default_rng(1).permutation(d)) / 2))


def _signed_rank(d: Array) -> tuple[Array, Array]:
    low, high = signed_rank.interval(signed_rank.walsh_averages(d))
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
    """How often p < .05 is met when it is looked for after every block from 6 to 60: what not to do."""
    values, _ = BY_NAME["iid"].run(np.random.default_rng(seed), sims, 60)
    d = _differences(values, np.median)
    met = np.zeros(sims, dtype=np.bool_)
    for n in range(6, 61):
        low, high = _signed_rank(d[:, :n])
        met |= (low > 0) | (high < 0)
    return float(met.mean())


def inside_the_floor(between: float, earlier: int, blocks: int, sims: int, seed: int) -> float:
    """The share of equal cells whose typical ratio lies within the noise floor, when every cell of a run is off by its
    own constant of standard deviation `between` (log), with so many earlier null comparisons known. Wanted: .95.
    """
    from guestmark.stats import Null, noise_floor

    generator = np.random.default_rng(seed)
    inside = 0
    for _ in range(sims):
        values, _ = QUIET.run(generator, 1 + earlier, blocks)
        run = np.log(np.median(values, axis=3)) + generator.normal(
            0, between / np.sqrt(2), (1 + earlier, 1, 3)
        )
        walsh = signed_rank.walsh_averages(run[:, :, 1] - run[:, :, 0])
        history = [Null(float(ratio), blocks) for ratio in signed_rank.hodges_lehmann(walsh)[1:]]
        floor = noise_floor([(np.exp(run[0, :, 1]), np.exp(run[0, :, 0]))], blocks, history)
        cell = float(signed_rank.hodges_lehmann(signed_rank.walsh_averages(run[0, :, 2] - run[0, :, 0])))
        assert floor is not None
        inside += abs(cell) <= np.log1p(floor)
    return inside / sims
