"""Where the time of starts goes: for each cell a bar of its phases, and the slowest of its kernel's initcalls."""

import itertools
from collections.abc import Mapping, Sequence
from html import escape
from statistics import fmean
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from guestmark.report import figures
from guestmark.report.rows import Names, plain_table, taken
from guestmark.stats.analysis import CellResult, WorkloadResult
from guestmark.workloads.boot.metrics import AGENT, PHASES, TOTAL

INITCALLS = "initcalls"  # a fact of trials whose kernel was made to say how long each took
_LETTERS = "VFEKMRAWPX"  # of the phases in their order
_COLOURS = (
    "blue",
    "cyan",
    "magenta",
    "green",
    "yellow",
    "red",
    "bright_blue",
    "white",
    "bright_magenta",
    "bright_black",
)
_FILLS = (
    "#4c78a8",
    "#72b7b2",
    "#b279a2",
    "#54a24b",
    "#eeca3b",
    "#e45756",
    "#9ecae9",
    "#bab0ac",
    "#d6a5c9",
    "#79706e",
)
_SHORTEST_BAR = 16
_MOST_CALLS = 10


def phases(result: CellResult) -> list[float]:
    """Mean seconds of each of `PHASES` in a cell; 0 for those it does not have. All 0 where there are none."""
    return [result.summary[metric.name].mean if metric.name in result.summary else 0.0 for metric in PHASES]


def _with_phases(workload: WorkloadResult) -> list[CellResult]:
    """The cells whose starts were told apart: a peer's may not be."""
    return [one for one in workload.shown if AGENT.name in one.summary and any(phases(one))]


def split(seconds: Sequence[float], largest: float, width: int) -> list[int]:
    """How many of `width` characters each phase gets, where `largest` seconds take all of them.

    Ends are rounded, not lengths, so that bars are as long as they should be.
    """
    ends, at = [0], 0.0
    for one in seconds:
        at += one
        ends.append(round(at / largest * width) if largest > 0 else 0)
    return [end - start for start, end in itertools.pairwise(ends)]


def stacked(workload: WorkloadResult, names: Names) -> list[RenderableType]:
    """A bar for each cell, and what its letters mean. Empty for workloads that measure no phases."""
    shown = _with_phases(workload)
    if not shown:
        return []
    sums = [sum(phases(one)) for one in shown]
    unit = figures.table_unit("s", sums)
    said = figures.aligned(
        [figures.number(each / unit.size, figures.decimals(None, each / unit.size)) for each in sums]
    )
    columns = [*names.columns(shown, names.width // 2), [f"sum, {unit.name}", *said]]
    room = max(_SHORTEST_BAR, names.width - taken(columns))
    table = plain_table()
    for column in columns:
        table.add_column(column[0], no_wrap=True, overflow="ellipsis")
    table.add_column("", no_wrap=True, width=room)
    for row, result in enumerate(shown, start=1):
        bar = Text()
        for letter, colour, count in zip(
            _LETTERS, _COLOURS, split(phases(result), max(sums), room), strict=True
        ):
            bar.append(letter * count, style=f"black on {colour}")
        table.add_row(*(column[row] for column in columns), bar)
    return [table, _legend(shown), *_unlike_total(shown), Text(), *_initcalls(shown)]


def _legend(shown: Sequence[CellResult]) -> Text:
    used = [any(phases(one)[number] for one in shown) for number in range(len(PHASES))]
    legend = Text(style="dim", overflow="fold")
    for letter, metric, there in zip(_LETTERS, PHASES, used, strict=True):
        if there:
            legend.append(f"{letter}\N{NO-BREAK SPACE}{metric.name.removesuffix('_s')}  ")
    legend.rstrip()
    return legend


def _unlike_total(shown: Sequence[CellResult]) -> list[Text]:
    """Cells whose phases are those of another start than their total."""
    found = [
        one.cell.id
        for one in shown
        if TOTAL.name in one.summary and abs(sum(phases(one)) / one.summary[TOTAL.name].mean - 1) > 0.02
    ]
    said = f"phases of {', '.join(found)} are those of a second start, which was traced"
    return [Text(said, style="dim", overflow="fold")] if found else []


def _initcalls(shown: Sequence[CellResult]) -> list[RenderableType]:
    """The slowest initcalls of every cell that has them, means over its trials."""
    parts: list[RenderableType] = []
    for result in shown:
        found = [trial.attestation[INITCALLS] for trial in result.trials if INITCALLS in trial.attestation]
        if not found:
            continue
        count, seconds = (fmean(one[what] for one in found) for what in ("count", "seconds"))
        parts.append(
            Text(f"Slowest initcalls of {result.cell.id} ({count:.0f}, {seconds:.3g} s in all)", style="bold")
        )
        table = plain_table()
        table.add_column("initcall", no_wrap=True, overflow="ellipsis")
        table.add_column("ms", justify="right", no_wrap=True)
        for name, mean in slowest(found)[:_MOST_CALLS]:
            table.add_row(Text(name), f"{1e3 * mean:.1f}")
        parts += [table, Text()]
    return parts


def slowest(found: Sequence[Mapping[str, Any]]) -> list[tuple[str, float]]:
    """Initcalls with their mean seconds, slowest first; one that a trial does not name was not slow there: it is 0."""
    sums: dict[str, float] = {}
    for one in found:
        for call in one["slowest"]:
            sums[call["name"]] = sums.get(call["name"], 0.0) + call["seconds"]
    return sorted(((name, total / len(found)) for name, total in sums.items()), key=lambda call: -call[1])


def drawn(workload: WorkloadResult) -> str:
    """The bars as SVG for the page of a run; empty for workloads that measure no phases."""
    shown = _with_phases(workload)
    if not shown:
        return ""
    largest = max(sum(phases(one)) for one in shown)
    left, right, height = 220, 90, 34
    scale = (900 - left - right) / largest
    parts = []
    for row, result in enumerate(shown):
        name = result.cell.id if len(result.cell.id) <= 28 else result.cell.id[:27] + "…"
        parts.append(f'<text x="0" y="{row * height + 22}">{escape(name)}</text>')
        at = float(left)
        for metric, fill, seconds in zip(PHASES, _FILLS, phases(result), strict=True):
            tip = f"{metric.name.removesuffix('_s')} {seconds:.3f} s"
            parts.append(
                f'<rect x="{at:.1f}" y="{row * height + 6}" width="{seconds * scale:.1f}" height="22" fill="{fill}">'
                f"<title>{tip}</title></rect>"
            )
            at += seconds * scale
        parts.append(f'<text x="{at + 6:.1f}" y="{row * height + 22}">{sum(phases(result)):.3g} s</text>')
    keys = "  ".join(
        f'<tspan fill="{fill}">■</tspan> {metric.name.removesuffix("_s")}'
        for number, (metric, fill) in enumerate(zip(PHASES, _FILLS, strict=True))
        if any(phases(one)[number] for one in shown)
    )
    bottom = len(shown) * height
    parts.append(f'<text x="0" y="{bottom + 18}">{keys}</text>')
    label = "phases of start and end"
    return f'<svg viewBox="0 0 900 {bottom + 26}" role="img" aria-label="{label}">{"".join(parts)}</svg>'
