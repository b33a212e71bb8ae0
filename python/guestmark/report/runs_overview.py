"""A page of all runs: what each was, and how the ratios that were measured more than once went."""

from collections.abc import Iterable, Sequence
from datetime import datetime

from guestmark.core.units import format_count
from guestmark.ledger.model import RunOverview, SignatureStatus, StoredRatio
from guestmark.ledger.run_history import make_past
from guestmark.page import figures
from guestmark.page.charts import Series, SeriesRow
from guestmark.page.nodes import Chart, Node, Note, Page, Part, Section
from guestmark.page.tables import Align, Column, Row, RowName, Table, figure_cell, word_cell
from guestmark.page.text import Tone, line

FEWEST = 2  # runs that make a trend
_MOST = 24  # trends that are drawn, the newest
_ROWS = 6  # trends in one picture
_Ratios = list[StoredRatio]


def make_page(runs: Sequence[RunOverview], ratios: Iterable[StoredRatio]) -> Page:
    """The trends of ratios that these runs share, newest first, then all runs, newest first."""
    known = {run.id: run for run in runs}
    sections = [Section(Part.WORKLOAD, "Trends", tuple(_trend_nodes(known, ratios)))]
    if runs:
        sections.append(Section(Part.WORKLOAD, "All runs", (_run_table(runs),)))
    return Page(format_count(len(runs), "run"), "", tuple(sections))


def _trend_nodes(known: dict[str, RunOverview], ratios: Iterable[StoredRatio]) -> list[Node]:
    found: dict[tuple[str, str], _Ratios] = {}
    for row in ratios:
        if row.run_id in known and "#" not in row.cell_id:  # copies of a cell have no trend
            found.setdefault((row.host, row.what), []).append(row)
    trends = sorted(
        (rows for rows in found.values() if len(rows) >= FEWEST), key=lambda rows: -rows[-1].created_at
    )
    if not trends:
        return [Note(line(f"No ratio was measured in {FEWEST} runs or more, of 6 blocks each, on one host."))]
    groups: dict[str, list[_Ratios]] = {}
    for rows in trends[:_MOST]:
        groups.setdefault(_label(known[rows[-1].run_id]), []).append(rows)
    nodes: list[Node] = [_trend_table(known, trends)]
    for label, some in groups.items():
        nodes += [_trend_chart(label, some[at : at + _ROWS], known) for at in range(0, len(some), _ROWS)]
    if len(trends) > _MOST:
        nodes.append(Note(line(f"The {_MOST} newest of {len(trends)} are drawn.")))
    return nodes


def _trend_table(known: dict[str, RunOverview], trends: Sequence[_Ratios]) -> Table:
    rows = []
    for trend in trends:
        first, last = trend[0], trend[-1]
        now, _, interval = _format_row_ratio(last).partition(" ")
        rows.append(
            Row(
                RowName((_label(known[last.run_id]), last.cell_id)),
                (
                    figure_cell(str(len(trend))),
                    figure_cell(_format_row_ratio(first).partition(" ")[0]),
                    figure_cell(now, interval),
                    figure_cell(figures.format_ratio(make_past(last).ratio / make_past(first).ratio, None)),
                    word_cell(f"guestmark history {last.run_id}", Tone.CODE),
                ),
            )
        )
    columns = (
        Column("runs", (Align.RIGHT,)),
        Column("first", (Align.POINT,)),
        Column("last", (Align.POINT, Align.LEFT)),
        Column("last / first", (Align.POINT,)),
        Column("where it changed"),
    )
    return Table("Ratios over runs", ("workload", "cell"), columns, tuple(rows))


def _trend_chart(label: str, trends: Sequence[_Ratios], known: dict[str, RunOverview]) -> Chart:
    rows = []
    for trend in trends:
        values = [make_past(row).ratio for row in trend]
        said = f"×{min(values):.4g} to ×{max(values):.4g}"
        rows.append(SeriesRow(trend[-1].cell_id, said, tuple(enumerate(values, 1))))
    since = min(trend[0].created_at for trend in trends)
    return Chart(
        label,
        f"Ratio to the baseline, run by run since {_format_moment(since)}; the line is each cell's median.",
        "; ".join(f"{row.label}: {len(row.points)} runs, {row.said}" for row in rows),
        Series(tuple(rows), (), "ratio to the baseline", over="run"),
    )


def _run_table(runs: Sequence[RunOverview]) -> Table:
    rows = []
    annotated = any(run.given_name or run.labels or run.tags or run.notes for run in runs)
    for run in sorted(runs, key=lambda run: -run.created_at):
        marks = [run.given_name, *(f"{name}={value}" for name, value in run.labels.items())]
        marks += [*(f"#{tag}" for tag in run.tags), *(f"({note})" for note in run.notes)]
        rows.append(
            Row(
                RowName((run.id,)),
                (
                    word_cell(_format_moment(run.created_at)),
                    word_cell(run.state.describe_state(run.trials)),
                    word_cell(_label(run)),
                    word_cell(", ".join(run.platforms)),
                    figure_cell(str(run.blocks)),
                    figure_cell(str(run.trials)),
                    figure_cell(str(run.failed), tone=Tone.ERROR if run.failed else Tone.PLAIN),
                    *([word_cell(" ".join(filter(None, marks)))] if annotated else []),
                ),
                soft=bool(run.imported) or run.standing is not SignatureStatus.OWN,
            )
        )
    numbers = [Column(name, (Align.RIGHT,)) for name in ("blocks", "trials", "failed")]
    columns = (
        *(Column(name) for name in ("begun", "state", "workload", "platforms")),
        *numbers,
        *([Column("name, labels, tags, notes")] if annotated else []),
    )
    return Table("All runs, the newest first", ("run",), columns, tuple(rows))


def _label(run: RunOverview) -> str:
    return run.measured


def _format_row_ratio(row: StoredRatio) -> str:
    run = make_past(row)
    return figures.format_ratio(run.ratio, (run.low, run.high))


def _format_moment(created_at: float) -> str:
    return datetime.fromtimestamp(created_at).astimezone().strftime("%Y-%m-%d %H:%M")
