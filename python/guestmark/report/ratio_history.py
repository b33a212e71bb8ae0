"""Cells over runs: how a ratio to the baseline went on, and where Apache Otava sees it change."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from guestmark.core.errors import GuestmarkError, LedgerError
from guestmark.ledger import run_history
from guestmark.ledger.model import StoredRun
from guestmark.page import figures
from guestmark.page.charts import Series as Drawing
from guestmark.page.charts import SeriesRow
from guestmark.page.claims import Claim
from guestmark.page.nodes import Chart, Command, Node, Note, NoteKind, Page, Paragraph, Part, Section
from guestmark.page.tables import Align, Column, Row, RowName, Table, figure_cell, word_cell
from guestmark.page.text import Tone, escape_for_csv, line
from guestmark.stats.across_runs import FEWEST_IN_DRIFT, ChangeVerdict, Drift, PastRatio, detect_drift
from guestmark.stats.change_points import FEWEST, MAX_P, ChangePoint, find_change_points
from guestmark.stats.compare import MIN_BLOCKS

if TYPE_CHECKING:
    from guestmark.ledger.store import Ledger

SCHEMA = "guestmark-history/1"
MOST = 2000  # runs of a series
_UNUSED = 50  # runs that are named because they are not used


@dataclass(frozen=True, slots=True)
class SeriesPoint:
    """A run in a series: what it found, and what it is called."""

    run: PastRatio
    name: str


@dataclass(frozen=True, slots=True)
class UnusedRun:
    """A run that asked the same and is not counted, and why. `found` is its ratio where it has one."""

    run_id: str
    name: str
    reason: str
    created_at: float
    found: PastRatio | None = None


@dataclass(frozen=True, slots=True)
class RatioSeries:
    """A cell's ratio over runs, oldest first. `changes` is None where nothing could be looked for."""

    cell: str
    points: tuple[SeriesPoint, ...]
    changes: tuple[ChangePoint, ...] | None
    unused: tuple[UnusedRun, ...] = ()


def follow_ratios(ledger: Ledger, run: StoredRun, label: str, max_p: float = MAX_P) -> list[RatioSeries]:
    """The series of every cell of a run: earlier and later runs of the same host that asked the same.

    Change points share the level `max_p` among the cells, as drifts share theirs.
    Points are called by their run's `label` where they have it, else by when they were begun.
    """
    found = run_history.find_ratios(run, run_history.analyse_with_history(ledger, run))
    rows = (
        ledger.find_earlier_ratios(
            run_history.identify_run_host(run), list(found), time.time() + 1, most=MOST
        )
        if run_history.identify_run_host(run)
        else []
    )
    labels = {each.id: each.labels for each in ledger.list_runs()}
    result = []
    for key, (_, cell) in found.items():
        points = tuple(
            SeriesPoint(
                run_history.make_past(row),
                labels.get(row.run_id, {}).get(label) or _format_moment(row.created_at),
            )
            for row in rows
            if row.what == key
        )
        result.append(
            RatioSeries(
                cell,
                points,
                find_change_points([point.run.ratio for point in points], max_p / len(found)),
                _find_unused(ledger, run, cell, points, label),
            )
        )
    return result


def _find_unused(
    ledger: Ledger, run: StoredRun, cell: str, points: Sequence[SeriesPoint], label: str
) -> tuple[UnusedRun, ...]:
    """The newest runs that asked the same of the cell and are not points, each with its reason."""
    known = {point.run.run_id for point in points}
    mine = [each for each in ledger.list_runs() if each.name == run.plan.name and each.id not in known][
        -_UNUSED:
    ]
    found = []
    for each in mine:
        try:
            stored = ledger.load_run(each.id)
        except LedgerError:  # one run is damaged: others are not affected
            name = each.labels.get(label) or _format_moment(each.created_at)
            found.append(UnusedRun(each.id, name, "it cannot be read", each.created_at))
            continue
        asked = run_history.make_question_key(run, cell)
        same = next(
            (one.id for one in stored.plan.cells if run_history.make_question_key(stored, one.id) == asked),
            None,
        )
        if same is None:
            continue
        name = each.labels.get(label) or _format_moment(stored.created_at)
        reason, ratio = _explain_unused(ledger, run, stored, same)
        found.append(UnusedRun(each.id, name, reason, stored.created_at, ratio))
    return tuple(found)


def _explain_unused(
    ledger: Ledger, run: StoredRun, other: StoredRun, cell: str
) -> tuple[str, PastRatio | None]:
    analysis = run_history.analyse_with_history(ledger, other)
    result = next(each for each in analysis.cells if each.cell.id == cell)
    comparison = result.comparison.get(other.plan.metrics[0].name) if other.plan.metrics else None
    if comparison is None or comparison.ratio is None:
        return result.reason or "no ratio", None
    ratio = None
    if comparison.ci is not None and comparison.ci[0] > 0:
        ratio = PastRatio(other.id, other.created_at, comparison.ratio, *comparison.ci, comparison.n)
    if run_history.identify_run_host(other) != run_history.identify_run_host(run):
        return "another machine", ratio
    if comparison.n < MIN_BLOCKS:
        return f"fewer than {MIN_BLOCKS} blocks", ratio
    return comparison.reason or "it has not been judged", ratio


def _format_moment(created_at: float) -> str:
    return datetime.fromtimestamp(created_at).astimezone().strftime("%Y-%m-%d %H:%M")


# --- shown --------------------------------------------------------------------------------------------------


def make_page(run: StoredRun, series: Sequence[RatioSeries]) -> Page:
    """A section for each cell."""
    drifts = detect_drifts(series)
    sections = [
        Section(
            Part.WORKLOAD, f"{each.cell} over {len(each.points)} runs", tuple(_series_nodes(each, drifted))
        )
        for each, drifted in zip(series, drifts, strict=True)
    ]
    return Page(f"History of {run.plan.title or run.plan.name}", run.id, tuple(sections))


def detect_drifts(series: Sequence[RatioSeries]) -> list[Drift | None]:
    """Whether each series goes up or down; all of them share one error rate."""
    claims = sum(len(each.points) >= FEWEST_IN_DRIFT for each in series)
    return [detect_drift([point.run for point in each.points], claims) for each in series]


def _series_nodes(series: RatioSeries, drifted: Drift | None) -> list[Node]:
    nodes: list[Node] = [_series_table(series), _series_chart(series)]
    if drifted is not None:
        claim = Claim.NO_DRIFT if drifted.verdict is ChangeVerdict.ALIKE else Claim.DRIFT
        shown = claim.format(
            ratio=figures.format_ratio(drifted.ratio, drifted.ci), runs=f"{drifted.runs} runs"
        )
        nodes.append(Note(line(shown), NoteKind.WARNING if claim is Claim.DRIFT else NoteKind.SMALL))
    if series.changes is None:
        why = (
            f"that takes {FEWEST} runs"
            if len(series.points) < FEWEST
            else "Apache Otava is not installed beside guestmark. What brings it: pip install --no-deps apache-otava"
        )
        nodes.append(Note(line(f"Change points were not looked for: {why}")))
    elif not series.changes:
        nodes.append(Paragraph(line(Claim.NO_CHANGE_POINT)))
    for change in series.changes or ():
        nodes += _change_nodes(series, change)
    return nodes


def _change_nodes(series: RatioSeries, change: ChangePoint) -> list[Node]:
    before, after = series.points[change.at - 1], series.points[change.at]
    compare = f"guestmark compare {before.run.run_id} {after.run.run_id}"
    by = figures.format_ratio(change.after / change.before, None)
    shown = Claim.CHANGE_POINT.format(
        run=after.name, before=f"×{change.before:.4g}", after=f"×{change.after:.4g}"
    )
    return [
        Note(
            line(
                f"{shown} ({by}, p {change.p:.2g}); a suspicion until both sides have been measured side by side"
            ),
            NoteKind.WARNING,
        ),
        Command("What differs between the two runs", compare),
        Command("Both sides measured side by side, where they can still be had", f"{compare} --confirm"),
    ]


def _series_table(series: RatioSeries) -> Table:
    changed = {change.at for change in series.changes or ()}
    every: list[tuple[float, str, str, PastRatio | None, str, Tone]] = [
        (
            point.run.created_at,
            point.name,
            point.run.run_id,
            point.run,
            "change" if number in changed else "",
            Tone.WARNING,
        )
        for number, point in enumerate(series.points)
    ]
    every += [
        (one.created_at, one.name, one.run_id, one.found, f"not counted: {one.reason}", Tone.UNCLEAR)
        for one in series.unused
    ]
    rows = []
    for number, (_, name, run_id, run, said, tone) in enumerate(sorted(every, key=lambda each: each[0])):
        value, _, interval = (
            figures.format_ratio(run.ratio, (run.low, run.high)).partition(" ") if run else ("", "", "")
        )
        rows.append(
            Row(
                RowName((name, run_id), name, number + 1),
                (figure_cell(value, interval), word_cell(said, tone)),
                soft=bool(said) and tone is Tone.UNCLEAR,
            )
        )
    columns = (Column("ratio to the baseline", (Align.POINT, Align.LEFT)), Column(""))
    return Table(f"{series.cell}, run by run", ("run", "id"), columns, tuple(rows))


def _series_chart(series: RatioSeries) -> Chart:
    values = [point.run.ratio for point in series.points]
    said = f"×{min(values):.4g} to ×{max(values):.4g}"
    row = SeriesRow(series.cell, said, tuple((number, value) for number, value in enumerate(values, 1)))
    changes = tuple(change.at + 1 for change in series.changes or ())
    return Chart(
        f"{series.cell}: ratio to the baseline, run by run",
        "Each point is a run; marked are those at which it changed." if changes else "Each point is a run.",
        f"{len(values)} runs, {said}",
        Drawing((row,), changes, "ratio to the baseline", over="run"),
    )


def make_document(series: Sequence[RatioSeries]) -> dict[str, Any]:
    """For programs; a stable interface."""
    return {
        "schema": SCHEMA,
        "series": [
            {
                "cell": each.cell,
                "points": [
                    {
                        "run": point.run.run_id,
                        "name": point.name,
                        "created_at": point.run.created_at,
                        "ratio": point.run.ratio,
                        "ci": [point.run.low, point.run.high],
                    }
                    for point in each.points
                ],
                "unused": [
                    {
                        "run": one.run_id,
                        "name": one.name,
                        "reason": one.reason,
                        "created_at": one.created_at,
                        "ratio": one.found.ratio if one.found else None,
                    }
                    for one in each.unused
                ],
                "drift": _drift_document(drifted),
                "changes": None
                if each.changes is None
                else [
                    {
                        "at": change.at,
                        "run": each.points[change.at].run.run_id,
                        "before": change.before,
                        "after": change.after,
                        "p": change.p,
                    }
                    for change in each.changes
                ],
            }
            for each, drifted in zip(series, detect_drifts(series), strict=True)
        ],
    }


def _drift_document(found: Drift | None) -> dict[str, Any] | None:
    if found is None:
        return None
    ends = None if found.ci is None else list(found.ci)
    return {"ratio": found.ratio, "ci": ends, "shown": found.verdict is not ChangeVerdict.ALIKE}


def make_otava_csv(series: Sequence[RatioSeries], labels: Mapping[str, Mapping[str, str]]) -> str:
    """The series as Otava's own command reads them: a row for each run, a column of log ratios for each cell."""
    runs = {point.run.run_id: point.run.created_at for each in series for point in each.points}
    names = sorted({name for run_id in runs for name in labels.get(run_id, {})})
    logs = {(each.cell, point.run.run_id): point.run.log_ratio for each in series for point in each.points}
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(map(escape_for_csv, ["time", "run", *names, *(each.cell for each in series)]))
    for run_id, created_at in sorted(runs.items(), key=lambda pair: pair[1]):
        moment = datetime.fromtimestamp(created_at).astimezone().isoformat(timespec="seconds")
        own = labels.get(run_id, {})
        values = [logs.get((each.cell, run_id)) for each in series]
        writer.writerow(
            [
                moment,
                run_id,
                *(escape_for_csv(own.get(name, "")) for name in names),
                *("" if v is None else repr(v) for v in values),
            ]
        )
    return out.getvalue()


def select_series(series: Sequence[RatioSeries], cell: str | None) -> list[RatioSeries]:
    """The series of that cell, or all that have points. Raises `GuestmarkError` when there are none."""
    found = [replace(each) for each in series if each.points and cell in {None, each.cell}]
    if not found:
        known = ", ".join(each.cell for each in series)
        raise GuestmarkError(
            f"this run has no ratio to follow{f' of cell {cell!r}' if cell else ''}",
            hint=f"cells that have one: {known}"
            if known
            else "name a run of 6 blocks or more with a baseline; guestmark runs lists them",
        )
    return found
