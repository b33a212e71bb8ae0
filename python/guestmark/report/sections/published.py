"""Published figures beside the measured ones, each with its ratio to its own baseline."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import chain

from guestmark.core.metric import Metric
from guestmark.core.model import Cell as PlanCell
from guestmark.core.model import CellStatus, Plan, Published, PublishedFigure
from guestmark.core.units import compute_unit_size
from guestmark.ledger.model import StoredRun
from guestmark.page import figures
from guestmark.page.names import name_across_workloads, name_rows
from guestmark.page.nodes import Bullets, Node
from guestmark.page.tables import (
    Align,
    Cell,
    Table,
    TableBuilder,
    make_figure_cell,
    make_grid_table,
    make_word_cell,
)
from guestmark.page.text import line
from guestmark.report.sections.verdict_words import BOUNDED_LEGEND, BOUNDED_SIGN
from guestmark.stats.analysis import Analysis, CellResult, WorkloadResult
from guestmark.stats.compare import Comparison
from guestmark.stats.published import (
    PublishedRatio,
    Repetition,
    compute_ratio_to_baseline,
    convert_ratio,
    find_figure,
    group_published_ratios,
    is_about,
)

_MEANING = {
    "time": "change: relative to the baseline's time; +6 % takes 6 % longer, −50 % half as long",
    "throughput": "change: relative to the baseline's throughput; +6 % moves 6 % more per second, −50 % half as much",
}
SIGNS = {
    Repetition.SAME: "✓",
    Repetition.DIRECTION: "~",
    Repetition.OPPOSITE: "✗",
    Repetition.EQUAL: "✗",
    Repetition.DIFFERS: "✗",
    Repetition.BOUNDED: BOUNDED_SIGN,
    Repetition.EXCLUDED: "✗",
    Repetition.OPEN: "?",
}
_SIGNS_LEGEND = f"✓ agrees   ~ by another factor   {BOUNDED_LEGEND}   ✗ disagrees   ? open"


@dataclass(frozen=True, slots=True)
class _Pair:
    """A cell and the published figure about it, or None."""

    result: CellResult
    figure: PublishedFigure | None


def make_tables(workload: WorkloadResult, run: StoredRun) -> Sequence[Node]:
    """Return a table for each publication that has figures for this workload's cells."""
    cells = [result for result in workload.cells if result.cell.null_of is None]
    tables = []
    for published in run.plan.published:
        pairs = [_Pair(result, find_figure(result.cell, published)) for result in cells]
        if any(pair.figure for pair in pairs):
            tables.append(_make_publication_table(workload, pairs, published, run.plan))
    return tables


def _make_publication_table(
    workload: WorkloadResult, pairs: Sequence[_Pair], published: Published, plan: Plan
) -> Table:
    metric = _find_metric(published, plan)
    unit = figures.Unit(compute_unit_size(published.unit, metric.unit), published.unit)
    now = [_find_measured_ratio(pair.result, metric) for pair in pairs]
    then = [compute_ratio_to_baseline(pair.figure) for pair in pairs]
    table = TableBuilder(*name_rows(workload, [pair.result for pair in pairs]))
    values = [_make_measured_cell(pair.result, metric, unit) for pair in pairs]
    for label, column, ratios in (
        ("now", values, now),
        ("then", [_make_published_cell(pair.figure) for pair in pairs], then),
    ):
        changes = [_make_change_cell(ratio, published.percent_of, metric) for ratio in ratios]
        table.add(f"{label}, {unit.name}", column, (Align.POINT,))
        table.add("×base", map(_make_short_ratio_cell, ratios), (Align.POINT,))
        table.add("change", changes, (Align.RIGHT,))
    title = f"Then and now: {figures.format_column_heading(metric, unit)}"
    if published.name:
        title += f" ({published.name})"
    legend = tuple(map(line, _explain_publication(pairs, published, plan)))
    return table.build(title, heading=title, legend=legend)


def _explain_publication(pairs: Sequence[_Pair], published: Published, plan: Plan) -> list[str]:
    remarks = [f"then: {published.source}"]
    if published.conditions:
        remarks.append(published.conditions)
    remarks.append(f"×base: {published.metric} relative to the baseline; then: to the publication's own")
    ours = _find_baseline_cell(pairs)
    if ours is not None and published.baseline and not is_about(published.baseline, ours):
        theirs = _format_levels(published.baseline)
        remarks.append(f"the baselines differ, now {ours.id}, then {theirs}: the ratios are not comparable")
    remarks.append(_MEANING[published.percent_of])
    if (scale := plan.context.scale) != 1.0:
        remarks.append(
            f"this run is at scale {scale:g}, the published one at full size: compare ratios, not seconds"
        )
    return remarks


def _find_baseline_cell(pairs: Sequence[_Pair]) -> PlanCell | None:
    for pair in pairs:
        if pair.result.cell.baseline:
            return pair.result.cell
    return None


def _format_levels(levels: Mapping[str, str]) -> str:
    return " ".join(f"{name}={level}" for name, level in levels.items())


def make_overview(analysis: Analysis) -> Table | None:
    """Return every published comparison of cells of this run: today's ratio, whether it agrees, and the published one.

    The table has a row for each kind of cell and a column for each platform. Its title has the metric of most ratios;
    a row of another one says which. Publications that give the same figures in
    another unit are shown once; None if no figure is about these cells.
    """
    plan = analysis.plan
    rows: dict[tuple[str, str], PublishedRatio] = {}
    groups = group_published_ratios(analysis)
    if not groups:
        return None
    most_frequent = figures.name_most_frequent_metric(
        _find_metric(ratio.published, plan) for ratio in chain.from_iterable(groups)
    )
    for ratios in groups:
        published = ratios[0].published
        names = name_across_workloads([ratio.result for ratio in ratios])
        if (metric := figures.name_metric(_find_metric(published, plan))) != most_frequent:
            names = {cell: f"{name}, {metric}" for cell, name in names.items()}
        names = _distinguish_names(names, published, {name for name, _ in rows})
        for ratio in ratios:
            cell = ratio.result.cell
            rows[names[cell.id], str(cell.platform)] = ratio
    sources = dict.fromkeys(ratios[0].published.source for ratios in groups)
    legend = [_SIGNS_LEGEND, *(f"then: {source}" for source in sources)]
    size = "" if plan.context.scale == 1.0 else f" (at scale {plan.context.scale:g})"
    title = f"Then and now{size}, ×base ({most_frequent})"
    return _make_overview_table(title, rows, plan.policy.margin, legend)


def make_document(analysis: Analysis) -> list[dict[str, object]]:
    """Return the ratios of `make_overview` and whether today's agree, as plain dicts."""
    return [
        {
            "source": ratio.published.source,
            "name": ratio.published.name,
            "metric": ratio.published.metric,
            "cell": ratio.result.cell.id,
            "ratio": ratio.then,
            "verdict": ratio.judge(analysis.plan.policy.margin).value,
        }
        for ratio in chain.from_iterable(group_published_ratios(analysis))
    ]


def _distinguish_names(names: dict[str, str], published: Published, used: Set[str]) -> dict[str, str]:
    """Return each cell's row name; the publication's name, then its source, is added if another row is called that."""
    told = names
    for label in (published.name, published.source):
        if used.isdisjoint(told.values()):
            break
        if label:
            told = {cell: f"{name}, {label}" for cell, name in told.items()}
    return told


def _find_metric(published: Published, plan: Plan) -> Metric:
    """Return the metric of the publication's figures, also if the plan does not know it."""
    return plan.find_metric(published.metric) or Metric(published.metric, published.unit)


def _make_overview_table(
    title: str,
    ratios: dict[tuple[str, str], PublishedRatio],
    margin: float,
    legend: Sequence[str],
) -> Table:
    columns = list(dict.fromkeys(platform for _, platform in ratios))
    published: dict[str, set[float]] = {}
    for (name, _), ratio in ratios.items():
        published.setdefault(name, set()).add(ratio.then)
    # Where all platforms of a row have the same published ratio, one column is enough for it.
    in_column = all(len(then) == 1 for then in published.values())
    cells = {}
    for at, ratio in ratios.items():
        pieces = [_format_ratio_today(ratio.now), SIGNS[ratio.judge(margin)]]
        if not in_column:
            pieces.append(figures.format_short_ratio(ratio.then))
        cells[at] = make_figure_cell(*pieces)
    aligned: tuple[Align, ...] = (Align.POINT, Align.LEFT, Align.POINT)
    if in_column:
        aligned = aligned[:2]
        columns.append("then")
        for name, (then,) in published.items():
            cells[name, "then"] = make_figure_cell(figures.format_short_ratio(then))
    return make_grid_table(title, columns, aligned, cells, tuple(map(line, legend)))


def _format_ratio_today(comparison: Comparison | None) -> str:
    if comparison is None or comparison.ratio is None:
        return "–"
    return figures.format_ratio_pieces(comparison.ratio, comparison.ci)[0]


def _make_measured_cell(result: CellResult, metric: Metric, unit: figures.Unit) -> Cell:
    summary = result.summary.get(metric.name)
    if summary is None:
        return make_word_cell("–" if result.status is CellStatus.OK else result.status.value)
    return make_figure_cell(figures.format_estimate(summary.typical, summary.typical_ci, unit)[0])


def _make_published_cell(published: PublishedFigure | None) -> Cell:
    return make_figure_cell("–" if published is None else _format_published(published))


def _format_published(published: PublishedFigure) -> str:
    return figures.format_number(published.value, figures.count_published_decimals(published.value))


def _find_measured_ratio(result: CellResult, metric: Metric) -> float | None:
    if result.cell.baseline:
        return 1.0 if metric.name in result.summary else None
    comparison = result.comparison.get(metric.name)
    return None if comparison is None else comparison.ratio


def _make_short_ratio_cell(ratio: float | None) -> Cell:
    return make_figure_cell("–" if ratio is None else figures.format_short_ratio(ratio))


def _make_change_cell(ratio: float | None, percent_of: str, metric: Metric) -> Cell:
    if ratio is None or ratio <= 0:
        return make_figure_cell("–")
    return make_figure_cell(figures.format_change(convert_ratio(ratio, percent_of, metric.better)))


def list_unmeasured(analysis: Analysis) -> list[Bullets]:
    """Return the published figures about cells that this run lacks, so that none is hidden."""
    lists = []
    for published in analysis.plan.published:
        used = [find_figure(result.cell, published) for result in analysis.cells]
        items = []
        for each in published.figures:
            if any(each is other for other in used):
                continue
            text = f"{_format_levels(each.cell)}: {_format_published(each)} {published.unit}"
            items.append(line(text))
        if items:
            where = f" ({published.name})" if published.name else ""
            lists.append(Bullets(line(f"Published{where}, not measured in this run:"), tuple(items)))
    return lists
