"""The cost of virtualization: how many times slower a workload is in a guest than on the host."""

from dataclasses import dataclass

from guestmark.core.metric import Better, Metric
from guestmark.stats.analysis import Analysis, CellResult, WorkloadResult
from guestmark.stats.compare import Comparison

# Ratios closer to 1 than this count as about the same.
SAME = 1.1
# The ratio of an interval's ends above which both are shown, because one figure would mislead.
WIDE = 1.6
# A cost above this is called high.
_HIGH = 3.0


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost as a ratio to the host, above 1 if slower, with its 95 % `interval`; None for one round."""

    ratio: float
    interval: tuple[float, float] | None

    @classmethod
    def from_comparison(cls, comparison: Comparison, metric: Metric) -> "Cost | None":
        """Return the cost from a comparison of times or rates; None without a ratio."""
        ratio, ci = comparison.ratio, comparison.ci
        if ratio is None or ratio <= 0:
            return None
        # An interval that reaches 0 bounds nothing.
        if ci is not None and ci[0] <= 0:
            ci = None
        if metric.better is Better.HIGHER:
            ratio = 1 / ratio
            if ci is not None:
                ci = 1 / ci[1], 1 / ci[0]
        return cls(ratio, ci)

    @property
    def is_clear(self) -> bool:
        """True if the interval shows a cost, a gain, or next to no difference."""
        if self.interval is None:
            return False
        low, high = self.interval
        narrow = 1 / WIDE**0.5 < low < high < WIDE**0.5
        return low > 1 or high < 1 or narrow

    @property
    def is_about_same(self) -> bool:
        """True if the ratio is so close to 1 that it counts as equal."""
        return 1 / SAME < self.ratio < SAME

    @property
    def is_wide(self) -> bool:
        """True if the interval is so wide that both its ends must be shown."""
        return self.interval is not None and self.interval[1] / self.interval[0] > WIDE

    @property
    def is_gain(self) -> bool:
        """True if the guest is as fast as the host, or faster."""
        return self.ratio < SAME

    @property
    def is_high(self) -> bool:
        """True if the cost is clear, and the ratio is above `_HIGH`."""
        return self.is_clear and self.ratio > _HIGH


def compute_cell_cost(result: CellResult, workload: WorkloadResult) -> Cost | None:
    """Return the cost against the host; None for the host itself, or if it is not the baseline."""
    against_host = workload.baseline is not None and workload.baseline.cell.platform.is_this_host
    if not workload.metrics or not against_host:
        return None
    metric = workload.metrics[0]
    if metric.name not in result.comparison:
        return None
    return Cost.from_comparison(result.comparison[metric.name], metric)


def rank_workloads_by_cost(analysis: Analysis) -> list[str]:
    """Return the keys of workloads with a cost, the most expensive in guests first."""
    worst: dict[str, float] = {}
    for workload in analysis.workloads:
        costs = (compute_cell_cost(result, workload) for result in workload.shown_cells)
        worst[workload.workload.key] = max((cost.ratio for cost in costs if cost is not None), default=0.0)
    return sorted((key for key in worst if worst[key] > 0), key=lambda key: -worst[key])


def list_clear_costs(analysis: Analysis) -> dict[str, list[tuple[Cost, str]]]:
    """Return by platform the costs that are clear, each with its workload's title, the lowest first."""
    costs: dict[str, list[tuple[Cost, str]]] = {}
    for workload in analysis.workloads:
        for result in workload.shown_cells:
            cost = compute_cell_cost(result, workload)
            if cost is not None and cost.is_clear:
                costs.setdefault(str(result.cell.platform), []).append((cost, workload.title))
    return {platform: sorted(known, key=lambda pair: pair[0].ratio) for platform, known in costs.items()}
