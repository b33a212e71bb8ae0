"""The first screen of a result, about ten lines: a row for each cell, what limits it, and where to find the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from guestmark.core.findings import IgnoredStatuses
from guestmark.core.metric import Metric
from guestmark.core.metric_spec import SYSTEM, USER
from guestmark.core.model import CellStatus, RunState
from guestmark.core.units import format_count, format_duration, join_names
from guestmark.ledger.model import StoredRun
from guestmark.page import figures
from guestmark.page.names import name_in_sentences, name_rows
from guestmark.page.nodes import Command, Node, Note, NoteKind, Page, Part, Section
from guestmark.page.tables import Align, Cell, Table, TableBuilder, make_figure_cell, make_word_cell
from guestmark.page.text import Inline, Span, Tone, join_plain_text, line, make_inert, spans
from guestmark.report.commands import format_resume_command
from guestmark.report.sections import gate_outcomes, published, question_answers, validity
from guestmark.report.sections.conclusion import describe_slow_runs, make_undecided_notes
from guestmark.report.sections.results import (
    ESTIMATE,
    add_durability_columns,
    find_baseline_rows,
    find_typical_value,
    find_unmeasured_rows,
    make_estimate_cell,
)
from guestmark.report.sections.verdict_words import choose_verdict_tone, format_verdict
from guestmark.report.sections.workloads import (
    conclude_uncompared_workload,
    is_compared,
    list_failures,
    make_kind_nodes,
    make_origin_section,
)
from guestmark.stats.analysis import Analysis, CellResult, WorkloadResult
from guestmark.stats.compare import Comparison, Estimand, label_verdict
from guestmark.stats.executions import Executions, collect_executions
from guestmark.stats.questions import QuestionAnswer, Ranking, answer_plan_questions

# Widths of a terminal from which there is room for the range, and for processor times.
_WIDE, _WIDEST = 100, 120
_PROCESSOR_TIMES = (USER.name, SYSTEM.name)
# Workloads share a table only if at most this many columns name its rows.
_MOST_NAMES = 4
# Columns that a folded line may leave empty at its end, because the next word does not fit.
_RAGGED = 12
# Lines of failures, and of slow runs; `--details` has the rest.
_MOST_REMARKS = 3
_ENDED = {RunState.COMPLETE, RunState.FAILED, RunState.STOPPED}


@dataclass(frozen=True, slots=True)
class Extent:
    """How much of a run the short report shows; None means all of it."""

    # Nodes that explain figures, of each table; without their small print.
    explanations: int | None = None
    # Answers in fewer words.
    brief: bool = False
    # Rows of each table, and tables.
    rows: int | None = None
    tables: int | None = None
    # Nodes of the answers.
    answers: int | None = None

    @property
    def leading_nodes(self) -> int | None:
        """The number of nodes to show if the first one states the result, so that it is always kept."""
        if self.explanations is None:
            return None
        return max(self.explanations, 1)


WHOLE = Extent()


def make_short_report(
    run: StoredRun, analysis: Analysis, *, width: int, latest: bool, extent: Extent = WHOLE
) -> Page:
    """Return the answer for a screen of `width` columns; `latest` is set if the run is the ledger's newest.

    A race of configurations, and workloads that are not compared, are shown whole. If every workload of the run
    explains its figures (phases of starts, counts of system calls), that is part of the answer.
    """
    # A race has no baseline, so it has no rows to compare.
    if run.plan.context.tune is not None:
        return _make_race_report(run, analysis, width=width, latest=latest, extent=extent)
    title = run.plan.title or run.plan.name
    sections = []
    if run.origin is not None:
        sections.append(make_origin_section(run, run.origin, whole=False))
    if answers := question_answers.group_nodes(answer_plan_questions(analysis), brief=extent.brief):
        asked = title in (question.ask for question in run.plan.questions)
        told = _cut_answers(answers, extent.answers)
        sections.append(Section(Part.CONCLUSION, title, told, titled=not asked))
    # Explanations of some workloads alone would bury the answers of the others.
    explained = all(make_kind_nodes(workload, run) for workload in analysis.workloads)
    tables = _group_into_tables(analysis.workloads)
    for group in tables[: extent.tables]:
        sections.append(_make_result_section(group, run, width, extent, explained=explained))
    if extent.tables is not None and (left := len(tables[extent.tables :])):
        more = Note(line(f"{format_count(left, 'table')} of figures: --details"))
        sections.append(Section(Part.WORKLOAD, "Left out", (more,), titled=False))
    gates = gate_outcomes.make_nodes(gate_outcomes.judge_own_gates(analysis), analysis, run)
    closing = [*gates, *_make_main_limit(analysis, width), *_make_closing_nodes(analysis, run, latest=latest)]
    sections.append(_make_closing_section(closing))
    return Page(title, run.id, tuple(sections))


def _make_race_report(
    run: StoredRun, analysis: Analysis, *, width: int, latest: bool, extent: Extent
) -> Page:
    """Return the race as in the full report, or the first nodes of each section with their first rows."""
    # Only a race needs the sections of a full report, which are slow to import.
    from guestmark.report.full_report import make_page

    page = make_page(run, analysis, with_published=False, with_environment=False, details=False)
    sections = []
    for section in page.sections:
        # The closing lines name the main limit, and the details say how it was measured.
        if section.part in {Part.FOOTER, Part.VALIDITY}:
            continue
        nodes = section.nodes
        if extent != WHOLE:
            nodes = _shorten_nodes(nodes, extent.rows)
        # Even the shortest report names the cells that are left.
        sections.append(replace(section, nodes=nodes[: extent.leading_nodes], key=None))
    closing = [*_make_main_limit(analysis, width), *_make_closing_nodes(analysis, run, latest=latest)]
    return replace(page, sections=(*sections, _make_closing_section(closing)))


def _cut_answers(groups: Sequence[Sequence[Node]], most: int | None) -> tuple[Node, ...]:
    """Return at most `most` nodes, without questions that lose their answers, and the number of answers left out."""
    if most is None or sum(map(len, groups)) <= most:
        return tuple(chain.from_iterable(groups))
    kept: list[Node] = []
    left = 0
    for group in groups:
        room = most - len(kept)
        if left or room < min(len(group), 2):
            room = 0
        kept += group[:room]
        left += len(group[room:])
        # The question itself, printed above its answers, does not count as an answer.
        if len(group) > 1 and not room:
            left -= 1
    return (*kept, Note(line(f"{format_count(left, 'more answer')}: --details")))


def make_then_and_now(run: StoredRun, analysis: Analysis, *, width: int, latest: bool) -> Page:
    """Return a published experiment repeated, for a screen: questions with today's answers, and published ratios.

    Cells without published figures are in the answers alone.
    """
    title = run.plan.title or run.plan.name
    answers = answer_plan_questions(analysis)
    nodes = question_answers.make_nodes(answers, brief=True)
    sections = [Section(Part.CONCLUSION, title, tuple(nodes))]
    table = published.make_overview(analysis)
    if table is not None:
        sections.append(Section(Part.WORKLOAD, "Then and now", (table,), titled=False))
    closing = [
        *_list_first_failures(analysis.workloads, _find_told_misses(answers)),
        *_make_main_limit(analysis, width),
        *_make_closing_nodes(analysis, run, latest=latest),
    ]
    return Page(title, run.id, (*sections, _make_closing_section(closing)))


def _find_told_misses(answers: Sequence[QuestionAnswer]) -> set[str]:
    """Return the ids of cells that an answer misses; it names them, with the reason."""
    told = set()
    for finding in chain.from_iterable(answer.findings for answer in answers):
        if isinstance(finding, Ranking):
            told |= {result.cell.id for result in finding.missing}
    return told


def _list_first_failures(workloads: Sequence[WorkloadResult], told: Collection[str] = ()) -> list[Node]:
    failures: list[Node] = []
    for workload in workloads:
        failures += list_failures(workload, told)
    return failures[:_MOST_REMARKS]


def _make_closing_section(nodes: Sequence[Node]) -> Section:
    return Section(Part.FOOTER, "About this run", tuple(nodes), titled=False)


def _group_into_tables(workloads: Sequence[WorkloadResult]) -> list[list[WorkloadResult]]:
    """Group neighbours that are measured by one metric and whose names have room in one table."""
    groups: list[list[WorkloadResult]] = []
    for workload in workloads:
        joined = [*groups[-1], workload] if groups else [workload]
        if len(joined) > 1 and _fit_into_one_table(joined):
            groups[-1] = joined
        else:
            groups.append([workload])
    return groups


def _fit_into_one_table(workloads: Sequence[WorkloadResult]) -> bool:
    if not all(is_compared(workload) and workload.metrics for workload in workloads):
        return False
    headings, _ = name_rows(workloads[-1], _list_shown_cells(workloads))
    return len({workload.metrics[0] for workload in workloads}) == 1 and len(headings) <= _MOST_NAMES


def _make_result_section(
    workloads: Sequence[WorkloadResult], run: StoredRun, width: int, extent: Extent, *, explained: bool
) -> Section:
    failures = _list_first_failures(workloads)
    first, title = workloads[0], join_names(workload.title for workload in workloads)
    if not is_compared(first) or not first.metrics:
        nodes = _shorten_nodes(make_kind_nodes(first, run), extent.rows)
        conclusion = conclude_uncompared_workload(first, run)
        return Section(Part.WORKLOAD, title, (*nodes[: extent.leading_nodes], *failures, *conclusion))
    remarks: list[Node] = [*_list_ignored_failures(workloads), *_list_undecided_notes(workloads)]
    explanations: Sequence[Node] = ()
    for workload in workloads:
        prefix = f"{workload.title}, " if len(workloads) > 1 else ""
        remarks += _list_claims_beside_typical(workload, prefix)
        if explained:
            explanations = (*explanations, *make_kind_nodes(workload, run))
    if extent.explanations is not None:
        explanations = _shorten_nodes(explanations, extent.rows)[: extent.explanations]
    table = _cut_rows(_ResultTable(workloads, width).build(), extent.rows)
    return Section(Part.WORKLOAD, title, (table, *remarks[:_MOST_REMARKS], *explanations, *failures))


def _list_ignored_failures(workloads: Sequence[WorkloadResult]) -> list[Node]:
    """Return a warning for each cell whose command ended with a status that means failure and was ignored."""
    nodes: list[Node] = []
    names: dict[str, str] = {}
    for workload in workloads:
        names |= name_in_sentences(workload)
    for result in _list_shown_cells(workloads):
        ignored = []
        for status, count in _count_ignored_statuses(result).most_common():
            ignored.append(f"{status} ({format_count(count, 'run')})")
        if ignored:
            text = f"{names[result.cell.id]}: failures were ignored, with exit status {', '.join(ignored)}"
            nodes.append(Note(line(text), NoteKind.WARNING))
    return nodes


def _count_ignored_statuses(result: CellResult) -> Counter[str]:
    counts: Counter[str] = Counter()
    for trial in result.trials:
        fact = trial.facts.find_fact(IgnoredStatuses)
        if fact is not None:
            counts.update(fact.each)
    return counts


def _shorten_nodes(nodes: Sequence[Node], rows: int | None) -> tuple[Node, ...]:
    """Return the nodes without small print, and of each table at most so many rows."""
    shortened = []
    for node in nodes:
        if not _is_small_print(node):
            shortened.append(_cut_rows(node, rows))
    return tuple(shortened)


def _cut_rows(node: Node, most: int | None) -> Node:
    """Return the table with its first rows, and how many more there are; other nodes as they are."""
    if not isinstance(node, Table) or most is None or len(node.rows) <= most:
        return node
    more = line(f"{format_count(len(node.rows) - most, 'more row')}: --details")
    return replace(node, rows=node.rows[:most], legend=(*node.legend, more))


def _is_small_print(node: Node) -> bool:
    return isinstance(node, Note) and node.kind is NoteKind.SMALL


def _list_shown_cells(workloads: Sequence[WorkloadResult]) -> list[CellResult]:
    """Return the cells that have a row: no copies, which only show the noise, and no cells that cannot be measured."""
    shown = []
    for workload in workloads:
        for result in workload.shown_cells:
            if result.cell.null_of is None and result.status is not CellStatus.UNUSABLE:
                shown.append(result)
    return shown


# --- the table ----------------------------------------------------------------------------------------------


class _ResultTable:
    """The table of workloads that share a metric. A cell alone has mean, σ and range, as hyperfine shows them."""

    def __init__(self, workloads: Sequence[WorkloadResult], width: int) -> None:
        self._workloads = workloads
        self._width = width
        self._metric = workloads[0].metrics[0]
        self._shown = _list_shown_cells(workloads)
        self._alone = len(self._shown) == 1
        # One unit for all rows, so that figures can be compared by eye.
        values = [find_typical_value(result, self._metric) for result in self._shown]
        self._unit = figures.choose_table_unit(self._metric.unit, values)
        self._table = TableBuilder(*name_rows(workloads[0], self._shown))

    def build(self) -> Table:
        """Return the table, with as many columns as the screen has room for."""
        if self._alone and self._metric.name in self._shown[0].summary:
            self._add_executions(self._shown[0])
        else:
            self._add_estimates()
        if self._alone or self._width >= _WIDEST:
            self._add_processor_times()
        if not self._alone:
            verdicts = [_make_times_cell(result, self._metric) for result in self._shown]
            self._table.add("", verdicts, (Align.POINT, Align.LEFT))
        add_durability_columns(self._table, self._shown)
        strong = []
        if not self._alone:
            self._add_bars()
            strong = find_baseline_rows(self._shown)
        titles = ", ".join(workload.title for workload in self._workloads)
        caption = f"{self._heading} of {titles}, with ratios to the baseline"
        return self._table.build(caption, strong=strong, soft=find_unmeasured_rows(self._shown, self._metric))

    @property
    def _heading(self) -> str:
        return figures.format_column_heading(self._metric, self._unit)

    def _add_executions(self, result: CellResult) -> None:
        executions = collect_executions(result.trials, self._metric.name)
        mean, span = Cell(), Cell()
        if executions is not None:
            size, sigma = self._unit.size, executions.deviation
            if sigma is not None:
                sigma /= size
            places = figures.count_decimals(sigma, executions.mean / size)
            pieces = [figures.format_number(executions.mean / size, places)]
            if sigma is not None:
                pieces += ["±", figures.format_number(sigma, places)]
            mean = make_figure_cell(*pieces)
            span = self._make_range_cell(result, executions, sigma)
        self._table.add(f"{self._heading} (mean ± σ)", [mean], ESTIMATE)
        self._table.add("min … max", [span], ESTIMATE)

    def _add_estimates(self) -> None:
        cells = [make_estimate_cell(result, self._metric, self._unit, Tone.ERROR) for result in self._shown]
        self._table.add(self._heading, cells, ESTIMATE)
        if self._alone or self._width >= _WIDE:
            ranges = []
            for result in self._shown:
                executions = collect_executions(result.trials, self._metric.name)
                ranges.append(self._make_range_cell(result, executions))
            self._table.add("lowest … highest", ranges, ESTIMATE)

    def _make_range_cell(
        self, result: CellResult, executions: Executions | None, half: float | None = None
    ) -> Cell:
        summary = result.summary.get(self._metric.name)
        if summary is None or executions is None:
            return Cell()
        size = self._unit.size
        if half is None and summary.typical_ci is not None:
            half = (summary.typical_ci[1] - summary.typical_ci[0]) / 2 / size
        places = figures.count_decimals(half, summary.typical / size)
        low, high = min(executions.values) / size, max(executions.values) / size
        return make_figure_cell(figures.format_number(low, places), "…", figures.format_number(high, places))

    def _add_processor_times(self) -> None:
        by_name = {metric.name: metric for metric in self._workloads[0].metrics}
        metrics = [by_name[name] for name in _PROCESSOR_TIMES if name in by_name]
        values = []
        for metric in metrics:
            values += [find_typical_value(result, metric) for result in self._shown]
        unit = figures.choose_table_unit("s", values)
        for metric in metrics:
            cells = []
            for result in self._shown:
                cell = Cell()
                if (summary := result.summary.get(metric.name)) is not None:
                    mean, _ = figures.format_estimate(summary.typical, summary.typical_ci, unit)
                    cell = make_figure_cell(mean)
                cells.append(cell)
            self._table.add(figures.format_column_heading(metric, unit), cells, (Align.POINT,))

    def _add_bars(self) -> None:
        cells = []
        for workload in self._workloads:
            values = []
            for result in _list_shown_cells([workload]):
                values.append(find_typical_value(result, self._metric) or 0.0)
            # Bars are relative to the longest of their own workload.
            longest = max(values, default=0.0) or 1.0
            cells += [Cell(bar=value / longest or None) for value in values]
        self._table.add("", cells, bar=True)


def _make_times_cell(result: CellResult, metric: Metric) -> Cell:
    """Return `3.43 times slower [3.34, 3.64]`: always the way round that gives a figure above 1."""
    comparison = result.comparison.get(metric.name)
    if result.cell.baseline:
        return make_word_cell("baseline")
    if comparison is None or comparison.ratio is None:
        return Cell()
    if comparison.is_bounded:
        return make_word_cell(format_verdict(comparison, metric), choose_verdict_tone(comparison))
    if not comparison.differs:
        interval = _format_interval(comparison.ratio, comparison.ci)
        text = f"{format_verdict(comparison, metric)} {interval}".rstrip()
        return make_word_cell(text, choose_verdict_tone(comparison))
    return Cell(_describe_times(comparison, metric), words=True)


def _describe_times(comparison: Comparison, metric: Metric) -> Inline:
    ratio, ci = figures.turn_ratio_above_one(comparison.ratio or 1.0, comparison.ci)
    shown = figures.format_number(ratio, figures.count_ratio_decimals(ratio, ci))
    claim = Span(
        f"{shown} times {label_verdict(comparison.verdict, metric)}", choose_verdict_tone(comparison)
    )
    return (claim, Span(_format_interval(ratio, ci)))


def _format_interval(ratio: float, ci: tuple[float, float] | None) -> str:
    return "".join(figures.format_ratio_pieces(ratio, ci)[1:])


# --- remarks ------------------------------------------------------------------------------------------------


def _list_undecided_notes(workloads: Sequence[WorkloadResult]) -> list[Note]:
    """Return notes that say why rows could not be told from the baseline.

    If a table has several workloads, each is named by its title.
    """
    compared = []
    for workload in workloads:
        if workload.baseline is None or not workload.metrics:
            continue
        primary = workload.metrics[0].name
        for result in _list_shown_cells([workload]):
            if primary in result.comparison:
                compared.append((result, result.comparison[primary]))
    if len(workloads) == 1:
        return make_undecided_notes(compared, name_in_sentences(workloads[0]))
    titles: dict[str, str] = {}
    for workload in workloads:
        titles |= {result.cell.id: workload.title for result in workload.cells}
    return make_undecided_notes(compared, titles)


def _list_claims_beside_typical(workload: WorkloadResult, prefix: str) -> list[Node]:
    """Return notes on slow runs, totals and first runs whose verdict is not the typical run's.

    `prefix` names the workload among several.
    """
    nodes: list[Node] = []
    if workload.baseline is not None:
        slow_runs = describe_slow_runs(workload, workload.baseline)
        nodes += [node for node, verdict in slow_runs if verdict.is_difference]
    metric = workload.metrics[0]
    for result in workload.shown_cells:
        answers = result.answers
        if answers is None:
            continue
        for estimand, comparison in ((Estimand.TOTAL, answers.total), (Estimand.FIRST, answers.first)):
            if comparison is None or not comparison.differs or estimand not in answers.differing_questions:
                continue
            claim, interval = _describe_times(comparison, metric)
            limit = f" {interval.text}" if interval.text else ""
            # The interval does not cover the cost of events that none of these runs shows.
            if estimand is Estimand.TOTAL:
                limit += " in the runs measured"
            name = f"{estimand.value.capitalize()} of {prefix}{name_in_sentences(workload)[result.cell.id]}: "
            nodes.append(Note(spans(name, claim, limit), NoteKind.WARNING))
    return nodes


def _make_main_limit(analysis: Analysis, width: int) -> list[Node]:
    """Return what limits the figures most, in at most two lines, and how many more limits there are.

    A sentence that is too long loses what is in brackets, then its last words.
    """
    found = validity.find_main_limit(analysis)
    if found is None:
        return []
    limit, more = found
    severity, *rest = limit.text
    sentence = make_inert(join_plain_text(rest)).partition(";")[0].partition(". ")[0]
    room = 2 * width - len(severity.text) - len(more) - _RAGGED
    if len(sentence) > room:
        sentence = sentence.partition(" (")[0]
    if len(sentence) > room:
        sentence = f"{sentence[: room - 1].rsplit(' ', 1)[0]} …"
    return [Note(spans(severity, f"{sentence}{more}"), limit.kind)]


def _make_closing_nodes(analysis: Analysis, run: StoredRun, *, latest: bool) -> list[Node]:
    """Return how much was measured, how long that took, and the commands that show more or continue."""
    policy = run.plan.policy
    until_enough = f"--blocks {policy.min_blocks}"
    if not any(result.summary for result in analysis.cells):
        nodes: list[Node] = [Note(line("Nothing was measured", Tone.ERROR), NoteKind.ERROR)]
        if run.state is RunState.STOPPED:
            nodes.append(Command("Time is up; continue", format_resume_command(run, until_enough)))
        return nodes
    amount = format_count(analysis.blocks, "block")
    if analysis.failed:
        amount += f", {analysis.failed} of {format_count(analysis.trials, 'trial')} failed"
    trials = chain.from_iterable(result.trials for result in analysis.cells)
    in_trials = sum(trial.duration_s for trial in trials)
    spent = format_duration(run.plan.context.elapsed_s or in_trials)
    details = "guestmark show --details" if latest else f"guestmark show {run.id} --details"
    nodes = [Note(line(f"{amount}, {spent}; more: {details}"))]
    if run.state is RunState.STOPPED and policy.enough_s is not None and analysis.blocks < policy.min_blocks:
        early = f"Not enough yet: there was time for {analysis.blocks} of {policy.min_blocks} blocks"
        nodes.insert(0, Note(line(early, Tone.UNCLEAR)))
        nodes.append(Command("Continue", format_resume_command(run, until_enough)))
    if run.state not in _ENDED:
        nodes.append(Command("Continue", format_resume_command(run)))
    return nodes
