"""Limits on ratios between runs, or over several runs: for `guestmark compare` and `guestmark gate`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from guestmark.core.gate import Gate, parse_limits, read_plan_gates
from guestmark.core.model import Plan
from guestmark.core.units import format_count
from guestmark.ledger import run_history
from guestmark.ledger.model import StoredRun
from guestmark.page.nodes import Page, Part, Section
from guestmark.report.run_comparison import CellRatios, RunComparison
from guestmark.report.sections.gate_outcomes import list_gates, make_document
from guestmark.report.session_comparison import SessionComparison
from guestmark.stats.across_runs import SidesComparison, mean_over_sessions
from guestmark.stats.analysis import Analysis
from guestmark.stats.gates import JudgedGate, MeasuredRatio, RatioClaim, judge_gates, judge_ratios


def judge_comparisons(comparisons: Sequence[RunComparison], limits: Sequence[str]) -> tuple[JudgedGate, ...]:
    """Judge every limit for each of its cells, in order. A limit without words applies to the cells of both runs.

    All limits share one error rate (Bonferroni). Raises `UsageError` for a limit that matches nothing in the later run.
    """
    claims: list[RatioClaim] = []
    for comparison in comparisons:
        claims += _list_claims(comparison, limits)
    return judge_ratios(claims)


def judge_sides(comparison: SessionComparison, limits: Sequence[str]) -> tuple[JudgedGate, ...]:
    """Judge limits to the ratio of two sides with several sessions each: the second side over the first."""
    plan = comparison.runs[-1].plan
    rows = {(row.cell, row.metric): row.found for row in comparison.cells if row.baseline is not None}
    claims = []
    for gate in _parse_limits(limits, plan):
        for cell in plan.cells:
            if gate.selects_cell(cell):
                claims.append(_make_sides_claim(gate, cell.id, rows))
    return judge_ratios(claims)


def _make_sides_claim(gate: Gate, cell: str, rows: Mapping[tuple[str, str], SidesComparison]) -> RatioClaim:
    """Return the claim about a cell's ratio in the gate's metric, or in the first one if it names none."""
    for (compared, metric), found in rows.items():
        if compared == cell and gate.metric in {"", metric}:
            return RatioClaim(gate, cell, metric, _measure_sides(found))
    return RatioClaim(gate, cell, gate.metric, None, "at least one side has no such ratio")


def _measure_sides(found: SidesComparison) -> MeasuredRatio:
    unknown = "" if found.ci else "a side with one session does not show how much sessions vary"
    # Student's t of two samples loses a degree of freedom to each mean.
    freedom = sum(found.sessions) - 2
    return MeasuredRatio(found.ratio, found.ci, min(found.sessions), freedom, unknown, claims=found.claims)


def judge_sessions(
    runs: Sequence[tuple[StoredRun, Analysis]], limits: Sequence[str] | None
) -> tuple[JudgedGate, ...]:
    """Judge limits over several runs of one question, with the run as the unit; without `limits` the first run's gates.

    Limits about power cuts are judged in each run by itself. Raises `UsageError` for a limit that matches nothing in
    the first run, and for runs that ask different questions about a cell.
    """
    plan = runs[0][0].plan
    gates = _parse_limits(limits, plan) if limits else read_plan_gates(plan)
    claims = []
    for gate in gates:
        for cell in plan.cells:
            if gate.selects_cell(cell) and gate.loss is None:
                run_history.refuse_other_questions([run for run, _ in runs], cell.id)
                claims.append(_make_session_claim(gate, cell.id, runs))
    losses = [gate for gate in gates if gate.loss is not None]
    by_run = (judge_gates(losses, analysis) for _, analysis in runs)
    return (*judge_ratios(claims), *itertools.chain.from_iterable(by_run))


def make_sessions_page(runs: Sequence[StoredRun], gates: Sequence[JudgedGate]) -> Page:
    """Return a page with the outcomes of gates over several runs."""
    title = f"Gates over {format_count(len(runs), 'session')}"
    section = Section(Part.CONCLUSION, title, (list_gates(gates),))
    return Page(runs[0].plan.title or runs[0].plan.name, runs[0].id, (section,))


def make_sessions_document(runs: Sequence[StoredRun], gates: Sequence[JudgedGate]) -> dict[str, Any]:
    """Return the outcomes for programs: a stable interface. `n` of a gate is the number of sessions."""
    ids = [run.id for run in runs]
    return {"schema": "guestmark-session-gates/1", "runs": ids, "gates": make_document(gates)}


def _parse_limits(limits: Sequence[str], plan: Plan) -> tuple[Gate, ...]:
    return parse_limits(limits, plan.cells, {metric.name for metric in plan.metrics})


def _list_claims(comparison: RunComparison, limits: Sequence[str]) -> Iterator[RatioClaim]:
    plan, pairs = comparison.after.plan, {pair.cell: pair for pair in comparison.pairs}
    before = {cell.id for cell in comparison.before.plan.cells}
    # Cells that both runs have, and one of them without a ratio: their trials failed, or they ask something else.
    lost = before.intersection(comparison.missing)
    # Runs are compared in their primary metric alone.
    metric = plan.metrics[0].name
    for gate in parse_limits(limits, plan.cells, {metric}):
        cells = [cell.id for cell in plan.cells if gate.selects_cell(cell)]
        # A limit without words applies to the cells of both runs; if there are none, to all cells, as unmeasured.
        if not gate.words:
            cells = [cell for cell in cells if cell in pairs or cell in lost] or cells
        for cell in cells:
            ratio = _measure_pair(pairs[cell]) if cell in pairs else None
            yield RatioClaim(gate, cell, metric, ratio)


def _measure_pair(pair: CellRatios) -> MeasuredRatio:
    change, blocks = pair.change, min(pair.before.blocks, pair.after.blocks)
    unknown = "" if change.ci else "the variation between unchanged runs here is unknown"
    freedom = max(change.runs - 1, 1)
    return MeasuredRatio(change.ratio, change.ci, blocks, freedom, unknown, change.within, change.claims)


def _make_session_claim(gate: Gate, cell: str, runs: Sequence[tuple[StoredRun, Analysis]]) -> RatioClaim:
    metric, ratios = _list_ratios_by_run(runs, cell, gate.metric)
    known = []
    for (run, _), ratio in zip(runs, ratios, strict=True):
        if ratio is None:
            return RatioClaim(gate, cell, metric, None, f"run {run.id} has no ratio for this metric")
        known.append(ratio)
    found = mean_over_sessions(known)
    unknown = "" if found.ci else "one session does not show how much sessions vary"
    measured = MeasuredRatio(found.ratio, found.ci, found.sessions, found.sessions - 1, unknown)
    return RatioClaim(gate, cell, metric, measured)


def _list_ratios_by_run(
    runs: Sequence[tuple[StoredRun, Analysis]], cell: str, metric: str
) -> tuple[str, list[float | None]]:
    """Return the metric (the cell's primary one if none is named), and the cell's ratio in each run."""
    ratios: list[float | None] = []
    for _, analysis in runs:
        ratio = None
        for workload in analysis.workloads:
            for result in workload.cells:
                if result.cell.id == cell and workload.metrics:
                    metric = metric or workload.metrics[0].name
                    comparison = result.comparison.get(metric)
                    ratio = comparison.ratio if comparison is not None else None
        ratios.append(ratio)
    return metric, ratios
