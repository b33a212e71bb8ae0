"""This run beside earlier ones of the same host: what they found for the same ratios, and what changed since."""

from typing import Any

from guestmark.core.units import counted
from guestmark.page import figures
from guestmark.page.claims import Claim
from guestmark.page.names import spoken
from guestmark.page.nodes import Bullets, Node, Note, NoteKind
from guestmark.page.text import Inline, Span, Tone, line, spans
from guestmark.stats.across_runs import FEWEST_RUNS, Change, ChangeVerdict, PastRatio, compare_with_earlier
from guestmark.stats.analysis import Analysis, CellResult
from guestmark.stats.compare import Comparison
from guestmark.stats.conditions.surroundings import describe_changes

_MOST = 6  # cells that are listed when all of them are as before


def lines(analysis: Analysis) -> list[Node]:
    """A line for each ratio that was measured here before; of many that are as before, only how many they are."""
    seen = [
        (result, outside) for result in analysis.cells if (outside := _outside(result, analysis)) is not None
    ]
    if not seen:
        return []
    listed = [entry for entry in seen if entry[1] or len(seen) <= _MOST]
    names = {name: title for workload in analysis.workloads for name, title in spoken(workload).items()}
    items: list[Inline] = [_line(result, analysis, names[result.cell.id]) for result, _ in listed]
    if rest := len(seen) - len(listed):
        others = "the others" if listed else "all cells"
        items.append(line(f"{others} ({rest}): no change shown since earlier runs, or too few of them"))
    nodes: list[Node] = [Bullets(line("Measured here before:"), tuple(items))]
    changed, between = analysis.history.changed, analysis.history.between
    if changed:
        kind = NoteKind.WARNING if any(outside for _, outside in seen) else NoteKind.SMALL
        nodes.append(Note(line(f"Since then: {describe_changes(changed)}"), kind))
    elif any(outside for _, outside in seen):
        nodes.append(Note(line("Nothing recorded about the host has changed since then")))
    if between:
        nodes.append(Note(line(f"Between those runs: {describe_changes(between)}")))
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
    """Whether a change of the cell's ratio since earlier runs is shown; None when there is nothing to compare."""
    if not analysis.history.ratios.get(result.cell.id) or _interval(result, analysis) is None:
        return None
    changed = _changed(result, analysis)
    return changed is not None and changed.verdict is not ChangeVerdict.ALIKE


def _interval(result: CellResult, analysis: Analysis) -> Comparison | None:
    comparison = result.comparison.get(analysis.plan.metrics[0].name) if analysis.plan.metrics else None
    if comparison is None or comparison.ratio is None or comparison.ci is None or comparison.ci[0] <= 0:
        return None
    return comparison


def _changed(result: CellResult, analysis: Analysis) -> Change | None:
    comparison = _interval(result, analysis)
    if comparison is None or comparison.ratio is None or comparison.ci is None:
        return None
    now = PastRatio("", 0.0, comparison.ratio, *comparison.ci, comparison.n)
    return compare_with_earlier(now, analysis.history.ratios[result.cell.id], _claims(analysis))


def _claims(analysis: Analysis) -> int:
    """How many cells of the report are compared with earlier runs: they share one error rate."""
    known = (
        len(analysis.history.ratios.get(result.cell.id, ())) >= FEWEST_RUNS
        for result in analysis.cells
        if _interval(result, analysis) is not None
    )
    return max(sum(known), 1)


def _line(result: CellResult, analysis: Analysis, name: str) -> Inline:
    past = analysis.history.ratios[result.cell.id]
    low, high = min(past, key=lambda run: run.ratio), max(past, key=lambda run: run.ratio)
    ends = [
        f"×{figures.number(run.ratio, figures.ratio_decimals(run.ratio, (run.low, run.high)))}"
        for run in (low, high)
    ]
    found = ends[0] if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"
    told = f": {counted(len(past), 'earlier run')} here, {found}"
    changed = _changed(result, analysis)
    if changed is None:
        return spans(Span(name, Tone.NAME), f"{told}; {FEWEST_RUNS} would show whether it changed")
    claim = Claim.NOT_CHANGED if changed.verdict is ChangeVerdict.ALIKE else Claim.CHANGED
    shown = claim.format(earlier=told, ratio=figures.ratio(changed.ratio, changed.ci))
    return spans(Span(name, Tone.NAME), Span(shown, Tone.WARNING if claim is Claim.CHANGED else Tone.PLAIN))
