"""A page of all runs: a table of them, and the trends of ratios that were measured more than once."""

from collections.abc import Iterable, Mapping, Sequence

from guestmark.core.units import format_count
from guestmark.ledger.model import RunOverview, SignatureStatus, StoredRatio
from guestmark.ledger.run_history import make_past
from guestmark.page import figures
from guestmark.page.charts import Series, SeriesRow
from guestmark.page.nodes import Chart, Node, Note, Page, Part, Section
from guestmark.page.tables import Align, Column, Row, RowName, Table, make_figure_cell, make_word_cell
from guestmark.page.text import Tone, line
from guestmark.report.past_ratios import format_moment, format_past_ratio, make_past_ratio_cell

FEWEST = 2  # runs in a trend
_MOST_TRENDS = 24  # in the charts; the newest are chosen
_TRENDS_IN_CHART = 6  # trends in one picture
_Trend = list[StoredRatio]  # of one cell on one host, oldest first
_NULL_MARK = "#"  # in the ids of null copies
_TREND_COLUMNS = (
    Column("runs", (Align.RIGHT,)),
    Column("first", (Align.POINT,)),
    Column("last", (Align.POINT, Align.LEFT)),
    Column("last / first", (Align.POINT,)),
    Column("where it changed"),
)
_RUN_COLUMNS = (
    Column("begun"),
    Column("state"),
    Column("workload"),
    Column("platforms"),
    Column("blocks", (Align.RIGHT,)),
    Column("trials", (Align.RIGHT,)),
    Column("failed", (Align.RIGHT,)),
)


def make_page(runs: Sequence[RunOverview], ratios: Iterable[StoredRatio]) -> Page:
    """Return the trends of ratios that these runs share, newest first, then all runs, newest first."""
    known = {run.id: run for run in runs}
    sections = [Section(Part.WORKLOAD, "Trends", tuple(_make_trend_nodes(known, ratios)))]
    if runs:
        sections.append(Section(Part.WORKLOAD, "All runs", (_make_run_table(runs),)))
    return Page(format_count(len(runs), "run"), "", tuple(sections))


def _make_trend_nodes(known: Mapping[str, RunOverview], ratios: Iterable[StoredRatio]) -> list[Node]:
    trends = _find_trends(known, ratios)
    if not trends:
        text = f"No trends yet: they need one ratio on one host in {FEWEST} or more runs of 6 or more blocks."
        return [Note(line(text))]
    by_workload: dict[str, list[_Trend]] = {}
    for trend in trends[:_MOST_TRENDS]:
        by_workload.setdefault(known[trend[-1].run_id].measured, []).append(trend)
    nodes: list[Node] = [_make_trend_table(known, trends)]
    for workload, own in by_workload.items():
        for at in range(0, len(own), _TRENDS_IN_CHART):
            nodes.append(_make_trend_chart(workload, own[at : at + _TRENDS_IN_CHART]))
    if len(trends) > _MOST_TRENDS:
        nodes.append(Note(line(f"The charts show the {_MOST_TRENDS} newest of {len(trends)} trends.")))
    return nodes


def _find_trends(known: Mapping[str, RunOverview], ratios: Iterable[StoredRatio]) -> list[_Trend]:
    """Return the ratios that were measured in several runs, the newest first."""
    by_question: dict[tuple[str, str], _Trend] = {}
    for row in ratios:
        # Null copies have no trend, because they show the noise of a single run.
        if row.run_id in known and _NULL_MARK not in row.cell_id:
            by_question.setdefault((row.host, row.what), []).append(row)
    trends = [trend for trend in by_question.values() if len(trend) >= FEWEST]
    return sorted(trends, key=lambda trend: -trend[-1].created_at)


def _make_trend_table(known: Mapping[str, RunOverview], trends: Sequence[_Trend]) -> Table:
    rows = tuple(_make_trend_row(known[trend[-1].run_id], trend) for trend in trends)
    return Table("Ratios over runs", ("workload", "cell"), _TREND_COLUMNS, rows)


def _make_trend_row(run: RunOverview, trend: _Trend) -> Row:
    """Return the row of a trend whose newest ratio is from this run."""
    first, last = make_past(trend[0]), make_past(trend[-1])
    cells = (
        make_figure_cell(str(len(trend))),
        make_figure_cell(format_past_ratio(first)[0]),
        make_past_ratio_cell(last),
        make_figure_cell(figures.format_ratio(last.ratio / first.ratio, None)),
        make_word_cell(f"guestmark history {run.id}", Tone.CODE),
    )
    return Row(RowName((run.measured, trend[-1].cell_id)), cells)


def _make_trend_chart(workload: str, trends: Sequence[_Trend]) -> Chart:
    rows = []
    for trend in trends:
        values = [make_past(row).ratio for row in trend]
        text = f"×{min(values):.4g} to ×{max(values):.4g}"
        rows.append(SeriesRow(trend[-1].cell_id, text, tuple(enumerate(values, 1))))
    since = min(trend[0].created_at for trend in trends)
    return Chart(
        workload,
        f"Ratio to the baseline, run by run since {format_moment(since)}; the line is each cell's median.",
        "; ".join(f"{row.label}: {format_count(len(row.points), 'run')}, {row.said}" for row in rows),
        Series(tuple(rows), (), "ratio to the baseline", over="run"),
    )


def _make_run_table(runs: Sequence[RunOverview]) -> Table:
    ordered = sorted(runs, key=lambda run: -run.created_at)
    columns: tuple[Column, ...] = _RUN_COLUMNS
    annotated = any(_describe_annotations(run) for run in ordered)
    if annotated:
        columns = (*columns, Column("name, labels, tags, notes"))
    rows = tuple(_make_overview_row(run, annotated=annotated) for run in ordered)
    return Table("All runs, the newest first", ("run",), columns, rows)


def _make_overview_row(run: RunOverview, *, annotated: bool) -> Row:
    tone = Tone.ERROR if run.failed else Tone.PLAIN
    cells = [
        make_word_cell(format_moment(run.created_at)),
        make_word_cell(run.state.describe_state(run.trials)),
        make_word_cell(run.measured),
        make_word_cell(", ".join(run.platforms)),
        make_figure_cell(str(run.blocks)),
        make_figure_cell(str(run.trials)),
        make_figure_cell(str(run.failed), tone=tone),
    ]
    if annotated:
        cells.append(make_word_cell(_describe_annotations(run)))
    foreign = bool(run.imported) or run.standing is not SignatureStatus.OWN
    return Row(RowName((run.id,)), tuple(cells), soft=foreign)


def _describe_annotations(run: RunOverview) -> str:
    parts = []
    if run.given_name:
        parts.append(run.given_name)
    parts += [f"{name}={value}" for name, value in run.labels.items()]
    parts += [f"#{tag}" for tag in run.tags]
    parts += [f"({note})" for note in run.notes]
    return " ".join(parts)
