"""Distributions of a few values, and heat maps of two factors, for tables and charts."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from guestmark.core.metric import Better, Metric
from guestmark.stats.analysis import CellResult

# The least share of a matrix's places (pairs of levels) that have a cell; below it, no matrix is drawn.
_FULL_ENOUGH = 0.7
_FEWEST_CELLS = 4


@dataclass(frozen=True, slots=True)
class FactorMatrix:
    """Two factors against each other. `heats` range from -1 (best) to 1 (worst); 0 is the baseline, None is unknown."""

    row_factor: str
    column_factor: str
    row_levels: tuple[str, ...]
    column_levels: tuple[str, ...]
    cells: Mapping[tuple[str, str], CellResult]
    heats: Mapping[tuple[str, str], float | None]


def find_quartiles(values: Sequence[float]) -> tuple[float, float, float, float, float]:
    """Return lowest value, first quartile, median, third quartile and highest value; `values` are not empty."""
    low, first, median, third, high = np.quantile(values, (0, 0.25, 0.5, 0.75, 1))
    return float(low), float(first), float(median), float(third), float(high)


def median(values: Sequence[float]) -> float:
    """Return the median of values, which are not empty."""
    return float(statistics.median(values))


def arrange_matrix(
    axes: Sequence[tuple[str, Mapping[str, str]]], results: Sequence[CellResult], metric: Metric
) -> FactorMatrix | None:
    """Return the cells arranged by the two axes that vary; `axes` are names with levels by cell id.

    None unless exactly two vary, no place has two cells, and enough places have one.
    """
    varying = [(name, levels) for name, levels in axes if len(set(levels.values())) > 1]
    if len(varying) != 2:
        return None
    (row_factor, row_of), (column_factor, column_of) = varying
    rows, columns = tuple(dict.fromkeys(row_of.values())), tuple(dict.fromkeys(column_of.values()))
    cells = {(row_of[result.cell.id], column_of[result.cell.id]): result for result in results}
    if len(cells) != len(results) or len(results) < max(
        _FULL_ENOUGH * len(rows) * len(columns), _FEWEST_CELLS
    ):
        return None
    losses = {at: _log_loss(result, metric) for at, result in cells.items()}
    largest = max((abs(loss) for loss in losses.values() if loss is not None), default=0.0) or 1.0
    heats = losses.copy()
    for at, loss in losses.items():
        if loss is not None:
            heats[at] = loss / largest
    return FactorMatrix(row_factor, column_factor, rows, columns, cells, heats)


def _log_loss(result: CellResult, metric: Metric) -> float | None:
    """Return the log of how many times worse the cell is than the baseline; None without a ratio."""
    if result.cell.baseline:
        return 0.0
    comparison = result.comparison.get(metric.name)
    if comparison is None or not comparison.ratio or comparison.ratio <= 0:
        return None
    log_ratio = math.log(comparison.ratio)
    return -log_ratio if metric.better is Better.HIGHER else log_ratio
