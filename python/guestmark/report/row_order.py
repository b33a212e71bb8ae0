"""Orders of rows for `--sort`, with hyperfine's names and meanings."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from guestmark.stats.analysis import Analysis, CellResult


class RowOrder(StrEnum):
    """The order of a table's rows."""

    # Hyperfine sorts by time here. In guestmark it is COMMAND, so that the baseline stays first.
    AUTO = "auto"
    COMMAND = "command"  # as on the command line
    MEAN_TIME = "mean-time"  # by the primary metric, the smallest first


def order_cells(analysis: Analysis, sort: RowOrder) -> Analysis:
    """Return the analysis with its cells in that order; cells that were not measured come last."""
    if sort is not RowOrder.MEAN_TIME:
        return analysis

    def mean_if_measured(result: CellResult) -> tuple[bool, float]:
        metric = analysis.find_primary_metric(result.cell.id)
        summary = result.summary.get(metric.name) if metric is not None else None
        return (True, 0.0) if summary is None else (False, summary.mean)

    workloads, cells = [], []
    for workload in analysis.workloads:
        results = tuple(sorted(workload.cells, key=mean_if_measured))
        workloads.append(replace(workload, cells=results))
        cells += [result.cell for result in results]
    plan = replace(analysis.plan, cells=tuple(cells))
    return replace(analysis, plan=plan, workloads=tuple(workloads))
