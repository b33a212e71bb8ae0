"""A page of all runs: a table of them, and the trends of ratios that were measured more than once."""

from collections.abc import Iterable, Mapping, Sequence

from guestmark.core.units import format_count
from guestmark.ledger.model import RunOverview, SignatureStatus, StoredRatio
from guestmark.ledger.run_history import make_past
from guestmark.page import figures
from guestmark.page.charts import Series, SeriesRow
from guestmark.page.nodes import Chart, Node, Note, Page, Part, Section
from guestmark.page.tables import Align, Cell, RowName, Table, TableBuilder, make_figure_cell, make_word_cell
from guestmark.page.text import Tone, line
from guestmark.report.past_ratios import format_moment, format_past_ratio, make_past_ratio_cell

FEWEST = 2  # runs in a trend
_MOST_TRENDS = 24  # in the charts; the newest are chosen
_TRENDS_IN_CHART = 6  # trends in one picture
_Trend = list[StoredRatio]  # of one cell on one host, oldest first
_NULL_MARK = "#"  # in the ids of null copies


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
    lasts = [trend[-1] for trend in trends]
    names = [RowName((known[last.run_id].measured, last.cell_id)) for last in lasts]
    first_ratios = [make_past(trend[0]) for trend in trends]
    last_ratios = [make_past(last) for last in lasts]
    quotients = [last.ratio / first.ratio for first, last in zip(first_ratios, last_ratios, strict=True)]
    commands = [make_word_cell(f"guestmark history {last.run_id}", Tone.CODE) for last in lasts]
    table = TableBuilder(("workload", "cell"), names)
    table.add("runs", [make_figure_cell(str(len(trend))) for trend in trends], (Align.RIGHT,))
    table.add(
        "first", [make_figure_cell(format_past_ratio(ratio)[0]) for ratio in first_ratios], (Align.POINT,)
    )
    table.add("last", [make_past_ratio_cell(ratio) for ratio in last_ratios], (Align.POINT, Align.LEFT))
    changes = [make_figure_cell(figures.format_ratio(quotient, None)) for quotient in quotients]
    table.add("last / first", changes, (Align.POINT,))
    table.add("where it changed", commands)
    return table.build("Ratios over runs")


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
    table = TableBuilder(("run",), [RowName((run.id,)) for run in ordered])
    table.add("begun", [make_word_cell(format_moment(run.created_at)) for run in ordered])
    table.add("state", [make_word_cell(run.state.describe_state(run.trials)) for run in ordered])
    table.add("workload", [make_word_cell(run.measured) for run in ordered])
    table.add("platforms", [make_word_cell(", ".join(run.platforms)) for run in ordered])
    table.add("blocks", [make_figure_cell(str(run.blocks)) for run in ordered], (Align.RIGHT,))
    table.add("trials", [make_figure_cell(str(run.trials)) for run in ordered], (Align.RIGHT,))
    table.add("failed", map(_make_failed_cell, ordered), (Align.RIGHT,))
    table.add_words("name, labels, tags, notes", [_describe_annotations(run) for run in ordered])
    foreign = [
        position
        for position, run in enumerate(ordered)
        if run.imported or run.standing is not SignatureStatus.OWN
    ]
    return table.build("All runs, the newest first", soft=foreign)


def _make_failed_cell(run: RunOverview) -> Cell:
    return make_figure_cell(str(run.failed), tone=Tone.ERROR if run.failed else Tone.PLAIN)


def _describe_annotations(run: RunOverview) -> str:
    parts = [run.given_name] if run.given_name else []
    parts += [f"{name}={value}" for name, value in run.labels.items()]
    parts += [f"#{tag}" for tag in run.tags]
    parts += [f"({note})" for note in run.notes]
    return " ".join(parts)
