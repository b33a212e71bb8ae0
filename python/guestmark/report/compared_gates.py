"""Limits to what a cell's ratio may have become from one run to the other, for `guestmark compare`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from guestmark.core.gate import Gate, parse_gates
from guestmark.report.compared import Comparison, Pair
from guestmark.stats.across_runs import Change
from guestmark.stats.gates import Judged, Outcome
from guestmark.stats.special import stdtrit


@dataclass(frozen=True, slots=True)
class _Claim:
    """A gate and a cell it is about; without a pair where the runs cannot be compared in it."""

    gate: Gate
    cell: str
    metric: str
    pair: Pair | None


def judge(comparisons: Sequence[Comparison], texts: Sequence[str]) -> tuple[Judged, ...]:
    """Every gate with each of its cells, in order. A gate without words is about the cells that both runs have.

    Each limit that is said to be broken counts as one of several claims (Bonferroni). Raises `UsageError` for a gate
    that nothing in the later run fits.
    """
    claims = [claim for each in comparisons for claim in _claims(each, texts)]
    known = sum(claim.pair is not None and claim.pair.found.ci is not None for claim in claims)
    return tuple(_judged(claim, known) for claim in claims)


def _claims(each: Comparison, texts: Sequence[str]) -> Iterator[_Claim]:
    plan, pairs = each.after.plan, {pair.cell: pair for pair in each.pairs}
    metric = plan.metrics[0].name  # the one that is compared
    for gate in parse_gates(texts, plan.cells, {metric}):
        cells = [cell.id for cell in plan.cells if gate.selects(cell)]
        if not gate.words:
            cells = [cell for cell in cells if cell in pairs] or cells
        for cell in cells:
            yield _Claim(gate, cell, metric, pairs.get(cell))


def _judged(claim: _Claim, claims: int) -> Judged:
    judged = Judged(claim.gate, claim.cell, claim.metric, Outcome.UNMEASURED, "not in both runs with a ratio")
    if claim.pair is None:
        return judged
    found, n = claim.pair.found, min(claim.pair.before.blocks, claim.pair.after.blocks)
    if found.ci is None:
        reason = "how far runs differ here without any change is not known"
        return Judged(
            claim.gate, claim.cell, claim.metric, Outcome.UNDECIDED, reason, found.ratio, found.within, n
        )
    outcome = (
        Outcome.BROKEN
        if _beyond(claim.gate, _widened(found, claims))
        else Outcome.KEPT
        if _within(claim.gate, found.ci)
        else Outcome.UNDECIDED
    )
    return Judged(claim.gate, claim.cell, claim.metric, outcome, "", found.ratio, found.ci, n)


def _beyond(gate: Gate, ci: tuple[float, float]) -> bool:
    return ci[0] > gate.limit if gate.above else ci[1] < gate.limit


def _within(gate: Gate, ci: tuple[float, float]) -> bool:
    return ci[1] < gate.limit if gate.above else ci[0] > gate.limit


def _widened(found: Change, claims: int) -> tuple[float, float]:
    """Its interval at the level that so many claims leave to each."""
    low, high = found.ci or found.within
    middle = math.log(found.ratio)
    free = max(found.runs - 1, 1)
    stretch = float(stdtrit(free, 1 - 0.025 / claims)) / float(stdtrit(free, 0.975))
    return math.exp(middle + (math.log(low) - middle) * stretch), math.exp(
        middle + (math.log(high) - middle) * stretch
    )
