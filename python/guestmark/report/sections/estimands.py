"""How the runs of the cells differ: typical run, total, slow runs and first run, each with its own verdict."""

from collections.abc import Sequence

import numpy as np

from guestmark.core.rare import SLOW
from guestmark.page import figures
from guestmark.page.names import row_names, spoken
from guestmark.page.tables import Align, Cell, Column, Row, Table, figure
from guestmark.page.text import Inline, Span, Tone, line
from guestmark.report.sections.verdicts import LEGEND, mark, tone
from guestmark.stats.analysis import CellResult, WorkloadResult
from guestmark.stats.compare import MIN_BLOCKS, Comparison
from guestmark.stats.estimands import all_runs
from guestmark.stats.tails import CellRuns
from guestmark.stats.total import LARGEST_EVENT
from guestmark.stats.trials import Answers, SlowComparison

_WIDEST = 0.5  # of an interval of shares of runs
_CALLED = (Align.POINT, Align.LEFT, Align.LEFT)  # ×1.05 [1.04, 1.06] *
_TOTALS = (
    "total: of the runs that were measured; its interval, with rare events allowed for, is in the details"
)
_LEGEND = f"slow runs: the share of runs over {SLOW:g} times the cell's own typical run, less the baseline's"


def tables(workload: WorkloadResult, *, details: bool) -> list[Table]:
    """The four answers of each cell, and the figures behind them.

    Without `details` only the first table, and only if it says more than the typical run does.
    """
    answered = [(result, result.answers) for result in workload.shown_cells if result.answers is not None]
    several = [
        (result, answers)
        for result, answers in answered
        if _enough(answers.total) or _known(answers.slow) or answers.first
    ]
    if not several or not (details or any(answers.differing_questions for _, answers in several)):
        return []
    return [_compared(workload, several), *(_runs(workload, several) if details else [])]


def _compared(workload: WorkloadResult, answered: Sequence[tuple[CellResult, Answers]]) -> Table:
    headings, names = row_names(workload, [result for result, _ in answered])
    columns = [Column("typical run", _CALLED)]
    cells = [[_ratio(answers.typical)] for _, answers in answered]
    totals = any(_enough(answers.total) for _, answers in answered)
    if totals:
        columns.append(Column("total", _CALLED))
        for row, (_, answers) in zip(cells, answered, strict=True):
            row.append(_measured(answers.total if _enough(answers.total) else None))
    if any(_known(answers.slow) for _, answers in answered):
        columns.append(Column("slow runs, points", _CALLED))
        for row, (_, answers) in zip(cells, answered, strict=True):
            row.append(_difference(answers.slow if _known(answers.slow) else None))
    if any(answers.first for _, answers in answered):
        columns.append(Column("first run", _CALLED))
        for row, (_, answers) in zip(cells, answered, strict=True):
            row.append(_ratio(answers.first))
    against = "" if workload.baseline is None else f", against {spoken(workload)[workload.baseline.cell.id]}"
    return Table(
        f"How the runs of {workload.title} differ{against}",
        headings,
        tuple(columns),
        tuple(Row(name, tuple(row)) for name, row in zip(names, cells, strict=True)),
        divisible=True,
        legend=(line(LEGEND), line(_LEGEND), *([line(_TOTALS)] if totals else [])),
        heading=f"How the runs differ{against}",
    )


def _enough(comparison: Comparison | None) -> bool:
    """Whether there are as many blocks as say anything of a total."""
    return comparison is not None and comparison.n >= MIN_BLOCKS


def _known(slow: SlowComparison | None) -> bool:
    """Whether anything is known of how often runs are slow: an interval of half of all runs says nothing."""
    return slow is not None and slow.n >= MIN_BLOCKS and slow.ci[1] - slow.ci[0] <= _WIDEST


def _ratio(comparison: Comparison | None) -> Cell:
    if comparison is None or comparison.ratio is None:
        return figure("–")
    value, _, interval = figures.ratio(comparison.ratio, comparison.ci).partition(" ")
    return _called(value, interval, comparison)


def _measured(total: Comparison | None) -> Cell:
    """The ratio of the means without its interval: of so few runs none holds a mean that rare events decide."""
    if total is None or total.ratio is None:
        return figure("–")
    value, _, _ = figures.ratio(total.ratio, total.ci).partition(" ")
    return _called(value, "", total)


def _difference(slow: SlowComparison | None) -> Cell:
    if slow is None:
        return figure("–")
    low, middle, high = (100 * share for share in (slow.ci[0], slow.difference, slow.ci[1]))
    places = min(figures.decimals((high - low) / 2, middle), 1)
    value = f"{'+' if middle > 0 else ''}{figures.number(middle, places)}"
    return _called(value, f"[{figures.number(low, places)}, {figures.number(high, places)}]", slow)


def _called(value: str, interval: str, comparison: Comparison | SlowComparison) -> Cell:
    return figure(*(piece for piece in (value, interval) if piece), mark(comparison), last=tone(comparison))


# --- the figures behind them ------------------------------------------------------------------------------------------


def _runs(workload: WorkloadResult, answered: Sequence[tuple[CellResult, Answers]]) -> list[Table]:
    """All measured runs of each cell, and the total's interval with what so few starts cannot have shown."""
    described: list[tuple[CellResult, CellRuns, Answers | None]] = [
        (result, answers.slow.cell, answers) for result, answers in answered if answers.slow is not None
    ]
    if not described:
        return []
    slow = described[0][2].slow if described[0][2] else None
    if (
        workload.baseline is not None
        and workload.baseline not in (result for result, *_ in described)
        and slow
    ):
        described.insert(0, (workload.baseline, slow.baseline, None))
    metric = workload.metrics[0]
    unit = figures.table_unit(metric.unit, [runs.typical for _, runs, _ in described])
    firsts = [_first(result, metric.name) for result, *_ in described]
    headings, names = row_names(workload, [result for result, *_ in described])
    rows = []
    for name, (result, runs, answers), first in zip(names, described, firsts, strict=True):
        amounts = [runs.typical, runs.total, runs.p95, runs.worst]
        cells = [_amount(amount, unit) for amount in amounts]
        cells += [
            figure(f"{runs.slow} of {runs.iterations}"),
            figure(str(runs.over_twice)),
        ]
        if any(each is not None for each in firsts):
            cells.append(figure("–") if first is None else _amount(first, unit))
        cells.append(_with_unseen(answers))
        rows.append(Row(name, tuple(cells), strong=result.cell.baseline))
    point = (Align.POINT,)
    columns = [Column(heading, point) for heading in ("typical", "mean", "95 % within", "slowest")]
    columns += [Column("slow", (Align.RIGHT,)), Column("over twice", (Align.RIGHT,))]
    columns += [Column("first run", point)] if any(each is not None for each in firsts) else []
    columns.append(Column("total, pessimistic"))
    return [
        Table(
            f"All runs of {workload.title}, {figures.heading(metric, unit)}",
            headings,
            tuple(columns),
            tuple(rows),
            divisible=True,
            legend=_legend(answered),
            heading=f"Runs: {figures.heading(metric, unit)}",
        )
    ]


def _legend(answered: Sequence[tuple[CellResult, Answers]]) -> tuple[Inline, ...]:
    found = [answers.slow for _, answers in answered if answers.slow is not None]
    fewest = min(found, key=lambda slow: slow.n)
    starts, runs = (figures.percent(share) for share in (fewest.unseen.machines, fewest.unseen.iterations))
    said = (
        f"events in fewer than {starts} of starts, or independently in fewer than {runs} of runs, may be missed by "
        f"{fewest.n} starts"
    )
    allowed = f"total, pessimistic: if starts {LARGEST_EVENT:g} times as slow were missed that often"
    return ((Span(said, Tone.SOFT),), (Span(allowed, Tone.SOFT),))


def _amount(value: float, unit: figures.Unit) -> Cell:
    shown = value / unit.size
    return figure(figures.number(shown, figures.decimals(None, shown)))


def _first(result: CellResult, metric: str) -> float | None:
    """The median of the first runs on the cell's fresh machines."""
    runs = [found[0] for trial in result.trials if (found := all_runs(metric, trial))]
    return float(np.median(runs)) if runs else None


def _with_unseen(answers: Answers | None) -> Cell:
    if answers is None or answers.total is None or answers.total.stated_interval is None:
        return Cell()
    low, high = answers.total.stated_interval
    places = figures.ratio_decimals(low, (low, high))
    return figure(f"×{figures.number(low, places)} to ×{figures.number(high, places)}")
