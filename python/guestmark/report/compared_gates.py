"""Limits to a ratio between runs, or over several runs: for `guestmark compare` and `guestmark gate`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from guestmark.core.gate import Gate, gates_of, parse_limits
from guestmark.core.model import Plan
from guestmark.core.units import counted
from guestmark.ledger.model import StoredRun
from guestmark.page.nodes import Page, Part, Section
from guestmark.report.compared import Comparison, Pair
from guestmark.report.sections.gates import document, lines
from guestmark.report.sessions import Result
from guestmark.stats.across_runs import mean_over_sessions
from guestmark.stats.analysis import Analysis
from guestmark.stats.gates import JudgedGate, Outcome, smallest_detected_ratio
from guestmark.stats.special import student_t_quantile


@dataclass(frozen=True, slots=True)
class _Found:
    """A ratio with Student's interval on its logarithm (None: `unknown` says why), over `n` blocks or sessions."""

    ratio: float
    ci: tuple[float, float] | None
    n: int
    freedom: int
    unknown: str = ""
    blocks_alone: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class _Claim:
    """A gate and a cell that it is about; without `found`, `missing` says why there is no ratio."""

    gate: Gate
    cell: str
    metric: str
    found: _Found | None
    missing: str = "not in both runs with a ratio"


def _limits_of(plan: Plan) -> tuple[Gate, ...]:
    """The run's own gates about ratios; what its power cuts have shown needs no second run."""
    return tuple(gate for gate in gates_of(plan) if gate.loss is None)


def judge(comparisons: Sequence[Comparison], texts: Sequence[str]) -> tuple[JudgedGate, ...]:
    """Every gate with each of its cells, in order. A gate without words is about the cells that both runs have.

    Each limit that is said to be broken counts as one of several claims (Bonferroni). Raises `UsageError` for a gate
    that nothing in the later run fits.
    """
    return _every([claim for each in comparisons for claim in _of_pairs(each, texts)])


def judge_sides(found: Result, texts: Sequence[str]) -> tuple[JudgedGate, ...]:
    """The same of two sides with several sessions each: the limit is to the second side's ratio over the first's."""
    plan = found.runs[-1].plan
    rows = {(each.cell, each.metric): each.found for each in found.cells if each.baseline is not None}
    claims = []
    for gate in parse_limits(texts, plan.cells, {metric.name for metric in plan.metrics}):
        for cell in plan.cells:
            if not gate.selects(cell):
                continue
            fitting = [key for key in rows if key[0] == cell.id and gate.metric in ("", key[1])]
            if not fitting:
                missing = "not on both sides with a ratio"
                claims.append(_Claim(gate, cell.id, gate.metric, None, missing))
                continue
            made = rows[fitting[0]]
            few = "" if made.ci else "one session of a side says nothing about how far sessions differ"
            ratio = _Found(made.ratio, made.ci, min(made.sessions), sum(made.sessions) - 2, few)
            claims.append(_Claim(gate, cell.id, fitting[0][1], ratio))
    return _every(claims)


def judge_sessions(
    runs: Sequence[tuple[StoredRun, Analysis]], texts: Sequence[str] | None
) -> tuple[JudgedGate, ...]:
    """Every gate over several runs of one question, with the run as the unit; without `texts` the first run's gates.

    Raises `UsageError` for a gate that nothing in the first run fits.
    """
    plan = runs[0][0].plan
    gates = (
        parse_limits(texts, plan.cells, {metric.name for metric in plan.metrics})
        if texts
        else _limits_of(plan)
    )
    claims = []
    for gate in gates:
        for cell in plan.cells:
            if not gate.selects(cell):
                continue
            metric, ratios = _ratios(runs, cell.id, gate.metric)
            lacking = [run.id for (run, _), ratio in zip(runs, ratios, strict=True) if ratio is None]
            if lacking:
                missing = f"run {lacking[0]} has no ratio of it"
                claims.append(_Claim(gate, cell.id, metric, None, missing))
                continue
            made = mean_over_sessions([ratio for ratio in ratios if ratio is not None])
            spread = "" if made.ci else "one session says nothing about how far sessions differ"
            claims.append(
                _Claim(
                    gate,
                    cell.id,
                    metric,
                    _Found(made.ratio, made.ci, made.sessions, made.sessions - 1, spread),
                )
            )
    return _every(claims)


def _ratios(
    runs: Sequence[tuple[StoredRun, Analysis]], cell: str, metric: str
) -> tuple[str, list[float | None]]:
    """The metric (the cell's first one where none is named), and the cell's ratio in each run."""
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


def page_over(runs: Sequence[StoredRun], found: Sequence[JudgedGate]) -> Page:
    """What became of gates over several runs, for every renderer."""
    about = f"Gates over {counted(len(runs), 'session')}"
    return Page(
        runs[0].plan.title or runs[0].plan.name,
        runs[0].id,
        (Section(Part.CONCLUSION, about, (lines(found),)),),
    )


def document_over(runs: Sequence[StoredRun], found: Sequence[JudgedGate]) -> dict[str, Any]:
    """The same for programs; a stable interface. `n` of a gate is the number of sessions."""
    return {"schema": "guestmark-session-gates/1", "runs": [run.id for run in runs], "gates": document(found)}


def _of_pairs(each: Comparison, texts: Sequence[str]) -> Iterator[_Claim]:
    plan, pairs = each.after.plan, {pair.cell: pair for pair in each.pairs}
    metric = plan.metrics[0].name  # the one that is compared
    for gate in parse_limits(texts, plan.cells, {metric}):
        cells = [cell.id for cell in plan.cells if gate.selects(cell)]
        if not gate.words:
            cells = [cell for cell in cells if cell in pairs] or cells
        for cell in cells:
            pair = pairs.get(cell)
            yield _Claim(gate, cell, metric, None if pair is None else _of_pair(pair))


def _of_pair(pair: Pair) -> _Found:
    made, n = pair.found, min(pair.before.blocks, pair.after.blocks)
    unknown = "" if made.ci else "how far unchanged runs differ here is unknown"
    return _Found(made.ratio, made.ci, n, max(made.runs - 1, 1), unknown, made.within)


def _every(claims: Sequence[_Claim]) -> tuple[JudgedGate, ...]:
    known = sum(claim.found is not None and claim.found.ci is not None for claim in claims)
    return tuple(_judged(claim, known) for claim in claims)


def _judged(claim: _Claim, claims: int) -> JudgedGate:
    found, about = claim.found, (claim.gate, claim.cell, claim.metric)
    if found is None:
        return JudgedGate(*about, Outcome.UNMEASURED, claim.missing)
    if found.ci is None:
        return JudgedGate(*about, Outcome.UNDECIDED, found.unknown, found.ratio, found.blocks_alone, found.n)
    if _beyond(claim.gate, _widened(found.ratio, found.ci, found.freedom, claims)):
        outcome = Outcome.BROKEN
    elif _within(claim.gate, found.ci):
        outcome = Outcome.KEPT
    else:
        outcome = Outcome.UNDECIDED
    error = math.log(found.ci[1] / found.ci[0]) / 2 / float(student_t_quantile(found.freedom, 0.975))
    size = smallest_detected_ratio(claim.gate, error, found.freedom, 0.025 / claims)
    return JudgedGate(*about, outcome, "", found.ratio, found.ci, found.n, finds=size)


def _beyond(gate: Gate, ci: tuple[float, float]) -> bool:
    return ci[0] > gate.limit if gate.above else ci[1] < gate.limit


def _within(gate: Gate, ci: tuple[float, float]) -> bool:
    return ci[1] < gate.limit if gate.above else ci[0] > gate.limit


def _widened(ratio: float, ci: tuple[float, float], freedom: int, claims: int) -> tuple[float, float]:
    """The interval at the level that so many claims leave to each."""
    middle = math.log(ratio)
    stretch = float(student_t_quantile(freedom, 1 - 0.025 / claims)) / float(
        student_t_quantile(freedom, 0.975)
    )
    return math.exp(middle + (math.log(ci[0]) - middle) * stretch), math.exp(
        middle + (math.log(ci[1]) - middle) * stretch
    )
