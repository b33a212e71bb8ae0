"""The result itself: each cell's primary metric, its ratio to the baseline, and the verdict."""

from collections.abc import Sequence

from guestmark.core.metric import Metric
from guestmark.core.model import CellStatus
from guestmark.ledger.model import StoredRun
from guestmark.page import figures
from guestmark.page.charts import RatioRow, Ratios
from guestmark.page.names import name_in_charts, name_in_sentences, name_rows
from guestmark.page.nodes import Chart, Node, Note
from guestmark.page.tables import Align, Cell, Table, TableBuilder, make_figure_cell, make_word_cell
from guestmark.page.text import Tone, line
from guestmark.report.sections import locations
from guestmark.report.sections.durability import DISK_MEANING, MEANING
from guestmark.report.sections.verdict_words import LEGEND, choose_verdict_tone, format_verdict, mark_verdict
from guestmark.stats.analysis import CellResult, WorkloadResult
from guestmark.stats.durability import describe_disk_durability, describe_row_durability
from guestmark.stats.paired import Summary
from guestmark.stats.pairwise import list_block_ratios

ESTIMATE = (Align.POINT, Align.LEFT, Align.POINT)  # 1.24 ± 0.04
RATIO = (Align.POINT, Align.LEFT)  # ×1.05 [1.04, 1.06]
_LONGEST_BASELINE = 20  # characters of its name in a heading
_NO_UNIT = figures.Unit(1.0, "")  # of a ratio


def make_nodes(workload: WorkloadResult, run: StoredRun) -> Sequence[Node]:
    """Return the table of the primary metric, what its units mean, and the ratios as a chart."""
    if not workload.metrics:
        return []
    return [make_table(workload), *explain_units(workload), *_make_ratio_charts(workload)]


def make_table(workload: WorkloadResult) -> Table:
    """Return the table of the primary metric, with all cells whose platform is usable."""
    metric = workload.metrics[0]
    shown = [result for result in workload.shown_cells if result.status is not CellStatus.UNUSABLE]
    typical = [find_typical_value(result, metric) or 0 for result in shown]
    unit = figures.choose_table_unit(metric.unit, typical)
    largest = max(typical, default=0.0)
    table = TableBuilder(*name_rows(workload, shown))
    estimates = [make_estimate_cell(result, metric, unit) for result in shown]
    table.add(figures.format_column_heading(metric, unit), estimates, ESTIMATE)
    ratios = [_make_ratio_cell(result, metric) for result in shown]
    table.add(_format_baseline_heading(workload), ratios, RATIO)
    add_durability_columns(table, shown)
    # If a table is too wide, its last columns go below it, so the verdict precedes the columns that explain it.
    table.add("", [_make_bar_cell(result, metric, largest) for result in shown], bar=True)
    table.add("verdict", [_make_verdict_cell(result, metric) for result in shown])
    for heading, texts in _list_unequal_circumstances(shown).items():
        table.add_words(heading, texts)
    return table.build(
        f"{figures.format_column_heading(metric, unit)} of {workload.title}, with ratios to the baseline",
        strong=find_baseline_rows(shown),
        soft=find_unmeasured_rows(shown, metric),
    )


def find_typical_value(result: CellResult, metric: Metric) -> float | None:
    """Return a cell's typical value in a metric; None if it was not measured."""
    summary = result.summary.get(metric.name)
    return None if summary is None else summary.typical


def add_durability_columns(table: TableBuilder, shown: Sequence[CellResult]) -> None:
    """Add columns on how durable the rows' flushed writes and their disks are, if anything is known."""
    table.add_words("durability", [describe_row_durability(result) for result in shown])
    table.add_words("its disk", [describe_disk_durability(result) for result in shown])


def find_baseline_rows(shown: Sequence[CellResult]) -> list[int]:
    """Return the positions of baselines among the rows."""
    return [position for position, result in enumerate(shown) if result.cell.baseline]


def find_unmeasured_rows(shown: Sequence[CellResult], metric: Metric) -> list[int]:
    """Return the positions of rows without a value."""
    return [position for position, result in enumerate(shown) if metric.name not in result.summary]


def _make_bar_cell(result: CellResult, metric: Metric, largest: float) -> Cell:
    value = find_typical_value(result, metric)
    if value is None or not largest > 0:
        return Cell()
    return Cell(bar=value / largest)


def _list_unequal_circumstances(shown: Sequence[CellResult]) -> dict[str, list[str]]:
    """Return columns for circumstances that should be equal in compared cells and are not."""
    columns = {
        "processors": [str(locations.count_processors(result) or "") for result in shown],
        "where": [locations.describe_storage(result) for result in shown],
        "binary": [locations.describe_build(result) for result in shown],
    }
    return {heading: texts for heading, texts in columns.items() if len(set(filter(None, texts))) > 1}


def _format_baseline_heading(workload: WorkloadResult) -> str:
    if workload.baseline is None:
        return ""
    name = name_in_sentences(workload)[workload.baseline.cell.id]
    if len(name) > _LONGEST_BASELINE:
        return "vs baseline"
    return f"vs {name}"


def make_estimate_cell(
    result: CellResult, metric: Metric, unit: figures.Unit, failed: Tone = Tone.PLAIN
) -> Cell:
    """Return a cell's typical value and the half-width of its interval; else its status, in the tone `failed`."""
    summary = result.summary.get(metric.name)
    if summary is None:
        return make_word_cell(result.status.value, failed)
    return make_figure_cell(*figures.format_estimate_pieces(summary.typical, summary.typical_ci, unit))


def _make_ratio_cell(result: CellResult, metric: Metric) -> Cell:
    if result.cell.baseline:
        return make_word_cell("baseline")
    comparison = result.comparison.get(metric.name)
    if comparison is None or comparison.ratio is None:
        return Cell()
    return make_figure_cell(*figures.format_ratio_pieces(comparison.ratio, comparison.ci))


def _make_verdict_cell(result: CellResult, metric: Metric) -> Cell:
    comparison = result.comparison.get(metric.name)
    if comparison is None:
        return Cell()
    return make_word_cell(
        format_verdict(comparison, metric), choose_verdict_tone(comparison), comparison.reason
    )


def explain_units(workload: WorkloadResult) -> list[Note]:
    """Return a note on ambiguous units and words, and on where disks and commands were."""
    remarks = []
    if any(metric.unit == "B/s" for metric in workload.metrics):
        remarks.append("1 MB = 10^6 bytes")
    if any(describe_row_durability(result) for result in workload.shown_cells):
        remarks.append(MEANING)
    if any(describe_disk_durability(result) for result in workload.shown_cells):
        remarks.append(DISK_MEANING)
    stored = {locations.describe_storage(result) for result in workload.shown_cells}
    stored.discard("")
    # Several places are shown in a column of the table instead.
    if len(stored) == 1:
        remarks.append(f"disks {stored.pop()}")
    remarks += _describe_working_directories(workload)
    if not remarks:
        return []
    return [Note(line("; ".join(remarks)))]


def _describe_working_directories(workload: WorkloadResult) -> list[str]:
    """Return on which mounts commands ran; with their cells where these are several."""
    cells: dict[str, list[str]] = {}
    for result in workload.shown_cells:
        if where := locations.describe_working_directory(result):
            cells.setdefault(where, []).append(result.cell.id)
    if len(cells) == 1:
        return [f"ran on {next(iter(cells))}"]
    return [f"{', '.join(ids)} ran on {where}" for where, ids in cells.items()]


# --- the chart: for every cell the ratio of each block, and the interval of their mean --------------------------------


def _make_ratio_charts(workload: WorkloadResult) -> list[Chart]:
    metric, baseline = workload.metrics[0], workload.baseline
    if baseline is None:
        return []
    names, in_charts = name_in_sentences(workload), name_in_charts(workload)
    by_id = {result.cell.id: result for result in workload.cells}
    rows, texts = [], []
    for result in workload.cells:
        comparison = result.comparison.get(metric.name)
        if comparison is None or comparison.ratio is None:
            continue
        # A copy is compared with the cell it copies: their ratio is noise alone.
        reference = by_id.get(result.cell.null_of or "", baseline)
        blocks = list_block_ratios(reference.trials, result.trials, metric.name)
        text = figures.format_ratio(comparison.ratio, comparison.ci)
        rows.append(
            RatioRow(
                in_charts[result.cell.id],
                choose_verdict_tone(comparison),
                tuple((block + 1, value) for block, value in blocks.items()),
                comparison.ratio,
                text,
                comparison.ci,
            )
        )
        texts.append(f"{names[result.cell.id]} {text}")
    if not rows:
        return []
    floor = workload.noise_floors.get(metric.name)
    reference_name = names[baseline.cell.id]
    name = figures.format_column_heading(metric, _NO_UNIT)
    return [
        Chart(
            f"{name} against {reference_name}",
            _explain_marks(floor, has_copies=bool(workload.null_cells)),
            f"Ratios to {reference_name}: {'; '.join(texts)}.",
            Ratios(tuple(rows), floor, f"{name}, ratio"),
        )
    ]


def _explain_marks(floor: float | None, *, has_copies: bool) -> str:
    caption = "A dot for each block, a bar for the 95 % interval of the ratio."
    if floor is not None:
        caption += " The band shows how far copies of one cell differed, or may have."
    if has_copies:
        caption += " Null cells are compared with the cells they copy."
    return caption


# --- the other metrics --------------------------------------------------------------------------------------


def make_further_tables(workload: WorkloadResult, run: StoredRun) -> Sequence[Node]:
    """Return one table of the other metrics: each cell's mean and how it compares."""
    shown = [result for result in workload.shown_cells if result.summary]
    others = workload.metrics[1:]
    if not shown or not others:
        return []
    table = TableBuilder(*name_rows(workload, shown))
    for metric in others:
        unit = figures.choose_table_unit(
            metric.unit, [find_typical_value(result, metric) for result in shown]
        )
        cells = [_make_further_cell(result, metric, unit) for result in shown]
        table.add(figures.format_column_heading(metric, unit), cells, (Align.POINT, Align.LEFT))
    title = f"Further metrics of {workload.title}"
    return [table.build(title, legend=(line(LEGEND),), divisible=True)]


def _make_further_cell(result: CellResult, metric: Metric, unit: figures.Unit) -> Cell:
    summary = result.summary.get(metric.name)
    if summary is None:
        return make_figure_cell("–")
    mean = _format_short_mean(summary, unit)
    comparison = result.comparison.get(metric.name)
    if comparison is None or comparison.ratio is None:
        return make_figure_cell(mean)
    places = figures.count_ratio_decimals(comparison.ratio, comparison.ci)
    # Beside many other metrics two decimals are enough to see which ones differ.
    if comparison.ratio >= 0.095:
        places = min(places, 2)
    ratio = f"×{figures.format_number(comparison.ratio, places)}{mark_verdict(comparison)}"
    return make_figure_cell(mean, ratio, last=choose_verdict_tone(comparison))


def _format_short_mean(summary: Summary, unit: figures.Unit) -> str:
    """Return a mean among others: at most five digits, however narrow its interval."""
    half = figures.compute_half_width(summary.ci)
    if half is not None:
        half /= unit.size
    value = summary.typical / unit.size
    places = min(figures.count_decimals(half, value), figures.count_decimals(None, value) + 2)
    return figures.format_number(value, places)
