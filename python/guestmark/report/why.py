"""Why it takes its time: what the hypervisor did meanwhile; for system calls, one row for each call."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from guestmark.report import figures
from guestmark.report.rows import plain_table, taken
from guestmark.stats.analysis import CellResult, WorkloadResult

COUNTED = "counted"  # of all workloads' trials: what was counted in an iteration, on average
FACT = "syscalls"  # of the workload's trials: by call, how it was measured and what was counted
_COUNTS = {  # counters of `platforms.counters`, and what their columns are called
    "kvm_exits": "exits",
    "uml_stops": "stops",
    "tcg_tlb_flushes": "flushes",
    "tcg_blocks": "blocks",
}
_LEGEND = {
    "exits": "exits from the guest to KVM",
    "stops": "times that User-Mode Linux waited for a traced process to stop",
    "flushes": "flushes of an emulated TLB",
    "blocks": "blocks of code that TCG translated",
}
_PREFIX = "kvm_"
_TOLD = 0.02  # share of all exits from which a kind is told


@dataclass(frozen=True, slots=True)
class _Column:
    heading: str
    values: Sequence[str]
    whole: bool = True  # without decimal points, which would have to stand under each other

    @property
    def texts(self) -> list[str]:
        return [self.heading, *self.values]


def why_parts(workload: WorkloadResult, width: int) -> list[RenderableType]:
    """Tables of at most `width` columns: nanoseconds and counts of each call, averages over a cell's good trials.

    For other workloads, sentences of what was counted in each iteration; nothing where nothing was.
    """
    found = [(result, calls) for result in workload.shown if (calls := _calls(result))]
    if not found:
        return _counted(workload)
    names = list(dict.fromkeys(name for _, calls in found for name in calls))
    blocks = [_columns(result, calls, names) for result, calls in found]
    used = {column.heading for block in blocks for column in block}
    parts: list[RenderableType] = [Text("For each call:", style="bold")]
    platforms = [result.cell.platform for result, _ in found]
    titles = platforms if len(set(platforms)) == len(found) else [result.cell.id for result, _ in found]
    parts += _tables(_Column("", names), blocks, titles, width)
    if legend := [f"{name}: {text}" for name, text in _LEGEND.items() if name in used]:
        parts += [Text("; ".join(legend), style="dim", overflow="fold")]
    parts += [line for result, calls in found for line in _kinds(result, calls)]
    return [*parts, Text()]


def _counted(workload: WorkloadResult) -> list[RenderableType]:
    lines: list[RenderableType] = []
    for result in workload.shown:
        averages = _averages([trial.attestation.get(COUNTED, {}) for trial in result.trials])
        counts = [
            f"{figures.number(averages[counter], 0)} {_LEGEND[name]}"
            for counter, name in _COUNTS.items()
            if averages.get(counter)
        ]
        if counts:
            line = Text(f"{result.cell.id}: ", style="bold")
            kinds = _by_kind(averages)
            line.append(", ".join(counts) + (f" ({kinds})" if kinds else ""), style="not bold")
            lines.append(line)
    return [Text("In each iteration:", style="bold"), *lines, Text()] if lines else []


def _averages(found: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for one in found:
        for name, value in one.items():
            values.setdefault(name, []).append(float(value))
    return {name: sum(some) / len(some) for name, some in values.items()}


def _calls(result: CellResult) -> dict[str, dict[str, float]]:
    """By call: `ns` and each counter per operation, averaged over the good trials that have them."""
    sums: dict[str, dict[str, list[float]]] = {}
    for trial in result.trials:
        for name, call in _described(trial.attestation):
            into = sums.setdefault(name, {})
            for key, value in {"ns": call["median_ns"], **call["per_operation"]}.items():
                into.setdefault(key, []).append(float(value))
    return {
        name: {key: sum(values) / len(values) for key, values in into.items()} for name, into in sums.items()
    }


def _described(attestation: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield from attestation.get(FACT, {}).items()


def _columns(
    result: CellResult, calls: Mapping[str, Mapping[str, float]], names: Sequence[str]
) -> list[_Column]:
    times = [calls[name]["ns"] if name in calls else None for name in names]
    columns = [_Column("ns", ["–" if time is None else _significant(time) for time in times])]
    for counter, heading in _COUNTS.items():
        if any(counter in call for call in calls.values()):
            each = [calls.get(name, {}).get(counter) for name in names]
            shown = figures.aligned(["–" if one is None else _count(one) for one in each])
            columns.append(_Column(heading, shown, whole=False))
    return columns


def _tables(
    first: _Column, blocks: Sequence[Sequence[_Column]], titles: Sequence[str], width: int
) -> Iterator[Table]:
    """The cells side by side, as many as there is room for; others in further tables."""
    waiting = list(zip(titles, blocks, strict=True))
    while waiting:
        table = plain_table()
        table.add_column("")
        columns = [first]
        room = width - taken([first.texts])
        while waiting:
            title, block = waiting[0]
            headed = [
                replace(one, heading=f"{title}, {one.heading}" if at == 0 else f"{one.heading}/op")
                for at, one in enumerate(block)
            ]
            needed = taken([one.texts for one in headed])
            if len(columns) > 1 and needed > room:
                break
            columns += headed
            room -= needed
            waiting.pop(0)
        for column in columns[1:]:
            side: Literal["left", "right"] = "right" if column.whole else "left"
            table.add_column(column.heading, justify=side, no_wrap=True, overflow="ellipsis")
        for row in range(len(first.values)):
            table.add_row(*(column.values[row] for column in columns))
        yield table


def _kinds(result: CellResult, calls: Mapping[str, Mapping[str, float]]) -> list[Text]:
    """What KVM's exits were for, in a sentence, over one of each call."""
    totals: dict[str, float] = {}
    for call in calls.values():
        for counter, value in call.items():
            if counter.startswith(_PREFIX):
                totals[counter] = totals.get(counter, 0.0) + value
    kinds = _by_kind(totals)
    if not kinds:
        return []
    line = Text(f"{result.cell.id}: ", style="bold")
    every = figures.number(totals["kvm_exits"], 1)
    return [line.append(f"of {every} exits for one of each call, KVM counted {kinds}", style="not bold")]


def _by_kind(counted: Mapping[str, float]) -> str:
    """What KVM counted beside its exits: those kinds that are a fair share of them, the most frequent first."""
    every = counted.get("kvm_exits", 0.0)
    told = sorted(
        (
            (value, name.removeprefix(_PREFIX))
            for name, value in counted.items()
            if name.startswith(_PREFIX) and name != "kvm_exits" and value >= _TOLD * every > 0
        ),
        reverse=True,
    )
    return ", ".join(f"{name} {figures.number(value, int(value < 1000))}" for value, name in told)


def _significant(value: float) -> str:
    return figures.number(value, max(0, min(2, figures.decimals(None, value))))


def _count(value: float) -> str:
    return figures.number(value, 3 if value < 0.1 else 2 if value < 10 else 1)
