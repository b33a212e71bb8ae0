"""The closing sentences of a report: what can be concluded, and what cannot."""

from collections.abc import Iterable, Mapping, Sequence

from guestmark.core.metric import Metric
from guestmark.core.model import boots
from guestmark.core.units import listed
from guestmark.page import figures
from guestmark.page.claims import Claim
from guestmark.page.names import spoken
from guestmark.page.nodes import Bullets, Node, Note, NoteKind, Paragraph
from guestmark.page.text import Inline, Span, Tone, line, spans
from guestmark.report.sections import history, nested
from guestmark.report.sections.backends import backends
from guestmark.report.sections.filesystems import filesystems
from guestmark.stats.analysis import Analysis, CellResult, WorkloadResult
from guestmark.stats.compare import Comparison, Verdict, label_verdict
from guestmark.stats.tails import SHARE_MARGIN, CellRuns
from guestmark.stats.total import unseen_share

_OPPOSITE = {
    "faster": "slower",
    "slower": "faster",
    "less": "more",
    "more": "less",
    "better": "worse",
    "worse": "better",
}

_MORE_OR_FEWER = {
    Verdict.SLOWER: "more slow runs",
    Verdict.FASTER: "fewer slow runs",
    Verdict.NO_DIFFERENCE: f"shares within {figures.percent(SHARE_MARGIN)} of each other",
    Verdict.INCONCLUSIVE: "too few to call",
}
_NAMED = 3  # more cells than these are counted


def conclusion(analysis: Analysis) -> list[Node]:
    """How the baselines did, also beside earlier runs, what nesting costs, and what that says of backends and disks.

    Empty when nothing was compared.
    """
    return [
        *by_workload(analysis),
        *history.lines(analysis),
        *nested.table(analysis),
        *backends(analysis),
        *([] if analysis.plan.questions else filesystems(analysis)),
    ]


def by_workload(analysis: Analysis) -> list[Node]:
    """For each workload, how the baseline did against every cell in its primary metric."""
    nodes: list[Node] = []
    for workload in analysis.workloads:
        said = _sentences(workload, analysis.plan.policy.margin)
        if said and len(analysis.workloads) > 1:
            nodes.append(Paragraph(line(workload.title, Tone.STRONG)))
        nodes += said
    return nodes


def _sentences(workload: WorkloadResult, margin: float) -> list[Node]:
    if not workload.metrics or workload.baseline is None:
        return []
    metric, names = workload.metrics[0], spoken(workload)
    compared = [
        (result, result.comparison[metric.name])
        for result in workload.shown_cells
        if metric.name in result.comparison
    ]
    nodes: list[Node] = []
    differing = [pair for pair in compared if pair[1].differs]
    if differing:
        nodes.append(_factors(workload.baseline, differing, metric, names))
    same = [result for result, comparison in compared if comparison.verdict is Verdict.NO_DIFFERENCE]
    if same:
        shown = Claim.EQUAL.format(
            baseline=names[workload.baseline.cell.id],
            margin=figures.percent(margin),
            cells=", ".join(names[result.cell.id] for result in same),
        )
        nodes.append(Paragraph(line(shown)))
    alike = [(result, comparison) for result, comparison in compared if comparison.alike]
    if alike:
        nodes.append(_alike(workload, workload.baseline, alike, margin))
    nodes += undecided(compared, names)
    nodes += [node for node, _ in slow_runs(workload, workload.baseline)]
    return nodes


def undecided(compared: Iterable[tuple[CellResult, Comparison]], names: Mapping[str, str]) -> list[Note]:
    """A line for each reason why cells could not be told from the baseline; of many it says how many they are."""
    cells: dict[str, list[str]] = {}
    every = list(compared)
    for result, comparison in every:
        if comparison.is_undecided and not comparison.is_bounded:
            cells.setdefault(comparison.reason, []).append(names[result.cell.id])

    def said(ids: Sequence[str]) -> str:
        if len(ids) <= _NAMED:
            return listed(ids)
        return f"all {len(ids)} rows" if len(ids) == len(every) else f"{len(ids)} of {len(every)} rows"

    return [
        Note(spans(Span("Inconclusive: ", Tone.UNCLEAR), f"{said(ids)} – {reason}"), NoteKind.WARNING)
        for reason, ids in cells.items()
    ]


def _alike(
    workload: WorkloadResult,
    baseline: CellResult,
    alike: Sequence[tuple[CellResult, Comparison]],
    margin: float,
) -> Paragraph:
    """Cells whose typical run does not differ, and what so few starts (or runs, where nothing boots) cannot show."""
    names = spoken(workload)
    booted = boots(result.cell for result in workload.cells)
    seen = min(comparison.n * (1 if booted else _runs(result)) for result, comparison in alike)
    return Paragraph(
        line(
            Claim.ALIKE.format(
                baseline=names[baseline.cell.id],
                margin=figures.percent(margin),
                cells=", ".join(names[result.cell.id] for result, _ in alike),
                rare=figures.percent(unseen_share(seen)),
                units="starts" if booted else "runs",
            )
        )
    )


def _runs(result: CellResult) -> int:
    return min(
        (len(trial.measurements[0].iterations) for trial in result.trials if trial.measurements), default=1
    )


def slow_runs(workload: WorkloadResult, baseline: CellResult) -> list[tuple[Node, Verdict]]:
    """Where runs took much longer than is typical of their cell, and whether that is more often than on the baseline.

    One sentence for the cells that had as many and of which the same is said.
    """
    alike: dict[tuple[str, str, Verdict], list[str]] = {}
    names = spoken(workload)
    others = [result for result in workload.shown_cells if result is not baseline]
    for result in others:
        slow = None if result.answers is None else result.answers.slow
        if slow is not None and (slow.cell.slow or slow.baseline.slow):
            counts = _slow_in(slow.baseline, names[baseline.cell.id]), _slow_in(slow.cell, "{}")
            alike.setdefault((*counts, slow.verdict), []).append(names[result.cell.id])
    nodes: list[tuple[Node, Verdict]] = []
    for (of_baseline, counted, verdict), cells in alike.items():
        everywhere = len(cells) == len(others) > _NAMED
        where = f"each of the {len(cells)} others" if everywhere else ", ".join(cells)
        said = _MORE_OR_FEWER[verdict]
        text = Claim.SLOW_RUNS.format(baseline=of_baseline, cells=counted.format(where), word=said)
        nodes.append((Paragraph(line(text)), verdict))
    return nodes


def _slow_in(runs: CellRuns, where: str) -> str:
    longest = f", {runs.over_twice} over twice as long" if runs.over_twice else ""
    return f"{runs.slow} of {runs.iterations} in {where}{longest}"


def _factors(
    baseline: CellResult,
    differing: Sequence[tuple[CellResult, Comparison]],
    metric: Metric,
    names: Mapping[str, str],
) -> Bullets:
    facts = [(result, comparison, *_factor(comparison, metric)) for result, comparison in differing]
    room = max(len(factor) for _, _, factor, _ in facts)
    items: list[Inline] = []
    for result, comparison, factor, word in sorted(facts, key=lambda fact: _size(fact[0], metric)):
        tone = Tone.FASTER if comparison.verdict is Verdict.SLOWER else Tone.SLOWER  # of the baseline
        padded = f"{factor:>{room}}"  # stands under the others where every sign is as wide
        items.append(
            spans(Span(padded, tone), Claim.DIFFERS.format(word=word), Span(names[result.cell.id], Tone.NAME))
        )
    verb = (
        " ran" if label_verdict(Verdict.FASTER, metric) == "faster" else f" ({figures.in_prose(metric)}) was"
    )
    return Bullets(spans(Span(names[baseline.cell.id], Tone.NAME), verb), tuple(items))


def _factor(comparison: Comparison, metric: Metric) -> tuple[str, str]:
    """How many times the baseline is … than the cell, as `1.05 [1.04, 1.06]`, and the word for it."""
    ratio, ci = comparison.ratio or 1.0, comparison.ci
    if ratio < 1:  # say it the way round that gives a number above 1
        ratio, ci = 1 / ratio, None if ci is None or ci[0] <= 0 else (1 / ci[1], 1 / ci[0])
    return figures.ratio(ratio, ci).removeprefix("×"), _OPPOSITE[label_verdict(comparison.verdict, metric)]


def _size(result: CellResult, metric: Metric) -> float:
    ratio = result.comparison[metric.name].ratio or 1.0
    return max(ratio, 1 / ratio)
