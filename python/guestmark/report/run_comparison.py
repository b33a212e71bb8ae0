"""Runs beside each other: how their environments differ, and by what the ratios of their cells differ."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from guestmark.core.metric import Metric
from guestmark.core.units import format_count
from guestmark.ledger import run_history
from guestmark.ledger.model import StoredRun
from guestmark.ledger.store import Ledger
from guestmark.page import figures
from guestmark.page.claims import Claim
from guestmark.page.json_text import list_interval
from guestmark.page.nodes import Bullets, Node, Note, NoteKind, Page, Paragraph, Part, Section
from guestmark.page.tables import Align, Cell, Column, Row, RowName, Table, make_figure_cell, make_word_cell
from guestmark.page.text import Tone, line
from guestmark.report.past_ratios import make_past_ratio_cell
from guestmark.report.sections import gate_outcomes
from guestmark.stats.across_runs import FEWEST_RUNS, Change, ChangeVerdict, PastRatio, compare_two_runs
from guestmark.stats.analysis import Analysis
from guestmark.stats.conditions.surroundings import compare_environments
from guestmark.stats.gates import JudgedGate
from guestmark.stats.paired import Summary

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
_RATIO_COLUMNS = (
    Column("before, vs its baseline", (Align.POINT, Align.LEFT)),
    Column("after, vs its baseline", (Align.POINT, Align.LEFT)),
    Column("after / before", (Align.POINT, Align.LEFT)),
    Column("verdict"),
)


@dataclass(frozen=True, slots=True)
class CellRatios:
    """A cell that both runs have: its ratio in each, and what changed."""

    cell: str
    before: PastRatio
    after: PastRatio
    change: Change


@dataclass(frozen=True, slots=True)
class CellValues:
    """A cell's typical value in the primary metric of each run; None if a run lacks the cell or the metric."""

    cell: str
    before: Summary | None
    after: Summary | None


@dataclass(frozen=True, slots=True)
class RunComparison:
    """A run compared with the first. `missing` are cells that only one of them has, or whose ratio has no interval.

    `values` are in `metric`, side by side and without a verdict: the host may have changed between the runs.
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
    # Labels before and after, for cells that have the same id but different workloads.
    workloads: tuple[tuple[str, str], ...] = ()

    @property
    def spreads(self) -> list[Change]:
        """The changes whose cells have a known variation between unchanged runs on this host."""
        return [pair.change for pair in self.pairs if pair.change.spread is not None]


def compare_runs(ledger: Ledger, before: StoredRun, after: StoredRun, beside: int = 1) -> RunComparison:
    """Compare the cells of two runs, matched by workload, platform, factors and processors of both sides of a ratio.

    All cells of the `beside` runs that a report compares with the first share one error rate.
    """
    decisive, other = compare_environments(before.environment, after.environment)
    analyses = [run_history.analyse_with_history(ledger, run) for run in (before, after)]
    old = run_history.find_ratios(before, analyses[0])
    new = run_history.find_ratios(after, analyses[1])
    both = [key for key in old if key in new]
    host = run_history.identify_run_host(before)
    same_host = bool(host) and host == run_history.identify_run_host(after)
    earlier: dict[str, list[PastRatio]] = {}
    if same_host:
        earlier = _find_other_ratios(ledger, host, both, {before.id, after.id})
    judged = sum(len(earlier.get(key, ())) >= FEWEST_RUNS for key in both)
    claims = beside * max(judged, 1)
    pairs = []
    for key in both:
        (old_ratio, _), (new_ratio, cell) = old[key], new[key]
        change = compare_two_runs(old_ratio, new_ratio, earlier.get(key, ()), claims)
        pairs.append(CellRatios(cell, old_ratio, new_ratio, change))
    names = tuple(dict.fromkeys([*_list_cells_of_one(old, new), *_list_cells_of_one(new, old)]))
    metric: Metric | None = None
    values: tuple[CellValues, ...] = ()
    if before.plan.metrics:
        metric = before.plan.metrics[0]
        values = _pair_values(metric, *analyses)
    return RunComparison(
        before,
        after,
        decisive,
        other,
        tuple(pairs),
        names,
        same_host,
        metric,
        values,
        _pair_workloads(before, after),
    )


def _find_other_ratios(
    ledger: Ledger, host: str, questions: Sequence[str], compared: Collection[str]
) -> dict[str, list[PastRatio]]:
    """Return the host's ratios by question, without those of the runs that are compared."""
    ratios: dict[str, list[PastRatio]] = {}
    for row in ledger.find_earlier_ratios(host, questions, time.time() + 1):
        if row.run_id not in compared:
            ratios.setdefault(row.what, []).append(run_history.make_past(row))
    return ratios


def _list_cells_of_one(
    ratios: Mapping[str, tuple[PastRatio, str]], others: Mapping[str, object]
) -> list[str]:
    """Return the cells whose ratios the other run lacks."""
    return [cell for key, (_, cell) in ratios.items() if key not in others]


def _pair_workloads(before: StoredRun, after: StoredRun) -> tuple[tuple[str, str], ...]:
    """Return the labels of cells that have the same id but different workloads in the two runs, each pair once."""
    old = {cell.id: cell.workload.label for cell in before.plan.cells}
    pairs: dict[tuple[str, str], None] = {}
    for cell in after.plan.cells:
        label = cell.workload.label
        if cell.id in old and old[cell.id] != label:
            pairs[old[cell.id], label] = None
    return tuple(pairs)


def _pair_values(metric: Metric, before: Analysis, after: Analysis) -> tuple[CellValues, ...]:
    """Return the values of both runs by cell id."""
    old, new = _collect_values_by_cell(before, metric), _collect_values_by_cell(after, metric)
    # If each run has a single cell, these are compared even if their ids differ.
    if len(old) == len(new) == 1 and old.keys() != new.keys():
        ((old_name, old_value),), ((new_name, new_value),) = old.items(), new.items()
        return (CellValues(f"{old_name} → {new_name}", old_value, new_value),)
    return tuple(CellValues(name, old.get(name), new.get(name)) for name in dict.fromkeys([*old, *new]))


def _collect_values_by_cell(analysis: Analysis, metric: Metric) -> dict[str, Summary | None]:
    values = {}
    for result in analysis.cells:
        if result.cell.null_of is None:
            values[result.cell.id] = result.summary.get(metric.name)
    return values


# --- the page -----------------------------------------------------------------------------------------------


def make_page(comparisons: Sequence[RunComparison], gates: Sequence[JudgedGate] = ()) -> Page:
    """Return the comparison as a page, with the outcome of each limit."""
    first = comparisons[0].before
    sections = []
    for each in comparisons:
        title = f"{each.after.id} against {each.before.id}"
        sections.append(Section(Part.WORKLOAD, title, tuple(_make_comparison_nodes(each))))
    if gates:
        limits = gate_outcomes.list_gates(gates)
        sections.append(Section(Part.WORKLOAD, "Limits on after / before", (limits,)))
    return Page(f"Compared with {first.id}", first.id, tuple(sections))


def _make_comparison_nodes(comparison: RunComparison) -> list[Node]:
    nodes: list[Node] = [_list_environment_changes(comparison)]
    if comparison.pairs:
        nodes.append(_make_ratio_table(comparison))
    metric = comparison.metric
    if metric is not None and any(each.before or each.after for each in comparison.values):
        nodes.append(_make_value_table(comparison.values, metric))
    for earlier, later in comparison.workloads:
        nodes.append(Note(line(f"Different workloads: {earlier} before, {later} after")))
    if not comparison.pairs:
        text = "No cell has a ratio to the same baseline in both runs, so there is no verdict"
        nodes.append(Note(line(text)))
    if comparison.missing:
        names = ", ".join(comparison.missing)
        nodes.append(Note(line(f"Cells in only one run, or without a ratio: {names}")))
    return [*nodes, *_explain_limits(comparison)]


def _list_environment_changes(comparison: RunComparison) -> Node:
    changes = {**comparison.decisive, **comparison.other}
    items = [line(f"{name} {change}") for name, change in changes.items()]
    if not comparison.same_host:
        items.insert(0, line("another machine", Tone.WARNING))
    if not items:
        return Paragraph(line("The recorded environments do not differ."))
    return Bullets(line("What differs between the environments:"), tuple(items))


def _make_ratio_table(comparison: RunComparison) -> Table:
    rows = tuple(map(_make_pair_row, comparison.pairs))
    return Table("ratios to the baseline of each run, and their ratio", ("cell",), _RATIO_COLUMNS, rows)


def _make_pair_row(pair: CellRatios) -> Row:
    change = pair.change
    quotient = figures.format_ratio_pieces(change.ratio, change.ci or change.within)
    cells = (
        make_past_ratio_cell(pair.before),
        make_past_ratio_cell(pair.after),
        make_figure_cell(*quotient),
        make_change_cell(change.verdict),
    )
    return Row(RowName((pair.cell,), pair.cell), cells)


def make_change_cell(verdict: ChangeVerdict) -> Cell:
    """Return the verdict on a change in words."""
    return make_word_cell(VERDICT_WORDS[verdict], VERDICT_TONES[verdict])


def _make_value_table(values: Sequence[CellValues], metric: Metric) -> Table:
    """Return a table with the values of both runs side by side, without a verdict."""
    typical = []
    for each in values:
        typical += [side.typical for side in (each.before, each.after) if side is not None]
    unit = figures.choose_table_unit(metric.unit, typical)
    heading = figures.format_column_heading(metric, unit)
    rows = []
    for each in values:
        sides = (_make_value_cell(each.before, unit), _make_value_cell(each.after, unit))
        rows.append(Row(RowName((each.cell,), each.cell), (*sides, _make_quotient_cell(each))))
    pieces = (Align.POINT, Align.LEFT, Align.POINT)
    columns = (
        Column(f"{heading}, before", pieces),
        Column("after", pieces),
        Column("after / before", (Align.POINT,)),
    )
    caption = f"{heading}, measured at different times: the host may have changed in between"
    return Table(caption, ("cell",), columns, tuple(rows))


def _make_value_cell(side: Summary | None, unit: figures.Unit) -> Cell:
    if side is None:
        return make_word_cell("not in this run")
    return make_figure_cell(*figures.format_estimate_pieces(side.typical, side.typical_ci, unit))


def _make_quotient_cell(values: CellValues) -> Cell:
    before, after = values.before, values.after
    if before is None or after is None or before.typical <= 0 or after.typical <= 0:
        return Cell()
    return make_figure_cell(figures.format_ratio(after.typical / before.typical, None))


def _explain_limits(comparison: RunComparison) -> list[Node]:
    """Explain what a comparison of single runs can and cannot show."""
    nodes: list[Node] = []
    spreads = comparison.spreads
    if spreads:
        largest = figures.format_percent(max(change.spread or 0.0 for change in spreads))
        runs = format_count(min(change.runs for change in spreads), "earlier run")
        text = f"Intervals allow for {largest} of variation between runs, estimated from {runs} here"
        nodes.append(Note(line(text)))
    if len(spreads) < len(comparison.pairs):
        reason = f"estimating it takes {FEWEST_RUNS} other runs here"
        if not comparison.same_host:
            reason = "the runs are from different machines"
        text = (
            f"The variation between unchanged runs is unknown for some cells ({reason}): "
            "their intervals cover variation between blocks only, so they have no verdict"
        )
        nodes.append(Note(line(text), NoteKind.WARNING))
    text = (
        "Two runs can show that something changed, not what. Only ratios are compared: a change that slows "
        "baseline and cell alike is invisible. guestmark ab measures both sides in one run"
    )
    return [*nodes, Note(line(text))]


# --- for programs -------------------------------------------------------------------------------------------


def make_document(comparisons: Sequence[RunComparison], gates: Sequence[JudgedGate] = ()) -> dict[str, Any]:
    """Return the comparisons for programs: a stable interface, like the result document."""
    return {
        "schema": SCHEMA,
        "comparisons": [_make_runs_document(comparison) for comparison in comparisons],
        "gates": gate_outcomes.make_document(gates),
    }


def _make_runs_document(comparison: RunComparison) -> dict[str, Any]:
    return {
        "before": comparison.before.id,
        "after": comparison.after.id,
        "same_host": comparison.same_host,
        "surroundings": {**comparison.decisive, **comparison.other},
        "missing": list(comparison.missing),
        "metric": None if comparison.metric is None else comparison.metric.name,
        "values": [_make_values_document(values) for values in comparison.values],
        "cells": [_make_ratios_document(pair) for pair in comparison.pairs],
    }


def _make_ratios_document(pair: CellRatios) -> dict[str, Any]:
    return {
        "cell": pair.cell,
        "before": {"ratio": pair.before.ratio, "ci": [pair.before.low, pair.before.high]},
        "after": {"ratio": pair.after.ratio, "ci": [pair.after.low, pair.after.high]},
        "ratio": pair.change.ratio,
        "ci": list_interval(pair.change.ci),
        "within_ci": list(pair.change.within),
        "between_runs": pair.change.spread,
        "earlier_runs": pair.change.runs,
        "verdict": pair.change.verdict.value,
    }


def _make_values_document(values: CellValues) -> dict[str, Any]:
    return {
        "cell": values.cell,
        "before": _make_value_document(values.before),
        "after": _make_value_document(values.after),
    }


def _make_value_document(side: Summary | None) -> dict[str, Any] | None:
    if side is None:
        return None
    return {"mean": side.mean, "median": side.median, "ci": list_interval(side.ci), "n": side.n}
