"""Runs beside each other: what differs in their surroundings, and by what the ratios of their cells differ."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from guestmark.core.metric import Metric
from guestmark.core.units import format_count
from guestmark.ledger import run_history
from guestmark.ledger.model import StoredRatio, StoredRun
from guestmark.page import figures
from guestmark.page.claims import Claim
from guestmark.page.nodes import Bullets, Node, Note, NoteKind, Page, Paragraph, Part, Section
from guestmark.page.tables import Align, Cell, Column, Row, RowName, Table, figure_cell, word_cell
from guestmark.page.text import Tone, line
from guestmark.report.sections import gate_outcomes
from guestmark.stats.across_runs import FEWEST_RUNS, Change, ChangeVerdict, PastRatio, compare_two_runs
from guestmark.stats.analysis import Analysis
from guestmark.stats.conditions.surroundings import compare_environments
from guestmark.stats.gates import JudgedGate
from guestmark.stats.paired import Summary

if TYPE_CHECKING:
    from guestmark.ledger.store import Ledger

SCHEMA = "guestmark-comparison/1"
VERDICT_WORDS = {
    ChangeVerdict.HIGHER: Claim.RUNS_HIGHER.value,
    ChangeVerdict.LOWER: Claim.RUNS_LOWER.value,
    ChangeVerdict.ALIKE: Claim.RUNS_ALIKE.value,
    ChangeVerdict.UNKNOWN: "no verdict",
}
VERDICT_TONES = {
    ChangeVerdict.HIGHER: Tone.SLOWER,
    ChangeVerdict.LOWER: Tone.FASTER,
    ChangeVerdict.ALIKE: Tone.SAME,
    ChangeVerdict.UNKNOWN: Tone.UNCLEAR,
}


@dataclass(frozen=True, slots=True)
class CellRatios:
    """A cell that both runs have, and what became of its ratio."""

    cell: str
    before: PastRatio
    after: PastRatio
    found: Change


@dataclass(frozen=True, slots=True)
class CellValues:
    """A cell's typical value in the primary metric of each run; None where a run lacks the cell or the metric."""

    cell: str
    before: Summary | None
    after: Summary | None


@dataclass(frozen=True, slots=True)
class RunComparison:
    """One run against the first. `missing` are cells that only one of them has, or whose ratio has no interval.

    `values` are in `metric`, side by side: what they differ by is also what the host did meanwhile.
    """

    before: StoredRun
    after: StoredRun
    decisive: Mapping[str, str]
    other: Mapping[str, str]
    pairs: tuple[CellRatios, ...]
    missing: tuple[str, ...]
    same_host: bool
    metric: Metric | None = None
    values: tuple[CellValues, ...] = ()


def compare_runs(ledger: Ledger, before: StoredRun, after: StoredRun, beside: int = 1) -> RunComparison:
    """The cells of two runs, matched by what they are: workload, platform, factors and processors of both sides.

    All cells of the `beside` runs that a report compares with the first share one error rate.
    """
    decisive, other = compare_environments(before.environment, after.environment)
    analyses = [run_history.analyse_with_history(ledger, run) for run in (before, after)]
    sides = [
        run_history.find_ratios(run, found) for run, found in zip((before, after), analyses, strict=True)
    ]
    both = [key for key in sides[0] if key in sides[1]]
    same_host = bool(run_history.identify_run_host(before)) and run_history.identify_run_host(
        before
    ) == run_history.identify_run_host(after)
    earlier: dict[str, list[StoredRatio]] = {}
    if same_host:
        for row in ledger.find_earlier_ratios(run_history.identify_run_host(before), both, time.time() + 1):
            if row.run_id not in {before.id, after.id}:
                earlier.setdefault(row.what, []).append(row)
    claims = beside * max(sum(len(earlier.get(key, ())) >= FEWEST_RUNS for key in both), 1)
    pairs = []
    for key in both:
        (old, _), (new, cell) = sides[0][key], sides[1][key]
        known = [run_history.make_past(row) for row in earlier.get(key, ())]
        pairs.append(CellRatios(cell, old, new, compare_two_runs(old, new, known, claims)))
    missing = [
        cell for side, rest in (sides, sides[::-1]) for key, (_, cell) in side.items() if key not in rest
    ]
    metric = before.plan.metrics[0] if before.plan.metrics else None
    return RunComparison(
        before,
        after,
        decisive,
        other,
        tuple(pairs),
        tuple(dict.fromkeys(missing)),
        same_host,
        metric,
        _pair_values(metric, *analyses) if metric is not None else (),
    )


def _pair_values(metric: Metric, before: Analysis, after: Analysis) -> tuple[CellValues, ...]:
    """The cells of both runs by their ids; two runs of one cell each are of the same thing, whatever they call it."""
    sides = [
        {each.cell.id: each.summary.get(metric.name) for each in found.cells if each.cell.null_of is None}
        for found in (before, after)
    ]
    if all(len(side) == 1 for side in sides) and sides[0].keys() != sides[1].keys():
        ((old, was),), ((new, now),) = (side.items() for side in sides)
        return (CellValues(f"{old} → {new}", was, now),)
    names = dict.fromkeys([*sides[0], *sides[1]])
    return tuple(CellValues(name, sides[0].get(name), sides[1].get(name)) for name in names)


def make_page(comparisons: Sequence[RunComparison], judged: Sequence[JudgedGate] = ()) -> Page:
    """All of it, with what became of limits, for every renderer."""
    first = comparisons[0].before
    sections = [
        Section(Part.WORKLOAD, f"{each.after.id} against {each.before.id}", tuple(_comparison_nodes(each)))
        for each in comparisons
    ]
    if judged:
        sections.append(
            Section(Part.WORKLOAD, "Limits to after / before", (gate_outcomes.list_gates(judged),))
        )
    return Page(f"Compared with {first.id}", first.id, tuple(sections))


def _comparison_nodes(found: RunComparison) -> list[Node]:
    nodes: list[Node] = [_environment_changes(found)]
    if found.pairs:
        nodes.append(_ratio_table(found))
    if found.metric is not None and any(each.before or each.after for each in found.values):
        nodes.append(_value_table(found, found.metric))
    if not found.pairs:
        nodes.append(
            Note(line("No cell has a ratio to the same baseline in both runs, so there is no verdict"))
        )
    if found.missing:
        nodes.append(Note(line(f"In one run only, or without a ratio: {', '.join(found.missing)}")))
    return [*nodes, *_explain_limits(found)]


def _environment_changes(found: RunComparison) -> Node:
    changed = [line(f"{name} {said}") for name, said in (*found.decisive.items(), *found.other.items())]
    if not found.same_host:
        changed.insert(0, line("another machine", Tone.WARNING))
    if not changed:
        return Paragraph(line("Nothing recorded about the environments differs."))
    return Bullets(line("What differs between the environments:"), tuple(changed))


def _ratio_table(found: RunComparison) -> Table:
    rows = []
    for pair in found.pairs:
        made = pair.found
        old, new = (_ratio(run.ratio, (run.low, run.high)) for run in (pair.before, pair.after))
        rows.append(
            Row(
                RowName((pair.cell,), pair.cell),
                (
                    figure_cell(*old),
                    figure_cell(*new),
                    figure_cell(*_ratio(made.ratio, made.ci or made.within)),
                    word_cell(VERDICT_WORDS[made.verdict], VERDICT_TONES[made.verdict]),
                ),
            )
        )
    ratio = (Align.POINT, Align.LEFT)
    columns = (
        Column("before, vs its baseline", ratio),
        Column("after, vs its baseline", ratio),
        Column("after / before", ratio),
        Column("verdict"),
    )
    return Table("ratios to the baseline of each run, and their ratio", ("cell",), columns, tuple(rows))


def _value_table(found: RunComparison, metric: Metric) -> Table:
    """What was measured, side by side, without a verdict."""
    sides = [side for each in found.values for side in (each.before, each.after) if side is not None]
    unit = figures.choose_table_unit(metric.unit, [side.typical for side in sides])

    def shown(side: Summary | None) -> Cell:
        if side is None:
            return word_cell("not in this run")
        return figure_cell(*figures.estimate_pieces(side.typical, side.typical_ci, unit))

    rows = tuple(
        Row(RowName((each.cell,), each.cell), (shown(each.before), shown(each.after), _quotient_cell(each)))
        for each in found.values
    )
    value = (Align.POINT, Align.LEFT, Align.POINT)
    what = figures.column_heading(metric, unit)
    columns = (
        Column(f"{what}, before", value),
        Column("after", value),
        Column("after / before", (Align.POINT,)),
    )
    title = f"{what}, measured at two times: the host may have changed, too"
    return Table(title, ("cell",), columns, rows)


def _quotient_cell(each: CellValues) -> Cell:
    if each.before is None or each.after is None or each.before.typical <= 0 or each.after.typical <= 0:
        return Cell()
    return figure_cell(figures.format_ratio(each.after.typical / each.before.typical, None))


def _ratio(value: float, ci: tuple[float, float]) -> tuple[str, str]:
    number, _, interval = figures.format_ratio(value, ci).partition(" ")
    return number, interval


def _explain_limits(found: RunComparison) -> list[Node]:
    """What such a comparison can show, and what it cannot."""
    nodes: list[Node] = []
    spreads = [pair.found for pair in found.pairs if pair.found.spread is not None]
    if spreads:
        largest = max(spread.spread or 0.0 for spread in spreads)
        runs = min(spread.runs for spread in spreads)
        nodes.append(
            Note(
                line(
                    f"Intervals allow for {figures.format_percent(largest)} of variation between runs, "
                    f"learned from {format_count(runs, 'earlier run')} here"
                )
            )
        )
    if len(spreads) < len(found.pairs):
        why = (
            "they are of different machines"
            if not found.same_host
            else f"it takes {FEWEST_RUNS} other runs here"
        )
        nodes.append(
            Note(
                line(
                    f"How far unchanged runs differ is unknown for some cells ({why}): "
                    "their intervals cover the blocks alone and carry no verdict"
                ),
                NoteKind.WARNING,
            )
        )
    nodes.append(
        Note(
            line(
                "Two runs show that something changed, not what. Only ratios are compared: a change that slows "
                "baseline and cell alike is invisible. guestmark ab measures both sides in one run"
            )
        )
    )
    return nodes


def _summary_document(side: Summary) -> dict[str, Any]:
    return {
        "mean": side.mean,
        "median": side.median,
        "ci": None if side.ci is None else list(side.ci),
        "n": side.n,
    }


def make_document(comparisons: Sequence[RunComparison], judged: Sequence[JudgedGate] = ()) -> dict[str, Any]:
    """For programs; a stable interface, as the result document is."""
    return {
        "schema": SCHEMA,
        "comparisons": [
            {
                "before": each.before.id,
                "after": each.after.id,
                "same_host": each.same_host,
                "surroundings": {**each.decisive, **each.other},
                "missing": list(each.missing),
                "metric": None if each.metric is None else each.metric.name,
                "values": [
                    {
                        "cell": one.cell,
                        "before": None if one.before is None else _summary_document(one.before),
                        "after": None if one.after is None else _summary_document(one.after),
                    }
                    for one in each.values
                ],
                "cells": [
                    {
                        "cell": pair.cell,
                        "before": {"ratio": pair.before.ratio, "ci": [pair.before.low, pair.before.high]},
                        "after": {"ratio": pair.after.ratio, "ci": [pair.after.low, pair.after.high]},
                        "ratio": pair.found.ratio,
                        "ci": None if pair.found.ci is None else list(pair.found.ci),
                        "within_ci": list(pair.found.within),
                        "between_runs": pair.found.spread,
                        "earlier_runs": pair.found.runs,
                        "verdict": pair.found.verdict.value,
                    }
                    for pair in each.pairs
                ],
            }
            for each in comparisons
        ],
        "gates": gate_outcomes.make_document(judged),
    }
