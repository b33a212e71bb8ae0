"""The closing sentences of a report: what can be concluded, and what cannot."""

from collections.abc import Mapping, Sequence

from guestmark.core.metric import Metric
from guestmark.core.model import boots_any_machine
from guestmark.core.units import join_names
from guestmark.page import figures
from guestmark.page.claims import Claim
from guestmark.page.names import name_in_sentences
from guestmark.page.nodes import Bullets, Node, Note, NoteKind, Paragraph
from guestmark.page.text import Inline, Span, Tone, line, spans
from guestmark.report.sections import earlier_runs, nested
from guestmark.report.sections.backend_conclusions import list_backend_conclusions
from guestmark.report.sections.filesystem_conclusions import list_filesystem_conclusions
from guestmark.stats.analysis import Analysis, CellResult, WorkloadResult
from guestmark.stats.compare import Comparison, Verdict, label_verdict
from guestmark.stats.sensitivity import bound_missed_share
from guestmark.stats.tails import SHARE_MARGIN, CellRuns

_OPPOSITE = {
    "faster": "slower",
    "slower": "faster",
    "less": "more",
    "more": "less",
    "better": "worse",
    "worse": "better",
}
_SLOW_RUN_WORDS = {
    Verdict.SLOWER: "more slow runs",
    Verdict.FASTER: "fewer slow runs",
    Verdict.NO_DIFFERENCE: f"shares within {figures.format_percent(SHARE_MARGIN)} of each other",
    Verdict.INCONCLUSIVE: "too few to call",
}
_MOST_NAMED = 3  # cells; if there are more, only their number is given
_Compared = Sequence[tuple[CellResult, Comparison]]


def make_conclusion(analysis: Analysis) -> list[Node]:
    """Return conclusions about baselines, earlier runs, the cost of nesting, backends and filesystems.

    Empty if nothing was compared.
    """
    nodes = list_workload_conclusions(analysis)
    nodes += earlier_runs.make_nodes(analysis)
    nodes += nested.make_tables(analysis)
    nodes += list_backend_conclusions(analysis)

    if not analysis.plan.questions:
        nodes += list_filesystem_conclusions(analysis)
    return nodes


def list_workload_conclusions(analysis: Analysis) -> list[Node]:
    """Return for each workload how the baseline compares with every cell in the primary metric."""
    nodes: list[Node] = []
    for workload in analysis.workloads:
        conclusion = _list_conclusions_of_workload(workload, analysis.plan.policy.margin)
        if conclusion and len(analysis.workloads) > 1:
            nodes.append(Paragraph(line(workload.title, Tone.STRONG)))
        nodes += conclusion
    return nodes


def _list_conclusions_of_workload(workload: WorkloadResult, margin: float) -> list[Node]:
    baseline = workload.baseline
    if not workload.metrics or baseline is None:
        return []
    metric, names = workload.metrics[0], name_in_sentences(workload)
    compared = []
    for result in workload.shown_cells:
        if metric.name in result.comparison:
            compared.append((result, result.comparison[metric.name]))
    nodes: list[Node] = []
    if differing := [pair for pair in compared if pair[1].differs]:
        nodes.append(_describe_factors(baseline, differing, metric, names))
    if same := [result for result, found in compared if found.verdict is Verdict.NO_DIFFERENCE]:
        claim = Claim.EQUAL.format(
            baseline=names[baseline.cell.id],
            margin=figures.format_percent(margin),
            cells=", ".join(names[result.cell.id] for result in same),
        )
        nodes.append(Paragraph(line(claim)))
    if alike := [result for result, found in compared if found.alike]:
        nodes.append(_describe_alike(workload, baseline, alike, margin))
    nodes += make_undecided_notes(compared, names)
    nodes += [node for node, _ in describe_slow_runs(workload, baseline)]
    return nodes


def make_undecided_notes(compared: _Compared, names: Mapping[str, str]) -> list[Note]:
    """Return a line for each reason why cells could not be told from the baseline; many cells are only counted."""
    cells: dict[str, list[str]] = {}
    for result, comparison in compared:
        if comparison.is_open:
            cells.setdefault(comparison.reason, []).append(names[result.cell.id])
    notes = []
    for reason, unclear in cells.items():
        rows = join_names(unclear)
        if len(unclear) > _MOST_NAMED:
            count = "all" if len(unclear) == len(compared) else f"{len(unclear)} of"
            rows = f"{count} {len(compared)} rows"
        text = spans(Span("Inconclusive: ", Tone.UNCLEAR), f"{rows} – {reason}")
        notes.append(Note(text, NoteKind.WARNING))
    return notes


def _describe_alike(
    workload: WorkloadResult, baseline: CellResult, alike: Sequence[CellResult], margin: float
) -> Paragraph:
    """Return the cells whose typical run does not differ, and which rare events so few starts or runs may miss."""
    names = name_in_sentences(workload)
    boots = boots_any_machine(result.cell for result in workload.cells)
    claim = Claim.ALIKE.format(
        baseline=names[baseline.cell.id],
        margin=figures.format_percent(margin),
        cells=", ".join(names[result.cell.id] for result in alike),
        rare=figures.format_percent(bound_missed_share(workload, alike)),
        units="starts" if boots else "runs",
    )
    return Paragraph(line(claim))


def describe_slow_runs(workload: WorkloadResult, baseline: CellResult) -> list[tuple[Node, Verdict]]:
    """Return where runs took much longer than is typical of their cell, and whether more often than on the baseline.

    Cells with the same counts and the same verdict share a sentence.
    """
    groups: dict[tuple[str, str, Verdict], list[str]] = {}
    names = name_in_sentences(workload)
    # Each sentence has the baseline's slow runs beside those of another cell.
    others = [result for result in workload.shown_cells if result is not baseline]
    for result in others:
        if result.answers is None:
            continue
        slow = result.answers.slow
        if slow is not None and (slow.cell.slow or slow.baseline.slow):
            of_baseline = _count_slow(slow.baseline, names[baseline.cell.id])
            of_cells = _count_slow(slow.cell, "{}")
            groups.setdefault((of_baseline, of_cells, slow.verdict), []).append(names[result.cell.id])
    nodes: list[tuple[Node, Verdict]] = []
    for (of_baseline, of_cells, verdict), cells in groups.items():
        everywhere = len(cells) == len(others) > _MOST_NAMED
        where = f"each of the {len(cells)} others" if everywhere else ", ".join(cells)
        claim = Claim.SLOW_RUNS.format(
            baseline=of_baseline, cells=of_cells.format(where), word=_SLOW_RUN_WORDS[verdict]
        )
        nodes.append((Paragraph(line(claim)), verdict))
    return nodes


def _count_slow(runs: CellRuns, where: str) -> str:
    longest = f", {runs.over_twice} over twice as long" if runs.over_twice else ""
    return f"{runs.slow} of {runs.iterations} in {where}{longest}"


def _describe_factors(
    baseline: CellResult, differing: _Compared, metric: Metric, names: Mapping[str, str]
) -> Bullets:
    """Return how many times faster or slower the baseline is than each cell, the smallest factor first."""
    rows = []
    for result, comparison in differing:
        size, ci = figures.turn_ratio_above_one(comparison.ratio or 1.0, comparison.ci)
        factor = figures.format_ratio(size, ci).removeprefix("×")
        rows.append((size, factor, comparison.verdict, names[result.cell.id]))
    # Padding to one width aligns the factors.
    room = max(len(factor) for _, factor, _, _ in rows)
    items: list[Inline] = []
    for _, factor, verdict, name in sorted(rows, key=lambda row: row[0]):
        word = _OPPOSITE[label_verdict(verdict, metric)]
        tone = Tone.FASTER if verdict is Verdict.SLOWER else Tone.SLOWER
        items.append(
            spans(Span(f"{factor:>{room}}", tone), Claim.DIFFERS.format(word=word), Span(name, Tone.NAME))
        )
    verb = f" ({figures.name_metric(metric)}) was"
    if label_verdict(Verdict.FASTER, metric) == "faster":
        verb = " ran"
    return Bullets(spans(Span(names[baseline.cell.id], Tone.NAME), verb), tuple(items))
