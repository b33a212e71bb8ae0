"""The trials behind the means: their distribution, their course over the blocks, and two factors as a matrix."""

from collections.abc import Sequence

from guestmark.core.metric import Metric
from guestmark.ledger.model import StoredRun
from guestmark.page import figures
from guestmark.page.charts import Series, SeriesRow, Spread, SpreadRow
from guestmark.page.names import (
    format_platform,
    format_workload_label,
    list_factors_that_vary,
    name_in_charts,
    name_rows,
)
from guestmark.page.nodes import Chart, Matrix, MatrixCell, Node
from guestmark.page.tables import Align, Table, TableBuilder, make_figure_cell
from guestmark.page.text import Tone, line
from guestmark.report.sections.verdict_words import choose_verdict_tone, mark_verdict
from guestmark.stats.analysis import CellResult, WorkloadResult
from guestmark.stats.distribution import arrange_matrix, find_quartiles, median
from guestmark.stats.noise import find_disturbed_blocks
from guestmark.stats.pairwise import list_values_by_block

_FEWEST_BLOCKS = 3  # that show a spread
_HEADINGS = ("lowest", "25 %", "median", "75 %", "highest")


def make_nodes(workload: WorkloadResult, run: StoredRun) -> Sequence[Node]:
    """Return the matrix where exactly two things vary, and the spread of the trials as a table and two charts."""
    if not workload.metrics:
        return []
    metric = workload.metrics[0]
    shown = [result for result in workload.shown_cells if metric.name in result.summary]
    return [*_build_matrices(workload, shown, metric), *_SpreadNodes(workload, shown, metric, run).make()]


# --- spread and series --------------------------------------------------------------------------------------


class _SpreadNodes:
    """The table and the charts of one metric over the trials of several cells."""

    def __init__(
        self, workload: WorkloadResult, shown: Sequence[CellResult], metric: Metric, run: StoredRun
    ) -> None:
        self._workload = workload
        self._shown = shown
        self._run = run
        self._values = {result.cell.id: list_values_by_block(result.trials, metric.name) for result in shown}
        self._blocks = sorted(set[int]().union(*self._values.values()))
        typical = [result.summary[metric.name].typical for result in shown]
        self._unit = figures.choose_table_unit(metric.unit, typical)
        self._heading = figures.format_column_heading(metric, self._unit)

    def make(self) -> list[Node]:
        """Return the table and two charts; nothing below three blocks."""
        if len(self._blocks) < _FEWEST_BLOCKS or not self._shown:
            return []
        texts = [self._format_quantiles(result) for result in self._shown]
        ranges = []
        for result, (low, _, middle, _, high) in zip(self._shown, texts, strict=True):
            ranges.append(f"{result.cell.id} from {low} to {high}, median {middle}")
        described = "; ".join(ranges)
        nodes: list[Node] = [self._make_spread_table(texts), self._make_distribution_chart(texts, described)]
        if (course := self._make_course_chart(texts, described)) is not None:
            nodes.append(course)
        return nodes

    def _format_quantiles(self, result: CellResult) -> list[str]:
        quartiles = find_quartiles(list(self._values[result.cell.id].values()))
        ends = [value / self._unit.size for value in quartiles]
        # Enough digits to tell a twentieth of the range apart.
        half = (ends[4] - ends[0]) / 20
        texts = []
        for end in ends:
            places = min(figures.count_decimals(half, end), figures.count_decimals(None, end) + 1)
            texts.append(figures.format_number(end, places))
        return texts

    def _make_spread_table(self, texts: Sequence[Sequence[str]]) -> Table:
        table = TableBuilder(*name_rows(self._workload, self._shown))
        for name, column in zip(_HEADINGS, zip(*texts, strict=True), strict=True):
            table.add(name, map(make_figure_cell, column), (Align.POINT,))
        courses = []
        for values in self._values.values():
            course = [values.get(block) for block in self._blocks]
            courses.append(make_figure_cell(figures.draw_sparkline(course)))
        table.add("block by block", courses)
        legend = "block by block: from each row's own lowest to its own highest"
        if (step := figures.count_values_per_tick(len(self._blocks))) > 1:
            legend += f"; {step} blocks per character"
        return table.build(
            f"Spread of {self._heading}, over trials",
            heading=f"Trials: {self._heading}",
            legend=(line(legend),),
            divisible=True,
        )

    def _make_distribution_chart(self, texts: Sequence[Sequence[str]], described: str) -> Chart:
        names = name_in_charts(self._workload)
        rows = []
        for result, (_, _, middle, _, _) in zip(self._shown, texts, strict=True):
            points = tuple(value / self._unit.size for value in self._values[result.cell.id].values())
            rows.append(SpreadRow(names[result.cell.id], middle, points))
        return Chart(
            f"Distribution of the trials: {self._heading}",
            "A dot for each trial; the box holds the middle half, the line is the median.",
            f"{self._heading}, lowest to highest: {described}.",
            Spread(tuple(rows), self._heading),
        )

    def _make_course_chart(self, texts: Sequence[Sequence[str]], described: str) -> Chart | None:
        """Return the chart; None if no cell has a median above 0 to be shown against."""
        names = name_in_charts(self._workload)
        rows = []
        for result, (low, _, _, _, high) in zip(self._shown, texts, strict=True):
            values = self._values[result.cell.id]
            if not values:
                continue
            middle = median(list(values.values()))
            if middle > 0:
                points = tuple((block + 1, value / middle) for block, value in sorted(values.items()))
                rows.append(SeriesRow(names[result.cell.id], f"{low} to {high}", points))
        if not rows:
            return None
        # Shading every block would show nothing.
        disturbed = _find_disturbed_blocks(self._run)
        caption = "If cells change together, the host caused it."
        if len(disturbed) == len({trial.block for trial in self._run.trials}):
            caption += " The host was disturbed in every block."
            disturbed = ()
        elif disturbed:
            caption += " The host was disturbed in the shaded blocks."
        return Chart(
            "Block by block, each cell against its own median",
            caption,
            f"{self._heading} over {len(self._blocks)} blocks: {described}.",
            Series(tuple(rows), disturbed, "value / median of its cell"),
        )


def _find_disturbed_blocks(run: StoredRun) -> tuple[int, ...]:
    ids = {cell.id for cell in run.plan.cells}
    trials = [trial for trial in run.trials if trial.cell_id in ids]
    flagged, _ = find_disturbed_blocks(trials, sorted({trial.block for trial in trials}))
    return tuple(block + 1 for block in flagged)


# --- two factors against each other -------------------------------------------------------------------------


def _build_matrices(workload: WorkloadResult, shown: Sequence[CellResult], metric: Metric) -> list[Matrix]:
    plain = [result for result in shown if result.cell.null_of is None]
    factors = list_factors_that_vary(plain)
    # A cell without one of the factors has no place in a matrix.
    cells = [result for result in plain if result.cell.factors.keys() >= set(factors)]
    axes = [
        ("workload", {result.cell.id: format_workload_label(result) for result in cells}),
        ("platform", {result.cell.id: format_platform(result.cell) for result in cells}),
    ]
    for name in factors:
        axes.append((name, {result.cell.id: result.cell.factors[name] for result in cells}))
    found = arrange_matrix(axes, cells, metric)
    if found is None:
        return []
    rows = []
    for row in found.row_levels:
        places = []
        for column in found.column_levels:
            at = (row, column)
            place = MatrixCell("–")
            if at in found.cells:
                place = _make_matrix_cell(found.cells[at], metric, found.heats[at])
            places.append(place)
        rows.append(tuple(places))
    baseline = workload.baseline.cell.id if workload.baseline else "the baseline"
    return [
        Matrix(
            f"Ratios to {baseline}: {found.row_factor} against {found.column_factor}",
            found.row_factor,
            found.column_factor,
            found.row_levels,
            found.column_levels,
            tuple(rows),
        )
    ]


def _make_matrix_cell(result: CellResult, metric: Metric, heat: float | None) -> MatrixCell:
    if result.cell.baseline:
        return MatrixCell("baseline", Tone.STRONG, 0.0)
    comparison = result.comparison.get(metric.name)
    if comparison is None or comparison.ratio is None:
        return MatrixCell("–")
    shown = figures.format_ratio_pieces(comparison.ratio, comparison.ci)[0]
    return MatrixCell(f"{shown}{mark_verdict(comparison)}", choose_verdict_tone(comparison), heat)
