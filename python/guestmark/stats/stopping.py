"""The decision whether a run ends: at the wanted precision or at its limits, never at significance."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from guestmark.core.model import CellStatus, Plan, Policy, RunState, Trial, TrialStatus
from guestmark.core.rare import Rare
from guestmark.stats.analysis import Analysis, CellResult, WorkloadResult
from guestmark.stats.cell_answers import SlowComparison
from guestmark.stats.compare import MIN_BLOCKS, Comparison
from guestmark.stats.repetition import (
    ANSWER_PRECISION,
    RELATIVE_PRECISION,
    count_needed_blocks,
    estimate_blocks_without_outliers,
    estimate_expected_blocks,
    half_width,
    is_precise_enough,
    predict_half_width,
)
from guestmark.stats.slow_run_power import count_blocks_to_find_rare
from guestmark.stats.validity import list_severe_by_cell

# No run ends before this share of `Policy.fine_s`: with less time, under 80 % of it would be spent measuring.
_SETTLED = 0.7
# With at least this many blocks, a difference far beyond any scatter counts as settled.
FEWEST_IF_SETTLED = 3
# With at least this many blocks, the number of further blocks can be forecast.
FEWEST_FOR_FORECAST = 4
# A forecast is narrow if both ends are within this factor of its middle.
NARROW_FACTOR = 1.5
# After n blocks, nine in ten runs need exp(-4.5 / n) to exp(2.8 / n) times as many blocks as the scatter so far says:
# few blocks say little about it, and a run may end after each of them (simulated by bench/statistics/forecasts.py).
_FEWER, _MORE = 4.5, 2.8
# Failures after which a cell that never succeeded is no longer tried.
MOST_FAILURES = 3


@dataclass(frozen=True, slots=True)
class TimeLeft:
    """Seconds until a run ends, `least_s` to `most_s`: nine in ten runs end within them."""

    least_s: float
    most_s: float

    @property
    def is_narrow(self) -> bool:
        """Whether the geometric mean of both ends is within a factor of 1.5 of either."""
        return self.most_s <= NARROW_FACTOR**2 * self.least_s

    @classmethod
    def exactly(cls, seconds: float) -> "TimeLeft":
        """Return a range that contains only this time."""
        return cls(seconds, seconds)

    def after(self, elapsed_s: float) -> "TimeLeft":
        """Return the time left after `elapsed_s` more seconds."""
        return TimeLeft(max(self.least_s - elapsed_s, 0.0), max(self.most_s - elapsed_s, 0.0))


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether the run goes on, and in which state it ends if not.

    `goal` is the number of blocks expected in all, `left` the time until then; both are None if unknown.
    """

    state: RunState | None  # None: go on
    goal: int | None
    left: TimeLeft | None


# The time left of a run that ends.
NO_TIME_LEFT = TimeLeft.exactly(0.0)


def estimate_block_cost(trials: Iterable[Trial]) -> float:
    """Return the seconds that one block takes: the sum over the cells of their mean trial duration."""
    return sum(_average_trial_lengths(trials).values())


def _average_trial_lengths(trials: Iterable[Trial]) -> dict[str, float]:
    """Return the mean seconds of a trial by cell; the pilot has fewer iterations, so it only counts if alone."""
    kept = list(trials)
    pilot = min((trial.block for trial in kept), default=0)
    later = {trial.cell_id for trial in kept if trial.block != pilot}
    durations: dict[str, list[float]] = {}
    for trial in kept:
        if trial.block != pilot or trial.cell_id not in later:
            durations.setdefault(trial.cell_id, []).append(trial.duration_s)
    return {cell: sum(series) / len(series) for cell, series in durations.items()}


def is_out_of_time(policy: Policy, trials: Sequence[Trial], used_s: float) -> bool:
    """Return True if the next block would end past the time limit by over one of its trials; never for the first."""
    lengths = _average_trial_lengths(trials).values()
    return bool(lengths) and used_s + sum(lengths) - max(lengths) > policy.time_limit_s


def decide(  # noqa: PLR0911, PLR0917 (all that the decision depends on)
    plan: Plan,
    trials: Sequence[Trial],
    blocks: int,
    analysis: Analysis,
    used_s: float | None = None,
    asked: Sequence[Comparison] | None = None,
    *,
    before_s: float = 0.0,
) -> Decision:
    """Return the decision after `blocks` complete blocks.

    `asked` are the comparisons of the plan's questions: only these have to be precise, to half of their effect. An
    interval that excludes 1 twice over is narrow enough to answer, and rare enough by chance that looking for it after
    every block hardly adds false claims (docs/reference/statistics.md). Without questions every cell has to be precise.

    Unless its length is fixed, no run ends in much less than `fine_s`, since most of that time would be preparation.
    `used_s` is the wall time that the run has taken over all its sessions, by default the time of all stored trials,
    `before_s` the part of it before the first trial.
    """
    policy = plan.policy
    cost = estimate_block_cost(trials)
    if policy.blocks is not None:
        return _decide_fixed_blocks(policy.blocks + count_blocks_with_losses(trials), blocks, cost)
    used = _find_used_time(trials, used_s)
    if policy.find is not None:
        return _decide_search(plan, trials, blocks, analysis, used)
    if policy.enough_s is not None:
        return decide_timed_run(policy, trials, blocks, used, before_s)
    precision = policy.precision / 2 if used < policy.fine_s else policy.precision
    compared = _list_required_comparisons(analysis) if asked is None else asked
    complete = _count_complete_blocks(compared, blocks)
    if asked is None:
        precise = _is_precise(analysis, precision)
        done = complete >= policy.min_blocks and precise and used >= _SETTLED * policy.fine_s
    else:
        done = _are_questions_answered(plan, asked, blocks)
    if done:
        return Decision(RunState.COMPLETE, blocks, NO_TIME_LEFT)
    if blocks >= policy.max_blocks or is_out_of_time(policy, trials, used):
        return Decision(RunState.STOPPED, blocks, NO_TIME_LEFT)
    if blocks < FEWEST_FOR_FORECAST:
        return Decision(None, None, None)
    need = None
    if asked is not None:
        need = _BlocksNeeded.estimate(asked, policy, ANSWER_PRECISION, policy.precision)
    elif compared:
        need = _estimate_needed_blocks(policy, analysis, complete, used, cost)
    if need is None:
        return Decision(None, None, None)
    # If trials fail, more blocks are needed for as many complete ones.
    more = [(whole - complete) * blocks / complete for whole in need.count_blocks(complete)]
    return _forecast_goal(policy, blocks, more, max(policy.time_limit_s - used, 0.0), cost)


def _forecast_goal(
    policy: Policy, blocks: int, more: Sequence[float], longest: float, cost: float
) -> Decision:
    """Return the decision to go on for `more` blocks (fewest, expected, most), but at most `longest` seconds."""
    fewest, likely, most = more
    left = TimeLeft(min(max(fewest, 1.0) * cost, longest), min(max(most, 1.0) * cost, longest))
    goal = min(blocks + max(math.ceil(likely), 1), policy.max_blocks)
    # The time may be up before.
    if cost > 0:
        goal = min(goal, blocks + max(math.ceil(longest / cost), 1))
    return Decision(None, goal, left)


def _find_used_time(trials: Iterable[Trial], used_s: float | None) -> float:
    """Return the seconds that a run has taken, by default the time of its trials."""
    if used_s is not None:
        return used_s
    return sum(trial.duration_s for trial in trials)


def _estimate_needed_blocks(
    policy: Policy, analysis: Analysis, complete: int, used_s: float, cost: float
) -> "_BlocksNeeded | None":
    """Return how many blocks a run without questions needs; None if that cannot be estimated yet."""
    compared = _list_required_comparisons(analysis)
    early = used_s < policy.fine_s and cost > 0
    precision = policy.precision / 2 if early else policy.precision
    need = _BlocksNeeded.estimate(compared, policy, RELATIVE_PRECISION, precision)
    if need is None:
        return None
    need = replace(need, slow=_count_blocks_for_slow_runs(analysis))
    if not early:
        return need
    return replace(
        need,
        # After `fine_s` the whole `precision` suffices, which may come sooner than half of it.
        coarse=estimate_expected_blocks(compared, policy.precision),
        from_then=complete + math.ceil((policy.fine_s - used_s) / cost),
        fewest=max(need.fewest, complete + math.ceil((_SETTLED * policy.fine_s - used_s) / cost)),
    )


@dataclass(frozen=True, slots=True)
class _BlocksNeeded:
    """Numbers of complete blocks that a run needs to be precise: `wanted`, or `coarse` once it has `from_then` blocks.

    Without more outliers it needs `steady`. It has at least `fewest`, at most `most`, and `slow` if it continues
    because of slow runs.
    """

    wanted: int
    steady: int
    fewest: int
    most: int
    coarse: int | None = None
    from_then: int = 0
    slow: int = 0

    @classmethod
    def estimate(
        cls, compared: Sequence[Comparison], policy: Policy, relative: float, precision: float
    ) -> "_BlocksNeeded | None":
        """Return the blocks needed until all comparisons are precise; None if that cannot be estimated yet."""
        wanted = estimate_expected_blocks(compared, precision, relative)
        if wanted is None:
            return None
        steady = estimate_blocks_without_outliers(compared, precision, relative)
        if steady is None:
            steady = wanted
        return cls(wanted, steady, policy.min_blocks, policy.max_blocks)

    def count_blocks(self, complete: int) -> tuple[int, int, int]:
        """Return the complete blocks needed in all, after `complete` of them: at best, probably, and at worst."""
        luckily = min(math.exp(-_FEWER / complete), self.steady / max(self.wanted, 1))
        return (
            self._count(luckily, 0),
            self._count(1.0, self.slow),
            self._count(math.exp(_MORE / complete), self.slow),
        )

    def _count(self, factor: float, slow: int) -> int:
        blocks = math.ceil(self.wanted * factor)
        if self.coarse is not None:
            blocks = min(blocks, max(math.ceil(self.coarse * factor), self.from_then))
        return min(max(blocks, self.fewest, slow), self.most)


def _decide_fixed_blocks(wanted: int, blocks: int, cost: float) -> Decision:
    left = max(wanted - blocks, 0)
    state = None if left else RunState.COMPLETE
    return Decision(state, wanted, TimeLeft.exactly(left * cost))


def _decide_search(
    plan: Plan, trials: Sequence[Trial], blocks: int, analysis: Analysis, used_s: float
) -> Decision:
    """Return the decision for a run that looks for slow runs; finding some does not end it."""
    policy, needed, cost = plan.policy, estimate_blocks_to_find(plan, analysis), estimate_block_cost(trials)
    if needed is not None and blocks >= max(needed, policy.min_blocks):
        return Decision(RunState.COMPLETE, blocks, NO_TIME_LEFT)
    if blocks >= policy.max_blocks or is_out_of_time(policy, trials, used_s):
        return Decision(RunState.STOPPED, blocks, NO_TIME_LEFT)
    goal = min(max(needed or policy.max_blocks, policy.min_blocks), policy.max_blocks)
    left_s = max(min((goal - blocks) * cost, policy.time_limit_s - used_s), 0.0)
    return Decision(None, goal, TimeLeft.exactly(left_s))


def count_compared_cells(plan: Plan) -> int:
    """Return how many cells of the largest table are compared with its baseline, without null copies."""
    sides = []
    for baseline in plan.cells:
        if baseline.baseline:
            sides.append(
                sum(cell.null_of is None and cell.compares_with(baseline) for cell in plan.cells) - 1
            )
    return max(sides, default=0)


def estimate_blocks_to_find(plan: Plan, analysis: Analysis, rare: Rare | None = None) -> int | None:
    """Return the total blocks that find `rare`, by default the plan's; None if it looks for nothing."""
    rare = rare or plan.policy.find
    held = _count_iterations_per_trial(analysis)
    if rare is None or not held:
        return None
    return count_blocks_to_find_rare(
        rare, held, background=_find_baseline_slow_share(analysis), cells=count_compared_cells(plan)
    )


@dataclass(frozen=True, slots=True)
class EndForecast:
    """The expected end of a run, with `left` until then, and with its widest log ratio known to ± `half_width`.

    After `rare_left_s` seconds it would have found `rare`; None if that takes longer than a run may.
    """

    half_width: float
    left: TimeLeft
    rare: Rare
    rare_left_s: float | None


_DEFAULT_RARE = Rare(2.0, 0.05)


def forecast_end(
    plan: Plan, trials: Sequence[Trial], blocks: int, analysis: Analysis, decision: Decision
) -> EndForecast | None:
    """Return the forecast for a run; None if its end is still unknown, or if nothing is compared."""
    if decision.goal is None or decision.left is None or blocks < FEWEST_FOR_FORECAST:
        return None
    ends = []
    for comparison in _list_required_comparisons(analysis):
        end = predict_half_width(comparison, max(decision.goal - comparison.n, 0))
        if end is None:
            return None
        ends.append(end)
    if not ends:
        return None
    rare = plan.policy.find or _DEFAULT_RARE
    needed = estimate_blocks_to_find(plan, analysis, rare)
    rare_left_s = None
    if needed is not None:
        rare_left_s = max(needed - blocks, 0) * estimate_block_cost(trials)
    return EndForecast(max(ends), decision.left, rare, rare_left_s)


def _count_iterations_per_trial(analysis: Analysis) -> int:
    """Return the iterations of a trial in the last block; 0 without a trial."""
    measured = [trial for trial in analysis.list_trials() if trial.measurements]
    last = max(measured, key=lambda trial: trial.block, default=None)
    return 0 if last is None else len(last.measurements[0].iterations)


def _find_baseline_slow_share(analysis: Analysis) -> float:
    """Return the share of slow runs on the baseline that has most of them, in steps of half a percent."""
    slow = _yield_slow_comparisons(analysis.cells)
    most = max((comparison.baseline.slow_share for comparison in slow), default=0.0)
    return min(round(200 * most) / 200, 0.5)


def _yield_slow_comparisons(results: Iterable[CellResult]) -> Iterator[SlowComparison]:
    """Yield the comparisons of slow runs of the cells that have one."""
    for result in results:
        if result.answers is not None and result.answers.slow is not None:
            yield result.answers.slow


def decide_timed_run(
    policy: Policy, trials: Sequence[Trial], blocks: int, used_s: float, before_s: float = 0.0
) -> Decision:
    """Return the decision for a run that only has to last `enough_s` and reach `min_blocks`.

    The `before_s` seconds of preparation are part of `used_s`, and count against the time limit alone.
    """
    lasted_s = used_s - before_s
    if policy.enough_s is not None and blocks >= policy.min_blocks and lasted_s >= policy.enough_s:
        return Decision(RunState.COMPLETE, blocks, NO_TIME_LEFT)
    cost = estimate_block_cost(trials)
    if blocks >= policy.max_blocks or (blocks and used_s + cost > policy.time_limit_s):
        return Decision(RunState.STOPPED, blocks, NO_TIME_LEFT)
    in_time = 0
    if cost > 0:
        in_time = math.ceil(max((policy.enough_s or 0.0) - lasted_s, 0.0) / cost)
    goal = min(max(policy.min_blocks, blocks + in_time), policy.max_blocks)
    return Decision(None, goal, TimeLeft.exactly((goal - blocks) * cost))


def count_blocks_with_losses(trials: Iterable[Trial]) -> int:
    """Return the number of blocks with at least one lost trial; as many blocks are added to replace them."""
    return len({trial.block for trial in trials if trial.status is TrialStatus.LOST})


def _is_precise(analysis: Analysis, precision: float) -> bool:
    """Return whether all comparisons are precise, and no slow runs were seen that more blocks may settle."""
    comparisons = _list_required_comparisons(analysis)
    if comparisons:
        precise = all(is_precise_enough(comparison, precision) for comparison in comparisons)
        return precise and not _count_blocks_for_slow_runs(analysis)
    # Nothing is compared, so the means themselves have to be precise.
    for result in analysis.cells:
        if result.status is CellStatus.UNUSABLE or is_given_up(result.trials):
            continue
        if not _is_summary_precise(result, precision):
            return False
    return True


def is_settled(comparison: Comparison, precision: float) -> bool:
    """Return True if more blocks would not change the answer.

    The ratio is then far beyond any scatter, or precise to half of its effect. Two blocks may suffice for the former,
    but their interval has a single degree of freedom, so three are needed.
    """
    if comparison.n < MIN_BLOCKS:
        return comparison.differs and comparison.n >= FEWEST_IF_SETTLED
    return is_precise_enough(comparison, precision, ANSWER_PRECISION)


def _are_questions_answered(plan: Plan, asked: Sequence[Comparison], blocks: int) -> bool:
    """Return whether all comparisons of the questions are precise enough."""
    policy = plan.policy
    if asked and plan.context.budget_s is not None:
        # Time spent on a settled question is lost to the others, so fewer blocks than usual may suffice.
        return all(is_settled(comparison, policy.precision) for comparison in asked)
    precise = all(is_precise_enough(comparison, policy.precision, ANSWER_PRECISION) for comparison in asked)
    return precise and _count_complete_blocks(asked, blocks) >= policy.min_blocks


def _count_complete_blocks(compared: Sequence[Comparison], blocks: int) -> int:
    """Return the number of blocks of the comparison with the fewest, as failed trials remove their blocks."""
    return min((comparison.n for comparison in compared), default=blocks)


def _list_required_comparisons(analysis: Analysis) -> list[Comparison]:
    """Return the comparisons that have to be precise; those of null cells only if there are no others."""
    alive = [result for result in analysis.cells if result.comparison and not is_given_up(result.trials)]
    chosen = [result for result in alive if result.cell.null_of is None] or alive
    comparisons: list[Comparison] = []
    for result in chosen:
        comparisons += result.comparison.values()
    return comparisons


def _count_blocks_for_slow_runs(analysis: Analysis) -> int:
    """Return the number of blocks up to which a run continues because of slow runs that it saw; 0 without any."""
    alive = [result for result in analysis.cells if not is_given_up(result.trials)]
    slow = _yield_slow_comparisons(alive)
    return max((comparison.worth for comparison in slow if comparison.is_unsettled), default=0)


def _is_summary_precise(result: CellResult, precision: float) -> bool:
    """Return True if the interval of each metric's mean is as narrow as `precision`, relatively."""
    for summary in result.summary.values():
        if summary.ci is None or summary.mean == 0:
            return False
        if (summary.ci[1] - summary.ci[0]) / 2 > precision * abs(summary.mean):
            return False
    return True


def is_given_up(cell_trials: Sequence[Trial]) -> bool:
    """Return True if a cell is no longer tried: it has failed `MOST_FAILURES` times and never succeeded.

    It follows from the trials alone, so it also holds after a resume.
    """
    return len(cell_trials) >= MOST_FAILURES and all(
        trial.status is TrialStatus.FAILED for trial in cell_trials
    )


def is_hopeless(cells: Iterable[str], trials: Sequence[Trial]) -> bool:
    """Return True if a run is over because nothing in it works: each cell was tried, and all these trials failed.

    Failures that may pass by themselves do not count. The number of failures is counted over all cells, so that a run
    of many cells need not fail `MOST_FAILURES` times in each.
    """
    tried = {trial.cell_id for trial in trials}
    if len(trials) < MOST_FAILURES or not tried.issuperset(cells):
        return False
    for trial in trials:
        if trial.status is not TrialStatus.FAILED:
            return False
        if trial.cause is not None and trial.cause.may_pass:
            return False
    return True


@dataclass(frozen=True, slots=True)
class PrecisionForecast:
    """The precision of a cell's ratio, as the half-width of its logarithm: now, and after more blocks."""

    cell: str
    half_width: float
    then: float


@dataclass(frozen=True, slots=True)
class ExtensionForecast:
    """The precision gained by `blocks` more blocks, which take about `seconds`, for the cells that lack it."""

    blocks: int
    seconds: float
    cells: tuple[PrecisionForecast, ...]


def forecast_more_time(plan: Plan, analysis: Analysis) -> ExtensionForecast | None:
    """Return the gain from continuing; None if every ratio is as precise as asked for and every verdict is given.

    It assumes as many blocks as the precision needs, but no more than there are already, since forecasts reach no
    further. If there are too few for any verdict, it assumes as many as a verdict needs. Withdrawn verdicts need
    another host or order, not more blocks.
    """
    precision = plan.policy.precision
    more, lacking = 0, []
    for workload in analysis.workloads:
        for cell, comparison in _yield_imprecise_cells(workload, precision):
            needed = count_needed_blocks(comparison, precision)
            wanted = comparison.n
            if needed is not None and not is_precise_enough(comparison, precision):
                wanted = needed - comparison.n
            fewest = max(1, MIN_BLOCKS - comparison.n)
            more = max(more, min(max(wanted, fewest), max(comparison.n, fewest)))
            lacking.append((cell, comparison))
    found = []
    for cell, comparison in lacking:
        then = predict_half_width(comparison, more)
        if comparison.ci is not None and then is not None:
            found.append(PrecisionForecast(cell, half_width(comparison.ci), then))
    if not found:
        return None
    return ExtensionForecast(more, more * estimate_block_cost(analysis.list_trials()), tuple(found))


def _yield_imprecise_cells(workload: WorkloadResult, precision: float) -> Iterator[tuple[str, Comparison]]:
    """Yield the cells whose ratio more blocks could make more precise, with their comparison in the primary metric."""
    if not workload.metrics:
        return
    spoilt = list_severe_by_cell(workload.findings)
    for result in workload.shown_cells:
        comparison = result.comparison.get(workload.metrics[0].name)
        if comparison is None or comparison.n < 2 or comparison.ci is None or result.cell.id in spoilt:
            continue
        undecided = comparison.is_undecided
        if undecided or not is_precise_enough(comparison, precision):
            yield result.cell.id, comparison


def extend_policy(
    policy: Policy,
    trials: Sequence[Trial],
    *,
    blocks: int | None = None,
    precision: float | None = None,
    time_limit_s: float | None = None,
    used_s: float | None = None,
) -> Policy:
    """Return the policy of a stopped run that continues after `used_s` seconds of wall time.

    It continues until it has `blocks` blocks in all, or else until `precision` is reached (None: as before). The time
    limit (None: the policy's) applies to the time from now on.
    """
    if time_limit_s is None:
        time_limit_s = policy.time_limit_s
    if precision is not None:
        policy = replace(policy, precision=precision, fine_s=0.0, find=None)
    done = len({trial.block for trial in trials})
    return replace(
        policy,
        blocks=blocks,
        enough_s=None,
        time_limit_s=_find_used_time(trials, used_s) + time_limit_s,
        max_blocks=done + policy.max_blocks,
    )
