"""What stands on the screen first: a row for each cell, what limits it, and where the rest is. About ten lines."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from guestmark.core.metric import Metric
from guestmark.core.model import CellStatus, RunState, Trial
from guestmark.core.units import counted, format_duration, listed
from guestmark.ledger.model import StoredRun
from guestmark.page import figures
from guestmark.page.names import row_names, spoken
from guestmark.page.nodes import Command, Node, Note, NoteKind, Page, Part, Section
from guestmark.page.tables import Align, Cell, Column, Row, Table, figure, words
from guestmark.page.text import Inline, Span, Tone, inert, line, spans
from guestmark.report.commands import resume_command
from guestmark.report.sections import (
    answers,
    compared,
    concluded,
    gates,
    imported,
    of_kind,
    page,
    troubles,
    validity,
)
from guestmark.report.sections.conclusion import slow_runs, undecided
from guestmark.report.sections.durability import durability, of_disk
from guestmark.report.sections.results import ESTIMATE, estimate
from guestmark.report.sections.verdicts import tone, word
from guestmark.stats.analysis import Analysis, CellResult, WorkloadResult
from guestmark.stats.compare import Comparison, Estimand, Verdict, label_verdict

_WIDE, _WIDEST = 100, 120  # columns from which there is room for the range, and for processor times
_PROCESSOR = ("user_s", "system_s")
_NAMES = 4  # columns that name a row; with more, workloads have tables of their own
_RAGGED = 12  # columns that a line may lose to a word that does not fit
_REMARKS = 3  # lines of trouble and of slow runs; the rest is in the details


def answer(run: StoredRun, analysis: Analysis, *, width: int, latest: bool) -> Page:
    """The answer for a screen of `width` columns; `latest`: the run is the newest of its ledger.

    What a race of configurations found, and workloads that are not compared, are shown whole. If every workload of the
    run explains its figures (phases of starts, counts of system calls), that is part of the answer.
    """
    if run.plan.context.tune is not None:
        return page(run, analysis, published=False, environment=False, details=False)
    sections = [] if run.origin is None else [imported(run, run.origin, whole=False)]
    if said := answers.nodes(analysis):
        title = run.plan.title or run.plan.name
        asked = title in (question.ask for question in run.plan.questions)
        sections.append(Section(Part.CONCLUSION, title, tuple(said), titled=not asked))
    explained = all(of_kind(workload, run) for workload in analysis.workloads)
    for alike in _in_one_table(analysis.workloads):
        sections.append(_result(alike, run, width, explained=explained))
    kept = gates.nodes(gates.judged(analysis), analysis, run)
    closing = [*kept, *_limit(analysis, width), *_closing(analysis, run, latest=latest)]
    sections.append(Section(Part.FOOTER, "About this run", tuple(closing), titled=False))
    return Page(run.plan.title or run.plan.name, run.id, tuple(sections))


def then_and_now(run: StoredRun, analysis: Analysis, *, width: int, latest: bool) -> Page:
    """A published experiment repeated, on a screen: its questions with today's answers, and the published ratios.

    Rows that nothing was published about are in the answers alone.
    """
    from guestmark.report.sections import published

    title = run.plan.title or run.plan.name
    sections = [Section(Part.CONCLUSION, title, tuple(answers.nodes(analysis, briefly=True)))]
    if (table := published.overview(analysis)) is not None:
        sections.append(Section(Part.WORKLOAD, "Then and now", (table,), titled=False))
    closing = [*_limit(analysis, width, lines=1), *_closing(analysis, run, latest=latest)]
    sections.append(Section(Part.FOOTER, "About this run", tuple(closing), titled=False))
    return Page(title, run.id, tuple(sections))


def _in_one_table(workloads: Sequence[WorkloadResult]) -> list[list[WorkloadResult]]:
    """The workloads, those together that are measured by one metric and whose names have room in one table."""
    groups: list[list[WorkloadResult]] = []
    for workload in workloads:
        joined = [*groups[-1], workload] if groups else [workload]
        if len(joined) > 1 and all(compared(each) and each.metrics for each in joined):
            alike = len({each.metrics[0] for each in joined}) == 1
            if alike and len(row_names(workload, _shown(joined))[0]) <= _NAMES:
                groups[-1] = joined
                continue
        groups.append([workload])
    return groups


def _result(workloads: Sequence[WorkloadResult], run: StoredRun, width: int, *, explained: bool) -> Section:
    wrong = [node for workload in workloads for node in troubles(workload)][:_REMARKS]
    first, title = workloads[0], listed(workload.title for workload in workloads)
    if not compared(first) or not first.metrics:
        shown = [
            node
            for node in of_kind(first, run)
            if not isinstance(node, Note) or node.kind is not NoteKind.SMALL
        ]
        return Section(Part.WORKLOAD, title, (*shown, *wrong, *concluded(first, run)))
    several = len(workloads) > 1
    remarks = (node for each in workloads for node in _said(each, f"{each.title}, " if several else ""))
    said = [*_undecided(workloads), *remarks][:_REMARKS]
    why = [node for workload in workloads for node in of_kind(workload, run)] if explained else []
    return Section(Part.WORKLOAD, title, (_table(workloads, width), *said, *why, *wrong))


def _undecided(workloads: Sequence[WorkloadResult]) -> list[Note]:
    """Why rows could not be told from the baseline; in a table of several workloads they go by the workload."""
    pairs = [
        (result, result.comparison[metric.name])
        for workload in workloads
        for metric in workload.metrics[:1]
        for result in _shown([workload])
        if workload.baseline is not None and metric.name in result.comparison
    ]
    if len(workloads) == 1:
        return undecided(pairs, spoken(workloads[0]))
    return undecided(pairs, {result.cell.id: each.title for each in workloads for result in each.cells})


def _said(workload: WorkloadResult, of: str) -> list[Node]:
    said: list[Node] = []
    if workload.baseline is not None:
        said += [node for node, verdict in slow_runs(workload, workload.baseline) if verdict in _CLAIMS]
    return [*said, *_totals(workload, of)]


def _shown(workloads: Sequence[WorkloadResult]) -> list[CellResult]:
    return [
        result
        for workload in workloads
        for result in workload.shown_cells
        if result.cell.null_of is None and result.status is not CellStatus.UNUSABLE
    ]


_CLAIMS = {Verdict.FASTER, Verdict.SLOWER}


def _table(workloads: Sequence[WorkloadResult], width: int) -> Table:
    workload, shown = workloads[0], _shown(workloads)
    metric = workload.metrics[0]
    alone = len(shown) == 1
    summaries = [result.summary.get(metric.name) for result in shown]
    unit = figures.table_unit(metric.unit, [summary.typical for summary in summaries if summary])
    longest = {
        id(each): max((_middle(result, metric) for result in _shown([each])), default=0.0)
        for each in workloads
    }
    bars = [
        _middle(result, metric) / (longest[id(each)] or 1.0)
        for each in workloads
        for result in _shown([each])
    ]
    times = [each for name in _PROCESSOR for each in workload.metrics if each.name == name]
    headings, names = row_names(workload, shown)
    spread = alone and len(summaries) == 1 and summaries[0] is not None
    columns = [Column(f"{figures.heading(metric, unit)}{' (mean ± σ)' if spread else ''}", ESTIMATE)]
    cells = [
        [_spread(result, metric, unit) if spread else estimate(result, metric, unit, Tone.ERROR)]
        for result in shown
    ]
    if alone or width >= _WIDE:
        columns.append(
            Column("min … max" if spread else "lowest … highest", (Align.POINT, Align.LEFT, Align.POINT))
        )
        _append(cells, [_range(result, metric, unit, spread=spread) for result in shown])
    if alone or width >= _WIDEST:
        own = figures.fitting_unit("s", [_middle(result, each) for each in times for result in shown])
        for each in times:
            columns.append(Column(figures.heading(each, own), (Align.POINT,)))
            _append(cells, [_typical(result, each, own) for result in shown])
    if not alone:
        columns.append(Column("", (Align.POINT, Align.LEFT)))
        _append(cells, [_verdict(result, metric) for result in shown])
    if any(durability(result) for result in shown):
        columns.append(Column("durability"))
        _append(cells, [words(durability(result)) for result in shown])
    if any(of_disk(result) for result in shown):
        columns.append(Column("its disk"))
        _append(cells, [words(of_disk(result)) for result in shown])
    if not alone:
        columns.append(Column("", bar=True))
        _append(cells, [Cell(bar=share or None) for share in bars])
    rows = [
        Row(
            name,
            tuple(of_row),
            strong=result.cell.baseline and not alone,
            soft=metric.name not in result.summary,
        )
        for result, name, of_row in zip(shown, names, cells, strict=True)
    ]
    of = ", ".join(each.title for each in workloads)
    caption = f"{figures.heading(metric, unit)} of {of}, with ratios to the baseline"
    return Table(caption, headings, tuple(columns), tuple(rows))


def _append(cells: list[list[Cell]], column: Sequence[Cell]) -> None:
    for row, cell in zip(cells, column, strict=True):
        row.append(cell)


def _middle(result: CellResult, metric: Metric) -> float:
    summary = result.summary.get(metric.name)
    return summary.typical if summary else 0.0


def _typical(result: CellResult, metric: Metric, unit: figures.Unit) -> Cell:
    summary = result.summary.get(metric.name)
    return figure(figures.estimate(summary.typical, summary.typical_ci, unit)[0]) if summary else Cell()


def _spread(result: CellResult, metric: Metric, unit: figures.Unit) -> Cell:
    """Mean and standard deviation of every single execution, as hyperfine has them."""
    values = [value / unit.size for trial in result.trials for value in _values(trial, metric)]
    mean = statistics.fmean(values)
    sigma = statistics.stdev(values) if len(values) > 1 else None
    places = figures.decimals(sigma, mean)
    if sigma is None:
        return figure(figures.number(mean, places))
    return figure(figures.number(mean, places), "±", figures.number(sigma, places))


def _range(result: CellResult, metric: Metric, unit: figures.Unit, *, spread: bool) -> Cell:
    values = [value for trial in result.trials for value in _values(trial, metric)]
    summary = result.summary.get(metric.name)
    if not values or summary is None:
        return Cell()
    ends = summary.typical_ci
    half = None if ends is None else (ends[1] - ends[0]) / 2 / unit.size
    if spread and len(values) > 1:  # as many digits as beside σ
        half = statistics.stdev(values) / unit.size
    places = figures.decimals(half, summary.typical / unit.size)
    return figure(
        figures.number(min(values) / unit.size, places), "…", figures.number(max(values) / unit.size, places)
    )


def _values(trial: Trial, metric: Metric) -> Sequence[float]:
    """All iterations, or the one value where a trial has no more."""
    for measurement in trial.measurements:
        if measurement.metric.name == metric.name:
            return measurement.iterations or (measurement.value,)
    return ()


def _verdict(result: CellResult, metric: Metric) -> Cell:
    """`3.43 times slower [3.34, 3.64]`: always the way round that gives a figure above 1."""
    comparison = result.comparison.get(metric.name)
    if result.cell.baseline:
        return words("baseline")
    if comparison is None or comparison.ratio is None:
        return Cell()
    if comparison.is_bounded:
        return words(word(comparison, metric), tone(comparison))
    if comparison.verdict not in _CLAIMS:
        said = f"{word(comparison, metric)}{_interval(comparison.ratio, comparison.ci)}"
        return words(said, tone(comparison))
    return Cell(tuple(_times(comparison, metric)), words=True)


def _times(comparison: Comparison, metric: Metric) -> Inline:
    ratio, ci = comparison.ratio or 1.0, comparison.ci
    if ratio < 1:
        ratio, ci = 1 / ratio, None if ci is None or ci[0] <= 0 else (1 / ci[1], 1 / ci[0])
    shown = figures.number(ratio, figures.ratio_decimals(ratio, ci))
    said = f"{shown} times {label_verdict(comparison.verdict, metric)}"
    return (Span(said, tone(comparison)), Span(_interval(ratio, ci).strip()))


def _interval(ratio: float, ci: tuple[float, float] | None) -> str:
    _, bracket, inside = figures.ratio(ratio, ci).partition("[")
    return f" [{inside}" if bracket else ""


def _totals(workload: WorkloadResult, of: str) -> list[Node]:
    """Totals and first runs that answer otherwise than the typical run; `of` names the workload among several."""
    metric = workload.metrics[0]
    nodes: list[Node] = []
    for result in workload.shown_cells:
        if result.answers is None:
            continue
        differing = {Estimand.TOTAL: result.answers.total, Estimand.FIRST: result.answers.first}
        for estimand, comparison in differing.items():
            apart = estimand in result.answers.differing_questions
            if apart and comparison is not None and comparison.verdict in _CLAIMS:
                # No interval of so few runs holds a mean that rare events decide.
                limit = [" in the runs measured"] if estimand is Estimand.TOTAL else None
                claim, *interval = _spaced(_times(comparison, metric))
                said = spans(
                    f"{estimand.value.capitalize()} of {of}{spoken(workload)[result.cell.id]}: ",
                    claim,
                    *(interval if limit is None else limit),
                )
                nodes.append(Note(said, NoteKind.WARNING))
    return nodes


def _spaced(text: Inline) -> list[Span]:
    first, *others = text
    return [first, *(Span(f" {span.text}", span.tone) for span in others if span.text)]


def _limit(analysis: Analysis, width: int, *, lines: int = 2) -> list[Node]:
    """The one thing that limits the figures most, in so many `lines` at most; how many more there are.

    A sentence that has no room loses what is in brackets, and only then its last words.
    """
    found = [note for note in validity.lines(analysis, whole=False) if note.kind is not NoteKind.SMALL]
    if not found:
        return []
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    label_span, *rest = found[0].text
    said = inert("".join(span.text for span in rest)).partition(";")[0].partition(". ")[0]
    room = lines * width - len(label_span.text) - len(more) - (_RAGGED if lines > 1 else 0)
    if len(said) > room:
        said = said.partition(" (")[0]
    if len(said) > room:
        said = f"{said[: room - 1].rsplit(' ', 1)[0]} …"
    return [Note(spans(label_span, f"{said}{more}"), found[0].kind)]


def _closing(analysis: Analysis, run: StoredRun, *, latest: bool) -> list[Node]:
    """How much was measured, in how long, and how to see more or go on."""
    trials = [trial for result in analysis.cells for trial in result.trials]
    if not any(result.summary for result in analysis.cells):
        nothing: list[Node] = [Note(line("Nothing was measured", Tone.ERROR), NoteKind.ERROR)]
        if run.state is not RunState.STOPPED:
            return nothing
        again = resume_command(run, f"--blocks {run.plan.policy.min_blocks}")
        return [*nothing, Command("The time was up; continue", again)]
    made = counted(analysis.blocks, "block")
    if analysis.failed:
        made += f", {analysis.failed} of {counted(analysis.trials, 'trial')} failed"
    spent = format_duration(run.plan.context.elapsed_s or sum(trial.duration_s for trial in trials))
    shown = "guestmark show --details" if latest else f"guestmark show {run.id} --details"
    going_on = run.state not in {RunState.COMPLETE, RunState.FAILED, RunState.STOPPED}
    nodes: list[Node] = [Note(line(f"{made}, {spent}; more: {shown}"))]
    policy = run.plan.policy
    if run.state is RunState.STOPPED and policy.enough_s is not None and analysis.blocks < policy.min_blocks:
        nodes.insert(
            0, Note(line(f"Not yet: time for {analysis.blocks} of {policy.min_blocks} blocks", Tone.UNCLEAR))
        )
        nodes.append(Command("Go on", resume_command(run, f"--blocks {policy.min_blocks}")))
    if going_on:
        nodes.append(Command("Continue", resume_command(run)))
    return nodes
