"""How many iterations a trial holds: chosen once for all cells that are compared, from their first block.

Cells that chose for themselves would not be comparable: medians of seven against single runs are off by 3 % where
nothing differs (docs/reference/statistics.md). So the first block is the pilot, with one iteration in every trial; what
it showed decides for all blocks after it. Everything follows from stored trials, so a resumed run goes on alike.
"""

from collections.abc import Sequence

from guestmark.core.model import Cell, Plan, Trial, TrialStatus, boots

PILOT = 1  # iterations of a trial from which the number is chosen


def wanted(plan: Plan, cell: Cell, block: int, trials: Sequence[Trial]) -> int:
    """How many iterations the trial of `cell` in `block` holds, given the trials so far."""
    if plan.policy.iterations is not None:
        return plan.policy.iterations
    others = {other.id for other in plan.cells if other.compares_with(cell)}
    earlier = [
        trial
        for trial in trials
        if trial.block < block and trial.cell_id in others and trial.status is TrialStatus.OK
    ]
    if not earlier:
        return PILOT
    if any(not trial.run_s for trial in earlier):
        return _as_before(cell, earlier)
    first = min(trial.block for trial in earlier)
    pilots = [trial for trial in earlier if trial.block == first]
    chosen = _chosen(
        pilots, plan.policy.warmup, boot=boots(other for other in plan.cells if other.id in others)
    )
    enough = plan.policy.enough_s
    return chosen if enough is None else min(chosen, _in_time(pilots, enough, plan.policy.min_blocks))


def _in_time(pilots: Sequence[Trial], enough_s: float, blocks: int) -> int:
    """How many iterations let the fewest blocks end within the time that is enough; at least one."""
    block_s = sum(trial.run_s[-1] for trial in pilots)
    return max(1, int(enough_s / (blocks * max(block_s, 1e-6))))


def warmups(plan: Plan, cell: Cell, trials: Sequence[Trial]) -> int:
    """How many unmeasured runs the next trial of `cell` begins with, given the trials so far.

    A fresh machine is cold each time. Where nothing boots a cell is warmed up once, before its first measured run.
    """
    if boots(other for other in plan.cells if other.compares_with(cell)):
        return plan.policy.warmup
    warm = any(trial.cell_id == cell.id and trial.status is TrialStatus.OK for trial in trials)
    return 0 if warm else plan.policy.warmup


def _chosen(pilots: Sequence[Trial], warmup: int, *, boot: bool) -> int:
    from guestmark.stats.repetition import Pilot, choose_iterations, iterations_without_boot

    found = {
        trial.cell_id: Pilot(max(trial.duration_s - sum(trial.run_s), 0.0), trial.run_s[-1])
        for trial in pilots
    }
    return choose_iterations(found, warmup) if boot else iterations_without_boot(found.values())


def _as_before(cell: Cell, earlier: Sequence[Trial]) -> int:
    """In runs that version 0.1 began every cell has chosen for itself; they are completed as they were begun."""
    counts = [
        len(trial.measurements[0].iterations)
        for trial in earlier
        if trial.cell_id == cell.id and trial.measurements
    ]
    return counts[0] if counts else PILOT
