"""When a run is done: on precision or at its limits, never on significance."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from guestmark.core.model import CellStatus, Plan, RunState, Trial, TrialStatus

if TYPE_CHECKING:
    from guestmark.stats import Comparison
    from guestmark.stats.analysis import Analysis, CellResult


GIVE_UP_AFTER = 3  # failures of a cell that never succeeded


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether to stop, and as what; `goal` is the number of blocks expected in all (None: unknown)."""

    state: RunState | None  # None: go on
    goal: int | None
    left_s: float | None


def block_cost(trials: Iterable[Trial]) -> float:
    """Seconds of one block: the sum over the cells of their trials' mean duration."""
    durations: dict[str, list[float]] = {}
    for trial in trials:
        durations.setdefault(trial.cell_id, []).append(trial.duration_s)
    return sum(sum(series) / len(series) for series in durations.values())


def decide(plan: Plan, trials: Sequence[Trial], blocks: int, analysis: "Analysis") -> Decision:
    """The decision after `blocks` complete blocks.

    Time used up is that of all stored trials, so a resumed run does not get more of it. A block that would end past
    the limit by more than half its length is not begun; blocks are never cut short.
    """
    policy = plan.policy
    cost = block_cost(trials)
    if policy.blocks is not None:
        left = policy.blocks - blocks
        return Decision(RunState.COMPLETE if left <= 0 else None, policy.blocks, max(left, 0) * cost)
    used = sum(trial.duration_s for trial in trials)
    precise, goal = _precision(plan, analysis, blocks)
    if blocks >= policy.min_blocks and precise:
        return Decision(RunState.COMPLETE, blocks, 0.0)
    if blocks >= policy.max_blocks or (blocks > 0 and used + cost / 2 > policy.time_limit_s):
        return Decision(RunState.STOPPED, blocks, 0.0)
    if goal is None:
        return Decision(None, None, max(policy.time_limit_s - used, 0.0))
    goal = min(max(goal, policy.min_blocks), policy.max_blocks)
    return Decision(None, goal, max(min((goal - blocks) * cost, policy.time_limit_s - used), 0.0))


def _precision(plan: Plan, analysis: "Analysis", blocks: int) -> tuple[bool, int | None]:
    """Whether everything that is compared is precise enough, and how many blocks that is expected to take."""
    from guestmark.stats import blocks_needed, precise_enough
    from guestmark.stats.tails import TAIL_BLOCKS

    precision = plan.policy.precision
    comparisons = _comparisons(analysis)
    if comparisons:
        needed = [blocks_needed(comparison, precision) for comparison in comparisons]
        known = [number for number in needed if number is not None]
        goal = max(known) if len(known) == len(needed) else None
        precise = all(precise_enough(comparison, precision) for comparison in comparisons)
        if _slow_runs_unsettled(analysis):  # worth a few more blocks
            return False, None if goal is None else max(goal, TAIL_BLOCKS)
        return precise, goal
    # Nothing to compare: the means themselves have to be precise.
    cells = [result for result in analysis.cells if result.status is not CellStatus.UNUSABLE]
    alive = [result for result in cells if not given_up(result.trials)]
    return all(_summary_precise(result, precision) for result in alive), blocks if not alive else None


def _comparisons(analysis: "Analysis") -> list["Comparison"]:
    """What has to be precise: cells against their baseline; null cells only when there are no others."""
    alive = [result for result in analysis.cells if result.comparison and not given_up(result.trials)]
    chosen = [result for result in alive if result.cell.null_of is None] or alive
    return [comparison for result in chosen for comparison in result.comparison.values()]


def _slow_runs_unsettled(analysis: "Analysis") -> bool:
    """Whether slow runs were seen that so few blocks could not call."""
    answers = [result.answers for result in analysis.cells if not given_up(result.trials)]
    return any(answer.slow.unsettled for answer in answers if answer is not None and answer.slow is not None)


def _summary_precise(result: "CellResult", precision: float) -> bool:
    return all(
        summary.ci is not None
        and summary.mean != 0
        and (summary.ci[1] - summary.ci[0]) / 2 <= precision * abs(summary.mean)
        for summary in result.summary.values()
    )


def given_up(cell_trials: Sequence[Trial]) -> bool:
    """Whether a cell is no longer tried: it has failed `GIVE_UP_AFTER` times and never succeeded.

    Derived from the trials alone, so it holds after a resume, too.
    """
    return len(cell_trials) >= GIVE_UP_AFTER and all(
        trial.status is TrialStatus.FAILED for trial in cell_trials
    )
