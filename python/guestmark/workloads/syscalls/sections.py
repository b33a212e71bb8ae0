"""What the report says of system calls: one row for each, with what the hypervisor did meanwhile."""

from collections.abc import Mapping, Sequence

from guestmark.ledger.model import StoredRun
from guestmark.page import figures
from guestmark.page.nodes import Bullets, Node
from guestmark.page.tables import Align, Cell, Column, Row, RowName, Table, figure_cell
from guestmark.page.text import Inline, Span, Tone, line, spans
from guestmark.platforms.counters import COLUMN_MEANINGS, COLUMN_NAMES, KVM_PREFIX, describe_kinds
from guestmark.stats.analysis import CellResult, WorkloadResult
from guestmark.workloads.syscalls import Syscalls


def render_calls(workload: WorkloadResult, run: StoredRun) -> Sequence[Node]:
    """Renders nanoseconds and counts of each system call, averaged over a cell's good trials; nothing without any."""
    found = [(result, each) for result in workload.shown_cells if (each := average_calls(result))]
    if not found:
        return []
    names = list(dict.fromkeys(name for _, calls in found for name in calls))
    platforms = [result.cell.platform for result, _ in found]
    titles = platforms if len(set(platforms)) == len(found) else [result.cell.id for result, _ in found]
    columns: list[Column] = []
    cells: list[list[Cell]] = []
    used = set()
    for (_, calls), title in zip(found, titles, strict=True):
        columns.append(Column(f"{title}, ns", (Align.RIGHT,)))
        cells.append(
            [
                figure_cell(_format_significant(calls[name]["ns"])) if name in calls else figure_cell("–")
                for name in names
            ]
        )
        for counter, heading in COLUMN_NAMES.items():
            if any(counter in call for call in calls.values()):
                used.add(heading)
                counts = [calls.get(name, {}).get(counter) for name in names]
                columns.append(Column(f"{heading}/op", (Align.POINT,)))
                cells.append(
                    [
                        figure_cell("–") if count is None else figure_cell(_format_count(count))
                        for count in counts
                    ]
                )
    rows = tuple(
        Row(RowName((name,)), tuple(column[position] for column in cells))
        for position, name in enumerate(names)
    )
    legend = "; ".join(f"{name}: {text}" for name, text in COLUMN_MEANINGS.items() if name in used)
    kinds = tuple(sentence for result, calls in found for sentence in _describe_exits(result, calls))
    return [
        Table(
            "Time and counted events of each system call",
            ("",),
            tuple(columns),
            rows,
            divisible=True,
            legend=(line(legend),) if legend else (),
            heading="For each call:",
        ),
        *([Bullets((), kinds)] if kinds else []),
    ]


def average_calls(result: CellResult) -> dict[str, dict[str, float]]:
    """Returns, by call, `ns` and each counter per operation, averaged over the good trials that have them."""
    sums: dict[str, dict[str, list[float]]] = {}
    for trial in result.trials:
        found = trial.facts.find_fact(Syscalls)
        for name, call in ((found and found.calls) or {}).items():
            into = sums.setdefault(name, {})
            for counter, value in {"ns": call.median_ns, **call.per_operation}.items():
                into.setdefault(counter, []).append(value)
    return {
        name: {counter: sum(values) / len(values) for counter, values in into.items()}
        for name, into in sums.items()
    }


def _describe_exits(result: CellResult, calls: Mapping[str, Mapping[str, float]]) -> list[Inline]:
    """Says what KVM's exits were for, in a sentence, over one of each call."""
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
            f"of {every} exits for one of each call, KVM counted {kinds}",
        )
    ]


def _format_significant(value: float) -> str:
    return figures.format_number(value, max(0, min(2, figures.count_decimals(None, value))))


def _format_count(value: float) -> str:
    return figures.format_number(value, 3 if value < 0.1 else 2 if value < 10 else 1)
