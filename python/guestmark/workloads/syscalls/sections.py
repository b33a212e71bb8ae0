"""The report's part on system calls: a row for each call, with what the hypervisor did meanwhile."""

import itertools
from collections.abc import Callable, Mapping, Sequence

from guestmark.ledger.model import StoredRun
from guestmark.page import figures
from guestmark.page.nodes import Bullets, Node
from guestmark.page.tables import Align, Cell, Column, Row, RowName, Table, make_figure_cell
from guestmark.page.text import Inline, Span, Tone, line, spans
from guestmark.platforms.counters import COLUMN_MEANINGS, COLUMN_NAMES, KVM_PREFIX, describe_kinds
from guestmark.stats.analysis import CellResult, WorkloadResult
from guestmark.workloads.common.facts import list_facts, pair_with_cells
from guestmark.workloads.syscalls import Syscalls

_ABSENT = make_figure_cell("–")


def render_calls(workload: WorkloadResult, run: StoredRun) -> Sequence[Node]:
    """Renders nanoseconds and counts of each system call, averaged over a cell's good trials; nothing without any."""
    found = pair_with_cells(workload, average_calls)
    if not found:
        return []
    names = list(dict.fromkeys(itertools.chain.from_iterable(calls for _, calls in found)))
    titles = _choose_titles([result for result, _ in found])
    columns: list[Column] = []
    cells: list[list[Cell]] = []
    used = set()
    for (_, calls), title in zip(found, titles, strict=True):
        columns.append(Column(f"{title}, ns", (Align.RIGHT,)))
        cells.append(_build_column(names, calls, "ns", _format_significant))
        for counter, heading in COLUMN_NAMES.items():
            if any(counter in call for call in calls.values()):
                used.add(heading)
                columns.append(Column(f"{heading}/op", (Align.POINT,)))
                cells.append(_build_column(names, calls, counter, _format_count))
    rows = []
    for name, row in zip(names, zip(*cells, strict=True), strict=True):
        rows.append(Row(RowName((name,)), row))
    legend = "; ".join(f"{name}: {text}" for name, text in COLUMN_MEANINGS.items() if name in used)
    table = Table(
        "Time and counted events of each system call",
        ("",),
        tuple(columns),
        tuple(rows),
        divisible=True,
        legend=(line(legend),) if legend else (),
        heading="For each call:",
    )
    exits: list[Inline] = []
    for result, calls in found:
        exits += _describe_exits(result, calls)
    return [table, Bullets((), tuple(exits))] if exits else [table]


def _choose_titles(results: Sequence[CellResult]) -> list[str]:
    # If each platform has one cell, its name is a shorter heading than the cell's id.
    platforms = [str(result.cell.platform) for result in results]
    if len(set(platforms)) == len(results):
        return platforms
    return [result.cell.id for result in results]


def _build_column(
    names: Sequence[str],
    calls: Mapping[str, Mapping[str, float]],
    counter: str,
    formatted: Callable[[float], str],
) -> list[Cell]:
    column = []
    for name in names:
        value = calls.get(name, {}).get(counter)
        column.append(_ABSENT if value is None else make_figure_cell(formatted(value)))
    return column


def average_calls(result: CellResult) -> dict[str, dict[str, float]]:
    """Returns, by call, `ns` and each counter per operation, averaged over the good trials that have them."""
    sums: dict[str, dict[str, list[float]]] = {}
    for found in list_facts(result.good_trials, Syscalls):
        for name, call in (found.calls or {}).items():
            into = sums.setdefault(name, {})
            for counter, value in {"ns": call.median_ns, **call.per_operation}.items():
                into.setdefault(counter, []).append(value)
    averages = {}
    for name, into in sums.items():
        averages[name] = {counter: sum(values) / len(values) for counter, values in into.items()}
    return averages


def _describe_exits(result: CellResult, calls: Mapping[str, Mapping[str, float]]) -> list[Inline]:
    """Returns a sentence on the reasons for KVM's exits, summed over one call of each kind."""
    totals: dict[str, float] = {}
    for call in calls.values():
        for counter, value in call.items():
            if counter.startswith(KVM_PREFIX):
                totals[counter] = totals.get(counter, 0.0) + value
    kinds = describe_kinds(totals)
    if not kinds:
        return []
    every = figures.format_number(totals["kvm_exits"], 1)
    return [
        spans(
            Span(f"{result.cell.id}: ", Tone.STRONG),
            f"KVM counted {every} exits for one call of each kind, including {kinds}",
        )
    ]


def _format_significant(value: float) -> str:
    return figures.format_number(value, max(0, min(2, figures.count_decimals(None, value))))


def _format_count(value: float) -> str:
    decimals = 1
    if value < 10:
        decimals = 2
    if value < 0.1:
        decimals = 3
    return figures.format_number(value, decimals)
