"""Counts of the hypervisor's events in each iteration."""

from collections.abc import Iterable, Mapping, Sequence

from guestmark.core.findings import Counted
from guestmark.ledger.model import StoredRun
from guestmark.page import figures
from guestmark.page.nodes import Bullets, Node
from guestmark.page.text import Inline, Span, Tone, line, spans
from guestmark.platforms.counters import COLUMN_MEANINGS, COLUMN_NAMES, describe_kinds
from guestmark.stats.analysis import WorkloadResult
from guestmark.workloads.syscalls.sections import average_calls


def make_nodes(workload: WorkloadResult, run: StoredRun) -> Sequence[Node]:
    """Return a line for each cell with counts; nothing if each system call has a row of its own."""
    items: list[Inline] = []
    for result in workload.shown_cells:
        if average_calls(result):
            return []
        facts = (trial.facts.find_fact(Counted) for trial in result.trials)
        means = _mean_counts(found.each for found in facts if found is not None)
        counts = []
        for counter, name in COLUMN_NAMES.items():
            if means.get(counter):
                counts.append(f"{figures.format_number(means[counter], 0)} {COLUMN_MEANINGS[name]}")
        if counts:
            kinds = describe_kinds(means)
            detail = f" ({kinds})" if kinds else ""
            items.append(spans(Span(f"{result.cell.id}: ", Tone.STRONG), f"{', '.join(counts)}{detail}"))
    return [Bullets(line("In each iteration:", Tone.STRONG), tuple(items))] if items else []


def _mean_counts(of_trials: Iterable[Mapping[str, float]]) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for counts in of_trials:
        for name, value in counts.items():
            values.setdefault(name, []).append(value)
    return {name: sum(each) / len(each) for name, each in values.items()}
