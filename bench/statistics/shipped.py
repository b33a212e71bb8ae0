"""Simulates whole runs as the program performs them: pilot, choice of iterations, analysis, stopping rule, answers.

Each run has a baseline, the null copy that guestmark adds, a cell, a warm-up before every trial's iterations, and
secondary metrics (processor time that follows wall time, system time, memory). Commands that are only timed on the
host have the plan that `exec` makes for them: no copy, no warm-up, a fixed time. Claims of every kind are counted, and
also reports with at least one false claim, because that is what a reader meets.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from scenarios import BY_NAME, MODES, OWN, SCENARIOS, Scenario

from guestmark.core.metric import Measurement
from guestmark.core.metric_spec import MAX_RSS, SYSTEM, USER, WALL
from guestmark.core.model import Cell, Plan, Policy, RunState, Trial, TrialStatus, WorkloadSpec
from guestmark.core.platform_spec import parse_platform
from guestmark.core.rare import Rare
from guestmark.engine.trial import TrialSlot
from guestmark.engine.trial_schedule import count_iterations, count_warmups, order_cells
from guestmark.stats import stopping
from guestmark.stats.across_runs import (
    ChangeVerdict,
    PastRatio,
    compare_with_earlier,
)
from guestmark.stats.analysis import Analysis, CellResult, analyse_run
from guestmark.stats.compare import Comparison, Verdict
from guestmark.stats.paired import NOMINAL, hodges_lehmann, signed_rank_interval, t_quantile, walsh_averages
from guestmark.stats.pairwise import compare_pairs
from guestmark.stats.repetition import RELATIVE_PRECISION, compute_wanted_half_width
from guestmark.stats.tails import count_slow_runs
from guestmark.workloads.exec.plan import ExecOptions, build_plan

Array = np.ndarray
DIFFERENT = (Verdict.FASTER, Verdict.SLOWER)
FIRST_RUN = 1.2  # how much longer the first run on a fresh machine takes
METRICS = (WALL, USER, SYSTEM, MAX_RSS)
_MOST = 400  # blocks
_UNLIKE_STARTS = {"one-sided spikes", "x2 in 5 % of trials", "x5 in 2 % of trials"}  # their tails differ


@dataclass(frozen=True, slots=True)
class Truth:
    typical: float  # pseudo-median of the block log ratio
    total: float  # log ratio of means
    slow: float  # difference of the shares of slow iterations


def truth_of(scenario: Scenario, effect: float, iterations: int) -> Truth:
    """Return the true values for trials of this many iterations, whose median is the trial's value.

    By a large simulation; known exactly where the cells' laws differ by the effect alone.
    """
    if scenario.own is None and scenario.tail is None:
        return Truth(effect, effect, 0.0)
    if scenario.name in {"unequal variance", "unequal durations"}:
        spread = 0.03 if scenario.own is not None else 0.0
        return Truth(effect, effect + spread**2 / 2, 0.0)
    typical, total, slow = _truth_without_effect(
        scenario.name, iterations
    )  # an effect is a factor on every value
    return Truth(effect + typical, effect + total, slow)


@functools.cache
def _truth_without_effect(name: str, iterations: int) -> tuple[float, float, float]:
    values, _ = BY_NAME[name].run(np.random.default_rng(0), 20, 20_000, (0.0, 0.0, 0.0), iterations)
    medians = np.log(np.median(values, axis=3))
    d = (medians[:, :, OWN] - medians[:, :, 0]).ravel()
    partner = np.random.default_rng(1).permutation(d)
    # Iterations of the quiet law, so a share of slow ones is that of the events that are given.
    slow = [float(count_slow_runs(values[:, :, c].reshape(-1, values.shape[3])).mean()) for c in (OWN, 0)]
    means = values.mean(axis=3).reshape(-1, values.shape[2]).mean(axis=0)
    return (
        float(np.median((d + partner) / 2)),
        float(np.log(means[OWN] / means[0])),
        (slow[0] - slow[1]) / values.shape[3],
    )


@dataclass(frozen=True, slots=True)
class Case:
    """One simulated experiment. Without `iterations` the program chooses them from the costs, in seconds."""

    name: str
    scenario: Scenario
    effect: float = 0.0  # of the cell, log
    start_s: float = 2.0
    iteration_s: float = 0.1
    platform: str = "tcg"
    iterations: int | None = None
    policy: Policy = field(default_factory=Policy)
    scatter_s: float = 0.1  # of system time, log
    same_rest: bool = False  # whether the effect is of wall time alone
    timed: bool = False  # a pair of commands as `exec -- A --- B` times it on the host
    quick: bool = False  # the same with --quick
    find: Rare | None = None  # with --find
    more: int = 0  # further cells, equal to the baseline
    # Earlier runs of the same question, and how far the ratios of runs differ beyond the scatter of their blocks.
    earlier: int = 0
    between: float = 0.02
    # Share of the processors that other programs use. With it the scenario does not affect user time.
    beside: float = 0.0

    @property
    def equal(self) -> bool:
        """True when every claim of a difference is false."""
        return not self.effect and self.scenario.tail is None and self.scenario.name not in _UNLIKE_STARTS


def _guest(name: str, scenario: str, effect: float = 0.0) -> Case:
    """Return the case of a 0.1 s command in guests that take 2 s to start."""
    return Case(f"guest: {name}", BY_NAME[scenario], effect)


def _host(seconds: float, name: str, scenario: str, effect: float = 0.0) -> Case:
    """Return the case of a command on the host, where a trial costs 15 ms besides."""
    said = f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.0f} s"
    return Case(f"host, {said}: {name}", BY_NAME[scenario], effect, 0.015, seconds, "host")


def _timed(seconds: float, name: str, scenario: str, effect: float = 0.0) -> Case:
    case = _host(seconds, name, scenario, effect)
    return replace(case, name=case.name.replace("host", "timed pair", 1), timed=True)


def _quick(name: str, scenario: str, effect: float = 0.0) -> Case:
    case = _host(0.1, name, scenario, effect)
    return replace(case, name=f"quick pair: {name}", timed=True, quick=True)


def _finding(case: Case, name: str) -> Case:
    """Return the case with --find 'x2 in 5%'."""
    return replace(case, name=name, find=Rare(2.0, 0.05))


def _many(name: str, earlier: int) -> Case:
    """Return the case of 12 cells in guests, of a question that so many earlier runs have asked."""
    said = f"guest, 12 cells, {earlier} earlier runs: {name}"
    return replace(_guest(name, name), name=said, more=10, earlier=earlier)


_TAILS = ("x2 in 10 % of iterations", "x2 in 5 % of iterations", "x5 in 1 % of iterations")
CASES = {
    case.name: case
    for case in (
        *(_guest(scenario.name, scenario.name) for scenario in SCENARIOS),
        *(_host(seconds, "iid", "iid") for seconds in (0.02, 0.1, 1.0)),
        _host(0.1, "unequal variance", "unequal variance"),
        _host(0.1, "spikes", "spikes"),
        _host(0.02, "quantised clock", "quantised clock"),
        _host(0.1, "drift", "drift"),
        *(_timed(seconds, "iid", "iid") for seconds in (0.001, 0.02, 0.1, 1.0)),
        *(_timed(0.1, scenario.name, scenario.name) for scenario in SCENARIOS if scenario.name != "iid"),
        _timed(0.001, "AR .8", "AR .8"),
        *(_quick(scenario.name, scenario.name) for scenario in SCENARIOS),
        _timed(0.001, "quantised clock", "quantised clock"),
        _guest("+2 %, 1 % noise", "1 % noise", float(np.log(1.02))),
        _host(0.1, "+2 %, 1 % noise", "1 % noise", float(np.log(1.02))),
        *(_timed(seconds, "+2 %, 1 % noise", "1 % noise", float(np.log(1.02))) for seconds in (0.001, 0.1)),
        _guest("+5 %", "iid", float(np.log(1.05))),
        _timed(0.1, "+5 %", "iid", float(np.log(1.05))),
        _quick("+5 %", "iid", float(np.log(1.05))),
        _quick("x2", "iid", float(np.log(2))),
        _timed(0.1, "+5 %, spikes", "spikes", float(np.log(1.05))),
        _guest("+5 %, spikes", "spikes", float(np.log(1.05))),
        _guest("+5 %, carry-over", "carry-over", float(np.log(1.05))),
        *(_guest(name, name) for name in _TAILS),
        *(_host(seconds, name, name) for name in _TAILS for seconds in (0.02, 0.1)),
        *(_timed(seconds, name, name) for name in _TAILS for seconds in (0.02, 0.1)),
        *(_guest(name, name) for name in sorted(_UNLIKE_STARTS)),
        *(
            _finding(_timed(seconds, name, name), f"--find, timed pair, {1000 * seconds:.0f} ms: {name}")
            for name in ("iid", _TAILS[1], "x2 in 2 % of all, 5 % more of the cell's")
            for seconds in (0.02, 0.1)
        ),
        *(_finding(_guest(name, name), f"--find, guest: {name}") for name in ("iid", _TAILS[1])),
        *(_guest(scenario.name, scenario.name) for scenario in MODES),
        *(_timed(0.02, scenario.name, scenario.name) for scenario in MODES),
        _many("iid", 0),
        *(_many(name, 10) for name in ("iid", "spikes", "x2 in 30% of starts, alike")),
    )
}


@dataclass(slots=True)
class Counts:
    """Counts of what happened in `runs` simulated runs, and sums of what is averaged."""

    runs: int = 0
    found: Counter[str] = field(default_factory=Counter)

    def share(self, name: str) -> float:
        return self.found[name] / self.runs if self.runs else float("nan")

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.runs + other.runs, self.found + other.found)


def simulate_runs(case: Case, runs: int, seed: int, first: int = 0) -> Counts:
    """Simulate runs from number `first` on, each with its own seed; deterministic in its arguments."""
    counts = Counts()
    for number in range(first, first + runs):
        generator = np.random.default_rng((seed, number))
        analysis, seconds = one_run(case, generator)
        _count(counts, case, analysis, seconds, generator)
    return counts


def plan_of(case: Case, seed: int = 0) -> Plan:
    if case.timed:
        options = ExecOptions(
            commands=[["new"]], timing=not case.quick, quick=case.quick, seed=seed, find=case.find
        )
        plan = build_plan(options, ["old"])
        assert plan.policy.enough_s is not None or case.find, "exec times pairs in another way"
        return replace(plan, cells=tuple(replace(cell, factors={}, processors=0) for cell in plan.cells))
    work = WorkloadSpec("exec", {"command": ["true"]}, "true")
    platform = parse_platform(case.platform)
    cells = (
        Cell("baseline", work, platform, baseline=True),
        Cell("copy", work, platform, null_of="baseline", added=True),
        *(
            Cell(f"cell {number}", work, platform, {"memory": f"{number + 2}G"})
            for number in range(case.more)
        ),
        Cell("cell", work, platform, {"memory": "1G"}),
    )
    policy = case.policy if case.find is None else replace(case.policy, find=case.find, max_blocks=_MOST)
    return Plan("simulated", cells, policy, METRICS)


Looked = Callable[[int, float, stopping.Decision], None]  # blocks, seconds so far, and what is decided


def one_run(
    case: Case, generator: np.random.Generator, looked: Looked | None = None
) -> tuple[Analysis, float]:
    """Simulate one run to its end; return its last analysis, and the seconds that it would have taken.

    With `looked` it is analysed after every block, even the first ones, as for a display of progress.
    """
    plan = plan_of(case)
    trials: list[Trial] = []
    source: Iterator[Mapping[str, tuple[Array, int]]] | None = None
    seconds, block = 0.0, 0
    next_look = plan.policy.blocks or (plan.policy.min_blocks if looked is None else 2)
    while True:
        wanted = case.iterations or count_iterations(plan, plan.cells[0], block, trials)
        if block == 0:
            rows = next(_blocks(case, plan, generator, wanted, 1))
        else:
            if source is None:
                source = _blocks(case, plan, generator, wanted, _MOST)
            rows = next(source)
        for cell in plan.cells:
            values, order = rows[cell.id]
            warmup = count_warmups(plan, cell, trials)
            slot = TrialSlot(cell, block, order, wanted, warmup)
            trial = _trial(case, plan, generator, slot, values)
            seconds += trial.duration_s
            trials.append(trial)
        block += 1
        if block < next_look:
            continue
        if looked is None and _is_far_from_precise(case, plan, trials, block):
            continue
        if plan.policy.enough_s is not None:
            decision = stopping.decide_timed_run(plan.policy, trials, block, seconds)
        else:
            decision = stopping.decide(plan, trials, block, analyse_run(plan, trials, metrics={WALL.name}))
        # Looking takes time, so this does not look after each block either.
        if case.find is not None and decision.goal is not None:
            next_look = block + max((decision.goal - block) // 2, 1)
        if looked is not None:
            looked(block, seconds, decision)
        if decision.state is not None:
            assert decision.state in {RunState.COMPLETE, RunState.STOPPED}
            return analyse_run(plan, trials), seconds


_FAR = 1.5


def _is_far_from_precise(case: Case, plan: Plan, trials: Sequence[Trial], blocks: int) -> bool:
    """Return whether a look cannot end the run, as an interval is far too wide; the whole analysis costs much more.

    What an analysis adds to an interval makes it longer, except for the correction of a carry-over.
    """
    policy = plan.policy
    rule = policy.blocks, policy.enough_s, policy.find
    if rule != (None, None, None) or case.scenario.carry or blocks >= policy.max_blocks:
        return False
    if stopping.is_out_of_time(policy, trials, sum(trial.duration_s for trial in trials)):
        return False
    logs = {cell.id: np.full(blocks, np.nan) for cell in plan.cells}
    for trial in trials:
        if trial.measurements:
            logs[trial.cell_id][trial.block] = math.log(trial.measurements[0].value)
    compared = [logs[cell.id] for cell in plan.cells if not cell.baseline and cell.null_of is None]
    walsh = walsh_averages(np.array(compared) - logs[plan.cells[0].id])
    low, high = signed_rank_interval(walsh)
    for middle, half in zip(np.exp(hodges_lehmann(walsh)).tolist(), ((high - low) / 2).tolist(), strict=True):
        if half > _FAR * compute_wanted_half_width(middle, policy.precision, RELATIVE_PRECISION):
            return True
    return False


def _blocks(
    case: Case, plan: Plan, generator: np.random.Generator, wanted: int, blocks: int
) -> Iterator[Mapping[str, tuple[Array, int]]]:
    """Yield, block by block, each cell's runs, warm-ups first, and its position; the last cell has the effect."""
    warmup, last = plan.policy.warmup, len(plan.cells) - 1
    effects = tuple(case.effect * (i == last) for i in range(last + 1))
    seed = int(generator.integers(1 << 32))
    orders = [order_cells(seed, block, plan.cells) for block in range(blocks)]
    position = np.array([[[order.index(cell) for cell in plan.cells] for order in orders]])
    own = last - case.more
    values, _ = case.scenario.run(generator, 1, blocks, effects, wanted + warmup, own, position)
    for block in range(blocks):
        yield {
            cell.id: (values[0, block, i] * case.iteration_s, int(position[0, block, i]))
            for i, cell in enumerate(plan.cells)
        }


def _trial(case: Case, plan: Plan, generator: np.random.Generator, slot: TrialSlot, values: Array) -> Trial:
    cell, block, order, warmup = slot.cell, slot.block, slot.order, slot.warmups or 0
    values = values[plan.policy.warmup - warmup :].copy()
    if warmup:
        values[0] *= FIRST_RUN
    if np.isnan(values).any():
        return Trial(cell.id, block, order, TrialStatus.FAILED, "lost", duration_s=case.start_s)
    differs = cell is plan.cells[-1]
    back = np.exp(-case.effect) if case.same_rest and differs else 1.0
    rest = np.exp(-case.effect) if differs else 1.0
    own = np.full_like(values, case.iteration_s / rest) if case.beside else values
    series = {
        WALL: values,
        USER: 0.8 * back * own * np.exp(generator.normal(0, 0.005, values.shape)),
        SYSTEM: 0.1 * rest * values * np.exp(generator.normal(0, case.scatter_s, values.shape)),
        MAX_RSS: 1e6 * np.exp(generator.normal(0, 0.003) + np.zeros(values.shape)),
    }
    elapsed = float(values.sum())
    others = {"foreign_s": case.beside * elapsed, "elapsed_s": elapsed, "machine_processors": 1}
    return Trial(
        cell.id,
        block,
        order,
        TrialStatus.OK,
        noise=others if case.beside else {},
        measurements=tuple(
            Measurement(metric, float(np.median(each[warmup:])), tuple(each[warmup:].tolist()))
            for metric, each in series.items()
        ),
        warmups=tuple(
            Measurement(metric, float(np.median(each[:warmup])), tuple(each[:warmup].tolist()))
            for metric, each in series.items()
            if warmup
        ),
        run_s=tuple(values.tolist()),
        duration_s=case.start_s + elapsed,
    )


def _count(
    counts: Counts, case: Case, analysis: Analysis, seconds: float, generator: np.random.Generator
) -> None:
    result = analysis.cells[-1]
    headline = result.comparison.get(WALL.name)
    if headline is None:
        return
    counts.runs += 1
    held = max(len(each.iterations) for trial in result.trials for each in trial.measurements[:1])
    truth = truth_of(case.scenario, case.effect, held)
    claims = _claims(result)
    for name, verdict in claims.items():
        counts.found[f"{name} {verdict.value}"] += 1
        counts.found[name] += verdict in DIFFERENT
    primary = [verdict in DIFFERENT for name, verdict in claims.items() if name not in _SECONDARY]
    secondary = [verdict in DIFFERENT for name, verdict in claims.items() if name in _SECONDARY]
    counts.found["any"] += any(primary)
    counts.found["with secondary"] += any(primary) or any(secondary)
    counts.found["secondary"] += any(secondary)
    counts.found["covered"] += _covers(headline, truth.typical)
    counts.found["total covered"] += result.answers is None or _covers(result.answers.total, truth.total)
    counts.found["blocks"] += headline.n
    counts.found["seconds"] += round(seconds)
    counts.found["iterations"] += held
    counts.found["alike"] += headline.alike
    pairs = [(result.cell.id, analysis.cells[0].cell.id), (analysis.cells[0].cell.id, result.cell.id)]
    ahead = compare_pairs(pairs, WALL, analysis)
    leads = any(pair.verdict is Verdict.FASTER for pair in ahead.values())
    counts.found["leads"] += leads
    others = [cell for cell in analysis.cells if cell is not result and cell.cell.null_of is None]
    elsewhere = any(verdict in DIFFERENT for cell in others for verdict in _claims(cell).values())
    over_time = _claims_over_time(case, analysis, generator)
    counts.found["over time"] += over_time
    counts.found["anything"] += leads or any(primary) or any(secondary) or elsewhere or over_time
    for finding in (*analysis.findings, *analysis.workloads[0].findings):
        counts.found[f"finding {finding.name}"] += 1
    counts.found["downgraded"] += bool(analysis.workloads[0].widened)


_SECONDARY = {metric.name for metric in METRICS[1:]}


def _claims_over_time(case: Case, analysis: Analysis, generator: np.random.Generator) -> bool:
    """Return whether the report says that a ratio changed.

    The earlier runs are drawn from what this one shows of its scatter: their logs differ from the truth by `between`
    and by the standard error that this run's interval has.
    """
    if not case.earlier:
        return False
    histories: list[list[PastRatio]] = []
    for result in analysis.cells:
        comparison = result.comparison.get(WALL.name)
        if result.cell.null_of is not None or comparison is None or comparison.ratio is None:
            continue
        if comparison.ci is None or comparison.ci[0] <= 0:
            continue
        half = math.log(comparison.ci[1] / comparison.ci[0]) / 2
        error = half / t_quantile(comparison.n - 1, (1 + NOMINAL) / 2)
        logs = generator.normal(0, math.hypot(case.between, error), case.earlier).tolist()
        logs.append(math.log(comparison.ratio) + float(generator.normal(0, case.between)))
        histories.append([_past_ratio(log, half, comparison.n) for log in logs])
    # A run's report shows changes alone. Drifts are on the page of `history` and have an error rate of their own.
    found = [compare_with_earlier(runs[-1], runs[:-1], len(histories)) for runs in histories]
    return any(each is not None and each.verdict in _CHANGES for each in found)


def _past_ratio(log: float, half: float, blocks: int) -> PastRatio:
    return PastRatio("", 0.0, math.exp(log), math.exp(log - half), math.exp(log + half), blocks)


_CHANGES = (ChangeVerdict.HIGHER, ChangeVerdict.LOWER)


def _claims(result: CellResult) -> dict[str, Verdict]:
    if WALL.name not in result.comparison:
        return {}
    found = {"typical": result.comparison[WALL.name].verdict}
    if (answers := result.answers) is not None:
        for name, answer in (("total", answers.total), ("slow", answers.slow), ("first", answers.first)):
            if answer is not None:
                found[name] = answer.verdict
    return found | {
        name: comparison.verdict for name, comparison in result.comparison.items() if name in _SECONDARY
    }


def _covers(comparison: Comparison | None, log_ratio: float) -> bool:
    ends = None if comparison is None else comparison.ci
    return ends is None or ends[0] <= float(np.exp(log_ratio)) <= ends[1]
