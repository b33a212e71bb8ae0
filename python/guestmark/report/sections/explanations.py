"""Why it takes its time: what the hypervisor did meanwhile."""

from collections.abc import Mapping, Sequence

from guestmark.core.findings import Counted
from guestmark.ledger.model import StoredRun
from guestmark.page import figures
from guestmark.page.nodes import Bullets, Node
from guestmark.page.text import Inline, Span, Tone, line, spans
from guestmark.platforms.counters import COLUMN_MEANINGS, COLUMN_NAMES, describe_kinds
from guestmark.stats.analysis import WorkloadResult
from guestmark.workloads.syscalls.sections import calls_of


def counted(workload: WorkloadResult, run: StoredRun) -> Sequence[Node]:
    """Sentences of what was counted in each iteration; nothing where nothing was, or each call has its own row."""
    items: list[Inline] = []
    for result in workload.shown_cells:
        if calls_of(result):
            return []
        averages = _averages(
            [found.each for trial in result.trials if (found := trial.facts.of(Counted)) is not None]
        )
        counts = [
            f"{figures.number(averages[counter], 0)} {COLUMN_MEANINGS[name]}"
            for counter, name in COLUMN_NAMES.items()
            if averages.get(counter)
        ]
        if counts:
            kinds = describe_kinds(averages)
            said = ", ".join(counts) + (f" ({kinds})" if kinds else "")
            items.append(spans(Span(f"{result.cell.id}: ", Tone.STRONG), said))
    return [Bullets(line("In each iteration:", Tone.STRONG), tuple(items))] if items else []


def _averages(found: Sequence[Mapping[str, float]]) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for counts in found:
        for name, value in counts.items():
            values.setdefault(name, []).append(value)
    return {name: sum(each) / len(each) for name, each in values.items()}
