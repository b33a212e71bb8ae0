"""The trials behind the means: their distribution, their course over the blocks, and two factors as a matrix."""

from collections.abc import Sequence
from itertools import product

import numpy as np

from guestmark.core.metric import Better, Metric
from guestmark.ledger.model import StoredRun
from guestmark.page import figures
from guestmark.page.charts import Series, SeriesRow, Spread, SpreadRow
from guestmark.page.names import brief, label, platform, row_names, varying
from guestmark.page.nodes import Chart, Matrix, MatrixCell, Node
from guestmark.page.tables import Align, Column, Row, Table, figure
from guestmark.page.text import Tone, line
from guestmark.report.sections.verdicts import mark, tone
from guestmark.stats.analysis import CellResult, WorkloadResult
from guestmark.stats.noise import find_disturbed_blocks
from guestmark.stats.pairwise import values_by_block

_TICKS = "▁▂▃▄▅▆▇█"
_FEWEST = 3  # the fewest blocks that show a spread
_WIDEST = 40  # the most blocks drawn one by one; beyond that, neighbours are averaged


def sections(workload: WorkloadResult, run: StoredRun) -> Sequence[Node]:
    """The matrix where exactly two things vary, the spread of the trials as a table and two charts."""
    if not workload.metrics:
        return []
    metric = workload.metrics[0]
    shown = [result for result in workload.shown_cells if metric.name in result.summary]
    return [*_matrix(workload, shown, metric), *_spread(workload, shown, metric, run)]


# --- spread and series --------------------------------------------------------------------------------------


def _spread(
    workload: WorkloadResult, shown: Sequence[CellResult], metric: Metric, run: StoredRun
) -> list[Node]:
    found = {result.cell.id: values_by_block(result.trials, metric.name) for result in shown}
    blocks = sorted({block for values in found.values() for block in values})
    if len(blocks) < _FEWEST or not shown:
        return []
    unit = figures.table_unit(metric.unit, [result.summary[metric.name].typical for result in shown])
    headings, names = row_names(workload, shown)
    rows = []
    for result, name in zip(shown, names, strict=True):
        values = found[result.cell.id]
        ends = np.quantile(list(values.values()), (0, 0.25, 0.5, 0.75, 1)) / unit.size
        half = (ends[4] - ends[0]) / 20  # a twentieth of the range can be told apart
        places = [min(figures.decimals(half, end), figures.decimals(None, end) + 1) for end in ends]
        texts = [figures.number(float(end), each) for end, each in zip(ends, places, strict=True)]
        ticks = sparkline([values.get(block) for block in blocks])
        rows.append(Row(name, (*(figure(text) for text in texts), figure(ticks))))
    columns = [Column(heading, (Align.POINT,)) for heading in ("lowest", "25 %", "median", "75 %", "highest")]
    heading = figures.heading(metric, unit)
    several = f"; {-(-len(blocks) // _WIDEST)} blocks in one sign" if len(blocks) > _WIDEST else ""
    disturbed = _disturbed(run)
    everywhere = len(disturbed) == len({trial.block for trial in run.trials})
    table = Table(
        f"Spread of {heading}, over trials",
        headings,
        (*columns, Column("block by block")),
        tuple(rows),
        divisible=True,
        legend=(line(f"block by block: from each row's own lowest to its own highest{several}"),),
        heading=f"Trials: {heading}",
    )
    said = "; ".join(
        f"{result.cell.id} from {row.cells[0].text} to {row.cells[4].text}, median {row.cells[2].text}"
        for result, row in zip(shown, rows, strict=True)
    )
    return [
        table,
        Chart(
            f"Distribution of the trials: {heading}",
            "A dot for each trial; the box holds the middle half, the line is the median.",
            f"{heading}, lowest to highest: {said}.",
            Spread(
                tuple(
                    SpreadRow(
                        brief(result, workload),
                        row.cells[2].text,
                        tuple(value / unit.size for value in found[result.cell.id].values()),
                    )
                    for result, row in zip(shown, rows, strict=True)
                ),
                heading,
            ),
        ),
        Chart(
            "Block by block, each cell against its own median",
            "Cells that move together were moved by the host."
            + (" In every block the host was disturbed." if everywhere else "")
            + (" Shaded blocks: the host was disturbed." if disturbed and not everywhere else ""),
            f"{heading} over {len(blocks)} blocks: {said}.",
            Series(
                tuple(
                    SeriesRow(
                        brief(result, workload),
                        f"{row.cells[0].text} to {row.cells[4].text}",
                        tuple((block + 1, value / median) for block, value in sorted(values.items())),
                    )
                    for result, row in zip(shown, rows, strict=True)
                    if (values := found[result.cell.id])
                    and (median := float(np.median(list(values.values())))) > 0
                ),
                () if everywhere else disturbed,
                "value / median of its cell",
            ),
        ),
    ]


def _disturbed(run: StoredRun) -> tuple[int, ...]:
    known = [trial for trial in run.trials if trial.cell_id in {cell.id for cell in run.plan.cells}]
    flagged, _ = find_disturbed_blocks(known, sorted({trial.block for trial in known}))
    return tuple(block + 1 for block in flagged)


def sparkline(values: Sequence[float | None]) -> str:
    """A sign for each value, from the lowest to the highest of them; `·` where there is none.

    More than `_WIDEST` values are drawn as the means of neighbours.
    """
    step = -(-len(values) // _WIDEST)
    means: list[float | None] = []
    for start in range(0, len(values), step):
        near = [value for value in values[start : start + step] if value is not None]
        means.append(sum(near) / len(near) if near else None)
    there = [mean for mean in means if mean is not None]
    if not there:
        return "·" * len(means)
    low, high = min(there), max(there)
    span = high - low
    if not span > 1e-12 * max(abs(low), abs(high)):
        return "".join("·" if mean is None else _TICKS[3] for mean in means)
    return "".join("·" if mean is None else _TICKS[min(int((mean - low) / span * 8), 7)] for mean in means)


# --- two factors against each other -------------------------------------------------------------------------


def _matrix(workload: WorkloadResult, shown: Sequence[CellResult], metric: Metric) -> list[Matrix]:
    factors = varying([result for result in shown if result.cell.null_of is None])
    cells = [
        result
        for result in shown
        if result.cell.null_of is None and all(name in result.cell.factors for name in factors)
    ]
    axes: list[tuple[str, dict[str, str]]] = [
        (name, {result.cell.id: result.cell.factors[name] for result in cells}) for name in factors
    ]
    axes.insert(0, ("platform", {result.cell.id: platform(result.cell) for result in cells}))
    axes.insert(0, ("workload", {result.cell.id: label(result) for result in cells}))
    axes = [(name, levels) for name, levels in axes if len(set(levels.values())) > 1]
    if len(axes) != 2:
        return []
    (row_factor, row_of), (column_factor, column_of) = axes
    rows, columns = (tuple(dict.fromkeys(levels.values())) for levels in (row_of, column_of))
    found = {(row_of[result.cell.id], column_of[result.cell.id]): result for result in cells}
    if len(found) != len(cells) or len(cells) < 0.7 * len(rows) * len(columns) or len(cells) < 4:
        return []
    heats = {at: _heat(result, metric) for at, result in found.items()}
    most = max((abs(heat) for heat in heats.values() if heat is not None), default=0.0) or 1.0
    made = {at: _matrix_cell(result, metric, heats[at], most) for at, result in found.items()}
    empty = MatrixCell("–")
    at_all = {at: made.get(at, empty) for at in product(rows, columns)}
    baseline = workload.baseline.cell.id if workload.baseline else "the baseline"
    return [
        Matrix(
            f"Ratios to {baseline}: {row_factor} against {column_factor}",
            row_factor,
            column_factor,
            rows,
            columns,
            tuple(tuple(at_all[row, column] for column in columns) for row in rows),
        )
    ]


def _heat(result: CellResult, metric: Metric) -> float | None:
    """How much worse than the baseline, as the logarithm of the ratio."""
    if result.cell.baseline:
        return 0.0
    comparison = result.comparison.get(metric.name)
    if comparison is None or not comparison.ratio or comparison.ratio <= 0:
        return None
    worse = float(np.log(comparison.ratio))
    return -worse if metric.better is Better.HIGHER else worse


def _matrix_cell(result: CellResult, metric: Metric, heat: float | None, most: float) -> MatrixCell:
    if result.cell.baseline:
        return MatrixCell("baseline", Tone.STRONG, 0.0)
    comparison = result.comparison.get(metric.name)
    if comparison is None or comparison.ratio is None:
        return MatrixCell("–")
    shown = figures.ratio(comparison.ratio, comparison.ci).partition(" ")[0]
    return MatrixCell(
        f"{shown}{mark(comparison)}",
        tone(comparison),
        None if heat is None else heat / most,
    )
