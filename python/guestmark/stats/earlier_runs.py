"""The ratios of a run beside those that earlier runs of the same host found for the same cells."""

from collections.abc import Sequence
from dataclasses import dataclass

from guestmark.stats.across_runs import FEWEST_RUNS, Change, ChangeVerdict, PastRatio, compare_with_earlier
from guestmark.stats.analysis import Analysis, CellResult
from guestmark.stats.compare import Comparison


@dataclass(frozen=True, slots=True)
class EarlierComparison:
    """A cell's ratios in earlier runs; `change` compares this run's with them, None if they are too few."""

    past: Sequence[PastRatio]
    change: Change | None

    @property
    def has_changed(self) -> bool:
        """True if a change since the earlier runs is shown."""
        return self.change is not None and self.change.verdict is not ChangeVerdict.ALIKE

    @property
    def lowest_run(self) -> PastRatio:
        """The earlier run with the lowest ratio."""
        return min(self.past, key=lambda run: run.ratio)

    @property
    def highest_run(self) -> PastRatio:
        """The earlier run with the highest ratio."""
        return max(self.past, key=lambda run: run.ratio)


def compare_earlier_runs(result: CellResult, analysis: Analysis) -> EarlierComparison | None:
    """Compare a cell's ratio with its ratios in earlier runs; None if either side has none."""
    past = analysis.history.ratios.get(result.cell.id)
    comparison = _find_interval(result, analysis)
    if not past or comparison is None or comparison.ratio is None or comparison.ci is None:
        return None
    now = PastRatio("", 0.0, comparison.ratio, *comparison.ci, comparison.n)
    return EarlierComparison(past, compare_with_earlier(now, past, _count_claims(analysis)))


def _find_interval(result: CellResult, analysis: Analysis) -> Comparison | None:
    comparison = result.comparison.get(analysis.plan.metrics[0].name) if analysis.plan.metrics else None
    if comparison is None or comparison.ratio is None or comparison.ci is None or comparison.ci[0] <= 0:
        return None
    return comparison


def _count_claims(analysis: Analysis) -> int:
    """Count the cells that are judged against earlier runs: they share one error rate."""
    claims = 0
    for result in analysis.cells:
        enough = len(analysis.history.ratios.get(result.cell.id, ())) >= FEWEST_RUNS
        claims += enough and _find_interval(result, analysis) is not None
    return max(claims, 1)
