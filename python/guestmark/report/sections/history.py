"""This run beside earlier ones of the same host: what they found for the same ratios, and what changed since."""

from typing import Any

from guestmark.page import figures
from guestmark.page.nodes import Bullets, Node, Note, NoteKind
from guestmark.page.text import Inline, Span, Tone, line, spans
from guestmark.stats.analysis import Analysis, CellResult
from guestmark.stats.between_runs import lies_outside
from guestmark.stats.conditions.surroundings import said

_MOST = 6  # cells that are listed when all of them are as before


def lines(analysis: Analysis) -> list[Node]:
    """A line for each ratio that was measured here before; of many that are as before, only how many they are."""
    seen = [
        (result, outside) for result in analysis.cells if (outside := _outside(result, analysis)) is not None
    ]
    if not seen:
        return []
    listed = [entry for entry in seen if entry[1] or len(seen) <= _MOST]
    items: list[Inline] = [_line(result, analysis, outside=outside) for result, outside in listed]
    if rest := len(seen) - len(listed):
        others = "the others" if listed else "all cells"
        items.append(line(f"{others} ({rest}) agree with earlier runs"))
    nodes: list[Node] = [Bullets(line("Measured here before:"), tuple(items))]
    changed, between = analysis.history.changed, analysis.history.between
    if changed:
        kind = NoteKind.WARNING if any(outside for _, outside in seen) else NoteKind.SMALL
        nodes.append(Note(line(f"Since then: {said(changed)}"), kind))
    elif any(outside for _, outside in seen):
        nodes.append(Note(line("Nothing that is recorded of the host has changed since then")))
    if between:
        nodes.append(Note(line(f"Between those runs: {said(between)}")))
    return nodes


def document(result: CellResult, analysis: Analysis) -> dict[str, Any] | None:
    """For the result document: the earlier runs of a cell's ratio; None when there are none."""
    outside = _outside(result, analysis)
    if outside is None:
        return None
    past = analysis.history.ratios[result.cell.id]
    return {
        "runs": [
            {"id": run.run_id, "ratio": run.ratio, "ci": [run.low, run.high], "n": run.blocks} for run in past
        ],
        "lowest": min(run.ratio for run in past),
        "highest": max(run.ratio for run in past),
        "outside": outside,
    }


def _outside(result: CellResult, analysis: Analysis) -> bool | None:
    """Whether the cell's ratio lies outside of what earlier runs found; None when there is nothing to hold together."""
    past = analysis.history.ratios.get(result.cell.id)
    comparison = result.comparison.get(analysis.plan.metrics[0].name) if analysis.plan.metrics else None
    if not past or comparison is None or comparison.ci is None:
        return None
    return lies_outside(comparison.ci, past)


def _line(result: CellResult, analysis: Analysis, *, outside: bool) -> Inline:
    past = analysis.history.ratios[result.cell.id]
    low, high = min(past, key=lambda run: run.ratio), max(past, key=lambda run: run.ratio)
    ends = [
        f"×{figures.number(run.ratio, figures.ratio_decimals(run.ratio, (run.low, run.high)))}"
        for run in (low, high)
    ]
    found = ends[0] if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"
    told = "1 earlier run" if len(past) == 1 else f"{len(past)} earlier runs"
    verdict = Span("this one lies outside", Tone.WARNING) if outside else Span("this one agrees")
    return spans(Span(result.cell.id, Tone.NAME), f": {told} here, {found}; ", verdict)
