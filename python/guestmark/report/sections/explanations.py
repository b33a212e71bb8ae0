"""Why it takes its time: what the hypervisor did meanwhile; for system calls, one row for each call."""

from collections.abc import Mapping, Sequence

from guestmark.core.findings import Counted
from guestmark.ledger.model import StoredRun
from guestmark.page.nodes import Bullets, Node
from guestmark.page.tables import Align, Cell, Column, Row, RowName, Table, figure
from guestmark.page.text import Inline, Span, Tone, line, spans
from guestmark.report import figures
from guestmark.stats.analysis import CellResult, WorkloadResult
from guestmark.workloads.syscalls.facts import Syscalls

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


def calls(workload: WorkloadResult, run: StoredRun) -> Sequence[Node]:
    """Nanoseconds and counts of each system call, averages over a cell's good trials; nothing where none were told."""
    found = [(result, each) for result in workload.shown if (each := _calls(result))]
    if not found:
        return []
    names = list(dict.fromkeys(name for _, each in found for name in each))
    platforms = [result.cell.platform for result, _ in found]
    titles = platforms if len(set(platforms)) == len(found) else [result.cell.id for result, _ in found]
    columns: list[Column] = []
    cells: list[list[Cell]] = []
    used = set()
    for (_, each), title in zip(found, titles, strict=True):
        columns.append(Column(f"{title}, ns", (Align.RIGHT,)))
        cells.append(
            [figure(_significant(each[name]["ns"])) if name in each else figure("–") for name in names]
        )
        for counter, heading in _COUNTS.items():
            if any(counter in call for call in each.values()):
                used.add(heading)
                counts = [each.get(name, {}).get(counter) for name in names]
                columns.append(Column(f"{heading}/op", (Align.POINT,)))
                cells.append([figure("–") if count is None else figure(_count(count)) for count in counts])
    rows = tuple(
        Row(RowName((name,)), tuple(column[position] for column in cells))
        for position, name in enumerate(names)
    )
    legend = "; ".join(f"{name}: {text}" for name, text in _LEGEND.items() if name in used)
    kinds = tuple(said for result, each in found for said in _kinds(result, each))
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


def counted(workload: WorkloadResult, run: StoredRun) -> Sequence[Node]:
    """Sentences of what was counted in each iteration; nothing where nothing was, or each call has its own row."""
    items: list[Inline] = []
    for result in workload.shown:
        if _calls(result):
            return []
        averages = _averages(
            [found.each for trial in result.trials if (found := trial.facts.of(Counted)) is not None]
        )
        counts = [
            f"{figures.number(averages[counter], 0)} {_LEGEND[name]}"
            for counter, name in _COUNTS.items()
            if averages.get(counter)
        ]
        if counts:
            kinds = _by_kind(averages)
            said = ", ".join(counts) + (f" ({kinds})" if kinds else "")
            items.append(spans(Span(f"{result.cell.id}: ", Tone.STRONG), said))
    return [Bullets(line("In each iteration:", Tone.STRONG), tuple(items))] if items else []


def _averages(found: Sequence[Mapping[str, float]]) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for counts in found:
        for name, value in counts.items():
            values.setdefault(name, []).append(value)
    return {name: sum(each) / len(each) for name, each in values.items()}


def _calls(result: CellResult) -> dict[str, dict[str, float]]:
    """By call: `ns` and each counter per operation, averaged over the good trials that have them."""
    sums: dict[str, dict[str, list[float]]] = {}
    for trial in result.trials:
        found = trial.facts.of(Syscalls)
        for name, call in ((found and found.calls) or {}).items():
            into = sums.setdefault(name, {})
            for counter, value in {"ns": call.median_ns, **call.per_operation}.items():
                into.setdefault(counter, []).append(value)
    return {
        name: {counter: sum(values) / len(values) for counter, values in into.items()}
        for name, into in sums.items()
    }


def _kinds(result: CellResult, calls: Mapping[str, Mapping[str, float]]) -> list[Inline]:
    """What KVM's exits were for, in a sentence, over one of each call."""
    totals: dict[str, float] = {}
    for call in calls.values():
        for counter, value in call.items():
            if counter.startswith(_PREFIX):
                totals[counter] = totals.get(counter, 0.0) + value
    kinds = _by_kind(totals)
    if not kinds:
        return []
    every = figures.number(totals["kvm_exits"], 1)
    return [
        spans(
            Span(f"{result.cell.id}: ", Tone.STRONG),
            f"of {every} exits for one of each call, KVM counted {kinds}",
        )
    ]


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
