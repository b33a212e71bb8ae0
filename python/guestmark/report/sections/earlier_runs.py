"""Comparison of this run with earlier ones of the same host: the same ratios, and what has changed since."""

from typing import Any

from guestmark.core.units import format_count
from guestmark.page import figures
from guestmark.page.claims import Claim
from guestmark.page.names import name_in_sentences
from guestmark.page.nodes import Bullets, Node, Note, NoteKind
from guestmark.page.text import Inline, Span, Tone, line, spans
from guestmark.stats.across_runs import FEWEST_RUNS, PastRatio
from guestmark.stats.analysis import Analysis, CellResult
from guestmark.stats.conditions.surroundings import describe_changes
from guestmark.stats.earlier_runs import EarlierComparison, compare_earlier_runs

# Cells without a change are listed up to this number; more are only counted.
_MOST_UNCHANGED = 6


def make_nodes(analysis: Analysis) -> list[Node]:
    """Return a line for each ratio that was measured here before; of many without a change, only their number."""
    compared = []
    for result in analysis.cells:
        earlier = compare_earlier_runs(result, analysis)
        if earlier is not None:
            compared.append((result, earlier))
    if not compared:
        return []
    # Of many cells, only those with a shown change are listed.
    few = len(compared) <= _MOST_UNCHANGED
    listed = [(result, earlier) for result, earlier in compared if few or earlier.has_changed]
    names: dict[str, str] = {}
    for workload in analysis.workloads:
        names |= name_in_sentences(workload)
    items: list[Inline] = [_describe_cell(names[result.cell.id], earlier) for result, earlier in listed]
    if rest := len(compared) - len(listed):
        others = "the others" if listed else "all cells"
        items.append(line(f"{others} ({rest}): no change shown, or too few earlier runs"))
    any_changed = any(earlier.has_changed for _, earlier in compared)
    return [
        Bullets(line("Measured here before:"), tuple(items)),
        *_make_host_change_notes(analysis, any_changed),
    ]


def _make_host_change_notes(analysis: Analysis, any_changed: bool) -> list[Node]:
    nodes: list[Node] = []
    changed, between = analysis.history.changed, analysis.history.between
    if changed:
        kind = NoteKind.WARNING if any_changed else NoteKind.SMALL
        nodes.append(Note(line(f"Since then: {describe_changes(changed)}"), kind))
    elif any_changed:
        nodes.append(Note(line("Nothing recorded about the host has changed since then")))
    if between:
        nodes.append(Note(line(f"Between those runs: {describe_changes(between)}")))
    return nodes


def make_document(result: CellResult, analysis: Analysis) -> dict[str, Any] | None:
    """Return the earlier runs that measured a cell's ratio, for the result document; None without any."""
    earlier = compare_earlier_runs(result, analysis)
    if earlier is None:
        return None
    runs = []
    for run in earlier.past:
        runs.append({"id": run.run_id, "ratio": run.ratio, "ci": [run.low, run.high], "n": run.blocks})
    return {
        "runs": runs,
        "lowest": earlier.lowest_run.ratio,
        "highest": earlier.highest_run.ratio,
        "outside": earlier.has_changed,
    }


def _describe_cell(name: str, earlier: EarlierComparison) -> Inline:
    low, high = _format_past_value(earlier.lowest_run), _format_past_value(earlier.highest_run)
    ratios = low if low == high else f"{low} to {high}"
    past = f": {format_count(len(earlier.past), 'earlier run')} here, {ratios}"
    change = earlier.change
    if change is None:
        return spans(Span(name, Tone.NAME), f"{past}; {FEWEST_RUNS} would show whether it changed")
    claim = Claim.CHANGED if earlier.has_changed else Claim.NOT_CHANGED
    tone = Tone.WARNING if earlier.has_changed else Tone.PLAIN
    text = claim.format(earlier=past, ratio=figures.format_ratio(change.ratio, change.ci))
    return spans(Span(name, Tone.NAME), Span(text, tone))


def _format_past_value(run: PastRatio) -> str:
    return (
        f"×{figures.format_number(run.ratio, figures.count_ratio_decimals(run.ratio, (run.low, run.high)))}"
    )
