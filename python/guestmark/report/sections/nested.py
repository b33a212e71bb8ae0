"""Nested over bare: what each backend loses inside another guest, with intervals."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from guestmark.core.metric import Metric
from guestmark.core.platform_spec import PlatformSpec
from guestmark.page import figures
from guestmark.page.names import label
from guestmark.page.tables import Align, Column, Row, RowName, Table, figure
from guestmark.stats.analysis import Analysis, CellResult, WorkloadResult
from guestmark.stats.paired import t_interval
from guestmark.stats.pairwise import values_by_block

TITLE = "Nested over bare"


@dataclass(frozen=True, slots=True)
class Ratio:
    """A geometric mean of ratios within blocks, and its 95 % interval (None with a single block)."""

    value: float
    ci: tuple[float, float] | None

    def __str__(self) -> str:
        return figures.ratio(self.value, self.ci)


@dataclass(frozen=True, slots=True)
class Pair:
    """One backend, bare and inside another guest, at one workload; `ratio` is nested over bare."""

    workload: WorkloadResult
    metric: Metric
    bare: CellResult
    nested: CellResult
    ratio: Ratio | None


def ratio(over: CellResult, under: CellResult, metric: str) -> Ratio | None:
    """`over` divided by `under`, paired by block; None when no block has both."""
    first, second = values_by_block(over.trials, metric), values_by_block(under.trials, metric)
    logs = np.array(
        [
            np.log(first[block] / second[block])
            for block in sorted(first.keys() & second.keys())
            if first[block] > 0 and second[block] > 0
        ]
    )
    if not logs.size:
        return None
    ci = None
    if logs.size > 1:
        low, high = (float(np.exp(end)) for end in t_interval(logs))
        ci = (low, high)
    return Ratio(float(np.exp(logs.mean())), ci)


def pairs(analysis: Analysis) -> Iterator[Pair]:
    """Every nested cell that has a bare counterpart, in plan order."""
    for workload in analysis.workloads:
        if not workload.metrics:
            continue
        metric = workload.metrics[0]
        for nested in workload.shown_cells:
            bare = _bare(nested, workload.shown_cells)
            if bare is not None:
                yield Pair(workload, metric, bare, nested, ratio(nested, bare, metric.name))


def table(analysis: Analysis) -> list[Table]:
    """The table of all pairs; none when no backend was measured both ways."""
    rows = tuple(
        Row(
            RowName((label(pair.bare), f"{pair.bare.cell.platform} → {pair.nested.cell.platform}")),
            (
                figure(*mean_of(pair.bare, pair.metric)),
                figure(*mean_of(pair.nested, pair.metric)),
                figure(*str(pair.ratio).split(" ", 1)),
            ),
        )
        for pair in pairs(analysis)
        if pair.ratio is not None
    )
    value = (Align.RIGHT, Align.LEFT)
    columns = (
        Column("bare", value),
        Column("nested", value),
        Column("nested over bare", (Align.POINT, Align.LEFT)),
    )
    return [Table(TITLE, ("workload", "backend"), columns, rows, heading=TITLE)] if rows else []


def _bare(nested: CellResult, others: Sequence[CellResult]) -> CellResult | None:
    if not nested.cell.platform.is_nested:
        return None
    inner = PlatformSpec(nested.cell.platform.layers[-1:])
    own = {name: level for name, level in nested.cell.factors.items() if not name.startswith("outer")}
    for other in others:
        cell = other.cell
        same = cell.workload == nested.cell.workload and dict(cell.factors) == own
        if cell.platform == inner and same and cell.null_of is None:
            return other
    return None


def mean_of(result: CellResult, metric: Metric) -> tuple[str, str]:
    """The mean and its unit; nanoseconds become what reads best."""
    mean, unit = result.summary[metric.name].typical, metric.unit
    if unit == "ns":
        mean, unit = mean / 1e9, "s"
    shown = figures.fitting_unit(unit, [mean])
    value = mean / shown.size
    return figures.number(value, figures.decimals(None, value)), shown.name
