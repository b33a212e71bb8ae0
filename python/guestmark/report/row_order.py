"""The order of rows: `--sort`, whose names and meanings are hyperfine's."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from guestmark.stats.analysis import Analysis, CellResult


class RowOrder(StrEnum):
    """What decides the order."""

    AUTO = "auto"  # here the same as COMMAND: the baseline stays first
    COMMAND = "command"  # the command line
    MEAN_TIME = "mean-time"  # the primary metric, the smallest first


def order_cells(analysis: Analysis, sort: RowOrder) -> Analysis:
    """The same with its cells in that order, those that were not measured last."""
    if sort is not RowOrder.MEAN_TIME:
        return analysis
    name = analysis.plan.metrics[0].name

    def mean(result: CellResult) -> tuple[bool, float]:
        summary = result.summary.get(name)
        return (True, 0.0) if summary is None else (False, summary.mean)

    workloads = tuple(
        replace(workload, cells=tuple(sorted(workload.cells, key=mean))) for workload in analysis.workloads
    )
    cells = tuple(result.cell for workload in workloads for result in workload.cells)
    return replace(analysis, plan=replace(analysis.plan, cells=cells), workloads=workloads)
