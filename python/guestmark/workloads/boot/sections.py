"""Shows where the time of a start goes: for each cell a bar of its phases, and its kernel's slowest initcalls."""

from collections.abc import Sequence
from statistics import fmean

from guestmark.ledger.model import StoredRun
from guestmark.page.nodes import Node, Note
from guestmark.page.tables import Align, Column, Row, RowName, Table, make_figure_cell
from guestmark.page.text import line
from guestmark.stats.analysis import CellResult, WorkloadResult
from guestmark.workloads.boot import AGENT, PHASES, TOTAL, Boot, Initcalls, StartedUnits
from guestmark.workloads.common.facts import list_facts
from guestmark.workloads.common.phase_bars import average_phase_seconds, draw_phase_bars

LETTERS = "VFEKMRAWPX"  # one for each phase, in order
_MOST_CALLS = 10


def render_phases(workload: WorkloadResult, run: StoredRun) -> Sequence[Node]:
    """Renders a stacked bar for each cell, and the slowest initcalls.

    Returns nothing for workloads that measure no phases.
    """
    shown = _select_phased_cells(workload)
    if not shown:
        return []
    chart = draw_phase_bars(
        workload,
        [(result, average_phases(result)) for result in shown],
        [metric.name.removesuffix("_s") for metric in PHASES],
        LETTERS,
        title="Phases of start and end",
        caption="Means over the trials; each phase is also listed among the further metrics.",
        summary=lambda said: f"From the hypervisor's start to its end: {said}.",
    )
    return [chart, *_note_phases_of_other_starts(shown), *_render_initcalls(shown), *_render_units(shown)]


def average_phases(result: CellResult) -> list[float]:
    """Returns the mean seconds of each of `PHASES` in a cell; 0 for a phase that it lacks."""
    return average_phase_seconds(result, PHASES)


def average_initcalls(found: Sequence[Initcalls]) -> list[tuple[str, float]]:
    """Returns initcalls with their mean seconds, slowest first.

    A trial keeps only its slowest calls: one that it does not name counts as 0.
    """
    sums: dict[str, float] = {}
    for told in found:
        for call in told.slowest:
            sums[call.name] = sums.get(call.name, 0.0) + call.seconds
    return sorted(((name, total / len(found)) for name, total in sums.items()), key=lambda call: -call[1])


def _select_phased_cells(workload: WorkloadResult) -> list[CellResult]:
    """Returns the cells whose starts have phases; the starts of a peer may have none."""
    phased = []
    for result in workload.shown_cells:
        if AGENT.name in result.summary and any(average_phases(result)):
            phased.append(result)
    return phased


def _note_phases_of_other_starts(shown: Sequence[CellResult]) -> list[Note]:
    """Notes cells whose phases come from another start than their total."""
    names = []
    for result in shown:
        if TOTAL.name not in result.summary:
            continue
        share = sum(average_phases(result)) / result.summary[TOTAL.name].mean
        if abs(share - 1) > 0.02:
            names.append(result.cell.id)
    if not names:
        return []
    return [Note(line(f"phases of {', '.join(names)} come from a second, traced start"))]


def _render_initcalls(shown: Sequence[CellResult]) -> list[Node]:
    """Lists the slowest initcalls of every cell that has them, as means over its trials."""
    parts: list[Node] = []
    for result in shown:
        found = [boot.initcalls for boot in list_facts(result.good_trials, Boot)]
        if not found:
            continue
        count, seconds = fmean(told.count for told in found), fmean(told.seconds for told in found)
        title = f"Slowest initcalls of {result.cell.id} ({count:.0f}, {seconds:.3g} s in all)"
        rows = []
        for name, mean in average_initcalls(found)[:_MOST_CALLS]:
            rows.append(Row(RowName((name,)), (make_figure_cell(f"{1e3 * mean:.1f}"),)))
        columns = (Column("ms", (Align.POINT,)),)
        parts.append(Table(title, ("initcall",), columns, tuple(rows), heading=title))
    return parts


def _render_units(shown: Sequence[CellResult]) -> list[Node]:
    """Lists the slowest systemd units of every image, as means over the trials that name them."""
    parts: list[Node] = []
    for result in shown:
        found = list_facts(result.good_trials, StartedUnits)
        if not found:
            continue
        seconds: dict[str, list[float]] = {}
        for units in found:
            for unit in units.slowest:
                seconds.setdefault(unit.name, []).append(unit.seconds)
        ordered = sorted(seconds.items(), key=lambda item: -fmean(item[1]))[:_MOST_CALLS]
        count, settled = fmean(units.count for units in found), fmean(units.settled_s for units in found)
        title = f"Slowest units of {result.cell.id} ({count:.0f}; all had started after {settled:.3g} s)"
        rows = []
        for name, times in ordered:
            rows.append(Row(RowName((name,)), (make_figure_cell(f"{1e3 * fmean(times):.0f}"),)))
        columns = (Column("ms", (Align.POINT,)),)
        parts.append(Table(title, ("unit",), columns, tuple(rows), heading=title))
    return parts
