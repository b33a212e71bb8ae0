"""Sensitivity of a run: which differences and slow runs it would have found, and which rare events it may miss."""

from collections.abc import Sequence

from guestmark.core.model import boots_any_machine
from guestmark.stats.analysis import CellResult, WorkloadResult
from guestmark.stats.cell_answers import SlowComparison
from guestmark.stats.family import estimate_detectable_difference
from guestmark.stats.slow_run_power import find_detectable_share
from guestmark.stats.total import bound_unseen_share

# Runs that are slow more often than this are too common to be called slow runs.
_RARE = 0.25
_EVEN_ODDS = 0.5
# Differences outside this range are not reported.
_LEAST, _MOST = 0.0005, 1.0


def estimate_findable_share(workload: WorkloadResult) -> float | None:
    """Return the share of slow runs that would have been found in each of the cells; None if that is not rare."""
    shares = []
    for result in workload.shown_cells:
        slow = None if result.answers is None else result.answers.slow
        if slow is not None and not slow.differs and slow.n:
            iterations = slow.cell.iterations // slow.n
            others = len(workload.shown_cells) - 1
            shares.append(
                find_detectable_share(slow.n, iterations, background=slow.baseline.slow_share, cells=others)
            )
    known = [share for share in shares if share is not None]
    if not shares or len(known) < len(shares) or max(known) > _RARE:
        return None
    return max(known)


def is_informative_about_slow_runs(slow: SlowComparison) -> bool:
    """Return whether a comparison of slow runs is informative.

    It is if it claims a difference, or would have done so with even odds if slow runs were rare.
    """
    if slow.differs or not slow.is_informative:
        return slow.differs
    runs, background = slow.cell.iterations // slow.n, slow.baseline.slow_share
    share = find_detectable_share(slow.n, runs, background=background, power=_EVEN_ODDS)
    return share is not None and share <= _RARE


def estimate_undetected_difference(workload: WorkloadResult) -> float | None:
    """Return the relative difference that would have been found in each cell not shown to differ; None if unknown."""
    primary = workload.metrics[0].name
    sizes = []
    for result in workload.shown_cells:
        comparison = result.comparison.get(primary)
        if comparison is not None and not comparison.differs:
            sizes.append(estimate_detectable_difference(comparison))
    known = [size for size in sizes if size is not None]
    # With a cell of too few blocks nothing can be said of each of them.
    if len(known) < len(sizes):
        return None
    return max(known) if known and _LEAST < max(known) <= _MOST else None


def bound_missed_share(workload: WorkloadResult, results: Sequence[CellResult]) -> float:
    """Return the largest share of starts (of runs if nothing boots) that an event unseen in all cells may have."""
    metric = workload.metrics[0].name
    booted = boots_any_machine(result.cell for result in workload.cells)
    seen = []
    for result in results:
        iterations = 1 if booted else _find_fewest_iterations(result)
        seen.append(result.comparison[metric].n * iterations)
    return bound_unseen_share(min(seen))


def _find_fewest_iterations(result: CellResult) -> int:
    counts = (len(trial.measurements[0].iterations) for trial in result.trials if trial.measurements)
    return min(counts, default=1)
