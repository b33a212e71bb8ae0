"""Nested over bare: how much slower each platform is inside another guest, paired by block."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from guestmark.core.metric import Metric
from guestmark.core.platform_spec import PlatformSpec
from guestmark.stats.analysis import Analysis, CellResult, WorkloadResult
from guestmark.stats.paired import t_interval
from guestmark.stats.pairwise import list_values_by_block


@dataclass(frozen=True, slots=True)
class BlockRatio:
    """A geometric mean of ratios within blocks, and its 95 % interval (None with a single block)."""

    value: float
    ci: tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class NestedPair:
    """One workload on a platform, bare and inside another guest; `ratio` is nested over bare."""

    workload: WorkloadResult
    metric: Metric
    bare: CellResult
    nested: CellResult
    ratio: BlockRatio | None


def compute_block_ratio(over: CellResult, under: CellResult, metric: str) -> BlockRatio | None:
    """Return `over` divided by `under`, paired by block; None if no block has both above 0."""
    first, second = list_values_by_block(over.trials, metric), list_values_by_block(under.trials, metric)
    ratios = []
    for block in sorted(first.keys() & second.keys()):
        if first[block] > 0 and second[block] > 0:
            ratios.append(first[block] / second[block])
    logs = np.log(np.array(ratios, dtype=np.float64))
    if not logs.size:
        return None
    ci = None
    if logs.size > 1:
        low, high = (float(np.exp(end)) for end in t_interval(logs))
        ci = (low, high)
    return BlockRatio(float(np.exp(logs.mean())), ci)


def pair_nested_with_bare(analysis: Analysis) -> Iterator[NestedPair]:
    """Yield every nested cell that has a bare counterpart, in plan order."""
    for workload in analysis.workloads:
        if not workload.metrics:
            continue
        metric = workload.metrics[0]
        for nested in workload.shown_cells:
            bare = _find_bare(nested, workload.shown_cells)
            if bare is not None:
                yield NestedPair(
                    workload, metric, bare, nested, compute_block_ratio(nested, bare, metric.name)
                )


def _find_bare(nested: CellResult, others: Sequence[CellResult]) -> CellResult | None:
    if not nested.cell.platform.is_nested:
        return None
    inner = PlatformSpec(nested.cell.platform.layers[-1:])
    # The outer guest's own factors have no counterpart on the host.
    own = {name: level for name, level in nested.cell.factors.items() if not name.startswith("outer")}
    for other in others:
        cell = other.cell
        same_work = cell.workload == nested.cell.workload and dict(cell.factors) == own
        if cell.platform == inner and same_work and cell.null_of is None:
            return other
    return None
