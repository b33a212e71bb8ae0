"""The secondary metrics: each cell's mean and how it compares."""

from collections.abc import Sequence

from guestmark.core.model import Metric
from guestmark.ledger.model import StoredRun
from guestmark.page import figures
from guestmark.page.names import row_names
from guestmark.page.nodes import Node
from guestmark.page.tables import Align, Cell, Column, Row, Table, figure
from guestmark.page.text import line
from guestmark.report.sections.verdicts import LEGEND, mark, tone
from guestmark.stats.analysis import CellResult, WorkloadResult
from guestmark.stats.summary import Summary


def sections(workload: WorkloadResult, run: StoredRun) -> Sequence[Node]:
    """One table with a column for each further metric."""
    shown = [result for result in workload.shown if result.summary]
    others = workload.metrics[1:]
    if not shown or not others:
        return []
    headings, names = row_names(workload, shown)
    columns, cells = [], []
    for metric in others:
        summaries = [result.summary.get(metric.name) for result in shown]
        unit = figures.table_unit(metric.unit, (summary.mean for summary in summaries if summary))
        columns.append(Column(figures.heading(metric, unit), (Align.POINT, Align.LEFT)))
        cells.append([_cell(result, metric, unit) for result in shown])
    rows = tuple(
        Row(name, tuple(column[position] for column in cells)) for position, name in enumerate(names)
    )
    return [
        Table(
            f"Further metrics of {workload.title}",
            headings,
            tuple(columns),
            rows,
            divisible=True,
            legend=(line(LEGEND),),
        )
    ]


def _cell(result: CellResult, metric: Metric, unit: figures.Unit) -> Cell:
    summary = result.summary.get(metric.name)
    if summary is None:
        return figure("–")
    mean = short_mean(summary, unit)
    comparison = result.comparison.get(metric.name)
    if comparison is None or comparison.ratio is None:
        return figure(mean)
    places = figures.ratio_decimals(comparison.ratio, comparison.ci)
    if comparison.ratio >= 0.095:
        places = min(places, 2)
    against = f"×{figures.number(comparison.ratio, places)}{mark(comparison)}"
    return figure(mean, against, last=tone(comparison))


def short_mean(summary: Summary, unit: figures.Unit) -> str:
    """A mean among others: at most five digits, however narrow its interval."""
    half = None if summary.ci is None else (summary.ci[1] - summary.ci[0]) / 2 / unit.size
    value = summary.mean / unit.size
    return figures.number(value, min(figures.decimals(half, value), figures.decimals(None, value) + 2))
