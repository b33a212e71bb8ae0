"""The result itself: each cell's primary metric, its ratio to the baseline, and the verdict."""

from collections.abc import Sequence

from guestmark.core.metric import Metric
from guestmark.core.model import CellStatus, Trial
from guestmark.ledger.model import StoredRun
from guestmark.page import figures
from guestmark.page.charts import RatioRow, Ratios
from guestmark.page.names import brief, row_names, spoken
from guestmark.page.nodes import Chart, Node, Note
from guestmark.page.tables import Align, Cell, Column, Row, Table, figure, words
from guestmark.page.text import Tone, line
from guestmark.report.sections import places
from guestmark.report.sections.durability import DISK_MEANING, MEANING, durability, of_disk
from guestmark.report.sections.verdicts import LEGEND, mark, tone, word
from guestmark.stats.analysis import CellResult, WorkloadResult
from guestmark.stats.compare import Comparison
from guestmark.stats.paired import Summary
from guestmark.stats.pairwise import values_by_block

ESTIMATE = (Align.POINT, Align.LEFT, Align.POINT)  # 1.24 ± 0.04
RATIO = (Align.POINT, Align.LEFT)  # ×1.05 [1.04, 1.06]


def sections(workload: WorkloadResult, run: StoredRun) -> Sequence[Node]:
    """The table of the primary metric, and the ratios as a chart."""
    if not workload.metrics:
        return []
    return [table(workload), *units(workload), *_chart(workload)]


def table(workload: WorkloadResult) -> Table:
    """The table of the primary metric, of all cells whose platform can be used."""
    metric = workload.metrics[0]
    shown = [result for result in workload.shown_cells if result.status is not CellStatus.UNUSABLE]
    summaries = [result.summary.get(metric.name) for result in shown]
    unit = figures.table_unit(metric.unit, [summary.typical for summary in summaries if summary])
    largest = max((summary.typical for summary in summaries if summary), default=0.0)
    durable = [durability(result) for result in shown]
    headings, names = row_names(workload, shown)
    columns = [Column(figures.heading(metric, unit), ESTIMATE), Column(_versus(workload), RATIO)]
    columns += [Column("durability")] if any(durable) else []
    below = [of_disk(result) for result in shown]
    columns += [Column("its disk")] if any(below) else []
    beside = _beside(shown)
    # Where a table is too wide its last columns go below it, so the verdict comes before what explains it.
    columns += [Column("", bar=True), Column("verdict"), *(Column(heading) for heading in beside)]
    rows = []
    for index, (result, name, summary, reached) in enumerate(
        zip(shown, names, summaries, durable, strict=True)
    ):
        comparison = result.comparison.get(metric.name)
        cells = [estimate(result, metric, unit), _ratio(result, comparison)]
        cells += [words(reached)] if any(durable) else []
        cells += [words(below[index])] if any(below) else []
        share = summary.typical / largest if summary and largest > 0 else None
        cells += [Cell(bar=share), _verdict(comparison, metric)]
        cells += [words(said[index]) for said in beside.values()]
        rows.append(Row(name, tuple(cells), strong=result.cell.baseline, soft=summary is None))
    return Table(
        f"{figures.heading(metric, unit)} of {workload.title}, with ratios to the baseline",
        headings,
        tuple(columns),
        tuple(rows),
    )


def _beside(shown: Sequence[CellResult]) -> dict[str, list[str]]:
    """Columns for what should be equal in cells that are compared, where it is not."""
    columns = {
        "processors": [str(places.processors(result) or "") for result in shown],
        "where": [places.storage(result) for result in shown],
        "binary": [places.build(result) for result in shown],
    }
    return {heading: said for heading, said in columns.items() if len(set(filter(None, said))) > 1}


def _versus(workload: WorkloadResult) -> str:
    if workload.baseline is None:
        return ""
    name = spoken(workload)[workload.baseline.cell.id]
    return f"vs {name}" if len(name) <= 20 else "vs baseline"


def estimate(result: CellResult, metric: Metric, unit: figures.Unit, failed: Tone = Tone.PLAIN) -> Cell:
    """A cell's typical value with half of its interval; its status, in the tone `failed`, where it has no figure."""
    summary = result.summary.get(metric.name)
    if summary is None:
        return words(result.status.value, failed)
    return figure(*figures.spread(summary.typical, summary.typical_ci, unit))


def _ratio(result: CellResult, comparison: Comparison | None) -> Cell:
    if result.cell.baseline:
        return words("baseline")
    if comparison is None or comparison.ratio is None:
        return Cell()
    value, _, interval = figures.ratio(comparison.ratio, comparison.ci).partition(" ")
    return figure(value, interval) if interval else figure(value)


def _verdict(comparison: Comparison | None, metric: Metric) -> Cell:
    if comparison is None:
        return Cell()
    return words(word(comparison, metric), tone(comparison), comparison.reason)


def units(workload: WorkloadResult) -> list[Note]:
    """Explains units that people understand differently."""
    said = ["1 MB = 10^6 bytes"] if any(metric.unit == "B/s" for metric in workload.metrics) else []
    if any(durability(result) for result in workload.shown_cells):
        said.append(MEANING)
    if any(of_disk(result) for result in workload.shown_cells):
        said.append(DISK_MEANING)
    stored = {where for result in workload.shown_cells if (where := places.storage(result))}
    if len(stored) == 1:  # otherwise the table has a column
        said.append(f"disks {stored.pop()}")
    said += _ran_on(workload)
    return [Note(line("; ".join(said)))] if said else []


def _ran_on(workload: WorkloadResult) -> list[str]:
    """On which mounts commands ran; with their cells where these are several."""
    found: dict[str, list[str]] = {}
    for result in workload.shown_cells:
        if where := places.ran_on(result):
            found.setdefault(where, []).append(result.cell.id)
    if len(found) == 1:
        return [f"ran on {next(iter(found))}"]
    return [f"{', '.join(ids)} ran on {where}" for where, ids in found.items()]


# --- the chart: for every cell the ratio of each block, and the interval of their mean --------------------------------


def _chart(workload: WorkloadResult) -> list[Chart]:
    metric = workload.metrics[0]
    rows = [result for result in workload.cells if _comparable(result, metric.name)]
    by_id = {result.cell.id: result for result in workload.cells}
    baseline = workload.baseline
    if not rows or baseline is None:
        return []
    drawn, said = [], []
    for result in rows:
        comparison = result.comparison[metric.name]
        reference = by_id.get(result.cell.null_of or "", baseline)
        ratios = block_ratios(reference.trials, result.trials, metric.name)
        ratio = comparison.ratio or 1.0
        drawn.append(
            RatioRow(
                brief(result, workload),
                tone(comparison),
                tuple((block + 1, value) for block, value in ratios.items()),
                ratio,
                figures.ratio(ratio, comparison.ci),
                comparison.ci,
            )
        )
        said.append(f"{spoken(workload)[result.cell.id]} {figures.ratio(ratio, comparison.ci)}")
    floor = workload.noise_floors.get(metric.name)
    to = spoken(workload)[baseline.cell.id]
    name = figures.heading(metric, figures.Unit(1.0, ""))
    nulls = " Null cells are compared with the cells they copy." if workload.null_cells else ""
    band = " The band is how far copies of one cell differed, or may have." if floor is not None else ""
    caption = f"A dot for each block, a bar for the 95 % interval of the ratio.{band}{nulls}"
    return [
        Chart(
            f"{name} against {to}",
            caption,
            f"Ratios to {to}: {'; '.join(said)}.",
            Ratios(tuple(drawn), floor, f"{name}, ratio"),
        )
    ]


def _comparable(result: CellResult, metric: str) -> bool:
    return metric in result.comparison and result.comparison[metric].ratio is not None


def block_ratios(reference: Sequence[Trial], trials: Sequence[Trial], metric: str) -> dict[int, float]:
    """Ratio of `trials` to `reference` in every block that has both, by block; values not above zero are left out."""
    base, cell = values_by_block(reference, metric), values_by_block(trials, metric)
    return {
        block: cell[block] / base[block] for block in sorted(cell) if base.get(block, 0) > 0 < cell[block]
    }


def further(workload: WorkloadResult, run: StoredRun) -> Sequence[Node]:
    """The other metrics: one table with each cell's mean and how it compares."""
    shown = [result for result in workload.shown_cells if result.summary]
    others = workload.metrics[1:]
    if not shown or not others:
        return []
    headings, names = row_names(workload, shown)
    columns, cells = [], []
    for metric in others:
        summaries = [result.summary.get(metric.name) for result in shown]
        unit = figures.table_unit(metric.unit, (summary.typical for summary in summaries if summary))
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
    mean = _short_mean(summary, unit)
    comparison = result.comparison.get(metric.name)
    if comparison is None or comparison.ratio is None:
        return figure(mean)
    places = figures.ratio_decimals(comparison.ratio, comparison.ci)
    if comparison.ratio >= 0.095:
        places = min(places, 2)
    against = f"×{figures.number(comparison.ratio, places)}{mark(comparison)}"
    return figure(mean, against, last=tone(comparison))


def _short_mean(summary: Summary, unit: figures.Unit) -> str:
    """A mean among others: at most five digits, however narrow its interval."""
    half = None if summary.ci is None else (summary.ci[1] - summary.ci[0]) / 2 / unit.size
    value = summary.typical / unit.size
    return figures.number(value, min(figures.decimals(half, value), figures.decimals(None, value) + 2))
