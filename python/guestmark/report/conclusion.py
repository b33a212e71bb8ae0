"""The closing sentences of a report: what can be said, in words, and what cannot."""

from rich.text import Text

from guestmark.core.model import Metric
from guestmark.report import figures
from guestmark.report.backends import backends
from guestmark.report.nested import nested_over_bare
from guestmark.report.shares import where_time_goes
from guestmark.stats.analysis import Analysis, CellResult, WorkloadResult
from guestmark.stats.compare import Comparison, Verdict, label

_OPPOSITE = {
    "faster": "slower",
    "slower": "faster",
    "less": "more",
    "more": "less",
    "better": "worse",
    "worse": "better",
}


def conclusion(analysis: Analysis) -> list[Text]:
    """Lines that say how the baselines did, what nesting costs, and what that says of backends; see the parts.

    Empty when nothing was compared.
    """
    parts = by_workload(analysis)
    for more in (nested_over_bare(analysis), backends(analysis)):
        parts += [Text(), *more] if more else []
    return parts


def by_workload(analysis: Analysis) -> list[Text]:
    """For each workload, how the baseline did against every cell in its primary metric; titles are bold."""
    parts: list[Text] = []
    for workload in analysis.workloads:
        lines = _sentences(workload)
        if lines and len(analysis.workloads) > 1:
            parts.append(Text(workload.title, style="bold", overflow="fold"))
        parts += [*lines, *where_time_goes(workload)]
    return parts


def _sentences(workload: WorkloadResult) -> list[Text]:
    if not workload.metrics or workload.baseline is None:
        return []
    metric = workload.metrics[0]
    compared = [
        (result, result.comparison[metric.name])
        for result in workload.shown
        if metric.name in result.comparison
    ]
    if not compared:
        return []
    lines: list[Text] = []
    differing = [pair for pair in compared if pair[1].verdict in {Verdict.FASTER, Verdict.SLOWER}]
    if differing:
        head = Text(workload.baseline.cell.id, style="bold cyan")
        head.append(
            " ran" if label(Verdict.FASTER, metric) == "faster" else f" ({metric.name}) was",
            style="not bold default",
        )
        lines.append(head)
        facts = [(result, *_factor(comparison, metric)) for result, comparison in differing]
        room = max(len(factor) for _, factor, _ in facts)
        for result, factor, word in sorted(facts, key=lambda fact: _size(fact[0], metric)):
            line = Text(
                f"  {factor:>{room}} ",
                style="bold green" if word in {"faster", "less", "better"} else "bold red",
            )
            line.append(f"times {word} than ", style="not bold default")
            line.append(result.cell.id, style="bold magenta")
            lines.append(line)
    same = [result.cell.id for result, comparison in compared if comparison.verdict is Verdict.NO_DIFFERENCE]
    if same:
        lines.append(Text(f"No difference from {workload.baseline.cell.id}: {', '.join(same)}"))
    undecided: dict[str, list[str]] = {}
    for result, comparison in compared:
        if comparison.verdict is Verdict.INCONCLUSIVE:
            undecided.setdefault(comparison.reason, []).append(result.cell.id)
    for reason, cells in undecided.items():
        line = Text("Inconclusive: ", style="yellow")
        line.append(f"{', '.join(cells)} – {reason}", style="default")
        lines.append(line)
    return lines


def _factor(comparison: Comparison, metric: Metric) -> tuple[str, str]:
    """How many times the baseline is … than the cell, as `1.05 ± 0.01`, and the word for it."""
    ratio, ci = comparison.ratio or 1.0, comparison.ci
    if ratio < 1:  # say it the way round that gives a number above 1
        ratio, ci = 1 / ratio, None if ci is None or ci[0] <= 0 else (1 / ci[1], 1 / ci[0])
    places = figures.ratio_decimals(ratio, ci)
    half = "" if ci is None else f" ± {figures.number((ci[1] - ci[0]) / 2, places)}"
    return f"{figures.number(ratio, places)}{half}", _OPPOSITE[label(comparison.verdict, metric)]


def _size(result: CellResult, metric: Metric) -> float:
    ratio = result.comparison[metric.name].ratio or 1.0
    return max(ratio, 1 / ratio)
