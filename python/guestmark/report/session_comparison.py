"""Two sides, each measured in several sessions: boots of the host, or runs at other times and places."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from guestmark.ledger import run_history
from guestmark.ledger.model import StoredRun
from guestmark.ledger.store import Ledger
from guestmark.page import figures
from guestmark.page.json_text import list_interval
from guestmark.page.nodes import Bullets, Node, Note, NoteKind, Page, Paragraph, Part, Section
from guestmark.page.tables import Align, Column, Row, RowName, Table, make_figure_cell
from guestmark.page.text import line
from guestmark.report.run_comparison import make_change_cell
from guestmark.report.sections import gate_outcomes
from guestmark.stats.across_runs import SidesComparison, compare_two_sides
from guestmark.stats.conditions.surroundings import compare_environments
from guestmark.stats.gates import JudgedGate

SCHEMA = "guestmark-campaign-result/1"
SESSIONS_SCHEMA = "guestmark-sessions/1"


class SessionKind(StrEnum):
    """The unit of replication: a boot of the host, or a session (a run at another time or place)."""

    BOOT = "boot"
    SESSION = "session"


# A cell, a metric, and the baseline of its ratios; without one, the cell's own values.
_Key = tuple[str, str, str | None]


@dataclass(frozen=True, slots=True)
class CellSides:
    """A cell on both sides: its own values, or its ratios to the `baseline` of each session."""

    cell: str
    metric: str
    baseline: str | None
    found: SidesComparison

    @property
    def subject(self) -> str:
        """The compared item, as a row shows it."""
        return self.metric if self.baseline is None else f"{self.metric} vs {self.baseline}"


@dataclass(frozen=True, slots=True)
class SessionComparison:
    """All cells. `between` has what differs between the sides' environments, `within` between sessions of a side."""

    name: str
    unit: SessionKind
    sides: tuple[str, str]
    order: tuple[str, ...]
    runs: tuple[StoredRun, ...]
    cells: tuple[CellSides, ...]
    between: Mapping[str, str]
    within: Mapping[str, str]


def compare_sessions(
    ledger: Ledger,
    name: str,
    sides: tuple[str, str],
    sessions: Sequence[tuple[str, str]],
    unit: SessionKind = SessionKind.BOOT,
) -> SessionComparison:
    """Compare the runs of `sessions`, each with its side, in their order."""
    runs: dict[str, list[StoredRun]] = {side: [] for side in sides}
    in_order = []
    values: dict[_Key, dict[str, list[float]]] = {}
    for side, run_id in sessions:
        run = ledger.load_run(run_id)
        in_order.append(run)
        runs.setdefault(side, []).append(run)
        for key, value in _yield_session_values(ledger, run):
            values.setdefault(key, {}).setdefault(side, []).append(value)
    for of_side in runs.values():
        if of_side:
            for cell in of_side[0].plan.cells:
                run_history.refuse_other_questions(of_side, cell.id)
    first, second = sides
    both = {key: by_side for key, by_side in values.items() if {first, second} <= by_side.keys()}
    cells = []
    for key, by_side in both.items():
        comparison = compare_two_sides(by_side[first], by_side[second], claims=len(both))
        cells.append(CellSides(*key, comparison))
    between, within = {}, {}
    if runs[first] and runs[second]:
        between = _compare_two_environments(runs[first][0], runs[second][0])
    for side in sides:
        for run in runs[side][1:]:
            for what, change in _compare_two_environments(runs[side][0], run).items():
                within[f"{what} ({side})"] = change
    order = tuple(side for side, _ in sessions)
    return SessionComparison(name, unit, sides, order, tuple(in_order), tuple(cells), between, within)


def _compare_two_environments(one: StoredRun, other: StoredRun) -> dict[str, str]:
    decisive, further = compare_environments(one.environment, other.environment)
    return {**decisive, **further}


def _yield_session_values(ledger: Ledger, run: StoredRun) -> Iterator[tuple[_Key, float]]:
    """Yield the typical run of each cell in one session, and its ratio to the baseline there; only values above 0."""
    for workload in run_history.analyse_with_history(ledger, run).workloads:
        if not workload.metrics:
            continue
        metric, baseline = workload.metrics[0].name, workload.baseline
        for result in workload.cells:
            if result.cell.null_of is not None or metric not in result.summary:
                continue
            if result.summary[metric].median > 0:
                yield (result.cell.id, metric, None), result.summary[metric].median
            comparison = result.comparison.get(metric)
            if baseline is None or comparison is None or comparison.ratio is None:
                continue
            if comparison.ratio > 0:
                yield (result.cell.id, metric, baseline.cell.id), comparison.ratio


def make_page(comparison: SessionComparison, gates: Sequence[JudgedGate] = ()) -> Page:
    """Return the comparison as a page, with the outcome of each limit."""
    first, second = comparison.sides
    unit, order = comparison.unit, comparison.order
    counts = f"{unit.capitalize()}s: {order.count(first)} of {first}, {order.count(second)} of {second}"
    if unit is SessionKind.BOOT:
        counts += f", in the order {' '.join(order)}"
    nodes: list[Node] = [_describe_session_difference(comparison), _make_sides_table(comparison)]
    nodes.append(Paragraph(line(f"{counts}.")))
    if comparison.within:
        changes = ", ".join(f"{name} {change}" for name, change in comparison.within.items())
        text = f"The environment differed between {unit}s of one side: {changes}"
        nodes.append(Note(line(text), NoteKind.WARNING))
    if any(cell.found.ci is None for cell in comparison.cells):
        text = f"A side with one {unit} does not show how much {unit}s vary: no verdict"
        nodes.append(Note(line(text), NoteKind.WARNING))
    sections = [Section(Part.WORKLOAD, f"{second} against {first}, {unit} by {unit}", tuple(nodes))]
    if gates:
        limits = gate_outcomes.list_gates(gates)
        sections.append(Section(Part.WORKLOAD, f"Limits on {second} / {first}", (limits,)))
    last = comparison.runs[-1].id if comparison.runs else ""
    title = f"Campaign {comparison.name}" if unit is SessionKind.BOOT else comparison.name
    return Page(title, last, tuple(sections))


def _describe_session_difference(comparison: SessionComparison) -> Node:
    if not comparison.between:
        text = "The recorded environments of the two sides do not differ."
        return Note(line(text), NoteKind.WARNING)
    items = tuple(line(f"{name} {change}") for name, change in comparison.between.items())
    return Bullets(line("What differs between the sides:"), items)


def _make_sides_table(comparison: SessionComparison) -> Table:
    first, second = comparison.sides
    unit = comparison.unit
    columns = (
        Column(f"{second} / {first}", (Align.POINT, Align.LEFT)),
        Column(f"between {unit}s", (Align.RIGHT,)),
        Column("verdict"),
    )
    rows = tuple(map(_make_sides_row, comparison.cells))
    return Table(f"typical runs, {unit} by {unit}", ("cell", "of"), columns, rows)


def _make_sides_row(cell: CellSides) -> Row:
    found = cell.found
    spread = "–" if found.spread is None else figures.format_percent(found.spread)
    cells = (
        make_figure_cell(*figures.format_ratio_pieces(found.ratio, found.ci)),
        make_figure_cell(spread),
        make_change_cell(found.verdict),
    )
    return Row(RowName((cell.cell, cell.subject), f"{cell.cell} {cell.subject}"), cells)


def make_document(comparison: SessionComparison, gates: Sequence[JudgedGate] = ()) -> dict[str, Any]:
    """Return the comparison for programs: a stable interface."""
    cells = [_make_sides_document(cell, comparison.unit) for cell in comparison.cells]
    differing = {"between": dict(comparison.between), "within": dict(comparison.within)}
    if comparison.unit is SessionKind.SESSION:
        return {
            "schema": SESSIONS_SCHEMA,
            "sides": _list_run_ids_by_side(comparison),
            **differing,
            "cells": cells,
            "gates": gate_outcomes.make_document(gates),
        }
    boots = []
    for side, run in zip(comparison.order, comparison.runs, strict=True):
        context = run.plan.context
        boots.append(
            {"side": side, "run": run.id, "boot_id": context.boot_id, "restarts": context.restarts or 0}
        )
    return {
        "schema": SCHEMA,
        "campaign": comparison.name,
        "sides": list(comparison.sides),
        "boots": boots,
        **differing,
        "cells": cells,
    }


def _list_run_ids_by_side(comparison: SessionComparison) -> dict[str, list[str]]:
    ids: dict[str, list[str]] = {side: [] for side in comparison.sides}
    for side, run in zip(comparison.order, comparison.runs, strict=True):
        if side in ids:
            ids[side].append(run.id)
    return ids


def _make_sides_document(cell: CellSides, unit: SessionKind) -> dict[str, Any]:
    return {
        "cell": cell.cell,
        "of": cell.subject,
        "ratio": cell.found.ratio,
        "ci": list_interval(cell.found.ci),
        f"between_{unit}s": cell.found.spread,
        f"{unit}s": list(cell.found.sessions),
        "verdict": cell.found.verdict.value,
    }
