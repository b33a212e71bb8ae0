"""Two sides of which each was measured in several sessions: boots of the host, or runs at other times and places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from guestmark.ledger import run_history
from guestmark.page import figures
from guestmark.page.nodes import Bullets, Node, Note, NoteKind, Page, Paragraph, Part, Section
from guestmark.page.tables import Align, Column, Row, RowName, Table, figure_cell, word_cell
from guestmark.page.text import line
from guestmark.report.run_comparison import VERDICT_TONES, VERDICT_WORDS
from guestmark.report.sections import gate_outcomes
from guestmark.stats.across_runs import SidesComparison, compare_two_sides
from guestmark.stats.conditions.surroundings import compare_environments
from guestmark.stats.gates import JudgedGate

if TYPE_CHECKING:
    from guestmark.ledger.model import StoredRun
    from guestmark.ledger.store import Ledger

SCHEMA = "guestmark-campaign-result/1"
SESSIONS_SCHEMA = "guestmark-sessions/1"


class SessionKind(StrEnum):
    """What is the same for all that is measured in it."""

    BOOT = "boot"
    SESSION = "session"


@dataclass(frozen=True, slots=True)
class CellSides:
    """A cell on both sides: its own values, or its ratios to the `baseline` of each session."""

    cell: str
    metric: str
    baseline: str | None
    found: SidesComparison

    @property
    def of(self) -> str:
        """What is compared, as a row shows it."""
        return self.metric if self.baseline is None else f"{self.metric} vs {self.baseline}"


@dataclass(frozen=True, slots=True)
class SessionComparison:
    """All cells, what differs between the sides, and what differed among sessions of one side."""

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
    """The comparison of the runs of `sessions`, each with its side, in their order."""
    runs = [(side, ledger.load_run(run_id)) for side, run_id in sessions]
    values: dict[tuple[str, str, str | None], dict[str, list[float]]] = {}
    for side, run in runs:
        for key, value in _session_values(ledger, run):
            values.setdefault(key, {}).setdefault(side, []).append(value)
    both = {
        key: (by_side[sides[0]], by_side[sides[1]])
        for key, by_side in values.items()
        if all(by_side.get(side) for side in sides)
    }
    cells = [CellSides(*key, compare_two_sides(*pair, claims=len(both))) for key, pair in both.items()]
    by_side = {side: [run for other, run in runs if other == side] for side in sides}
    between = {}
    if all(by_side.values()):
        between = _environment_changes(by_side[sides[0]][0], by_side[sides[1]][0])
    within = {
        f"{name} ({side})": said
        for side, some in by_side.items()
        for run in some[1:]
        for name, said in _environment_changes(some[0], run).items()
    }
    order = tuple(side for side, _ in sessions)
    return SessionComparison(
        name, unit, sides, order, tuple(run for _, run in runs), tuple(cells), between, within
    )


def _environment_changes(one: StoredRun, other: StoredRun) -> dict[str, str]:
    decisive, further = compare_environments(one.environment, other.environment)
    return {**decisive, **further}


def _session_values(ledger: Ledger, run: StoredRun) -> list[tuple[tuple[str, str, str | None], float]]:
    """The typical run of each cell in one session, and its ratio to the baseline there."""
    found: list[tuple[tuple[str, str, str | None], float]] = []
    for workload in run_history.analyse_with_history(ledger, run).workloads:
        if not workload.metrics:
            continue
        metric = workload.metrics[0].name
        for each in workload.cells:
            if each.cell.null_of is not None or metric not in each.summary:
                continue
            found.append(((each.cell.id, metric, None), each.summary[metric].median))
            comparison = each.comparison.get(metric)
            if comparison is not None and comparison.ratio is not None and workload.baseline is not None:
                found.append(((each.cell.id, metric, workload.baseline.cell.id), comparison.ratio))
    return [(key, value) for key, value in found if value > 0]


def make_page(found: SessionComparison, judged: Sequence[JudgedGate] = ()) -> Page:
    """For every renderer, with what became of limits."""
    nodes: list[Node] = [_describe_difference(found), _sides_table(found)]
    unit = found.unit
    counts = ", ".join(f"{found.order.count(side)} of {side}" for side in found.sides)
    ordered = f", in the order {' '.join(found.order)}" if unit is SessionKind.BOOT else ""
    nodes.append(Paragraph(line(f"{unit.capitalize()}s: {counts}{ordered}.")))
    if found.within:
        told = ", ".join(f"{name} {said}" for name, said in found.within.items())
        nodes.append(Note(line(f"{unit.capitalize()}s of one side were not alike: {told}"), NoteKind.WARNING))
    if any(each.found.ci is None for each in found.cells):
        nodes.append(
            Note(
                line(f"One {unit} of a side says nothing about how far {unit}s differ: no verdict"),
                NoteKind.WARNING,
            )
        )
    title = f"{found.sides[1]} against {found.sides[0]}, {unit} by {unit}"
    last = found.runs[-1].id if found.runs else ""
    sections = [Section(Part.WORKLOAD, title, tuple(nodes))]
    if judged:
        about = f"Limits to {found.sides[1]} / {found.sides[0]}"
        sections.append(Section(Part.WORKLOAD, about, (gate_outcomes.list_gates(judged),)))
    return Page(f"Campaign {found.name}" if unit is SessionKind.BOOT else found.name, last, tuple(sections))


def _describe_difference(found: SessionComparison) -> Node:
    if not found.between:
        said = "Nothing recorded about the environments differs between the sides."
        return Note(line(said), NoteKind.WARNING)
    told = tuple(line(f"{name} {said}") for name, said in found.between.items())
    return Bullets(line("What differs between the sides:"), told)


def _sides_table(found: SessionComparison) -> Table:
    rows = []
    for each in found.cells:
        made = each.found
        value, _, interval = figures.format_ratio(made.ratio, made.ci).partition(" ")
        spread = "–" if made.spread is None else figures.format_percent(made.spread)
        rows.append(
            Row(
                RowName((each.cell, each.of), f"{each.cell} {each.of}"),
                (
                    figure_cell(value, interval) if interval else figure_cell(value),
                    figure_cell(spread),
                    word_cell(VERDICT_WORDS[made.verdict], VERDICT_TONES[made.verdict]),
                ),
            )
        )
    columns = (
        Column(f"{found.sides[1]} / {found.sides[0]}", (Align.POINT, Align.LEFT)),
        Column(f"between {found.unit}s", (Align.RIGHT,)),
        Column("verdict"),
    )
    return Table(f"typical runs, {found.unit} by {found.unit}", ("cell", "of"), columns, tuple(rows))


def make_document(found: SessionComparison, judged: Sequence[JudgedGate] = ()) -> dict[str, Any]:
    """For programs; a stable interface."""
    cells = [
        {
            "cell": each.cell,
            "of": each.of,
            "ratio": each.found.ratio,
            "ci": None if each.found.ci is None else list(each.found.ci),
            f"between_{found.unit}s": each.found.spread,
            f"{found.unit}s": list(each.found.sessions),
            "verdict": each.found.verdict.value,
        }
        for each in found.cells
    ]
    sides = list(zip(found.order, found.runs, strict=True))
    differing = {"between": dict(found.between), "within": dict(found.within)}
    if found.unit is SessionKind.SESSION:
        runs = {side: [run.id for of, run in sides if of == side] for side in found.sides}
        return {
            "schema": SESSIONS_SCHEMA,
            "sides": runs,
            **differing,
            "cells": cells,
            "gates": gate_outcomes.make_document(judged),
        }
    boots = [
        {
            "side": side,
            "run": run.id,
            "boot_id": run.plan.context.boot_id,
            "restarts": run.plan.context.restarts or 0,
        }
        for side, run in sides
    ]
    return {
        "schema": SCHEMA,
        "campaign": found.name,
        "sides": list(found.sides),
        "boots": boots,
        **differing,
        "cells": cells,
    }
