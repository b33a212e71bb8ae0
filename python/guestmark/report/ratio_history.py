"""Ratios to the baseline over many runs of one host, and the changes that Apache Otava finds in them."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NamedTuple

from guestmark.core.errors import GuestmarkError, LedgerError
from guestmark.core.units import format_count
from guestmark.ledger import run_history
from guestmark.ledger.model import StoredRun
from guestmark.ledger.store import Ledger
from guestmark.page import figures
from guestmark.page.charts import Series as ChartSeries
from guestmark.page.charts import SeriesRow
from guestmark.page.claims import Claim
from guestmark.page.json_text import list_interval
from guestmark.page.nodes import Chart, Command, Node, Note, NoteKind, Page, Paragraph, Part, Section
from guestmark.page.tables import Align, RowName, Table, TableBuilder, make_word_cell
from guestmark.page.text import Tone, escape_for_csv, line
from guestmark.report.past_ratios import format_moment, make_past_ratio_cell
from guestmark.stats.across_runs import FEWEST_IN_DRIFT, ChangeVerdict, Drift, PastRatio, detect_drift
from guestmark.stats.change_points import FEWEST, MAX_P, ChangePoint, find_change_points
from guestmark.stats.compare import MIN_BLOCKS

SCHEMA = "guestmark-history/1"
MOST = 2000  # runs that a series may have
# Unused runs that are listed; each has to be read from the ledger.
_MOST_UNUSED = 50
_OTAVA_MISSING = (
    "Apache Otava is not installed in guestmark's environment; run: pip install --no-deps apache-otava"
)


@dataclass(frozen=True, slots=True)
class SeriesPoint:
    """A run in a series: its ratio, and its name."""

    run: PastRatio
    name: str


@dataclass(frozen=True, slots=True)
class UnusedRun:
    """A run of the same question that is not counted, with the reason. `found` is its ratio, if it has one."""

    run_id: str
    name: str
    reason: str
    created_at: float
    found: PastRatio | None = None


@dataclass(frozen=True, slots=True)
class RatioSeries:
    """A cell's ratio over runs, oldest first. `changes` is None if change points could not be searched for."""

    cell: str
    points: tuple[SeriesPoint, ...]
    changes: tuple[ChangePoint, ...] | None
    unused: tuple[UnusedRun, ...] = ()
    # None if there are too few points.
    drift: Drift | None = None


def follow_ratios(ledger: Ledger, run: StoredRun, label: str, max_p: float = MAX_P) -> list[RatioSeries]:
    """Return a series for every cell of a run: all runs of the same host and question, earlier and later.

    Change points share the level `max_p` among the cells, as drifts share theirs. Points are named by their run's
    `label` if it has one, else by when the run began.
    """
    ratios = run_history.find_ratios(run, run_history.analyse_with_history(ledger, run))
    host = run_history.identify_run_host(run)
    # Runs that begin while this one is being read count as well.
    rows = ledger.find_earlier_ratios(host, list(ratios), time.time() + 1, most=MOST) if host else []
    labels = {stored.id: stored.labels for stored in ledger.list_runs()}
    result = []
    for key, (_, cell) in ratios.items():
        points = []
        for row in rows:
            if row.what == key:
                name = labels.get(row.run_id, {}).get(label) or format_moment(row.created_at)
                points.append(SeriesPoint(run_history.make_past(row), name))
        changes = find_change_points([point.run.ratio for point in points], max_p / len(ratios))
        unused = _find_unused(ledger, run, cell, points, label)
        result.append(RatioSeries(cell, tuple(points), changes, unused))
    return detect_drifts(result)


def _find_unused(
    ledger: Ledger, run: StoredRun, cell: str, points: Sequence[SeriesPoint], label: str
) -> tuple[UnusedRun, ...]:
    """Return the newest runs of the same question that are not points of the cell's series, each with the reason."""
    known = {point.run.run_id for point in points}
    others = []
    for other in ledger.list_runs():
        if other.name == run.plan.name and other.id not in known:
            others.append(other)
    asked = run_history.make_question_key(run, cell)
    unused = []
    for other in others[-_MOST_UNUSED:]:
        name = other.labels.get(label) or format_moment(other.created_at)
        try:
            stored = ledger.load_run(other.id)
        except LedgerError:
            # One damaged run does not affect the others.
            unused.append(UnusedRun(other.id, name, "it cannot be read", other.created_at))
            continue
        same = _find_asking_cell(stored, asked)
        if same is not None:
            reason, ratio = _explain_unused(ledger, run, stored, same)
            unused.append(UnusedRun(other.id, name, reason, stored.created_at, ratio))
    return tuple(unused)


def _find_asking_cell(run: StoredRun, question: str) -> str | None:
    for cell in run.plan.cells:
        if run_history.make_question_key(run, cell.id) == question:
            return cell.id
    return None


def _explain_unused(
    ledger: Ledger, run: StoredRun, other: StoredRun, cell: str
) -> tuple[str, PastRatio | None]:
    """Return why a run is not counted, and its ratio."""
    analysis = run_history.analyse_with_history(ledger, other)
    result = next(result for result in analysis.cells if result.cell.id == cell)
    comparison = result.comparison.get(other.plan.metrics[0].name) if other.plan.metrics else None
    if comparison is None or comparison.ratio is None:
        return result.reason or "no ratio", None
    ratio = None
    if comparison.ci is not None and comparison.ci[0] > 0:
        ratio = PastRatio(other.id, other.created_at, comparison.ratio, *comparison.ci, comparison.n)
    if run_history.identify_run_host(other) != run_history.identify_run_host(run):
        return "measured on another machine", ratio
    if not comparison.has_enough_blocks:
        return f"fewer than {MIN_BLOCKS} blocks", ratio
    return comparison.reason or "its ratio was not stored", ratio


def select_series(series: Sequence[RatioSeries], cell: str | None) -> list[RatioSeries]:
    """Return the series of `cell`, or every series with points. Raises `GuestmarkError` if there are none."""
    selected = [each for each in series if each.points and cell in {None, each.cell}]
    if selected:
        return selected
    known = ", ".join(each.cell for each in series)
    hint = "choose a run with a baseline and at least 6 blocks; guestmark runs lists all runs"
    if known:
        hint = f"cells that have one: {known}"
    which = f" for cell {cell!r}" if cell else ""
    raise GuestmarkError(f"this run has no ratio to follow{which}", hint=hint)


def detect_drifts(series: Sequence[RatioSeries]) -> list[RatioSeries]:
    """Return the series with their drifts; all series of a run share one error rate, whichever of them are shown."""
    claims = sum(len(each.points) >= FEWEST_IN_DRIFT for each in series)
    with_drifts = []
    for each in series:
        past = [point.run for point in each.points]
        with_drifts.append(replace(each, drift=detect_drift(past, claims)))
    return with_drifts


# --- the page -----------------------------------------------------------------------------------------------


def make_page(run: StoredRun, series: Sequence[RatioSeries]) -> Page:
    """Return a page with a section for each cell."""
    sections = []
    for each in series:
        title = f"{each.cell} over {format_count(len(each.points), 'run')}"
        sections.append(Section(Part.WORKLOAD, title, tuple(_make_series_nodes(each, each.drift))))
    return Page(f"History of {run.plan.title or run.plan.name}", run.id, tuple(sections))


def _make_series_nodes(series: RatioSeries, drift: Drift | None) -> list[Node]:
    nodes: list[Node] = [_make_series_table(series), _make_series_chart(series)]
    if drift is not None:
        claim, kind = Claim.DRIFT, NoteKind.WARNING
        if drift.verdict is ChangeVerdict.ALIKE:
            claim, kind = Claim.NO_DRIFT, NoteKind.SMALL
        text = claim.format(ratio=figures.format_ratio(drift.ratio, drift.ci), runs=f"{drift.runs} runs")
        nodes.append(Note(line(text), kind))
    if series.changes is None:
        reason = _OTAVA_MISSING
        if len(series.points) < FEWEST:
            reason = f"at least {FEWEST} runs are needed"
        nodes.append(Note(line(f"Change points were not searched for: {reason}")))
    elif not series.changes:
        nodes.append(Paragraph(line(Claim.NO_CHANGE_POINT)))
    for change in series.changes or ():
        nodes += _make_change_nodes(series, change)
    return nodes


def _make_change_nodes(series: RatioSeries, change: ChangePoint) -> list[Node]:
    before, after = series.points[change.at - 1], series.points[change.at]
    compare = f"guestmark compare {before.run.run_id} {after.run.run_id}"
    by = figures.format_ratio(change.after / change.before, None)
    claim = Claim.CHANGE_POINT.format(
        run=after.name, before=f"×{change.before:.4g}", after=f"×{change.after:.4g}"
    )
    # Otava shows that the ratio changed, not why: the host may have changed.
    caution = "only a suspicion until both runs are measured side by side"
    return [
        Note(line(f"{claim} ({by}, p {change.p:.2g}); {caution}"), NoteKind.WARNING),
        Command("What differs between the two runs", compare),
        Command("Measure both side by side, if they are still available", f"{compare} --confirm"),
    ]


class _RunRow(NamedTuple):
    created_at: float
    name: str
    run_id: str
    ratio: PastRatio | None
    remark: str


def _make_series_table(series: RatioSeries) -> Table:
    changed = {change.at for change in series.changes or ()}
    rows = []
    for number, point in enumerate(series.points):
        remark = "change" if number in changed else ""
        rows.append(_RunRow(point.run.created_at, point.name, point.run.run_id, point.run, remark))
    for unused in series.unused:
        remark = f"not counted: {unused.reason}"
        rows.append(_RunRow(unused.created_at, unused.name, unused.run_id, unused.found, remark))
    rows.sort(key=lambda row: row.created_at)
    counted = {point.run.run_id for point in series.points}
    names, ratios, remarks, not_counted = [], [], [], []
    for at, row in enumerate(rows):
        tone = Tone.WARNING
        if row.run_id not in counted:
            tone = Tone.UNCLEAR
            not_counted.append(at)
        names.append(RowName((row.name, row.run_id), row.name, at + 1))
        ratios.append(make_past_ratio_cell(row.ratio))
        remarks.append(make_word_cell(row.remark, tone))
    table = TableBuilder(("run", "id"), names)
    table.add("ratio to the baseline", ratios, (Align.POINT, Align.LEFT))
    table.add("", remarks)
    return table.build(f"{series.cell}, run by run", soft=not_counted)


def _make_series_chart(series: RatioSeries) -> Chart:
    values = [point.run.ratio for point in series.points]
    text = f"×{min(values):.4g} to ×{max(values):.4g}"
    row = SeriesRow(series.cell, text, tuple(enumerate(values, 1)))
    changes = tuple(change.at + 1 for change in series.changes or ())
    caption = "Each point is a run."
    if changes:
        caption = "Each point is a run; the runs at which the ratio changed are marked."
    return Chart(
        f"{series.cell}: ratio to the baseline, run by run",
        caption,
        f"{format_count(len(values), 'run')}, {text}",
        ChartSeries((row,), changes, "ratio to the baseline", over="run"),
    )


# --- for programs -------------------------------------------------------------------------------------------


def make_document(series: Sequence[RatioSeries]) -> dict[str, Any]:
    """Return the series for programs: a stable interface."""
    return {"schema": SCHEMA, "series": [_make_series_document(each, each.drift) for each in series]}


def _make_series_document(series: RatioSeries, drift: Drift | None) -> dict[str, Any]:
    changes = None
    if series.changes is not None:
        changes = [_make_change_document(series, change) for change in series.changes]
    return {
        "cell": series.cell,
        "points": [_make_point_document(point) for point in series.points],
        "unused": [_make_unused_document(unused) for unused in series.unused],
        "drift": _make_drift_document(drift),
        "changes": changes,
    }


def _make_point_document(point: SeriesPoint) -> dict[str, Any]:
    return {
        "run": point.run.run_id,
        "name": point.name,
        "created_at": point.run.created_at,
        "ratio": point.run.ratio,
        "ci": [point.run.low, point.run.high],
    }


def _make_unused_document(unused: UnusedRun) -> dict[str, Any]:
    return {
        "run": unused.run_id,
        "name": unused.name,
        "reason": unused.reason,
        "created_at": unused.created_at,
        "ratio": unused.found.ratio if unused.found else None,
    }


def _make_change_document(series: RatioSeries, change: ChangePoint) -> dict[str, Any]:
    return {
        "at": change.at,
        "run": series.points[change.at].run.run_id,
        "before": change.before,
        "after": change.after,
        "p": change.p,
    }


def _make_drift_document(drift: Drift | None) -> dict[str, Any] | None:
    if drift is None:
        return None
    shown = drift.verdict is not ChangeVerdict.ALIKE
    return {"ratio": drift.ratio, "ci": list_interval(drift.ci), "shown": shown}


def make_otava_csv(series: Sequence[RatioSeries], labels: Mapping[str, Mapping[str, str]]) -> str:
    """Return the series as CSV for Otava's command: a row for each run, and a column of log ratios for each cell."""
    runs: dict[str, float] = {}
    logs: dict[tuple[str, str], float] = {}
    for each in series:
        for point in each.points:
            runs[point.run.run_id] = point.run.created_at
            logs[each.cell, point.run.run_id] = point.run.log_ratio
    names = sorted(set[str]().union(*(labels.get(run_id, {}) for run_id in runs)))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(map(escape_for_csv, ["time", "run", *names, *(each.cell for each in series)]))
    for run_id, created_at in sorted(runs.items(), key=lambda item: item[1]):
        moment = datetime.fromtimestamp(created_at).astimezone().isoformat(timespec="seconds")
        own = [escape_for_csv(labels.get(run_id, {}).get(name, "")) for name in names]
        # The writer leaves a field empty for None.
        values = [logs.get((each.cell, run_id)) for each in series]
        writer.writerow([moment, run_id, *own, *values])
    return out.getvalue()
