"""Nested over bare: what becomes of each backend inside another guest, with intervals."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from rich.text import Text

from guestmark.core.model import Metric, TrialStatus
from guestmark.report import figures
from guestmark.stats.analysis import Analysis, CellResult, WorkloadResult
from guestmark.stats.paired import t_interval

TITLE = "Nested over bare"
HEADING = ("", "", "bare", "nested", "nested over bare")


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
    first, second = _by_block(over, metric), _by_block(under, metric)
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
    """Every nested cell that has the same one bare, in plan order."""
    for workload in analysis.workloads:
        if not workload.metrics:
            continue
        metric = workload.metrics[0]
        for nested in workload.shown:
            bare = _bare(nested, workload.shown)
            if bare is not None:
                yield Pair(workload, metric, bare, nested, ratio(nested, bare, metric.name))


def table(analysis: Analysis) -> list[tuple[str, ...]]:
    """Rows of the table under `HEADING`; none when no backend was measured both ways."""
    return [
        (
            pair.workload.title,
            f"{pair.bare.cell.platform} → {pair.nested.cell.platform}",
            _mean(pair.bare, pair.metric),
            _mean(pair.nested, pair.metric),
            str(pair.ratio),
        )
        for pair in pairs(analysis)
        if pair.ratio is not None
    ]


def nested_over_bare(analysis: Analysis) -> list[Text]:
    """The table as lines; empty when it has no rows."""
    rows = table(analysis)
    if not rows:
        return []
    widths = [max(len(row[column]) for row in (HEADING, *rows)) for column in range(len(HEADING))]
    lines = [Text(TITLE, style="bold")]
    for row in (HEADING, *rows):
        cells = [
            f"{cell:>{width}}" if column in (2, 3) else f"{cell:<{width}}"
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append(Text("  ".join(cells).rstrip(), style="dim" if row is HEADING else "", overflow="fold"))
    return lines


def _bare(nested: CellResult, others: Sequence[CellResult]) -> CellResult | None:
    outer, slash, inner = nested.cell.platform.rpartition("/")
    if not slash or not outer:
        return None
    own = {name: level for name, level in nested.cell.factors.items() if not name.startswith("outer")}
    for other in others:
        cell = other.cell
        same = cell.workload == nested.cell.workload and dict(cell.factors) == own
        if cell.platform == inner and same and cell.null_of is None:
            return other
    return None


def _by_block(result: CellResult, metric: str) -> dict[int, float]:
    return {
        trial.block: one.value
        for trial in result.trials
        if trial.status is TrialStatus.OK
        for one in trial.measurements
        if one.metric.name == metric
    }


def _mean(result: CellResult, metric: Metric) -> str:
    """The mean with its unit; nanoseconds become what reads best."""
    mean, unit = result.summary[metric.name].mean, metric.unit
    if unit == "ns":
        mean, unit = mean / 1e9, "s"
    shown = figures.fitting_unit(unit, [mean])
    value = mean / shown.size
    return f"{figures.number(value, figures.decimals(None, value))} {shown.name}"
