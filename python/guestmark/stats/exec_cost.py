"""The cost of an empty command on machines that are timed from outside, over several trials."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from guestmark.core.findings import ExecCost
from guestmark.core.model import Trial


def pool_exec_costs(trials: Iterable[Trial]) -> ExecCost | None:
    """Return the median cost of an empty command over these trials, and its widest range; None if none was timed."""
    costs: list[ExecCost] = []
    for trial in trials:
        cost = trial.facts.find_fact(ExecCost)
        if cost is not None:
            costs.append(cost)
    if not costs:
        return None
    return ExecCost(
        wall_s=statistics.median(cost.wall_s for cost in costs),
        low_s=min(cost.low_s for cost in costs),
        high_s=max(cost.high_s for cost in costs),
    )
